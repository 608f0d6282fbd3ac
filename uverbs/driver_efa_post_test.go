package uverbs

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// TestEfaPost: each operation, by both ways of posting, is a request of the device with one doorbell for all.
func TestEfaPost(t *testing.T) {
	r := newEfaRig(t, QPOptions{MaxSendSGE: 2}, CQOptions{})
	le := binary.LittleEndian
	var wrs []SendWR
	ops := []WROpcode{WRSend, WRSendWithImm, WRRDMARead, WRRDMAWrite, WRRDMAWriteWithImm}
	for i, op := range ops {
		wr := r.to
		wr.ID, wr.Opcode, wr.Imm = uint64(i), op, 0x01020304
		wrs = append(wrs, wr)
	}
	must(t, r.qp.PostSend(wrs...))
	b := r.qp.BeginSend()
	for _, wr := range wrs {
		switch wr.Opcode {
		case WRSend:
			b.Send(wr.ID, wr.Flags)
		case WRSendWithImm:
			b.SendImm(wr.ID, wr.Flags, wr.Imm)
		case WRRDMARead:
			b.Read(wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey)
		case WRRDMAWrite:
			b.Write(wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey)
		case WRRDMAWriteWithImm:
			b.WriteImm(wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey, wr.Imm)
		}
		b.To(wr.AH, wr.RemoteQPN, wr.RemoteQKey)
		b.SGE(wr.SGL...)
	}
	must(t, b.Post())
	if n := r.bell("sq"); n != uint32(2*len(ops)) {
		t.Errorf("the doorbell says %d, want %d", n, 2*len(ops))
	}
	for i := range 2 * len(ops) {
		op := ops[i%len(ops)]
		want := map[WROpcode]byte{WRSend: 0x80, WRSendWithImm: 0x90, WRRDMARead: 0x81, WRRDMAWrite: 0x82, WRRDMAWriteWithImm: 0x92}[op]
		e, at := r.sent(i), 32
		if op >= WRRDMARead || op < WRSend {
			at = 48
			if le.Uint32(e[32:]) != 8 || le.Uint32(e[36:]) != r.to.RKey || le.Uint64(e[40:]) != r.to.RemoteAddr {
				t.Errorf("%s has the remote memory % x", op, e[32:48])
			}
		}
		if e[2] != want || le.Uint16(e[4:]) != 0x5678 || le.Uint16(e[12:]) != 0x1234 || le.Uint32(e[16:]) != r.to.RemoteQKey ||
			le.Uint32(e[at:]) != 8 || le.Uint32(e[at+4:]) != 5 || le.Uint64(e[at+8:]) != 0x1000 {
			t.Errorf("%s is % x", op, e)
		}
		if s := r.qp.sent(uint64(i % len(ops))); s == nil || s.op != op || s.qpn != 0x5678 || !strings.Contains(r.qp.request(s).String(), op.String()) {
			t.Errorf("%s is remembered as %+v", op, s)
		}
	}
}

// TestEfaRefused: the error of a request names the field, the value and the range, and nothing is posted.
func TestEfaRefused(t *testing.T) {
	r := newEfaRig(t, QPOptions{MaxSendSGE: 2, MaxSendWR: 8, MaxRecvWR: 8}, CQOptions{})
	big := func(n uint32) []SGE { return []SGE{{Length: n, LKey: 1}} }
	other := &AH{object: object{dev: &Device{}}}
	for want, change := range map[string]func(wr *SendWR){
		"SGL: the SGEs together are too long: 8929 bytes, allowed: up to 8928, the MTU of the port":               func(wr *SendWR) { wr.SGL = big(8929) },
		"SGL: the SGEs together are too long: 1048577 bytes, allowed: up to 1048576, max_rdma_size of the device": func(wr *SendWR) { wr.Opcode, wr.SGL = WRRDMAWrite, big(1<<20+1) },
		"SGL: the SGEs together are too long: 8589934590 bytes":                                                   func(wr *SendWR) { wr.Opcode, wr.SGL = WRRDMARead, append(big(1<<32-1), big(1<<32-1)...) },
		"RemoteQPN: numbers of QPs have 16 bits on this device: 65536, allowed: 0 to 65535":                       func(wr *SendWR) { wr.RemoteQPN = 1 << 16 },
		"SGL: too many SGEs for this QP: 3, allowed: up to 2":                                                     func(wr *SendWR) { wr.SGL = append(big(1), append(big(1), big(1)...)...) },
		"SGL: RDMA takes one SGE on this device":                                                                  func(wr *SendWR) { wr.Opcode, wr.SGL = WRRDMARead, append(big(1), big(1)...) },
		"SGL: an lkey has more than 24 bits":                                                                      func(wr *SendWR) { wr.SGL = []SGE{{LKey: 1 << 24}} },
		"Inline: inline data too long for this QP: 33 bytes, allowed: up to 32":                                   func(wr *SendWR) { wr.SGL, wr.Inline = nil, make([]byte, 33) },
		"Inline: inline data of a WRITE needs a QP with a MaxInline of more than 32":                              func(wr *SendWR) { wr.Opcode, wr.SGL, wr.Inline = WRRDMAWrite, nil, make([]byte, 1) },
		"Inline: inline data cannot be combined with SGEs":                                                        func(wr *SendWR) { wr.Inline = make([]byte, 1) },
		"Flags: this device has no SendFence":                                                                     func(wr *SendWR) { wr.Flags |= SendFence },
		"AH: a datagram":                                                                                          func(wr *SendWR) { wr.AH = nil },
		"AH: the AH belongs to another device":                                                                    func(wr *SendWR) { wr.AH = other },
		"Opcode: this type of QP does not support the operation: ATOMIC_FETCH_AND_ADD of a QP of type SRD":        func(wr *SendWR) { wr.Opcode = WRFetchAdd },
		"SGL: an SGE is outside its MR":                                                                           func(wr *SendWR) { wr.SGL = []SGE{{outside: true}} },
	} {
		bad := r.to
		change(&bad)
		err := r.qp.PostSend(r.to, bad)
		var p *PostError
		if !errors.As(err, &p) || p.Index != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if n := r.bell("sq"); n != 0 {
		t.Errorf("the doorbell says %d", n)
	}
	must(t, r.qp.PostSend(slices.Repeat([]SendWR{r.to}, 8)...)) // the places of those that were refused are free
	if err := r.qp.PostSend(r.to); err != ErrQueueFull {
		t.Errorf("one more: %v", err)
	}
	if err := r.qp.PostRecv(1); err == nil || !strings.Contains(err.Error(), "SGL: a receive needs at least one SGE") {
		t.Errorf("a receive without memory: %v", err)
	}
	err := r.qp.PostRecvs(RecvWR{1, big(1)}, RecvWR{2, append(big(1), big(1)...)})
	if !errors.Is(err, ErrTooManySGE) || !strings.Contains(err.Error(), "work request 1: SGL: too many SGEs for this QP: 2, allowed: up to 1") {
		t.Errorf("a receive with two SGEs: %v", err)
	}
	for i := range 8 {
		must(t, r.qp.PostRecv(uint64(i), SGE{Length: 1, LKey: 1}))
	}
	if err := r.qp.PostRecv(9, SGE{LKey: 1}); err != ErrQueueFull || r.bell("rq") != 8 {
		t.Errorf("one receive more: %v; the doorbell says %d, want 8", err, r.bell("rq"))
	}
	if sges, ok := r.dev.driver.findReceive(r.qp, 3); !ok || len(sges) != 1 || sges[0].LKey != 1 || r.dev.driver.postedRecvs(r.qp) != 8 {
		t.Errorf("receive 3 is remembered as %+v, %v; %d are posted", sges, ok, r.dev.driver.postedRecvs(r.qp))
	}
}

// TestEfaPoll: completions in another order than their requests are of the right ones, and a request without
// SendSignaled has a completion only if it fails.
func TestEfaPoll(t *testing.T) {
	r := newEfaRig(t, QPOptions{UnsolicitedWrite: true}, CQOptions{Size: 8})
	wrs := slices.Repeat([]SendWR{r.to}, 4)
	for i, op := range []WROpcode{WRSend, WRRDMARead, WRRDMAWrite, WRSendWithImm} {
		wrs[i].ID, wrs[i].Opcode = uint64(10+i), op
	}
	wrs[2].Flags, wrs[3].Flags = 0, 0
	for range 5 { // around the CQ twice
		must(t, r.qp.PostSend(wrs...))
		posted := int(r.bell("sq"))
		for _, c := range []struct {
			i      int
			status uint8
		}{{3, 10}, {1, 0}, {2, 0}, {0, 0}} {
			r.complete(1, c.status, r.qp.qpn, r.id((posted-4+c.i)%64))
		}
		want := []WC{
			{ID: 13, Status: WCRNRRetryExcErr, VendorErr: 10, Opcode: WCSend, QPN: r.qp.qpn},
			{ID: 11, Opcode: WCRDMARead, ByteLen: 8, QPN: r.qp.qpn},
			{ID: 10, Opcode: WCSend, QPN: r.qp.qpn},
		}
		got := r.poll(t)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("completions (-want +got):\n%s", diff)
		}
		if r.bell("cq") != uint32(posted) {
			t.Errorf("the doorbell of the CQ says %#x after %d", r.bell("cq"), posted)
		}
		if err := r.qp.Err(&got[0]); !strings.Contains(err.Error(), "SEND_WITH_IMM") || !strings.Contains(err.Error(), "the peer has posted no receive") || r.qp.first.Load() != nil {
			t.Errorf("the failure is %v; it is recorded as that of the QP: %v", err, r.qp.first.Load())
		}
	}
	must(t, r.qp.PostRecvs(RecvWR{20, wrs[0].SGL}, RecvWR{21, wrs[0].SGL}, RecvWR{22, wrs[0].SGL}))
	id := func(i int) uint16 { return binary.LittleEndian.Uint16(r.recv[i*16+8:]) }
	r.complete(2, 0, r.qp.qpn, id(1), 1|2<<1, 0x34, 0x12, 0x78, 0x56, 7, 0, 4, 3, 2, 1, 2, 0) // a WRITE of 0x21234 bytes
	r.complete(2, 1, r.qp.qpn, id(2))
	r.complete(2, 0, r.qp.qpn, id(0), 1|2<<1|1<<4, 6, 0, 0x34, 0x12, 7, 0, 5, 0, 0, 0) // a WRITE that needs no receive
	r.complete(2, 0, r.qp.qpn, id(0), 0, 9, 0, 0xff, 0xff, 7, 0)
	want := []WC{
		{ID: 21, Opcode: WCRecvRDMAWrite, ByteLen: 0x21234, Imm: 0x01020304, Flags: WCWithImm, QPN: r.qp.qpn, SrcQP: 7, SLID: 0x5678},
		{ID: 22, Opcode: WCRecv, Status: WCWRFlushErr, VendorErr: 1, QPN: r.qp.qpn},
		{Opcode: WCRecvRDMAWrite, ByteLen: 6, Imm: 5, Flags: WCWithImm, QPN: r.qp.qpn, SrcQP: 7, SLID: 0x1234},
		{ID: 20, Opcode: WCRecv, ByteLen: 9, QPN: r.qp.qpn, SrcQP: 7, SLID: 0xffff},
	}
	if diff := cmp.Diff(want, r.poll(t)); diff != "" {
		t.Errorf("completions of receives (-want +got):\n%s", diff)
	}
}

// TestEfaRings: a CQ of two rings is polled to the end, and completions in one ring do not keep back those in the other.
func TestEfaRings(t *testing.T) {
	f := newEfaFake()
	f.context[8] = 2
	d := value(f.open(t))(t)
	pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 8}))(t)
	qp := value(pd.CreateQP(QPOptions{Type: ib.SRD, SendCQ: cq, RecvCQ: cq}))(t)
	qp.state.Store(uint32(ib.QPRTS))
	ah := value(pd.CreateAH(AHAttr{Port: 1, GRH: GRH{DGID: ib.GID{0: 0xfe, 15: 1}}}))(t)
	wr := SendWR{Opcode: WRSend, AH: ah, Flags: SendSignaled, SGL: []SGE{{Length: 8, LKey: 5}}}
	rings, done, posted, wcs := [2][]byte{f.ring[:8*32], f.ring[8*32:]}, [2]int{}, 0, make([]WC, 8)
	put := func(ring int, status uint8) {
		wr.ID = uint64(ring)
		must(t, qp.PostSend(wr))
		f.ring, f.done = rings[ring], done[ring]
		f.complete(1, status, qp.qpn, f.id(posted%64))
		done[ring], posted = f.done, posted+1
	}
	for range 10 { // around the rings
		for _, ring := range []int{0, 0, 1, 0, 1, 1} {
			put(ring, uint8(ring))
		}
		if n, err := cq.Poll(wcs); n != 6 || err != nil || f.bell("cq") != uint32(posted) {
			t.Fatalf("%d completions, %v; the doorbell says %d, want %d", n, err, f.bell("cq"), posted)
		}
		put(0, 0)
		put(1, 0)
		both := [2]bool{}
		for range 2 {
			if n, err := cq.Poll(wcs[:1]); n != 1 || err != nil {
				t.Fatalf("%d completions, %v", n, err)
			}
			both[wcs[0].ID] = true
			put(int(wcs[0].ID), 0)
		}
		if n, err := cq.Poll(wcs); n != 2 || err != nil || !both[0] || !both[1] {
			t.Fatalf("%d completions, %v; two of %v came first", n, err, both)
		}
		cq.efa.mu.Lock()
		_, rest := cq.plainEfa(wcs)
		put(0, 0) // to both rings, one of which was looked at
		put(1, 0)
		cq.otherEfa(wcs, 0, rest)
		cq.efa.mu.Unlock()
		if n, err := cq.Poll(wcs); n != 2 || err != nil || wcs[0].Status != WCSuccess || wcs[1].Status != WCSuccess {
			t.Fatalf("%d completions, %v", n, err)
		}
	}
	must(t, qp.Close(), ah.Close(), cq.Close(), pd.Close())
}

// TestEfaStatuses: every status is one of the verbs, as libefa has it.
func TestEfaStatuses(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Size: 64})
	for status, want := range map[uint8]WCStatus{
		0: WCSuccess, 1: WCWRFlushErr, 2: WCLocQPOpErr, 3: WCLocQPOpErr, 4: WCLocQPOpErr, 5: WCLocProtErr, 6: WCLocLenErr, 7: WCRemAccessErr,
		8: WCRemAbortErr, 9: WCRemInvRDReqErr, 10: WCRNRRetryExcErr, 11: WCRemInvReqErr, 12: WCBadRespErr, 13: WCRespTimeoutErr, 14: WCRemOpErr,
		15: WCRespTimeoutErr, 16: WCGeneralErr, 18: WCRemInvReqErr, 255: WCGeneralErr,
	} {
		must(t, r.qp.PostSend(r.to))
		r.complete(1, status, r.qp.qpn, r.id(int(r.bell("sq")-1)%64))
		got := r.poll(t)
		if len(got) != 1 || got[0].Status != want || got[0].VendorErr != uint32(status) {
			t.Errorf("status %d completes as %+v, want %s", status, got, want)
			continue
		}
		text, _ := r.dev.driver.vendorText(uint32(status))
		if err := r.qp.Err(&got[0]); want != WCSuccess && (!errors.Is(err, want) || !strings.Contains(err.Error(), text)) {
			t.Errorf("status %d: %v, want %q", status, err, text)
		}
	}
}

// TestEfaAtPeer: if the peer is a QP of this program, the error of a request says what is wrong there, and only then.
func TestEfaAtPeer(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Size: 64})
	r.dev.addOpened()
	t.Cleanup(r.dev.removeOpened)
	r.port.LinkLayer, r.gids = 1, []abi.GIDEntry{{PortNum: 1}} // so that the GIDs come from the kernel, not from sysfs
	r.dev.ports.ports[1].Store(nil)
	copy(bytesOf(&r.gids[0].GID), r.to.AH.attr.GRH.DGID[:])
	r.to.RemoteQPN = r.qp.qpn
	mr := value(r.pd.RegSlice(make([]byte, 64), AccessLocalWrite|AccessRemoteRead))(t)
	read := r.to
	read.Opcode, read.RKey, read.RemoteAddr = WRRDMARead, mr.RKey(), mr.Addr()+60
	write := read
	write.Opcode, write.RemoteAddr = WRRDMAWrite, mr.Addr()
	other := write
	other.RKey++
	away, elsewhere := r.to, r.to
	away.RemoteQPN++
	elsewhere.AH = value(r.pd.CreateAH(AHAttr{Port: 1, GRH: GRH{DGID: ib.GID{0: 0xfe, 14: 1}}}))(t)
	elsewhere.AH.efa++ // the fake device gives all the same number
	for _, c := range []struct {
		status uint8
		wr     SendWR
		state  ib.QPState // of the peer
		want   string
	}{
		{10, r.to, ib.QPRTS, "the peer has 0 receives posted"},
		{7, read, ib.QPRTS, "is outside the peer's MR"},
		{7, write, ib.QPRTS, "does not have REMOTE_WRITE; its access is LOCAL_WRITE|REMOTE_READ"},
		{7, other, ib.QPRTS, "no MR and no memory window of the peer has rkey"},
		{9, r.to, ib.QPInit, "the peer's QP is in state INIT, so it does not receive; ReadyUD makes it ready"},
		{9, r.to, ib.QPRTS, "the peer's QP has the Q_Key 0x5, and RemoteQKey is 0x11111111"},
		{11, r.to, ib.QPRTS, ""},
		{10, away, ib.QPRTS, ""},
		{10, elsewhere, ib.QPRTS, ""},
	} {
		r.qp.state.Store(uint32(ib.QPRTS)) // whatever the last query has said
		r.query.QPState, r.query.QKey = uint8(c.state), 5
		must(t, r.qp.PostSend(c.wr))
		r.complete(1, c.status, r.qp.qpn, r.id(int(r.bell("sq")-1)%64))
		err := r.qp.Err(&r.poll(t)[0])
		if here := strings.Contains(err.Error(), "of this program"); here != (c.want != "") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("status %d: %v, want %q", c.status, err, c.want)
		}
	}
	must(t, mr.Close(), elsewhere.AH.Close())
}

// TestEfaHostile: a completion for nothing that was posted is an error of Poll, and no completion of another request.
func TestEfaHostile(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Size: 64})
	must(t, r.qp.PostSend(r.to), r.qp.PostRecv(5, r.to.SGL...))
	send, recv := r.id(0), binary.LittleEndian.Uint16(r.recv[8:])
	for name, put := range map[string]func(){
		"no such send":       func() { r.complete(1, 0, r.qp.qpn, send^1) },
		"no such receive":    func() { r.complete(2, 0, r.qp.qpn, recv^1) },
		"no kind":            func() { r.complete(0, 0, r.qp.qpn, send) },
		"unknown kind":       func() { r.complete(3, 0, r.qp.qpn, send) },
		"receive unasked":    func() { r.complete(2, 0, r.qp.qpn, recv, 1<<4) },
		"unknown kind again": func() { r.complete(3, 9, r.qp.qpn, recv) },
	} {
		put()
		if n, err := r.cq.Poll(make([]WC, 4)); n != 0 || !errors.Is(err, ErrCQOverrun) || !strings.Contains(err.Error(), "for no request that was posted") {
			t.Errorf("%s: %d completions, %v", name, n, err)
		}
	}
	r.complete(1, 0, r.qp.qpn+1, send) // of a QP that was closed
	r.complete(1, 0, r.qp.qpn, send)
	r.complete(1, 0, r.qp.qpn, send)
	r.complete(2, 0, r.qp.qpn, recv)
	if got := r.poll(t); len(got) != 1 || got[0].ID != 1 {
		t.Errorf("completions before an error: %+v", got)
	}
	if n, err := r.cq.Poll(make([]WC, 4)); n != 0 || !errors.Is(err, ErrCQOverrun) {
		t.Errorf("a send that completes twice: %d, %v", n, err)
	}
	if got := r.poll(t); len(got) != 1 || got[0].ID != 5 {
		t.Errorf("completions behind an error: %+v", got)
	}
}

// TestEfaReset: completions of requests from before a reset are dropped.
func TestEfaReset(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Size: 64})
	must(t, r.qp.PostSend(r.to, r.to), r.qp.PostRecv(5, r.to.SGL...))
	r.complete(1, 0, r.qp.qpn, r.id(0))
	r.complete(2, 0, r.qp.qpn, binary.LittleEndian.Uint16(r.recv[8:]))
	must(t, r.qp.Modify(QPAttr{State: ib.QPReset}, AttrState))
	if got := r.poll(t); len(got) != 0 {
		t.Errorf("after a reset there are %+v", got)
	}
	r.qp.state.Store(uint32(ib.QPRTS))
	must(t, r.qp.PostSend(r.to), r.qp.PostRecv(6, r.to.SGL...))
	if sq, rq := r.bell("sq"), r.bell("rq"); sq != 1 || rq != 1 {
		t.Errorf("the doorbells say %d and %d after a reset, want 1", sq, rq)
	}
	r.complete(1, 0, r.qp.qpn, r.id(0))
	if got := r.poll(t); len(got) != 1 {
		t.Errorf("completions after a reset: %+v", got)
	}
}

// TestEfaSameNumber: a QP that gets the number of one that is being closed has all of its completions.
func TestEfaSameNumber(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Size: 64})
	must(t, r.qp.PostSend(r.to))
	r.complete(1, 0, r.qp.qpn, r.id(0))
	r.poll(t)
	next := value(r.pd.CreateQP(QPOptions{Type: ib.SRD, SendCQ: r.cq, RecvCQ: r.cq}))(t)
	next.state.Store(uint32(ib.QPRTS))
	next.qpn = r.qp.qpn
	r.cq.qps.Store(next.qpn, next)
	for i, when := range []string{"while the other is open", "after the other was closed"} {
		must(t, next.PostSend(r.to))
		r.complete(1, 0, next.qpn, r.id(i))
		if got := r.poll(t); len(got) != 1 {
			t.Errorf("%s: %+v", when, got)
		}
		must(t, r.qp.Close())
	}
	must(t, next.Close())
	r.complete(1, 0, next.qpn, r.id(0))
	if got := r.poll(t); len(got) != 0 {
		t.Errorf("of a QP that was closed: %+v", got)
	}
}

// TestEfaArm: the doorbell of a CQ asks for an event, with the number of those that came, and Poll does not ask.
func TestEfaArm(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{Events: true})
	must(t, r.cq.Notify())
	if got := r.bell("cq"); got != 1<<31 {
		t.Errorf("the doorbell has %#x", got)
	}
	must(t, r.qp.PostSend(r.to))
	r.complete(1, 0, r.qp.qpn, r.id(0))
	r.poll(t)
	if got := r.bell("cq"); got != 1 {
		t.Errorf("after a poll the doorbell has %#x", got)
	}
	r.cq.raised()
	must(t, r.cq.NotifySolicited())
	if got := r.bell("cq"); got != 1<<31|1<<29|1 {
		t.Errorf("after an event the doorbell has %#x", got)
	}
}

// TestEfaWhole: the calls of the builder that add a whole work request write what PostSend does, for the destination of
// the last To, or have its error.
func TestEfaWhole(t *testing.T) {
	r := newEfaRig(t, QPOptions{MaxInline: 80}, CQOptions{})
	data := []byte("inline data")
	other := &AH{object: object{dev: r.dev}}
	other.efa = 0x4321
	i := 0
	same := func(wr SendWR, b *SendBuilder, add func()) {
		t.Helper()
		must(t, r.qp.PostSend(wr))
		request := func(i int) []byte { return append(slices.Clone(r.sent(2*i)), r.sent(2*i+1)...) } // of 128 bytes
		want := request(i)
		r.qp.BeginSend()
		b.To(wr.AH, wr.RemoteQPN, wr.RemoteQKey)
		add()
		if b.staged || b.wr[0].Opcode != 0 {
			t.Errorf("%s was staged", wr.Opcode)
		}
		must(t, b.Post())
		got := request(i + 1)
		got[0], want[0] = 0, 0 // the request ID
		if i += 2; !slices.Equal(got, want) {
			t.Errorf("%s of a builder is\n% x, want\n% x", wr.Opcode, got, want)
		}
	}
	for _, wr := range []SendWR{r.to, {ID: 9, Flags: 0, SGL: r.to.SGL, AH: other, RemoteQPN: 1, RemoteQKey: 2, RemoteAddr: 3, RKey: 4}} {
		b, sge := &r.qp.builder, wr.SGL[0]
		wr.Opcode = WRSend
		same(wr, b, func() { b.SendSGE(wr.ID, wr.Flags, sge) })
		wr.Opcode = WRRDMAWrite
		same(wr, b, func() { b.WriteSGE(wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey, sge) })
		wr.Opcode = WRRDMARead
		same(wr, b, func() { b.ReadSGE(wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey, sge) })
		wr.Opcode, wr.SGL, wr.Inline = WRSend, nil, data
		same(wr, b, func() { b.SendInline(wr.ID, wr.Flags, data) })
		wr.Opcode = WRRDMAWrite
		same(wr, b, func() { b.WriteInline(wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey, data) })
	}
	gone := &AH{object: object{dev: r.dev}}
	gone.closed.Store(true)
	for name, c := range map[string]struct {
		ah    *AH
		qpn   uint32
		flags SendFlags
		sge   SGE
		want  error
	}{
		"no AH": {nil, 1, 0, SGE{LKey: 1}, errNoAddress}, "closed": {gone, 1, 0, SGE{LKey: 1}, errNoAddress}, "foreign": {&AH{object: object{dev: &Device{}}}, 1, 0, SGE{LKey: 1}, errForeignAH},
		"QPN": {other, 1 << 16, 0, SGE{LKey: 1}, errQPN16}, "fence": {other, 1, SendFence, SGE{LKey: 1}, errNoFence}, "key": {other, 1, 0, SGE{LKey: 1 << 24}, errKey24},
		"long": {other, 1, 0, SGE{Length: 8929, LKey: 1}, errTooLong}, "outside": {other, 1, 0, SGE{outside: true}, ErrSGERange}, "flags": {other, 1, 1 << 7, SGE{}, errSendFlags},
	} {
		b := r.qp.BeginSend()
		b.To(r.to.AH, 1, 1)
		b.SendSGE(1, 0, r.to.SGL[0])
		b.To(c.ah, c.qpn, 1)
		b.SendSGE(2, c.flags, c.sge)
		b.SendSGE(3, 0, r.to.SGL[0])
		if p, ok := errors.AsType[*PostError](b.Post()); !ok || p.Index != 1 || !errors.Is(p, c.want) {
			t.Errorf("%s: %v, want %v", name, p, c.want)
		}
	}
	if n := r.bell("sq"); n != uint32(i) {
		t.Errorf("the doorbell says %d, want %d: requests of refused batches", n, i)
	}
	b := r.qp.BeginSend()
	b.To(other, 1, 1)
	for range 64 - i + 1 {
		b.SendSGE(1, 0, r.to.SGL[0])
	}
	if err := b.Post(); !errors.Is(err, ErrQueueFull) {
		t.Errorf("one more than there is room for: %v", err)
	}
	if b.To(other, 1, 1); b.room != 0 {
		t.Errorf("without BeginSend there is room for %d whole requests, want 0", b.room)
	}
	b.Abandon()
}

// TestEfaBuilderReset: a batch that was begun before a Reset is refused, whole requests that are added and looked for meanwhile are no
// race, and the queue is as a new one afterwards.
func TestEfaBuilderReset(t *testing.T) {
	r := newEfaRig(t, QPOptions{}, CQOptions{})
	for range 20 {
		must(t, r.qp.Modify(QPAttr{State: ib.QPReset}, AttrState))
		r.qp.state.Store(uint32(ib.QPRTS))
		b := r.qp.BeginSend()
		b.To(r.to.AH, 1, 1)
		done := make(chan error)
		go func() { done <- r.qp.Modify(QPAttr{State: ib.QPReset}, AttrState) }()
		for range 32 {
			b.SendSGE(1, 0, r.to.SGL[0])
			r.qp.sent(1)
			runtime.Gosched()
		}
		must(t, <-done)
		if err := b.Post(); !errors.Is(err, ErrState) {
			t.Fatalf("a batch from before a reset: %v", err)
		}
		r.qp.state.Store(uint32(ib.QPRTS))
		must(t, r.qp.PostSend(slices.Repeat([]SendWR{r.to}, 64)...))
		if n := r.bell("sq"); n != 64 {
			t.Fatalf("the doorbell says %d, want 64", n)
		}
	}
}

// TestEfaAllocatesNothing holds the data path to what it promises.
func TestEfaAllocatesNothing(t *testing.T) {
	r := newEfaRig(t, QPOptions{MaxSendSGE: 2}, CQOptions{})
	wcs, inline := make([]WC, 4), []byte("inline")
	recv, sent := 0, 0
	if n := testing.AllocsPerRun(100, func() {
		wr := r.to
		err := r.qp.PostSend(wr)
		wr.SGL, wr.Inline = nil, inline
		err = errors.Join(err, r.qp.PostSend(wr))
		b := r.qp.BeginSend()
		b.Send(3, SendSignaled)
		b.To(r.to.AH, 1, 2)
		b.SGE(r.to.SGL...)
		if err = errors.Join(err, b.Post(), r.qp.PostRecv(4, r.to.SGL...)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r.complete(1, 0, r.qp.qpn, r.id(sent%64))
			sent++
		}
		r.complete(2, 0, r.qp.qpn, binary.LittleEndian.Uint16(r.recv[recv%64*16+8:]))
		recv++
		if k, err := r.cq.Poll(wcs); k != 4 || err != nil {
			t.Fatal(k, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzEfaPoll: whatever is in the CQ, Poll ends and returns what a program can look at.
func FuzzEfaPoll(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3, 3, 1})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newEfaRig(t, QPOptions{MaxSendWR: 4, MaxRecvWR: 4}, CQOptions{Size: 8})
		must(t, r.qp.PostSend(r.to, r.to), r.qp.PostRecv(5, r.to.SGL...))
		for i := range r.ring[:8*32] {
			if len(b) > 0 {
				r.ring[i] = b[i%len(b)]
			}
		}
		got, wcs := 0, make([]WC, 3)
		for range 32 {
			n, err := r.cq.Poll(wcs)
			if err != nil && !errors.Is(err, ErrCQOverrun) {
				t.Fatal(err)
			}
			for i := range wcs[:n] {
				if err := r.qp.Err(&wcs[i]); (err == nil) != (wcs[i].Status == WCSuccess) || wcs[i].Opcode.String() == "" {
					t.Errorf("completion %+v, error %v", wcs[i], err)
				}
			}
			if got += n; n == 0 && err == nil {
				if got > 3 {
					t.Errorf("%d completions of 3 requests", got)
				}
				return
			}
		}
		t.Error("there is no end")
	})
}
