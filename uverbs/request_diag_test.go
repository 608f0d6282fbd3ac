//go:build amd64 || arm64

package uverbs

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/mmio/siw"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// TestSentTexts: how a failed work request is described, driver by driver.
func TestSentTexts(t *testing.T) {
	const at, key, old = 0x1000, 0x501, 0x500
	for _, c := range []struct {
		got  sentWR
		want string
		sges []SGE
	}{
		{sentRxe(&rxe.SendInfo{Opcode: rxe.Send, Length: 8, RemoteQPN: 17, SGEs: []rxe.SGEInfo{{Addr: 1, Length: 8, LKey: 2}}}),
			"SEND of 8 bytes to QP 17, SGE 0 0x1+8 with lkey 0x2", []SGE{{Addr: 1, Length: 8, LKey: 2}}},
		{sentRxe(&rxe.SendInfo{Opcode: rxe.Send}), "SEND of 0 bytes", nil},
		{sentRxe(&rxe.SendInfo{Opcode: rxe.Read, Length: 8, RemoteAddr: at, RKey: key}), "RDMA_READ of 8 bytes, remote address 0x1000 with rkey 0x501", nil},
		{sentRxe(&rxe.SendInfo{Opcode: rxe.BindMW, MWRKey: old, RKey: key}), "BIND_MW of 0 bytes, from rkey 0x500 to 0x501", nil},
		{sentRxe(&rxe.SendInfo{Opcode: rxe.LocalInv, Invalid: key}), "LOCAL_INV of 0 bytes, invalidating 0x501", nil},
		{sentMlx5(&mlx5.SendInfo{Op: mlx5.SendImm, Length: 8, RemoteQPN: 17}), "SEND_WITH_IMM of 8 bytes to QP 17", nil},
		{sentMlx5(&mlx5.SendInfo{Op: mlx5.Send}), "SEND of 0 bytes", nil},
		{sentMlx5(&mlx5.SendInfo{Op: mlx5.FAA, Length: 8, RemoteAddr: at, RKey: key}), "ATOMIC_FETCH_AND_ADD of 8 bytes, remote address 0x1000 with rkey 0x501", nil},
		{sentMlx5(&mlx5.SendInfo{Op: mlx5.BindMW, OldKey: old, RKey: key}), "BIND_MW of 0 bytes, from rkey 0x500 to 0x501", nil},
		{sentSiw(&siw.SendInfo{Opcode: siw.ReadInv, Length: 8, RemoteAddr: at, RKey: key, SGEs: []siw.SGEInfo{{Addr: 1, Length: 8, LKey: 2}}}),
			"RDMA_READ_WITH_INV of 8 bytes, remote address 0x1000 with rkey 0x501, SGE 0 0x1+8 with lkey 0x2", []SGE{{Addr: 1, Length: 8, LKey: 2}}},
		{sentSiw(&siw.SendInfo{Opcode: siw.SendInv, RKey: key}), "SEND_WITH_INV of 0 bytes, invalidating 0x501", nil},
	} {
		q := &QP{}
		q.dev = &Device{}
		if got := q.request(&c.got).String(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if diff := cmp.Diff(c.sges, c.got.sges, cmp.AllowUnexported(SGE{})); diff != "" {
			t.Errorf("%q: SGEs (-want +got):\n%s", c.want, diff)
		}
	}
}

// TestRequestFacts: what a request names is looked up among the MRs and windows of the device.
func TestRequestFacts(t *testing.T) {
	r := newQuietRig(t, 3)
	d := r.qp.dev
	r.qp.pd = 3
	mw := &MW{object: object{dev: d, kind: "MW"}, typ: MWType2, pd: 5}
	mw.setRKey(0x700)
	mw.number = d.targets.add(mw)
	d.mrs.insert(&mrRecord{lkey: 0x100, addr: 0x1000, length: 0x100, pd: 4, access: AccessMWBind})
	d.mrs.insert(&mrRecord{lkey: 0x200, addr: 0x2000, length: 0x200, pd: 3, access: AccessLocalWrite | AccessRemoteRead})
	key, window := uint32(0x701), &diag.Window{Type2: true, PD: 5, RKey: 0x700}
	bindable := &diag.MR{Addr: 0x1000, Length: 0x100, PD: 4, Access: AccessMWBind.String(), MWBind: true}
	writable := &diag.MR{Addr: 0x2000, Length: 0x200, PD: 3, Access: (AccessLocalWrite | AccessRemoteRead).String(), LocalWrite: true}
	for _, c := range []struct {
		sent sentWR
		want diag.Request
	}{
		{sentWR{op: WRBindMW, mwRKey: 0x701, rkey: 0x702, bind: &binding{addr: 1, length: 2, lkey: 0x100, access: AccessRemoteRead | AccessRemoteAtomic | AccessZeroBased}},
			diag.Request{Op: "BIND_MW", RKey: 0x702, Bind: &diag.Bind{OldKey: 0x701, NewKey: 0x702, Window: window,
				To: &diag.Range{Addr: 1, Length: 2, LKey: 0x100, MR: bindable, Writing: AccessRemoteAtomic.String(), ZeroBased: true}}}},
		{sentWR{op: WRBindMW, mwRKey: 0x801, bind: &binding{lkey: 0x300, access: AccessRemoteRead}},
			diag.Request{Op: "BIND_MW", Bind: &diag.Bind{OldKey: 0x801, To: &diag.Range{LKey: 0x300}}}},
		{sentWR{op: WRBindMW, mwRKey: 0x701}, diag.Request{Op: "BIND_MW", Bind: &diag.Bind{OldKey: 0x701, Window: window}}},
		{sentWR{op: WRLocalInv, invalid: &key, windowOnly: true}, diag.Request{Op: "LOCAL_INV", Invalidates: &key, Invalidated: &diag.Invalidate{Window: window}}},
		{sentWR{op: WRLocalInv, invalid: &key}, diag.Request{Op: "LOCAL_INV", Invalidates: &key}},
		{sentWR{op: WRRDMARead, raddr: 9, rkey: 8, sges: []SGE{{Addr: 1, Length: 2, LKey: 0x200}, {LKey: 0x701}, {LKey: 0x300}}},
			diag.Request{Op: "RDMA_READ", Remote: true, RemoteAddr: 9, RKey: 8, Writes: true,
				SGEs: []diag.SGE{{Addr: 1, Length: 2, LKey: 0x200, MR: writable}, {LKey: 0x701, IsWindow: true}, {LKey: 0x300}}}},
		{sentWR{op: WRSend, length: 7, qpn: 6}, diag.Request{Op: "SEND", Length: 7, RemoteQPN: 6}},
		{sentWR{op: WRFetchAdd}, diag.Request{Op: "ATOMIC_FETCH_AND_ADD", Remote: true, Writes: true}},
	} {
		c.want.PD = 3
		if diff := cmp.Diff(&c.want, r.qp.request(&c.sent)); diff != "" {
			t.Errorf("%+v: facts (-want +got):\n%s", c.sent, diff)
		}
	}
}

// TestDiagStatus: package diag has the numbers of the statuses.
func TestDiagStatus(t *testing.T) {
	for want, got := range map[WCStatus]diag.Status{
		WCLocLenErr: diag.LocLenErr, WCLocQPOpErr: diag.LocQPOpErr, WCLocProtErr: diag.LocProtErr, WCWRFlushErr: diag.WRFlushErr,
		WCMWBindErr: diag.MWBindErr, WCLocAccessErr: diag.LocAccessErr, WCRemInvReqErr: diag.RemInvReqErr, WCRemAccessErr: diag.RemAccessErr,
		WCRetryExcErr: diag.RetryExcErr, WCRNRRetryExcErr: diag.RNRRetryExcErr, WCRemAbortErr: diag.RemAbortErr, WCGeneralErr: diag.GeneralErr,
	} {
		if uint32(got) != uint32(want) {
			t.Errorf("%s is %d, want %d", want, got, want)
		}
	}
}
