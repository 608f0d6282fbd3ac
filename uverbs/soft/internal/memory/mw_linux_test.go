package memory

import (
	"math"
	"syscall"
	"testing"
)

var qp1 = QPRef{PD: 1, QPN: 100}

// windowRights are all that a window gives.
const windowRights = RemoteWrite | RemoteRead | RemoteAtomic

// allocMW allocates a window of PD 1.
func allocMW(t testing.TB, table *Table, typ uint8) *MW {
	t.Helper()
	w, errno := table.AllocMW(1, typ)
	if errno != 0 {
		t.Fatalf("AllocMW: %v", errno)
	}
	return w
}

// whole binds a window to a whole MR.
func whole(w *MW, m *MR, access Access) *Binding {
	return &Binding{MWKey: w.RKey(), NewKey: w.RKey() + 1, LKey: m.LKey(), Addr: m.IOVA(), Length: m.Length(), Access: access}
}

// bound binds a window to a whole MR and returns its key.
func bound(t testing.TB, table *Table, qp QPRef, w *MW, m *MR, access Access) uint32 {
	t.Helper()
	if !table.Bind(qp, whole(w, m, access)) {
		t.Fatal("the bind failed")
	}
	return w.RKey()
}

// TestAllocMW: types 1 and 2 (ib_uverbs_alloc_mw), and keys of windows.
func TestAllocMW(t *testing.T) {
	table := newTable()
	for _, typ := range []uint8{0, 3, 255} {
		_, errno := table.AllocMW(1, typ)
		wantErrno(t, "a window of an unknown type", errno, syscall.EINVAL)
	}
	for _, typ := range []uint8{MWType1, MWType2} {
		if key := allocMW(t, table, typ).RKey(); !isMW(key) {
			t.Errorf("the key is %#x, want one of a window", key)
		}
	}
}

// TestBind compares with rxe_bind_mw and rxe_check_bind_mw. The check of the PD differs: all three
// must be the same.
func TestBind(t *testing.T) {
	type objects struct {
		table *Table
		w     *MW
		m     *MR
		qp    QPRef
	}
	none, both, type1 := [3]bool{}, [3]bool{1: true, 2: true}, [3]bool{1: true}
	for _, c := range []struct {
		name   string
		access Access // of the MR
		change func(t *testing.T, o *objects, b *Binding)
		ok     [3]bool // by type
	}{
		{"all", allRemote | MWBind, nil, both},
		{"no rights", MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access = 0 }, both},
		{"rights that the MR does not have", LocalWrite | MWBind, nil, both},
		{"an MR without MW_BIND", allRemote, nil, none},
		{"write, an MR without local write", MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access = RemoteWrite }, none},
		{"atomics, an MR without local write", MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access = RemoteAtomic }, none},
		{"read, an MR without local write", MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access = RemoteRead }, both},
		{"rights that no window has", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access |= HugeTLB }, none},
		{"unknown rights", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access |= 1 << 10 }, none},
		{"optional rights", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access |= 1 << 20 }, both},
		{"zero-based", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access |= ZeroBased }, [3]bool{2: true}},
		{"zero-based, outside", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access |= ZeroBased; b.Addr = 0 }, none},
		{"zero-based, too long", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Access |= ZeroBased; b.Length++ }, none},
		{"length 0", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Length = 0 }, type1},
		{"length 0 without MR", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Length, b.LKey = 0, 0 }, type1},
		{"a part", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Addr += 100; b.Length -= 100 }, both},
		{"past the end", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Addr++ }, none},
		{"before the start", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Addr-- }, none},
		{"outside", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Addr = 0 }, none},
		{"an end that overflows", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.Addr++; b.Length = math.MaxUint64 }, none},
		{"another low byte of the window's key", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.MWKey ^= 1 }, none},
		{"another window's index", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.MWKey += 0x100 }, none},
		{"an MR's key for the window's", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.MWKey = b.LKey }, none},
		{"another low byte of the lkey", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.LKey ^= 1 }, none},
		{"another MR's index", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.LKey += 0x100 }, none},
		{"a window's key for the lkey", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.LKey = b.MWKey }, none},
		{"a new key with other high bits", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.NewKey += 0x12300 }, both},
		{"the key of before", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { b.NewKey = b.MWKey }, both},
		{"bound already", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) {
			b.MWKey = bound(t, o.table, o.qp, o.w, o.m, windowRights)
		}, type1},
		{"bound already by another QP", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) {
			b.MWKey = bound(t, o.table, QPRef{1, 200}, o.w, o.m, windowRights)
		}, type1},
		{"an MR that is gone", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { o.m.Dereg() }, none},
		{"a window that is gone", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { o.w.Dealloc() }, none},
		{"a QP of another PD", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { o.qp.PD = 2 }, none},
		{"a window of another PD", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) {
			o.w, _ = o.table.AllocMW(2, o.w.typ)
			b.MWKey = o.w.RKey()
		}, none},
		{"all of another PD", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) {
			o.w, _ = o.table.AllocMW(2, o.w.typ)
			b.MWKey = o.w.RKey()
			o.m.Rereg(ReregPD, 0, 0, 2, 0)
			o.qp.PD = 2
		}, both},
		{"an MR of another PD", allRemote | MWBind, func(t *testing.T, o *objects, b *Binding) { o.m.Rereg(ReregPD, 0, 0, 2, 0) }, none},
	} {
		for _, typ := range []uint8{MWType1, MWType2} {
			table := newTable()
			o := &objects{table, allocMW(t, table, typ), register(t, table, mapped(t, 1), c.access), qp1}
			b := whole(o.w, o.m, windowRights)
			if c.change != nil {
				c.change(t, o, b)
			}
			before, windows := o.w.RKey(), o.m.windows.Load()
			ok := table.Bind(o.qp, b)
			if ok != c.ok[typ] {
				t.Errorf("%s, type %d: %t, want %t", c.name, typ, ok, !ok)
			}
			want := before
			if ok {
				want = before&^0xff | b.NewKey&0xff
				windows = 1
				if b.Length == 0 {
					windows = 0
				}
			}
			if key := o.w.RKey(); key != want || o.m.windows.Load() != windows {
				t.Errorf("%s, type %d: the key is %#x, want %#x; %d windows, want %d", c.name, typ, key, want, o.m.windows.Load(), windows)
			}
		}
	}
}

// TestWindowAccess compares with rxe_lookup_mw and check_rkey: the window's rights count, and the bounds
// of the MR.
func TestWindowAccess(t *testing.T) {
	for _, typ := range []uint8{MWType1, MWType2} {
		table := newTable()
		b := mapped(t, 2)
		m := register(t, table, b, LocalWrite|MWBind) // no remote rights
		w := allocMW(t, table, typ)
		read := func(qp QPRef, key uint32, at uint64) Fault { return table.ReadRemote(make([]byte, 8), qp, key, at) }
		free := w.RKey()
		wantFault(t, "a window that is not bound", read(qp1, free, addr(b)), BadKey)
		binding := whole(w, m, RemoteRead)
		binding.Addr, binding.Length = addr(b)+100, 200
		if !table.Bind(qp1, binding) {
			t.Fatal("the bind failed")
		}
		key := w.RKey()
		wantFault(t, "the window", read(qp1, key, addr(b)+100), OK)
		wantFault(t, "the end of the window", read(qp1, key, addr(b)+292), OK)
		wantFault(t, "before the window, in the MR", read(qp1, key, addr(b)+99), OutOfRange)
		wantFault(t, "after the window, in the MR", read(qp1, key, addr(b)+293), OutOfRange)
		wantFault(t, "a check beyond the window", table.CheckRemote(qp1, key, addr(b)+100, 201, RemoteRead), OutOfRange)
		wantFault(t, "the end of memory", table.CheckRemote(qp1, key, addr(b)+200, math.MaxUint64, RemoteRead), OutOfRange)
		wantFault(t, "after the MR", read(qp1, key, addr(b)+uint64(len(b))-7), OutOfRange)
		wantFault(t, "before the MR", read(qp1, key, addr(b)-1), OutOfRange)
		wantFault(t, "the key of before", read(qp1, free, addr(b)+100), BadKey)
		wantFault(t, "another PD", read(QPRef{2, 100}, key, addr(b)+100), BadKey)
		other := OK
		if typ == MWType2 {
			other = BadKey
		}
		wantFault(t, "another QP", read(QPRef{1, 101}, key, addr(b)+100), other)
		wantFault(t, "without the right", table.WriteRemote(qp1, key, addr(b)+100, []byte{1}), NoAccess)
		_, f := table.FetchAdd(qp1, key, addr(b), 1)
		wantFault(t, "an atomic without the right", f, NoAccess)
		wantFault(t, "the MR's key", read(qp1, m.RKey(), addr(b)+100), NoAccess)
		wantFault(t, "local use", table.ReadLocal(make([]byte, 8), 1, key, addr(b)+100), BadKey)
		wantErrno(t, "Dereg with a window", m.Dereg(), syscall.EINVAL)
		wantFault(t, "after it", read(qp1, key, addr(b)+100), OK)
		w.Dealloc()
		wantFault(t, "after Dealloc", read(qp1, key, addr(b)+100), BadKey)
		w.Dealloc()
		if _, mws := table.Len(); mws != 0 {
			t.Errorf("%d windows are left", mws)
		}
		wantErrno(t, "Dereg", m.Dereg(), 0)
	}
}

// TestWindowZeroBased: addresses count from the start of the window, and the sum may overflow.
func TestWindowZeroBased(t *testing.T) {
	table := newTable()
	b := mapped(t, 1)
	b[300] = 7
	m := register(t, table, b, LocalWrite|MWBind)
	w := allocMW(t, table, MWType2)
	binding := whole(w, m, RemoteRead|ZeroBased)
	binding.Addr, binding.Length = addr(b)+200, 200
	if !table.Bind(qp1, binding) {
		t.Fatal("the bind failed")
	}
	got := make([]byte, 1)
	wantFault(t, "at 100", table.ReadRemote(got, qp1, w.RKey(), 100), OK)
	if got[0] != 7 {
		t.Errorf("read %d, want 7", got[0])
	}
	wantFault(t, "the last byte", table.ReadRemote(got, qp1, w.RKey(), 199), OK)
	wantFault(t, "past the window, in the MR", table.ReadRemote(got, qp1, w.RKey(), 200), OutOfRange)
	wantFault(t, "past the MR", table.ReadRemote(got, qp1, w.RKey(), uint64(page)-200), OutOfRange)
	wantFault(t, "at the MR's own address", table.ReadRemote(got, qp1, w.RKey(), addr(b)), OutOfRange)
	wantFault(t, "at the end of memory", table.ReadRemote(got, qp1, w.RKey(), math.MaxUint64-addr(b)), OutOfRange)
}

// TestInvalidate compares with rxe_invalidate_mw and rxe_invalidate_mr, apart from the QP.
func TestInvalidate(t *testing.T) {
	table := newTable()
	b := mapped(t, 1)
	m := register(t, table, b, allRemote|MWBind)
	w1, w2 := allocMW(t, table, MWType1), allocMW(t, table, MWType2)
	if table.Invalidate(qp1, w2.RKey()) {
		t.Error("a window that is not bound was invalidated")
	}
	key1, key2 := bound(t, table, qp1, w1, m, windowRights), bound(t, table, qp1, w2, m, windowRights)
	for name, key := range map[string]uint32{
		"type 1": key1, "other low bits": key2 ^ 1, "another index": key2 + 0x100, "an MR": m.RKey(), "no key": 0, "the largest key": math.MaxUint32,
	} {
		if table.Invalidate(qp1, key) {
			t.Errorf("%s: invalidated", name)
		}
	}
	for name, qp := range map[string]QPRef{"another QP": {qp1.PD, qp1.QPN + 1}, "another PD": {qp1.PD + 1, qp1.QPN}} {
		if table.Invalidate(qp, key2) {
			t.Errorf("%s: invalidated", name)
		}
	}
	if m.windows.Load() != 2 || !table.Invalidate(qp1, key2) || m.windows.Load() != 1 {
		t.Errorf("the window was not invalidated: %d windows", m.windows.Load())
	}
	if w2.RKey() != key2 {
		t.Errorf("the key is %#x, was %#x", w2.RKey(), key2)
	}
	wantFault(t, "an access afterwards", table.ReadRemote(make([]byte, 1), qp1, key2, addr(b)), BadKey)
	if table.Invalidate(qp1, key2) {
		t.Error("it was invalidated again")
	}
	again := bound(t, table, QPRef{1, 200}, w2, m, windowRights)
	wantFault(t, "bound again", table.ReadRemote(make([]byte, 1), QPRef{1, 200}, again, addr(b)), OK)
	if !table.Invalidate(QPRef{1, 200}, again) {
		t.Error("it was not invalidated after it was bound again")
	}
	w2.Dealloc()
	if table.Invalidate(QPRef{1, 200}, again) {
		t.Error("it was invalidated after Dealloc")
	}
}

// TestUnbind: a bind of length 0 frees the MR from a window of type 1, and a bind to another MR does so
// too (rxe_do_bind_mw).
func TestUnbind(t *testing.T) {
	table := newTable()
	first, second := register(t, table, mapped(t, 1), allRemote|MWBind), register(t, table, mapped(t, 1), allRemote|MWBind)
	w := allocMW(t, table, MWType1)
	bound(t, table, qp1, w, first, windowRights)
	key := bound(t, table, qp1, w, second, windowRights)
	wantErrno(t, "Dereg of the first MR", first.Dereg(), 0)
	wantErrno(t, "Dereg of the second MR", second.Dereg(), syscall.EINVAL)
	if !table.Bind(qp1, &Binding{MWKey: key, NewKey: key + 1}) {
		t.Fatal("the window was not unbound")
	}
	wantFault(t, "an access afterwards", table.ReadRemote(make([]byte, 1), qp1, w.RKey(), second.IOVA()), BadKey)
	wantErrno(t, "Dereg of the second MR", second.Dereg(), 0)
}

// TestReleaseQP: windows of type 2 do not outlive their QP. rxe leaves a pointer to it.
func TestReleaseQP(t *testing.T) {
	table := newTable()
	m := register(t, table, mapped(t, 1), allRemote|MWBind)
	other := QPRef{1, 101}
	type1, mine, others := allocMW(t, table, MWType1), allocMW(t, table, MWType2), allocMW(t, table, MWType2)
	free := allocMW(t, table, MWType2)
	bound(t, table, qp1, type1, m, windowRights)
	bound(t, table, qp1, mine, m, windowRights)
	bound(t, table, other, others, m, windowRights)
	table.ReleaseQP(qp1.QPN)
	table.ReleaseQP(0) // what a window that is not bound has
	read := func(qp QPRef, w *MW) Fault { return table.ReadRemote(make([]byte, 1), qp, w.RKey(), m.IOVA()) }
	wantFault(t, "type 1", read(qp1, type1), OK)
	wantFault(t, "type 2", read(qp1, mine), BadKey)
	wantFault(t, "type 2 of another QP", read(other, others), OK)
	bound(t, table, other, mine, m, windowRights)
	bound(t, table, other, free, m, windowRights)
	if m.windows.Load() != 4 {
		t.Errorf("%d windows, want 4", m.windows.Load())
	}
}
