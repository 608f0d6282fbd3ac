package memory

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDeregWaits registers memory, has goroutines access it in every way, deregisters it and makes the
// memory inaccessible. An access after Dereg returned would end with MemoryGone.
func TestDeregWaits(t *testing.T) {
	const rounds, workers = 200, 4
	table := newTable()
	b := mapped(t, 1)
	for range rounds {
		protect(t, b, unix.PROT_READ|unix.PROT_WRITE)
		m := register(t, table, b, allRemote|MWBind)
		w := allocMW(t, table, MWType1)
		window := bound(t, table, qp1, w, m, windowRights)
		key, a := m.RKey(), m.IOVA()
		var wg sync.WaitGroup
		var done [workers]atomic.Int32
		for i := range workers {
			wg.Go(func() {
				buf := make([]byte, page)
				for faults := 0; faults < 20; done[i].Add(1) {
					runtime.Gosched() // so that few processors reach all goroutines soon
					var f Fault
					switch i {
					case 0:
						f = table.ReadLocal(buf, 1, key, a)
					case 1:
						f = table.WriteRemote(qp1, key, a, buf)
					case 2:
						_, f = table.FetchAdd(qp1, key, a, 1)
					case 3:
						f = table.ReadRemote(buf, qp1, window, a)
					}
					switch f {
					case OK:
					case BadKey:
						faults++
					default:
						t.Errorf("worker %d: %v", i, f)
						return
					}
				}
			})
		}
		for i := range done {
			for done[i].Load() == 0 {
				runtime.Gosched()
			}
		}
		w.Dealloc()
		if errno := m.Dereg(); errno != 0 {
			t.Errorf("Dereg: %v", errno)
		}
		protect(t, b, unix.PROT_NONE)
		wg.Wait()
		if t.Failed() {
			return
		}
	}
}

// TestRevokeWaits revokes a key while a write by it is under way, which is seen in the memory. When the call
// returns, all of the write is there.
func TestRevokeWaits(t *testing.T) {
	const size = 32 << 20
	table := newTable()
	b := mapped(t, size/page)
	for i, c := range []struct {
		name   string
		typ    uint8 // of the window, if the write goes through one
		revoke func(m *MR, w *MW) bool
	}{
		{"Dereg", 0, func(m *MR, w *MW) bool { return m.Dereg() == 0 }},
		{"Rereg to fewer rights", 0, func(m *MR, w *MW) bool { return m.Rereg(ReregAccess, 0, 0, 0, LocalWrite) == 0 }},
		{"Rereg to another PD", 0, func(m *MR, w *MW) bool { return m.Rereg(ReregPD, 0, 0, 2, 0) == 0 }},
		{"Dealloc", MWType1, func(m *MR, w *MW) bool { w.Dealloc(); return true }},
		{"Dealloc and Dereg", MWType2, func(m *MR, w *MW) bool { w.Dealloc(); return m.Dereg() == 0 }},
		{"Bind", MWType1, func(m *MR, w *MW) bool { return table.Bind(qp1, &Binding{MWKey: w.key, NewKey: w.key + 1}) }},
		{"Invalidate", MWType2, func(m *MR, w *MW) bool { return table.Invalidate(qp1, w.key) }},
		{"ReleaseQP", MWType2, func(m *MR, w *MW) bool { table.ReleaseQP(qp1.QPN); return true }},
	} {
		m := register(t, table, b, allRemote|MWBind)
		key := m.RKey()
		w := &MW{table: table}
		if c.typ != 0 {
			w = allocMW(t, table, c.typ)
			key = bound(t, table, qp1, w, m, windowRights)
		}
		src := bytes.Repeat([]byte{byte(i + 1)}, size)
		var wg sync.WaitGroup
		wg.Go(func() { mustBe(t, table.WriteRemote(qp1, key, m.IOVA(), src), OK) })
		for b[page] != src[0] {
			runtime.Gosched()
		}
		if !c.revoke(m, w) {
			t.Errorf("%s failed", c.name)
		}
		if i := bytes.IndexByte(b, src[0]-1); i >= 0 {
			t.Errorf("%s returned while the write was at byte %d of %d", c.name, i, size)
		}
		wg.Wait()
		mustBe(t, table.WriteRemote(qp1, key, m.IOVA(), src[:1]), BadKey, NoAccess)
		if w.key != 0 {
			w.Dealloc()
		}
		m.Dereg()
	}
}

// TestUnwatched: the race detector does not watch accesses, as it does not watch a device. A program that
// works on one half of a buffer while a peer uses the other shares pages and words of the detector with
// it, and one that reads what a peer writes sees old or new bytes.
func TestUnwatched(t *testing.T) {
	b := make([]byte, 2*page) // of the Go heap, which the detector watches
	table := newTable()
	m := register(t, table, b, allRemote)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for i := range 1000 {
			at := m.IOVA() + uint64(i)
			mustBe(t, table.ReadLocal(buf, 1, m.LKey(), at), OK)
			mustBe(t, table.WriteRemote(qp1, m.RKey(), at, buf), OK)
			mustBe(t, touch(m.IOVA()&^pageMask, uint64(page)), OK)
		}
	}()
	sum := byte(0)
	for i := range 1000 {
		sum += b[i]
		b[i] = byte(i)
		runtime.Gosched()
	}
	<-done
	runtime.KeepAlive(sum)
}

// TestCollected accesses memory while the garbage collector runs and stacks move: an address of
// unmapped memory must not look like a pointer to it.
func TestCollected(t *testing.T) {
	gone := mapped(t, 1)
	table := newTable()
	m := register(t, table, gone, allRemote)
	unmap(t, gone)
	heap := make([]byte, page)
	live := register(t, table, heap, allRemote)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			buf := make([]byte, 100)
			for range 2000 {
				mustBe(t, table.ReadLocal(buf, 1, m.LKey(), m.IOVA()), MemoryGone)
				mustBe(t, table.WriteLocal(1, live.LKey(), live.IOVA(), buf), OK)
			}
		})
	}
	for range 20 {
		runtime.GC()
	}
	wg.Wait()
	runtime.KeepAlive(heap)
}

// TestConcurrent does everything at once: accesses by keys and windows, changes of rights and PD, binds,
// invalidations, registrations and deregistrations. Accesses see rights that were there at some moment,
// and each MR and window can be freed at the end.
func TestConcurrent(t *testing.T) {
	const steps = 3000
	table := NewTable(rand.Uint32)
	b := mapped(t, 4)
	m := register(t, table, b, allRemote|MWBind)
	type1, type2 := allocMW(t, table, MWType1), allocMW(t, table, MWType2)
	a := m.IOVA()
	var adds atomic.Uint64
	all := []func(buf []byte){
		func(buf []byte) { mustBe(t, table.ReadLocal(buf, 1, m.LKey(), a+uint64(page)), OK, BadKey) },
		func(buf []byte) { mustBe(t, table.WriteLocal(1, m.LKey(), a+uint64(page), buf), OK, BadKey, NoAccess) },
		func(buf []byte) {
			mustBe(t, table.WriteRemote(qp1, m.RKey(), a+uint64(page), buf), OK, BadKey, NoAccess)
		},
		func(buf []byte) {
			_, f := table.FetchAdd(qp1, m.RKey(), a, 1)
			if mustBe(t, f, OK, BadKey, NoAccess); f == OK {
				adds.Add(1)
			}
		},
		func(buf []byte) { mustBe(t, table.ReadRemote(buf, qp1, type1.RKey(), a+uint64(page)), OK, BadKey) },
		func(buf []byte) { mustBe(t, table.ReadRemote(buf, qp1, type2.RKey(), a+uint64(page)), OK, BadKey) },
		func([]byte) {
			m.Rereg(ReregPD|ReregAccess, 0, 0, PD(1+rand.IntN(2)), []Access{MWBind, allRemote | MWBind}[rand.IntN(2)])
		},
		func([]byte) { table.Bind(qp1, whole(type1, m, RemoteRead)) },
		func([]byte) { table.Bind(qp1, whole(type2, m, RemoteRead)) },
		func([]byte) { table.Invalidate(qp1, type2.RKey()) },
		func([]byte) { table.ReleaseQP(qp1.QPN) },
		func([]byte) {
			own := register(t, table, b[2*page:], LocalWrite)
			mustBe(t, table.ReadLocal(make([]byte, 1), 1, own.LKey(), own.IOVA()), OK)
			own.Dereg()
		},
		func([]byte) {
			w := allocMW(t, table, MWType2)
			table.Bind(qp1, whole(w, m, RemoteRead))
			w.Dealloc()
		},
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			buf := make([]byte, 256)
			for range steps {
				all[rand.IntN(len(all))](buf)
			}
		})
	}
	wg.Wait()
	type1.Dealloc()
	type2.Dealloc()
	if n := m.windows.Load(); n != 0 {
		t.Errorf("%d windows are still bound", n)
	}
	wantErrno(t, "Dereg", m.Dereg(), 0)
	if mrs, mws := table.Len(); mrs != 0 || mws != 0 {
		t.Errorf("%d MRs and %d windows are left", mrs, mws)
	}
	if got := native([8]byte(b[:8])); got != adds.Load() {
		t.Errorf("%d additions make %d", adds.Load(), got)
	}
}

// mustBe checks that a fault is one of those given.
func mustBe(t *testing.T, got Fault, want ...Fault) {
	t.Helper()
	for _, w := range want {
		if got == w {
			return
		}
	}
	t.Errorf("%v, want one of %v", got, want)
}

// TestAllocs: no access allocates memory, and neither does a bind.
func TestAllocs(t *testing.T) {
	table := newTable()
	b := mapped(t, 2)
	m := register(t, table, b, allRemote|MWBind|FlushGlobal)
	w := allocMW(t, table, MWType1)
	bound(t, table, qp1, w, m, windowRights)
	gone := mapped(t, 1)
	lost := register(t, table, gone, LocalWrite)
	unmap(t, gone)
	buf := make([]byte, page)
	for name, f := range map[string]func() Fault{
		"ReadLocal":   func() Fault { return table.ReadLocal(buf, 1, m.LKey(), m.IOVA()) },
		"WriteLocal":  func() Fault { return table.WriteLocal(1, m.LKey(), m.IOVA(), buf) },
		"ReadRemote":  func() Fault { return table.ReadRemote(buf, qp1, w.RKey(), m.IOVA()) },
		"WriteRemote": func() Fault { return table.WriteRemote(qp1, m.RKey(), m.IOVA(), buf) },
		"CheckRemote": func() Fault { return table.CheckRemote(qp1, w.RKey(), m.IOVA(), 8, RemoteRead) },
		"AtomicWrite": func() Fault { return table.AtomicWrite(qp1, m.RKey(), m.IOVA(), [8]byte{1}) },
		"Flush":       func() Fault { return table.Flush(qp1, m.RKey(), m.IOVA(), 8, flushGlobal, 0) },
		"FetchAdd": func() Fault {
			_, f := table.FetchAdd(qp1, m.RKey(), m.IOVA(), 1)
			return f
		},
		"CompareSwap": func() Fault {
			_, f := table.CompareSwap(qp1, m.RKey(), m.IOVA(), 1, 2)
			return f
		},
		"Bind": func() Fault {
			if !table.Bind(qp1, &Binding{MWKey: w.RKey(), NewKey: w.RKey() + 1, LKey: m.LKey(), Addr: m.IOVA(), Length: uint64(page), Access: windowRights}) {
				return NoAccess
			}
			return OK
		},
		"a wrong key": func() Fault {
			if f := table.ReadRemote(buf, qp1, 77, 0); f != BadKey {
				return NoAccess
			}
			return OK
		},
	} {
		if n := testing.AllocsPerRun(100, func() {
			if got := f(); got != OK {
				t.Errorf("%s: %v", name, got)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	// The runtime allocates the error of a fault.
	wantFault(t, "lost memory", table.ReadLocal(buf, 1, lost.LKey(), lost.IOVA()), MemoryGone)
}

// FuzzContains compares the check of a range with the same in numbers that do not overflow.
func FuzzContains(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint64(1), uint64(2))
	f.Add(^uint64(0), uint64(1), ^uint64(0), uint64(1))
	f.Add(uint64(1)<<63, uint64(1)<<63, uint64(1)<<63, uint64(1)<<63)
	f.Fuzz(func(t *testing.T, iova, size, at, n uint64) {
		m := &MR{iova: iova, length: size}
		// at - iova and then + n, each with its carry.
		want := OK
		if skip := at - iova; at < iova || skip > size || n > size-skip {
			want = OutOfRange
		}
		if got := m.contains(at, n); got != want {
			t.Errorf("%d bytes at %#x of %d at %#x: %v, want %v", n, at, size, iova, got, want)
		}
	})
}

// BenchmarkReadLocal copies 64 and 4096 bytes out of an MR.
func BenchmarkReadLocal(b *testing.B) {
	for name, n := range map[string]int{"64": 64, "4096": 4096} {
		b.Run(name, func(b *testing.B) {
			table := newTable()
			m := register(b, table, mapped(b, 1), LocalWrite)
			buf := make([]byte, n)
			for b.Loop() {
				if table.ReadLocal(buf, 1, m.LKey(), m.IOVA()) != OK {
					b.Fatal("no access")
				}
			}
		})
	}
}

// BenchmarkCheckRemote checks a window's key.
func BenchmarkCheckRemote(b *testing.B) {
	table := newTable()
	m := register(b, table, mapped(b, 1), LocalWrite|MWBind)
	key := bound(b, table, qp1, allocMW(b, table, MWType2), m, windowRights)
	for b.Loop() {
		if table.CheckRemote(qp1, key, m.IOVA(), 8, RemoteRead) != OK {
			b.Fatal("no access")
		}
	}
}
