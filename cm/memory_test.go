package cm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestRegion takes and gives spans of a region at random, and compares with a map of its pages.
func TestRegion(t *testing.T) {
	const pages = 40
	r := &region{bytes: make([]byte, pages), free: []span{{0, pages}}}
	var owner [pages]int // of each page, 0 is nobody
	taken := map[int]span{}
	rng := rand.New(rand.NewPCG(1, 2))
	largest := func() (n int) {
		run := 0
		for _, o := range owner {
			if run++; o != 0 {
				run = 0
			}
			n = max(n, run)
		}
		return n
	}
	for step := 1; step < 20000; step++ {
		if rng.IntN(2) == 0 {
			size, most := 1+rng.IntN(12), 1+rng.IntN(4)
			at, count := r.allocSpan(size, most)
			if (count > 0) != (largest() >= size) || count > most {
				t.Fatalf("step %d: take up to %d of size %d: %d, with %d free in a row", step, most, size, count, largest())
			}
			if count == 0 {
				continue
			}
			size *= count
			for i := at; i < at+size; i++ {
				if owner[i] != 0 {
					t.Fatalf("step %d: page %d was given twice", step, i)
				}
				owner[i] = step
			}
			taken[step] = span{at, size}
			continue
		}
		for k, s := range taken { // any
			r.freeSpan(s.at, s.size)
			for i := s.at; i < s.at+s.size; i++ {
				owner[i] = 0
			}
			delete(taken, k)
			break
		}
		if r.idle() != (len(taken) == 0) {
			t.Fatalf("step %d: idle is %v with %d taken, free is %v", step, r.idle(), len(taken), r.free)
		}
	}
}

// resources returns how many MRs and CQs the kernel has.
func resources(t *testing.T) (mrs, cqs int) {
	t.Helper()
	for _, d := range use(t).devices {
		mrs += int(d.MRs)
		cqs += int(d.CQs)
	}
	return mrs, cqs
}

// TestMemoryReuse: connections have the memory and the CQs of those that were closed, but
// not a message that is read still, and all goes when it is of no use for a while.
func TestMemoryReuse(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "counts of objects")
	l := newListener(t, ListenOptions{})
	ctx := within(t)
	keep, other := connect(t, l, DialOptions{}) // the device stays open
	growNow(keep)
	growNow(other)
	mrs, cqs := resources(t)
	const rounds = 5
	var held [rounds][]byte
	var closed [rounds]*Conn
	for round := range rounds {
		client, server := connect(t, l, DialOptions{})
		text := fmt.Sprint("round ", round)
		must(t, client.Send(ctx, []byte(text)))
		held[round], closed[round] = value(server.Recv(ctx))(t), server
		must(t, client.Close(), server.Close())
	}
	for round, msg := range held {
		if want := fmt.Sprint("round ", round); string(msg) != want {
			t.Errorf("a message that is read still is %q, not %q", msg, want)
		}
	}
	// Memory for the first round, in one or two regions, and one for the slots that are lent.
	moreMRs, moreCQs := resources(t)
	if n := moreMRs - mrs; n > 3 {
		t.Errorf("%d MRs more", n)
	}
	if n := moreCQs - cqs; n > 2 {
		t.Errorf("%d CQs more", n)
	}
	for _, c := range closed {
		if _, err := c.Recv(ctx); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv of a closed connection: %v", err)
		}
	}
	for end := time.Now().Add(timeout); ; time.Sleep(idleGrace / 10) {
		if m, c := resources(t); m <= mrs && c <= cqs {
			break
		} else if time.Now().After(end) {
			t.Fatalf("%d MRs and %d CQs are left, there were %d and %d", m, c, mrs, cqs)
		}
	}
	must(t, keep.Send(ctx, []byte("on")))
	if got := value(other.Recv(ctx))(t); string(got) != "on" {
		t.Errorf("received %q", got)
	}
}

// TestSendMemory: who does not send has no memory for it, and who does has as much as SendDepth
// messages need that the peer takes.
func TestSendMemory(t *testing.T) {
	const size, depth = 1000, 3
	attendAfter(t, time.Hour) // the large receives take memory of the same pool
	l := newListener(t, ListenOptions{ConnOptions: ConnOptions{MessageSize: size}})
	ctx := within(t)
	client, server := connect(t, l, DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{SendDepth: depth}}})
	used := func() int {
		p := &client.domain.pool
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.used
	}
	without := used()
	for i := range 2 * depth {
		text := fmt.Sprint("message ", i)
		must(t, client.Send(ctx, []byte(text)))
		if got := value(server.Recv(ctx))(t); string(got) != text {
			t.Errorf("received %q, want %q", got, text)
		}
		if n, want := used()-without, depth*1024; n != want { // a message, its header, and up to a cache line
			t.Errorf("%d bytes for sending after message %d, want %d", n, i, want)
		}
	}
	if server.out.slots != nil {
		t.Errorf("the side that does not send has %d slots for it", len(server.out.slots))
	}
	before := used()
	freed := depth*1024 + len(client.mem.slots)*client.mem.size
	must(t, client.Close())
	if n := before - used(); n != freed {
		t.Errorf("closing gives %d bytes back, want %d", n, freed)
	}
}

// TestRegionSizes: a region has the least size at first, then a quarter of what is in use, and more if one
// connection needs more.
func TestRegionSizes(t *testing.T) {
	testenv.Guest(t)
	pd, _ := openPD(t)
	const page, least = 4096, 8 * 4096
	p := &pool{pd: pd, least: least}
	defer p.close()
	var want []int
	for _, step := range []struct{ pages, region int }{
		{8, least}, {8, least}, {32, 32 * page}, {1, 12 * page}, {11, 0}, {1, 15 * page},
	} {
		m := value(p.alloc(step.pages, page))(t)
		defer m.release()
		if step.region != 0 {
			want = append(want, step.region)
		}
	}
	var got []int
	for _, r := range p.regions {
		got = append(got, len(r.bytes))
	}
	if !slices.Equal(got, want) {
		t.Errorf("regions of %d bytes, want %d", got, want)
	}
}

// TestRegionOutlivesDevice: the memory of a slot that is in use when the device is closed is freed with the
// slot, and other memory at once.
func TestRegionOutlivesDevice(t *testing.T) {
	testenv.Guest(t)
	pd, _ := openPD(t)
	p := &pool{pd: pd, least: 4096}
	idle, leased := value(p.alloc(1, 4096))(t), value(p.alloc(2, 4096))(t)
	idle.release()
	buffers := []*uverbs.Buffer{p.regions[0].buf, p.regions[1].buf}
	must(t, p.close())
	if len(p.regions) != 0 || buffers[0].Bytes() != nil || buffers[1].Bytes() == nil {
		t.Fatalf("%d regions are left; memory is mapped: %v, %v; want the one in use", len(p.regions), buffers[0].Bytes() != nil, buffers[1].Bytes() != nil)
	}
	p.release(leased.size, leased.slots[0])
	if buffers[1].Bytes() == nil {
		t.Error("memory is gone while a slot is in use")
	}
	p.release(leased.size, leased.slots[1])
	if buffers[1].Bytes() != nil {
		t.Error("memory is mapped still")
	}
}

// rollup returns the resident memory of the process in KiB, without what Go could give back.
func rollup(t *testing.T) (kib int) {
	t.Helper()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/smaps_rollup")
	must(t, err)
	_, rest, _ := strings.Cut(string(b), "\nRss:")
	_, err = fmt.Sscan(rest, &kib)
	must(t, err)
	return kib
}

// goKiB returns how much memory the objects in Go's heap and the stacks of goroutines take, in KiB.
func goKiB() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc+m.StackInuse) >> 10
}

// mappedKiB returns how much memory of the device is mapped, and how much the connections of both ends have
// registered, in KiB.
func mappedKiB(t *testing.T, client, server *Conn) (kib int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	for line := range strings.Lines(string(maps)) {
		var start, end int
		if _, err := fmt.Sscanf(line, "%x-%x ", &start, &end); err == nil && strings.Contains(line, "/dev/infiniband/") {
			kib += (end - start) >> 10
		}
	}
	domains := []*domain{client.domain}
	if server.domain != client.domain {
		domains = append(domains, server.domain)
	}
	for _, m := range domains {
		for _, p := range []*pool{&m.pool, &m.first} {
			p.mu.Lock()
			for _, r := range p.regions {
				kib += len(r.bytes) >> 10
			}
			p.mu.Unlock()
		}
	}
	return kib
}

// TestIdleConnCosts: idle connections whose program is in no method map little memory. On a software device little of
// the process is resident for them, the goroutine of each has the smallest stack that there is, and they take no file
// descriptors; on others two.
func TestIdleConnCosts(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Race) // with the race detector stacks and the process are larger
	attendAfter(t, time.Millisecond)
	l := newListener(t, ListenOptions{})
	first, server := connect(t, l, DialOptions{}) // what is there once
	pairs := load(testenv.Brief(), 100, 100, 25)
	ends := make([]*Conn, 0, 2*pairs)
	files := func() int { return len(value(os.ReadDir("/proc/self/fd"))(t)) }
	resident, mapped, open, inGo := rollup(t), mappedKiB(t, first, server), files(), goKiB()
	for range pairs {
		client, server := connect(t, l, DialOptions{})
		ends = append(ends, client, server)
	}
	for _, c := range ends {
		awaitAttended(t, c)
	}
	const most = 64 // KiB of an end
	if first.dev.dev.Info().InProcess {
		const most, mostInGo = 44, 41 // 24 of these are rings, of which 8 are used
		if each := (rollup(t) - resident) / len(ends); each > most {
			t.Errorf("an idle connection takes %d KiB of memory, want at most %d", each, most)
		}
		if each := float64(goKiB()-inGo) / float64(len(ends)); each > mostInGo {
			t.Errorf("an idle connection has %.1f KiB in Go's heap and on stacks, want at most %d", each, mostInGo)
		}
	}
	if each := (mappedKiB(t, first, server) - mapped) / len(ends); each > most {
		t.Errorf("an idle connection has mapped %d KiB, want at most %d", each, most)
	}
	want := 2 * len(ends)
	if first.dev.dev.Info().InProcess {
		want = 0
	}
	const once = 10 // files of Go and the tests
	if more := files() - open; more > want+once {
		t.Errorf("%d idle connections have %d file descriptors, want at most %d", len(ends), more, want+once)
	}
	for _, c := range ends {
		must(t, c.Close())
	}
}
