//go:build amd64 || arm64

package uverbs

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/mmio/rxe"
	"github.com/goverbs/goverbs/mmio/siw"
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
		{sentRxe(&rxe.SendInfo{Opcode: rxe.LocalInv, Invalid: key}), "LOCAL_INV of 0 bytes, of key 0x501", nil},
		{sentMlx5(&mlx5.SendInfo{Op: mlx5.SendImm, Length: 8, RemoteQPN: 17}), "SEND_WITH_IMM of 8 bytes to QP 17", nil},
		{sentMlx5(&mlx5.SendInfo{Op: mlx5.Send}), "SEND of 0 bytes", nil},
		{sentMlx5(&mlx5.SendInfo{Op: mlx5.FAA, Length: 8, RemoteAddr: at, RKey: key}), "ATOMIC_FETCH_AND_ADD of 8 bytes, remote address 0x1000 with rkey 0x501", nil},
		{sentMlx5(&mlx5.SendInfo{Op: mlx5.BindMW, OldKey: old, RKey: key}), "BIND_MW of 0 bytes, from rkey 0x500 to 0x501", nil},
		{sentSiw(&siw.SendInfo{Opcode: siw.ReadInv, Length: 8, RemoteAddr: at, RKey: key, SGEs: []siw.SGEInfo{{Addr: 1, Length: 8, LKey: 2}}}),
			"RDMA_READ_WITH_INV of 8 bytes, remote address 0x1000 with rkey 0x501, SGE 0 0x1+8 with lkey 0x2", []SGE{{Addr: 1, Length: 8, LKey: 2}}},
		{sentSiw(&siw.SendInfo{Opcode: siw.SendInv, RKey: key}), "SEND_WITH_INV of 0 bytes, invalidating 0x501", nil},
	} {
		if c.got.text != c.want {
			t.Errorf("%q, want %q", c.got.text, c.want)
		}
		if diff := cmp.Diff(c.sges, c.got.sges, cmp.AllowUnexported(SGE{})); diff != "" {
			t.Errorf("%q: SGEs (-want +got):\n%s", c.want, diff)
		}
	}
}

// TestFaultyBind: why the bind of a window failed, as far as this side knows.
func TestFaultyBind(t *testing.T) {
	r := newQuietRig(t, 3)
	d := r.qp.dev
	r.qp.pd = 3
	mw := &MW{object: object{dev: d, kind: "MW"}, typ: MWType1, pd: 3}
	mw.setRKey(0x700)
	mw.number = d.addTarget(mw)
	type1, type2 := func() { mw.typ = MWType1 }, func() { mw.typ = MWType2 }
	note := func(lkey, pd uint32, access Access) {
		d.mrs.insert(&mrRecord{lkey: lkey, addr: 0x1000, length: 0x100, pd: pd, access: access})
	}
	note(0x100, 3, AccessMWBind|AccessLocalWrite)
	note(0x200, 4, AccessMWBind|AccessLocalWrite)
	note(0x300, 3, AccessLocalWrite)
	note(0x400, 3, AccessMWBind)
	bind := func(lkey uint32, addr, length uint64, access Access) sentWR {
		return sentWR{op: WRBindMW, mwRKey: 0x701, bind: boundTo{addr: addr, length: length, lkey: lkey, access: access}}
	}
	for _, c := range []struct {
		typ  func()
		wr   sentWR
		want string
	}{
		{type1, sentWR{op: WRBindMW, mwRKey: 0x800}, "no window of this device has the rkey 0x800"},
		{type1, bind(0x100, 0x1000, 0x100, AccessRemoteRead), ""},
		{type1, bind(0x100, 0, 0, 0), ""},
		{type2, bind(0x100, 0, 0, 0), "a window of type 2 is bound to one byte at least"},
		{type1, bind(0x500, 0x1000, 1, 0), "no MR of this device has the lkey 0x500"},
		{type1, bind(0x200, 0x1000, 1, 0), "the MR is of another PD than the QP"},
		{type1, bind(0x300, 0x1000, 1, 0), "the MR lacks AccessMWBind"},
		{type1, bind(0x400, 0x1000, 1, AccessRemoteRead), ""},
		{type1, bind(0x400, 0x1000, 1, AccessRemoteRead|AccessRemoteWrite), "the MR lacks AccessLocalWrite, which a window with " + AccessRemoteWrite.String() + " needs"},
		{type1, bind(0x400, 0x1000, 1, AccessRemoteAtomic), "the MR lacks AccessLocalWrite, which a window with " + AccessRemoteAtomic.String() + " needs"},
		{type1, bind(0x100, 0x0fff, 1, 0), "0xfff+1 is outside the MR, which is 0x1000+256"},
		{type1, bind(0x100, 0x10ff, 2, 0), "0x10ff+2 is outside the MR, which is 0x1000+256"},
		{type1, bind(0x100, 0x1010, 1<<64-1, 0), "0x1010+18446744073709551615 is outside the MR, which is 0x1000+256"},
		{type1, bind(0x100, 0x10ff, 1, 0), ""},
		{type2, bind(0x100, 0x1000, 1, 0), "a window of type 2 that is bound already is invalidated before it is bound again"},
	} {
		c.typ()
		if got := r.qp.faultyBind(&c.wr); got != c.want {
			t.Errorf("%+v: %q, want %q", c.wr.bind, got, c.want)
		}
	}
	mw.typ, mw.pd = MWType2, 9
	wr := bind(0x100, 0x1000, 1, 0)
	if got := r.qp.faultyBind(&wr); got != "the window is of another PD than the QP" {
		t.Errorf("another PD: %q", got)
	}
}
