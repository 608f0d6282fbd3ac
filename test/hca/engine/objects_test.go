package engine

import (
	"errors"
	"strings"
	"testing"
)

// refused fails unless an error is of a kind and names a field.
func refused(t *testing.T, err error, kind Kind, field string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != kind || e.Field != field || e.Reason == "" || !strings.Contains(e.Error(), kind.String()) {
		t.Errorf("%v, want %s of field %q", err, kind, field)
	}
}

// TestCQRefusals checks that each wrong field of a CQ is named.
func TestCQRefusals(t *testing.T) {
	h := newHost(t, newFabric(t, FabricConfig{}), InfiniBand)
	cq := h.newCQ(4, 64)
	for _, c := range []struct {
		field string
		kind  Kind
		fn    func(s *CQSpec)
	}{
		{"cqe_sz", BadParam, func(s *CQSpec) { s.EntrySize = 32 }},
		{"log_cq_size", BadParam, func(s *CQSpec) { s.Log = 40 }},
		{"pas", BadParam, func(s *CQSpec) { s.Log = 9 }},
		{"pas", BadParam, func(s *CQSpec) { s.Buf.Pages = []uint64{1 << 40} }},
		{"pas", BadParam, func(s *CQSpec) { s.Buf.Pages = []uint64{s.Buf.Pages[0] + 64} }},
		{"log_page_size", BadParam, func(s *CQSpec) { s.Buf.PageSize = 1000 }},
		{"page_offset", BadParam, func(s *CQSpec) { s.Buf.Offset = 4096 }},
		{"page_offset", BadParam, func(s *CQSpec) { s.Buf.Offset = 32 }},
		{"dbr_addr", BadParam, func(s *CQSpec) { s.DBR += 4 }},
		{"dbr_addr", BadParam, func(s *CQSpec) { s.DBR = 1 << 40 }},
		{"c_eqn", BadResource, func(s *CQSpec) { s.EQN = 200 }},
	} {
		s := cq.spec()
		c.fn(&s)
		_, err := h.d.CreateCQ(s)
		refused(t, err, c.kind, c.field)
	}
	h.clean()
}

// TestQPRefusals checks that each wrong field of a QP is named.
func TestQPRefusals(t *testing.T) {
	h := newHost(t, newFabric(t, FabricConfig{}), InfiniBand)
	q := h.newQP(qpOptions{typ: RC})
	for _, c := range []struct {
		field string
		kind  Kind
		fn    func(s *QPSpec)
	}{
		{"st", BadParam, func(s *QPSpec) { s.Type = 6 }},
		{"rq_type", BadParam, func(s *QPSpec) { s.RQ = 2 }},
		{"rq_type", BadParam, func(s *QPSpec) { s.Type = XRC }},
		{"xrcd", BadResource, func(s *QPSpec) { s.Type, s.RQ, s.NoSQ = XRC, RQNone, true }},
		{"log_rq_size", BadParam, func(s *QPSpec) { s.LogRQ = 16 }},
		{"log_rq_stride", BadParam, func(s *QPSpec) { s.LogRQStride = 10 }},
		{"log_sq_size", BadParam, func(s *QPSpec) { s.LogSQ = 16 }},
		{"pas", BadParam, func(s *QPSpec) { s.LogSQ = 12 }},
		{"cqn_snd", BadResource, func(s *QPSpec) { s.SendCQ = 1 }},
		{"cqn_rcv", BadResource, func(s *QPSpec) { s.RecvCQ = 1 }},
		{"srqn_rmpn_xrqn", BadResource, func(s *QPSpec) { s.RQ, s.SRQN = RQSRQ, 1 }},
		{"pd", BadResource, func(s *QPSpec) { s.PD = 1 }},
		{"cs_req, cs_res", BadParam, func(s *QPSpec) { s.ScatterRes = 16 }},
		{"dbr_addr", BadParam, func(s *QPSpec) { s.DBR = 4 }},
	} {
		s := q.spec
		c.fn(&s)
		_, err := h.d.CreateQP(s)
		refused(t, err, c.kind, c.field)
	}
	h.clean()
}

// TestSRQRefusals checks that each wrong field of an SRQ is named.
func TestSRQRefusals(t *testing.T) {
	h := newHost(t, newFabric(t, FabricConfig{}), InfiniBand)
	srq := h.newSRQ(3, 0, 0, 0)
	for _, c := range []struct {
		field string
		kind  Kind
		fn    func(s *SRQSpec)
	}{
		{"log_wq_sz", BadParam, func(s *SRQSpec) { s.Log = 16 }},
		{"log_wq_stride", BadParam, func(s *SRQSpec) { s.LogStride = 4 }},
		{"pas", BadParam, func(s *SRQSpec) { s.Buf.Pages = nil }},
		{"dbr_addr", BadParam, func(s *SRQSpec) { s.DBR = 1 }},
		{"lwm", BadParam, func(s *SRQSpec) { s.Limit = 8 }},
		{"xrcd", BadResource, func(s *SRQSpec) { s.XRC = true }},
		{"pd", BadResource, func(s *SRQSpec) { s.PD = 1 }},
	} {
		s := srq.spec
		c.fn(&s)
		_, err := h.d.CreateSRQ(s)
		refused(t, err, c.kind, c.field)
	}
	h.clean()
}

// TestMKeyRefusals checks that each wrong field of a memory key is named.
func TestMKeyRefusals(t *testing.T) {
	h := newHost(t, newFabric(t, FabricConfig{}), InfiniBand)
	good := Buffer{Pages: pages(h.mem.alloc(4*page), 4*page), PageSize: page}
	for _, c := range []struct {
		field string
		kind  Kind
		s     MKeySpec
	}{
		{"access_mode", BadParam, MKeySpec{PD: h.pd, Mode: 4}},
		{"access", BadParam, MKeySpec{PD: h.pd, Access: 1}},
		{"log_page_size", BadParam, MKeySpec{PD: h.pd, Mode: ModeMTT, LogPageSize: 11, Length: 1, Pages: good.Pages}},
		{"len", BadParam, MKeySpec{PD: h.pd, Mode: ModeMTT, LogPageSize: 12, Start: ^uint64(0), Length: 2, Pages: good.Pages}},
		{"translations_octword_size", BadParam, MKeySpec{PD: h.pd, Mode: ModeMTT, LogPageSize: 12, Start: 1, Length: 4 * page, Pages: good.Pages}},
		{"translations_octword_size", BadParam, MKeySpec{PD: h.pd, Mode: ModeKLM, Length: 2, KLMs: []KLM{{Length: 1}}}},
		{"translations_octword_size", BadParam, MKeySpec{PD: h.pd, Mode: ModeKSM, LogPageSize: 12, Length: 4097, KLMs: []KLM{{}}}},
		{"pas", BadParam, MKeySpec{PD: h.pd, Mode: ModeMTT, LogPageSize: 12, Length: 1, Pages: []uint64{1 << 40}}},
		{"pd", BadResource, MKeySpec{PD: 1, Mode: ModePA, Length64: true}},
	} {
		_, err := h.d.CreateMKey(c.s)
		refused(t, err, c.kind, c.field)
	}
	h.clean()
}

// TestRefusals checks that each wrong field of EQs, RQs, SQs, multicast groups and GIDs is named, and
// that no verb takes the number of an object that does not exist.
func TestRefusals(t *testing.T) {
	h := newHost(t, newFabric(t, FabricConfig{}), InfiniBand)
	cq := h.newCQ(4, 64)
	good := Buffer{Pages: pages(h.mem.alloc(4*page), 4*page), PageSize: page}
	_, err := h.d.CreateEQ(EQSpec{Log: 30, Buf: good})
	refused(t, err, BadParam, "log_eq_size")
	_, err = h.d.CreateEQ(EQSpec{Log: 4})
	refused(t, err, BadParam, "log_page_size")
	_, err = h.d.CreateRQ(RQSpec{CQN: 1})
	refused(t, err, BadResource, "cqn")
	_, err = h.d.CreateRQ(RQSpec{CQN: cq.n, RMPN: 1})
	refused(t, err, BadResource, "rmpn")
	_, err = h.d.CreateRQ(RQSpec{CQN: cq.n, LogStride: 2})
	refused(t, err, BadParam, "log_wq_sz, log_wq_stride")
	_, err = h.d.CreateRQ(RQSpec{CQN: cq.n, LogStride: 6, Buf: good, DBR: cq.dbr, PD: 1})
	refused(t, err, BadResource, "pd")
	_, err = h.d.CreateSQ(SQSpec{CQN: 1, Buf: good, DBR: cq.dbr})
	refused(t, err, BadResource, "cqn")
	_, err = h.d.CreateSQ(SQSpec{CQN: cq.n, Log: 20})
	refused(t, err, BadParam, "log_wq_sz")
	_, err = h.d.CreateSQ(SQSpec{CQN: cq.n, Buf: good, DBR: cq.dbr, PD: 1})
	refused(t, err, BadResource, "pd")

	for _, err := range []error{
		h.d.DeallocPD(1), h.d.DeallocXRCD(1), h.d.DestroyEQ(1), h.d.DestroyCQ(1), h.d.DestroyMKey(1), h.d.DestroySRQ(1), h.d.DestroyQP(1),
		h.d.DestroyRQ(1), h.d.DestroySQ(1), h.d.ModerateCQ(1, 0, 0), h.d.ArmSRQ(1, 1), h.d.ModifyRQ(1, 0, 0, RQChange{}), h.d.ModifySQ(1, 0, 0, nil),
		h.d.ModifyQP(1, Rst2Init, 0, QPAttr{}), h.d.PostEQE(1, 0, 0, nil),
	} {
		refused(t, err, BadResource, "")
	}
	q := h.newQP(qpOptions{typ: RC})
	refused(t, h.d.AttachMcast([16]byte{0xff}, 1), BadResource, "qpn")
	refused(t, h.d.AttachMcast([16]byte{0xff}, q.n), BadParam, "qpn")
	u := h.newQP(qpOptions{typ: UD})
	for _, gid := range [][16]byte{{0xfe}, {10: 0xff, 11: 0xff, 12: 10, 15: 1}, {12: 239, 15: 1}} {
		refused(t, h.d.AttachMcast(gid, u.n), BadParam, "multicast_gid")
	}
	refused(t, h.d.SetGID(256, GID{}), BadIndex, "")
	h.clean()
}

// TestBusy: what is in use stays, and goes once it isn't.
func TestBusy(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	cq := h.newCQ(4, 64)
	srq := h.newSRQ(3, 0, 0, 0)
	q := h.newQP(qpOptions{typ: RC, scq: cq, rcq: cq, srq: srq})
	m := h.newMR(page, allAccess)
	refused(t, h.d.DestroyCQ(cq.n), Busy, "")
	refused(t, h.d.DestroySRQ(srq.n), Busy, "")
	refused(t, h.d.DestroyEQ(h.eq.n), Busy, "")
	refused(t, h.d.DeallocPD(h.pd), Busy, "")
	for _, fn := range []func() error{
		func() error { return h.d.DestroyQP(q.n) }, func() error { return h.d.DestroySRQ(srq.n) }, func() error { return h.d.DestroyCQ(cq.n) },
		func() error { return h.d.DestroyEQ(h.eq.n) }, func() error { return h.d.DestroyMKey(m.key >> 8) }, func() error { return h.d.DeallocPD(h.pd) },
	} {
		if err := fn(); err != nil {
			t.Error(err)
		}
	}
	h.clean()
}

// TestModifyRefused: attributes that a transition can't have.
func TestModifyRefused(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, InfiniBand)
	q := h.newQP(qpOptions{typ: RC})
	try := func(tr Transition, opt OptParam, kind Kind, field string, fn func(a *QPAttr)) {
		t.Helper()
		a := q.attr(q)
		fn(&a)
		refused(t, h.d.ModifyQP(q.n, tr, opt, a), kind, field)
	}
	try(Rst2Init, 0, BadParam, "vhca_port_num", func(a *QPAttr) { a.Primary.Port = 2 })
	try(Rst2Init, 0, BadIndex, "pkey_index", func(a *QPAttr) { a.Primary.PKeyIndex = 5 })
	try(Rst2Init, OptAltPath, BadParam, "opt_param_mask", func(a *QPAttr) {})
	try(99, 0, BadParam, "opcode", func(a *QPAttr) {})
	q.modify(Rst2Init, 0, q.attr(q))
	try(Init2RTR, 0, BadParam, "mtu", func(a *QPAttr) { a.MTU = 6 })
	try(Init2RTR, 0, BadParam, "rlid", func(a *QPAttr) { a.Primary.RLID = 0 })
	try(Init2RTR, 0, BadIndex, "src_addr_index", func(a *QPAttr) { a.Primary.GRH, a.Primary.SGIDIndex = true, 9 })
	try(Init2RTR, 0, BadParam, "log_msg_max", func(a *QPAttr) { a.LogMsgMax = 32 })
	q.modify(Init2RTR, 0, q.attr(q))
	try(RTR2RTS, 0, BadParam, "retry_count, rnr_retry", func(a *QPAttr) { a.RetryCount = 8 })
	try(RTR2RTS, OptAltPath, BadParam, "rlid", func(a *QPAttr) {})

	e := newHost(t, f, Ethernet)
	r := e.newQP(qpOptions{typ: RC})
	r.modify(Rst2Init, 0, r.attr(r))
	a := r.attr(r)
	a.Primary.RMAC = [6]byte{}
	refused(t, e.d.ModifyQP(r.n, Init2RTR, 0, a), BadParam, "rmac")
	a = r.attr(r)
	a.Primary.SGIDIndex = 5
	refused(t, e.d.ModifyQP(r.n, Init2RTR, 0, a), BadIndex, "src_addr_index")
	h.clean()
}

// TestReport: what is counted, and in which words.
func TestReport(t *testing.T) {
	p := newPair(t, InfiniBand, RC, false, qpOptions{})
	p.b.recv(p.mb.sge(0, 100))
	p.a.post(opSend, sig, 0, dataSeg(p.ma.sge(0, 10)))
	p.a.blue(opWrite, sig, 0, raddrSeg(p.mb.va, p.mb.key), inlineSeg([]byte("abc")))
	p.a.scq.arm(false)
	p.a.h.run()
	r := p.a.h.d.Report()
	if r.Opcodes["RC SEND"] != 1 || r.Opcodes["RC WRITE"] != 1 || r.Doorbells["8 bytes"] != 1 || r.Doorbells["BlueFlame"] != 1 || r.Doorbells["CQ arm"] != 1 ||
		r.CQEs["REQ"] != 2 || r.Events["COMP"] != 1 || r.Packets["sent"] != 2 || r.Total() != 0 || r.Device != "mlx5_0" {
		t.Errorf("%+v", r)
	}
	if r = p.b.h.d.Report(); r.CQEs["RESP_SEND"] != 1 || r.Packets["sent"] == 0 {
		t.Errorf("%+v", r)
	}
	var all strings.Builder
	for _, e := range append(p.a.h.traced, p.b.h.traced...) {
		all.WriteString(e.String() + "\n")
	}
	for _, want := range []string{
		"mlx5_0: QP 0x40 RC WQE 0x0: SEND index 0x0 qpn 0x40 ds 2 signaled, 10 bytes at 0x7f",
		"WRITE index 0x1 qpn 0x40 ds 3 signaled, remote 0x7f", "inline 3 bytes",
		"REQ owner 0 qpn 0x40 wqe 0x0 index 0x77 SEND 0 bytes", "RESP_SEND owner 0 qpn 0x40 wqe 0x0 index 0x77 10 bytes from 0x40",
		"armed with sn 0, solicited false, consumer 0x0", "QP 0x40 RST -> INIT: by command RST2INIT", "RQ 0x40 takes WQE 0x0", "RC ACK 0x40->0x40",
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("the trace does not say %q:\n%s", want, all.String())
			break
		}
	}
	p.a.h.d.Violate("cmd-example", "command %d", 5)
	for range 300 {
		p.a.h.d.UARRead(0, 0, 4)
	}
	provoked["uar-read"] = true
	r = p.a.h.d.Report()
	if r.Total() != 301 || len(r.Violations) != maxViolations || r.Violations[0].Text != "command 5" || r.Broken["uar-read"] != 300 {
		t.Errorf("%d violations, %d listed, %v", r.Total(), len(r.Violations), r.Broken)
	}
}
