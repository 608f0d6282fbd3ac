package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// hugePageFile says how many huge pages of 2 MiB there are.
const hugePageFile = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

// reserveHuge reserves huge pages until the end of the test. Earlier tests may have left the memory
// fragmented, so it has the kernel compact it before it tries again.
func reserveHuge(t *testing.T, n int) {
	t.Helper()
	testenv.Tags(t, testenv.Machine)
	set := func(n int) {
		t.Helper()
		for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
			must(t, os.WriteFile(hugePageFile, []byte(strconv.Itoa(n)), 0))
			text, err := os.ReadFile(hugePageFile)
			must(t, err)
			got := strings.TrimSpace(string(text))
			if got == strconv.Itoa(n) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the kernel has reserved %s huge pages, not %d", got, n)
			}
			runtime.GC()
			must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0), os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0))
		}
	}
	set(n)
	t.Cleanup(func() { set(0) })
}

func TestHugePages(t *testing.T) {
	testenv.Tags(t, testenv.Machine)
	testenv.Guest(t)
	testenv.NeedsKernel(t, "huge pages that can be reserved")
	huge := uverbs.BufferOptions{HugePages: true}
	_, err := uverbs.AllocBuffer(3<<20, huge)
	if !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("without huge pages: %v, want ENOMEM", err)
	}
	says(t, err, "2 pages are needed", "of 0 only 0 are free", "echo 2 > "+hugePageFile)

	reserveHuge(t, 3)
	a, b := pair(t, uverbs.QPOptions{MaxSendSGE: 2})
	buf, err := uverbs.AllocBuffer(3<<20, huge)
	must(t, err)
	closeLater(t, buf)
	if n := len(buf.Bytes()); n != 3<<20 {
		t.Errorf("the buffer has %d bytes", n)
	}
	_, err = uverbs.AllocBuffer(2<<20+1, huge)
	if !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("with one huge page left: %v, want ENOMEM", err)
	}
	says(t, err, "2 pages are needed", "of 3 only 1 are free", "echo 4 > ")
	last, err := uverbs.AllocBuffer(1, uverbs.BufferOptions{HugePageSize: 2 << 20})
	must(t, err)
	must(t, last.Close())

	mr, err := b.pd.RegMR(buf, uverbs.MROptions{Access: remoteRights})
	must(t, err)
	usable(t, a, mr, 0)
	usable(t, a, mr, 2<<20-1000) // across two pages
	copy(buf.Bytes()[100:], "from one page, ")
	copy(buf.Bytes()[2<<20+100:], "from another")
	must(t, a.qp.PostRecv(1, a.mr.SGE(0, 100)), b.qp.PostSend(send(2, mr.SGE(100, 15), mr.SGE(2<<20+100, 12))))
	b.want(t, 2, uverbs.WCSend)
	a.want(t, 1, uverbs.WCRecv)
	a.holds(t, 0, []byte("from one page, from another"))
	must(t, mr.Close())

	_, err = uverbs.AllocBuffer(1, uverbs.BufferOptions{HugePageSize: 4 << 20})
	argError(t, err, "HugePageSize")
	says(t, err, "4194304", "2097152")
}

func TestNUMANode(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "huge pages that can be reserved")
	for _, o := range []uverbs.BufferOptions{{}, {HugePages: true}} {
		if o.HugePages {
			reserveHuge(t, 2)
		}
		o.NUMANode = new(0)
		buf, err := uverbs.AllocBuffer(2<<20, o)
		must(t, err)
		closeLater(t, buf)
		clear(buf.Bytes())
		maps, err := os.ReadFile("/proc/self/numa_maps")
		must(t, err)
		found := false
		for line := range strings.Lines(string(maps)) {
			if strings.HasPrefix(line, fmt.Sprintf("%012x ", addrOf(buf))) {
				found = strings.Contains(line, " prefer:0 ")
				t.Logf("%s", line)
			}
		}
		if !found {
			t.Errorf("the buffer at %#x has no policy:\n%s", addrOf(buf), maps)
		}
	}
	for _, node := range []int{-1, 1, 1023, 1024, 1 << 40} {
		_, err := uverbs.AllocBuffer(1, uverbs.BufferOptions{NUMANode: new(node)})
		arg := argError(t, err, "NUMANode")
		if arg.Given != strconv.Itoa(node) || !strings.Contains(arg.Allowed, "with memory: 0") {
			t.Errorf("%v names neither the node nor those that there are", err)
		}
	}
}

// addrOf returns the address of a buffer, in the form that a region has it.
func addrOf(buf *uverbs.Buffer) uint64 {
	var n uint64
	fmt.Sscanf(fmt.Sprintf("%p", buf.Bytes()), "0x%x", &n)
	return n
}

// TestBufferPool sends many messages, each in a slot of its own, and receives them into
// slots.
func TestBufferPool(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		const messages, slots, size = 1024, 32, 100
		a, b := pair(t, uverbs.QPOptions{MaxSendWR: slots, MaxRecvWR: slots})
		var pools [2]*uverbs.BufferPool
		for i, s := range []*side{a, b} {
			pool, err := uverbs.NewBufferPool(s.pd, uverbs.PoolOptions{SlotSize: size, Slots: slots, Access: uverbs.AccessLocalWrite})
			must(t, err)
			closeLater(t, pool)
			pools[i] = pool
		}
		out := map[uint64]uverbs.Slot{}
		recv := map[uint64]uverbs.Slot{}
		for sent := range uint64(messages) {
			r, err := pools[1].Get()
			must(t, err)
			s, err := pools[0].Get()
			must(t, err)
			out[sent], recv[sent] = s, r
			for i := range s.Bytes() {
				s.Bytes()[i] = byte(sent)
			}
			binary.LittleEndian.PutUint64(s.Bytes(), sent)
			must(t, b.qp.PostRecv(sent, r.SGE(size)), a.qp.PostSend(send(sent, s.SGE(size))))
			if len(out) < slots/2 {
				continue
			}
			if err := pools[0].Close(); !errors.Is(err, syscall.EBUSY) {
				t.Fatalf("Close with slots out: %v, want EBUSY", err)
			}
			for id := sent + 1 - uint64(len(out)); len(out) > 0; id++ {
				a.want(t, id, uverbs.WCSend)
				b.want(t, id, uverbs.WCRecv)
				got := recv[id].Bytes()
				number := id
				if rig.EFA() { // any that was sent may come first
					number = binary.LittleEndian.Uint64(got)
				}
				if binary.LittleEndian.Uint64(got) != number || got[size-1] != byte(number) || number > sent || sent-number >= slots/2 {
					t.Fatalf("message %d is %x", id, got)
				}
				must(t, pools[0].Put(out[id]), pools[1].Put(recv[id]))
				delete(out, id)
				delete(recv, id)
			}
		}
		if len(out) > 0 {
			t.Errorf("%d slots are still out", len(out))
		}
	})
}

// TestManyMRs registers 10,000 regions, releases them, and does it again: nothing may
// stay, neither pinned pages nor memory of the program. In a brief run there are 2,000. On
// a model, where each costs many times as much, there are 300.
func TestManyMRs(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Memory, testenv.Long)
	eachPath(t, func(t *testing.T) {
		n := 10000
		switch {
		case testenv.Modelled():
			n = 300
		case testenv.Brief():
			n = 2000
		}
		dev := openDevice(t, deviceName)
		n = min(n, int(dev.Attr().MaxMR/2)) // others may have some
		pd, buf := newPD(t, dev), newBuffer(t, 64<<10)
		clear(buf.Bytes())
		mrs := make([]*uverbs.MR, n)
		round := func() {
			keys := map[uint32]bool{}
			for i := range mrs {
				mr, err := pd.RegMR(buf, uverbs.MROptions{Access: remoteRights, Offset: i % 16 * 4096, Length: 4096})
				must(t, err)
				mrs[i] = mr
				keys[mr.LKey()] = true
			}
			if len(keys) != n {
				t.Fatalf("%d regions have %d keys", n, len(keys))
			}
			for i, mr := range mrs {
				must(t, mr.Close())
				mrs[i] = nil
			}
		}
		use := func() (heap, resident int) {
			runtime.GC()
			debug.FreeOSMemory()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int(m.HeapAlloc), memoryUse(t, "VmRSS")
		}
		pinned := memoryUse(t, "VmPin")
		round() // what the program's heap grows to
		heap, resident := use()
		// The heap shows the smallest leak, and resident memory shows every leak. The runtime (and
		// the race detector's memory more so) grows when it likes, a leak in every round.
		const rounds = 5
		for i := 1; ; i++ {
			round()
			if now := memoryUse(t, "VmPin"); now > pinned {
				t.Fatalf("%d bytes are pinned, before it were %d", now, pinned)
			}
			h, r := use()
			moreHeap, moreResident := h-heap, r-resident
			if moreHeap <= 128<<10 && moreResident <= 1<<20 {
				break
			}
			if i == rounds {
				t.Fatalf("in each of %d rounds memory grew; in the last, by %d regions, the heap by %d bytes and what is resident by %d", rounds, n, moreHeap, moreResident)
			}
			heap, resident = h, r
		}
	})
}
