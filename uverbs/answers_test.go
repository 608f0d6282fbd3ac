package uverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// FuzzAnswers has the kernel answer anything to the queries of QPs, ports and GIDs. The results are
// the values at the offsets of ib_user_verbs.h, texts and units are defined for every value, and a
// call that depends on an answer fails, or has done what it says.
func FuzzAnswers(f *testing.F) {
	f.Add(bytesOf(&abi.QueryQPResp{QPState: 3}), bytesOf(&abi.QueryPortResp{State: 4, GIDTblLen: 2, ActiveMTU: 3, LinkLayer: 2}), make([]byte, 64))
	f.Add(bytesOf(&abi.QueryQPResp{QPState: 255}), bytesOf(&abi.QueryPortResp{State: 4, GIDTblLen: 1<<32 - 1}), []byte{})
	f.Add([]byte{}, []byte{}, []byte{})
	f.Add(bytesOf(&abi.QueryQPResp{QPState: 2}), bytesOf(&abi.QueryPortResp{State: 4, GIDTblLen: 3, ActiveMTU: 5, LinkLayer: 2, ActiveWidth: 2, ActiveSpeed: 32}),
		sliceBytes([]abi.GIDEntry{{GID: [2]uint64{1, 2}, PortNum: 1, GIDType: 2}, {GID: [2]uint64{3, 4}, GIDIndex: 1, PortNum: 2}, {GIDIndex: 2, PortNum: 1}}))
	counting := make([]byte, 128)
	for i := range counting {
		counting[i] = byte(i + 1)
	}
	f.Add(counting, counting[:40], counting)
	f.Fuzz(func(t *testing.T, qp, port, gids []byte) {
		k := newFakeQP(t, QPOptions{})
		copy(bytesOf(&k.query), qp)
		copy(bytesOf(&k.port), port)
		k.gids = make([]abi.GIDEntry, min(len(gids)/32, int(k.port.GIDTblLen)))
		copy(sliceBytes(k.gids), gids)
		checkPortAnswer(t, k)
		checkGIDAnswer(t, k)
		checkQPAnswer(t, k)

		k.state(ib.QPSQD)
		k.refuse["MODIFY_QP"] = syscall.EINVAL
		var arg *ArgError
		if err := k.qp.Modify(QPAttr{AH: AHAttr{Port: 1}}, AttrAH); !errors.Is(err, syscall.EINVAL) || err.Error() == "" {
			t.Errorf("Modify that the kernel refuses: %v, want EINVAL", err)
		}
		delete(k.refuse, "MODIFY_QP")
		k.state(ib.QPReset)
		own, err := k.qp.Endpoint()
		switch {
		case err == nil && (own.QPN != k.qp.qpn || own.LID != k.port.LID || k.port.State != uint8(ib.PortActive)):
			t.Errorf("Endpoint is %+v of a port %s with LID %d", own, ib.PortState(k.port.State), k.port.LID)
		case err == nil && !own.GID.IsZero() && !slices.ContainsFunc(k.gids, func(e abi.GIDEntry) bool { return own.GID == ib.GID(bytesOf(&e.GID)) }):
			t.Errorf("Endpoint has GID %s, which is not in the table", own.GID)
		case err != nil && own != (Endpoint{}):
			t.Errorf("Endpoint is %+v with the error %v", own, err)
		}
		peer := Endpoint{QPN: 1}
		if len(k.gids) > 0 {
			copy(peer.GID[:], bytesOf(&k.gids[0].GID))
		}
		if err := k.qp.Connect(t.Context(), peer); (err == nil) != (k.qp.State() == ib.QPRTS) {
			t.Errorf("Connect: %v, and the QP is in state %s", err, k.qp.State())
		} else if err != nil && errors.As(err, &arg) && arg.Allowed == "" {
			t.Errorf("Connect: %v does not say what is allowed", err)
		}
	})
}

// checkPortAnswer compares Port with the answer (struct ib_uverbs_query_port_resp).
func checkPortAnswer(t *testing.T, k *fakeQP) {
	t.Helper()
	attr, err := k.dev.Port(1)
	must(t, err)
	b := bytesOf(&k.port)
	for name, v := range map[string][2]uint64{
		"port_cap_flags":  {uint64(attr.CapFlags), uint64(le32(b))},
		"max_msg_sz":      {uint64(attr.MaxMsgSize), uint64(le32(b[4:]))},
		"bad_pkey_cntr":   {uint64(attr.BadPKeyCount), uint64(le32(b[8:]))},
		"qkey_viol_cntr":  {uint64(attr.QKeyViolCount), uint64(le32(b[12:]))},
		"gid_tbl_len":     {uint64(attr.GIDTableLen), uint64(le32(b[16:]))},
		"pkey_tbl_len":    {uint64(attr.PKeyTableLen), uint64(le32(b[20:]) & 0xffff)},
		"lid":             {uint64(attr.LID), uint64(le32(b[20:]) >> 16)},
		"sm_lid":          {uint64(attr.SMLID), uint64(le32(b[24:]) & 0xffff)},
		"state":           {uint64(attr.State), uint64(b[26])},
		"max_mtu":         {uint64(attr.MaxMTU), uint64(b[27])},
		"active_mtu":      {uint64(attr.ActiveMTU), uint64(b[28])},
		"lmc":             {uint64(attr.LMC), uint64(b[29])},
		"max_vl_num":      {uint64(attr.MaxVLNum), uint64(b[30])},
		"sm_sl":           {uint64(attr.SMSL), uint64(b[31])},
		"subnet_timeout":  {uint64(attr.SubnetTimeout), uint64(b[32])},
		"init_type_reply": {uint64(attr.InitTypeReply), uint64(b[33])},
		"active_width":    {uint64(attr.ActiveWidth), uint64(b[34])},
		"phys_state":      {uint64(attr.PhysState), uint64(b[36])},
		"link_layer":      {uint64(attr.LinkLayer), uint64(b[37])},
		"flags":           {uint64(attr.Flags), uint64(b[38])},
		"speed_ex":        {uint64(attr.ActiveSpeed), 256},
		"port_cap_flags2": {uint64(attr.CapFlags2), 9},
	} {
		if v[0] != v[1] {
			t.Errorf("%s is %#x, want %#x", name, v[0], v[1])
		}
	}
	if !slices.Contains([]int{0, 256, 512, 1024, 2048, 4096}, attr.ActiveMTU.Bytes()) || !slices.Contains([]int{0, 1, 2, 4, 8, 12}, attr.ActiveWidth.Lanes()) ||
		attr.ActiveSpeed.Gbps() != 200 || attr.PhysState.Words() == "" || attr.State.String() == "" || attr.LinkLayer.String() == "" {
		t.Errorf("MTU %d, width %d, speed %g, %q, %q, %q", attr.ActiveMTU.Bytes(), attr.ActiveWidth.Lanes(), attr.ActiveSpeed.Gbps(), attr.PhysState.Words(), attr.State, attr.LinkLayer)
	}
}

// checkGIDAnswer compares GIDTable and GID with the answer (struct ib_uverbs_gid_entry).
func checkGIDAnswer(t *testing.T, k *fakeQP) {
	t.Helper()
	table, err := k.dev.GIDTable(1)
	if errors.Is(err, fs.ErrNotExist) && k.port.LinkLayer == uint8(ib.LinkLayerUnspecified) { // sysfs does not have the device
		return
	}
	if err != nil {
		if !errors.Is(err, syscall.EOVERFLOW) || k.port.GIDTblLen <= maxGIDs/2 || table != nil {
			t.Errorf("GIDTable of %d: %d entries, %v", k.port.GIDTblLen, len(table), err)
		}
		return
	}
	var want []GIDEntry
	all := sliceBytes(k.gids)
	for ; len(all) > 0; all = all[32:] {
		if e := (GIDEntry{Port: uint8(le32(all[20:])), Index: int(le32(all[16:])), GID: ib.GID(all[:16]), Type: ib.GIDType(le32(all[24:])), Netdev: int(le32(all[28:]))}); e.Port == 1 {
			want = append(want, e)
		}
	}
	if !slices.Equal(table, want) {
		t.Errorf("GIDTable is %+v, want %+v", table, want)
	}
	for _, e := range want {
		got, err := k.dev.GID(1, e.Index)
		known := slices.ContainsFunc(k.gids, func(g abi.GIDEntry) bool { return g.PortNum == 1 && int(g.GIDIndex) == e.Index })
		switch {
		case e.Index >= int(k.port.GIDTblLen):
			if !errors.As(err, new(*ArgError)) {
				t.Errorf("GID(1, %d) of %d: %v, want an ArgError", e.Index, k.port.GIDTblLen, err)
			}
		case known && (err != nil || got.Index != e.Index || got.Port != 1 || !slices.Contains(want, got)):
			t.Errorf("GID(1, %d) is %+v, %v, want one of %+v", e.Index, got, err, want)
		}
		if e.String() == "" || e.Type.String() == "" {
			t.Errorf("%#v has no text", e)
		}
	}
}

// checkQPAnswer compares Query with the answer (struct ib_uverbs_query_qp_resp).
func checkQPAnswer(t *testing.T, k *fakeQP) {
	t.Helper()
	attr, err := k.qp.Query()
	must(t, err)
	b := bytesOf(&k.query)
	fields := map[string][2]uint64{
		"max_send_wr":        {uint64(attr.Caps.MaxSendWR), uint64(le32(b[64:]))},
		"max_recv_wr":        {uint64(attr.Caps.MaxRecvWR), uint64(le32(b[68:]))},
		"max_send_sge":       {uint64(attr.Caps.MaxSendSGE), uint64(le32(b[72:]))},
		"max_recv_sge":       {uint64(attr.Caps.MaxRecvSGE), uint64(le32(b[76:]))},
		"max_inline_data":    {uint64(attr.Caps.MaxInline), uint64(le32(b[80:]))},
		"qkey":               {uint64(attr.QKey), uint64(le32(b[84:]))},
		"rq_psn":             {uint64(attr.RQPSN), uint64(le32(b[88:]))},
		"sq_psn":             {uint64(attr.SQPSN), uint64(le32(b[92:]))},
		"dest_qp_num":        {uint64(attr.DestQPN), uint64(le32(b[96:]))},
		"qp_access_flags":    {uint64(attr.Access), uint64(le32(b[100:]))},
		"pkey_index":         {uint64(attr.PKeyIndex), uint64(le32(b[104:]) & 0xffff)},
		"alt_pkey_index":     {uint64(attr.AltPKeyIndex), uint64(le32(b[104:]) >> 16)},
		"qp_state":           {uint64(attr.State), uint64(b[108])},
		"cur_qp_state":       {uint64(attr.CurState), uint64(b[109])},
		"path_mtu":           {uint64(attr.PathMTU), uint64(b[110])},
		"path_mig_state":     {uint64(attr.PathMigState), uint64(b[111])},
		"max_rd_atomic":      {uint64(attr.MaxRdAtomic), uint64(b[113])},
		"max_dest_rd_atomic": {uint64(attr.MaxDestRdAtomic), uint64(b[114])},
		"min_rnr_timer":      {uint64(attr.MinRNRTimer), uint64(b[115])},
		"port_num":           {uint64(attr.Port), uint64(b[116])},
		"timeout":            {uint64(attr.Timeout), uint64(b[117])},
		"retry_cnt":          {uint64(attr.RetryCount), uint64(b[118])},
		"rnr_retry":          {uint64(attr.RNRRetry), uint64(b[119])},
		"alt_port_num":       {uint64(attr.AltPort), uint64(b[120])},
		"alt_timeout":        {uint64(attr.AltTimeout), uint64(b[121])},
	}
	if attr.SQDraining != (b[112] != 0) {
		t.Errorf("sq_draining is %v, want %d", attr.SQDraining, b[112])
	}
	for at, ah := range map[int]AHAttr{0: attr.AH, 32: attr.AltAH} {
		d := b[at:]
		if ah.GRH.DGID != ib.GID(d[:16]) || ah.Global != (d[30] != 0) {
			t.Errorf("the address at %d is %+v, want % x", at, ah, d[:32])
		}
		for name, v := range map[string][2]uint64{
			"flow_label":    {uint64(ah.GRH.FlowLabel), uint64(le32(d[16:]))},
			"dlid":          {uint64(ah.DLID), uint64(le32(d[20:]) & 0xffff)},
			"sgid_index":    {uint64(ah.GRH.SGIDIndex), uint64(d[24])},
			"hop_limit":     {uint64(ah.GRH.HopLimit), uint64(d[25])},
			"traffic_class": {uint64(ah.GRH.TrafficClass), uint64(d[26])},
			"sl":            {uint64(ah.SL), uint64(d[27])},
			"src_path_bits": {uint64(ah.SrcPathBits), uint64(d[28])},
			"static_rate":   {uint64(ah.StaticRate), uint64(d[29])},
			"port_num":      {uint64(ah.Port), uint64(d[31])},
		} {
			fields[fmt.Sprintf("%s of the address at %d", name, at)] = v
		}
	}
	for name, v := range fields {
		if v[0] != v[1] {
			t.Errorf("%s is %#x, want %#x", name, v[0], v[1])
		}
	}
	if k.qp.State() != attr.State || attr.State.String() == "" || attr.PathMigState.String() == "" {
		t.Errorf("the QP is in state %s, the answer says %s", k.qp.State(), attr.State)
	}
}

// TestCreateQPHostile: sizes that the rings which the kernel made cannot have. The QP is
// destroyed again, and nothing stays mapped or in use.
func TestCreateQPHostile(t *testing.T) {
	for name, change := range map[string]func(c *abi.QPCap, sq, rq *fakeRing){
		"send queue":         func(c *abi.QPCap, _, _ *fakeRing) { c.MaxSendWR = 1<<32 - 1 },
		"receive queue":      func(c *abi.QPCap, _, _ *fakeRing) { c.MaxRecvWR = 1 << 20 },
		"send SGEs":          func(c *abi.QPCap, _, _ *fakeRing) { c.MaxSendSGE = 1<<32 - 1 },
		"receive SGEs":       func(c *abi.QPCap, _, _ *fakeRing) { c.MaxRecvSGE = 100 },
		"inline":             func(c *abi.QPCap, _, _ *fakeRing) { c.MaxInlineData = 1 << 31 },
		"send element":       func(_ *abi.QPCap, sq, _ *fakeRing) { copy(sq.mem, u32(3)) },
		"receive element":    func(_ *abi.QPCap, _, rq *fakeRing) { copy(rq.mem, u32(63)) },
		"send mask":          func(_ *abi.QPCap, sq, _ *fakeRing) { copy(sq.mem[4:], u32(5)) },
		"receive mask":       func(_ *abi.QPCap, _, rq *fakeRing) { copy(rq.mem[4:], u32(1<<31-1)) },
		"send index":         func(_ *abi.QPCap, sq, _ *fakeRing) { sq.consumer.Release(1 << 20) },
		"receive index":      func(_ *abi.QPCap, _, rq *fakeRing) { rq.producer.Release(1<<32 - 1) },
		"address of nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			d, k := fakeDevice(t, pathIoctl)
			pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 1}))(t)
			k.after(func(c *fakeCall, _ syscall.Errno) {
				if c.verb != "CREATE_QP" {
					return
				}
				if change == nil {
					k.put(c.drv[16:], u64(1)) // sq_mi.offset, which is no multiple of a page
					return
				}
				var got abi.QPCap
				copy(bytesOf(&got), c.attr(abi.UVERBS_ATTR_CREATE_QP_CAP).In)
				change(&got, k.rings[k.next][0], k.rings[k.next][1])
				k.put(c.attr(abi.UVERBS_ATTR_CREATE_QP_RESP_CAP).Out, bytesOf(&got))
			})
			k.took()
			_, err := pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq})
			if change != nil && !errors.Is(err, rxe.ErrCorrupt) || change == nil && !errors.Is(err, syscall.EINVAL) {
				t.Errorf("error is %v", err)
			}
			k.sent("ioctl CREATE_QP", "ioctl DESTROY_QP")
			must(t, cq.Close(), pd.Close(), d.Close())
			if n := k.ringsMapped(); n != 0 {
				t.Errorf("%d bytes of rings stay mapped", n)
			}
		})
	}
}

// TestCompChannelHostile: a descriptor that is none.
func TestCompChannelHostile(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	k.after(func(c *fakeCall, _ syscall.Errno) {
		if c.verb == "CREATE_COMP_CHANNEL" {
			k.put(c.core, u32(1<<32-1))
		}
	})
	if _, err := d.CreateCompChannel(); !errors.Is(err, syscall.EBADF) || !strings.Contains(err.Error(), "completion channel of rxe0") {
		t.Errorf("error is %v, want EBADF", err)
	}
	must(t, d.Close())
}
