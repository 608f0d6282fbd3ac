//go:build amd64 || arm64

package uverbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// TestMlx5Place: a queue that goes leaves its place in the table of owners, with an index of the
// library's for the next one.
func TestMlx5Place(t *testing.T) {
	for _, userIndex := range []bool{false, true} {
		c := newMlx5Card(t, userIndex, false, 64)
		m := c.dev.mlx5
		const number = 0x4321
		enter := func() *mlx5TableEntry {
			p := &mlx5TableEntry{owner: mlx5Owner{qp: c.qp}}
			must(t, p.register(m))
			p.registerNumber(m, number)
			if got := m.owners.get(p.index); got != &p.owner || !p.registered {
				t.Fatalf("index %v: owner of %#x is %p, want %p", userIndex, p.index, got, &p.owner)
			}
			return p
		}
		first := enter()
		index := first.index
		if (index == number) == userIndex {
			t.Errorf("index %v: the place is %#x", userIndex, index)
		}
		first.unregister(m)
		if got := m.owners.get(index); got != nil || first.registered {
			t.Errorf("index %v: %#x has the owner %p after it was left", userIndex, index, got)
		}
		second := enter()
		if second.index != index {
			t.Errorf("index %v: the next place is %#x, want %#x again", userIndex, second.index, index)
		}
		first.unregister(m) // once more
		if got := m.owners.get(index); got != &second.owner {
			t.Errorf("index %v: leaving twice has removed the next owner", userIndex)
		}
		second.unregister(m)
		if free := len(m.owners.free); userIndex != (free == 1) {
			t.Errorf("index %v: %d indices are free", userIndex, free)
		}
	}
}

// TestMlx5PostRecvs: batches of receives fill the queue to the last element, all or none.
func TestMlx5PostRecvs(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for first := range 9 {
			c := newMlx5Card(t, true, shared, 64)
			post, room := c.qp.PostRecvs, c.qp.Caps().MaxRecvWR
			if shared {
				post, room = c.srq.PostRecvs, c.srq.maxWR
			}
			batch := func(n int) []RecvWR {
				wrs := make([]RecvWR, n)
				for i := range wrs {
					wrs[i] = RecvWR{ID: uint64(i), SGL: []SGE{c.sge(0, 4)}}
				}
				return wrs
			}
			first = min(first, room)
			must(t, post(batch(first)...))
			more := room - first + 1
			err := post(batch(more)...)
			arg, ok := errors.AsType[*ArgError](err)
			if first == 0 && (!ok || arg.Given != fmt.Sprint(more)) || first > 0 && !errors.Is(err, ErrQueueFull) {
				t.Errorf("shared %v: %d receives after %d in a queue of %d: %v", shared, more, first, room, err)
			}
			bad := batch(more - 1)
			if len(bad) > 0 {
				bad[len(bad)-1].SGL = []SGE{{outside: true}}
				if post, ok := errors.AsType[*PostError](post(bad...)); !ok || post.Index != len(bad)-1 || !errors.Is(post.Err, ErrSGERange) {
					t.Errorf("shared %v: a bad receive: %v", shared, post)
				}
			}
			if err := post(batch(more - 1)...); err != nil {
				t.Errorf("shared %v: %d receives after %d in a queue of %d: %v", shared, more-1, first, room, err)
			}
			must(t, post())
		}
	}
}

// TestMlx5FreeWQ: completions of a WQ that goes are gone, and those of others stay.
func TestMlx5FreeWQ(t *testing.T) {
	for _, userIndex := range []bool{false, true} {
		c := newMlx5Card(t, userIndex, false, 64)
		w := &WQ{object: object{dev: c.dev, kind: "WQ"}, num: 0x99}
		u, err := w.prepareRing(&WQOptions{CQ: c.cq, MaxWR: 4, MaxSGE: 1})
		must(t, err)
		if len(u.in) == 0 || len(u.out) == 0 {
			t.Error("CREATE_WQ has no part of the driver's")
		}
		must(t, w.mapRing(), postRecvsMlx5(w.mlx5.rq, []RecvWR{{ID: 71}, {ID: 72}}))
		must(t, c.qp.PostRecv(50, c.sge(0, 100)))
		own := map[int][]byte{32: b32(w.mlx5.index), 56: b32(w.num), 60: b16(0), 44: b32(8)}
		if !userIndex {
			own[32] = b32(0)
		}
		c.put(2, own)
		if got := c.poll(); len(got) != 1 || got[0].ID != 71 {
			t.Fatalf("index %v: the WQ's completion is %+v", userIndex, got)
		}
		own[60] = b16(1)
		c.put(2, own)
		c.put(2, map[int][]byte{60: b16(0), 44: b32(8)})
		must(t, w.freeRing())
		var wcs [4]WC
		if n, err := c.cq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].ID != 50 {
			t.Errorf("index %v: after the WQ was freed the CQ has %+v, %v, want the receive of the QP alone", userIndex, wcs[:n], err)
		}
		if o := c.dev.mlx5.owners.get(w.mlx5.index); o != nil {
			t.Errorf("index %v: the place of the WQ has an owner", userIndex)
		}
	}
}

// TestMlx5Refused: what the device has not is refused by name, and leaves no doorbell record in use.
func TestMlx5Refused(t *testing.T) {
	c := newMlx5Card(t, true, true, 64)
	var issued int
	issue := func(udata) error { issued++; return syscall.EIO }
	if err := (mlx5Driver{}).modifySRQ(nil, false, issue); err != syscall.EIO || issued != 1 {
		t.Errorf("MODIFY_SRQ: %v, issued %d times, want EIO and 1", err, issued)
	}
	if err := (mlx5Driver{}).modifySRQ(nil, true, issue); !errors.Is(err, errors.ErrUnsupported) || issued != 1 {
		t.Errorf("MODIFY_SRQ with a size: %v, issued %d times", err, issued)
	}
	for _, cqe := range []int{1 << 24, math.MaxInt32} {
		cq := &CQ{kind: kindMlx5}
		cq.dev, cq.object.kind = c.dev, "CQ"
		u, err := mlx5Driver{}.prepareCQ(cq, &CQOptions{Size: cqe})
		if !errors.Is(err, syscall.EINVAL) || u.in != nil || cq.mlx5 != nil {
			t.Errorf("a CQ of %d: %v, want an error about the size", cqe, err)
		}
	}
	for size, ok := range map[int]bool{0: true, 64: true, 128: true, 32: false, 65: false, -1: false} {
		cq := &CQ{object: object{dev: c.dev, kind: "CQ"}}
		_, err := mlx5Driver{}.prepareCQ(cq, &CQOptions{Size: cardCQEs - 1, CQESize: size})
		if (err == nil) != ok {
			t.Errorf("completions of %d bytes: %v", size, err)
		}
		if err == nil {
			must(t, mlx5Driver{}.freeCQ(cq))
		}
	}
}

// TestMlx5RawPacketRefused: a card whose completions have no user index has no QPs for raw packets.
// mlx5_ib would refuse them with EINVAL.
func TestMlx5RawPacketRefused(t *testing.T) {
	for _, userIndex := range []bool{false, true} {
		c := newMlx5Card(t, userIndex, false, 64)
		q := &QP{typ: ib.RawPacket, kind: kindMlx5, sendCQ: c.cq, recvCQ: c.cq}
		q.dev, q.object.kind = c.dev, "QP"
		o := QPOptions{Type: ib.RawPacket, SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 8, MaxSendSGE: 1, MaxRecvWR: 8, MaxRecvSGE: 1}
		_, err := mlx5Driver{}.prepareQP(q, &qpSpec{QPOptions: o, pd: &PD{}})
		var missing *FeatureError
		if userIndex {
			must(t, err, mlx5Driver{}.freeQP(q))
		} else if !errors.As(err, &missing) || missing.Driver != "mlx5" || !strings.Contains(missing.Feature, "raw packets") {
			t.Errorf("without user indices: %v, want a FeatureError", err)
		}
	}
}

// TestMlx5PrepareResize: a CQ that would have the size that it has is left alone, and one that cannot
// be is refused.
func TestMlx5PrepareResize(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	for cqe, want := range map[int]bool{cardCQEs - 1: false, cardCQEs/2 + 1: false, cardCQEs: true, cardCQEs/2 - 1: true} {
		if _, resize, err := (mlx5Driver{}).prepareResize(c.cq, &cqe); resize != want || err != nil {
			t.Errorf("to %d: %v, %v, want %v", cqe, resize, err, want)
		}
		if (c.cq.mlx5.room != nil) != want {
			t.Errorf("to %d: there is a new ring: %v, want %v", cqe, c.cq.mlx5.room != nil, want)
		}
		if want {
			must(t, c.cq.abandonResizeMlx5())
			c.cq.mlx5.room = nil
		}
	}
	most := math.MaxInt32
	if _, resize, err := (mlx5Driver{}).prepareResize(c.cq, &most); resize || !errors.Is(err, syscall.EINVAL) {
		t.Errorf("to %d: %v, %v, want EINVAL", most, resize, err)
	}
}

// TestMlx5InlinePut: data of a completion goes into memory that may be written, and stops at the first
// entry that does not lie in such memory.
func TestMlx5InlinePut(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	c.dev.mrs.insert(&mrRecord{lkey: 0x100, addr: addrOf(c.mem), length: 8, mem: c.mem[:8]}) // for reading only
	d := mlx5Inline{mrs: &c.dev.mrs, data: []byte("0123456789")}
	if !d.put(addrOf(c.mem)+100, 4, cardKey) || string(c.mem[100:104]) != "0123" || d.status != WCSuccess {
		t.Errorf("the first entry: %q, %s", c.mem[100:110], d.status)
	}
	for _, lkey := range []uint32{0x100, 0x999} {
		bad := mlx5Inline{mrs: d.mrs, data: d.data}
		if bad.put(addrOf(c.mem), 4, lkey) || bad.status != WCLocProtErr || c.mem[0] != 0 {
			t.Errorf("an entry with lkey %#x: %s, %q", lkey, bad.status, c.mem[:4])
		}
	}
	if d.put(addrOf(c.mem)+200, 100, cardKey) || string(c.mem[200:206]) != "456789" || c.mem[206] != 0 || d.status != WCSuccess {
		t.Errorf("the last entry: %q, %s", c.mem[200:210], d.status)
	}
}

// TestMlx5FreeCQWhilePolling: a CQ goes while it is polled.
func TestMlx5FreeCQWhilePolling(t *testing.T) {
	for range 5 {
		c := newMlx5Card(t, true, false, 64)
		together(func() {
			var wcs [4]WC
			for range 50 {
				if n, err := c.cq.Poll(wcs[:]); n != 0 || err != nil && !errors.Is(err, ErrCQOverrun) && !errors.Is(err, os.ErrClosed) {
					t.Errorf("%d, %v", n, err)
				}
				runtime.Gosched()
			}
		}, func() {
			runtime.Gosched()
			must(t, mlx5Driver{}.freeCQ(c.cq))
		})
	}
}

// TestMlx5Answers: answers that are too short, or without what is needed, are refused.
func TestMlx5Answers(t *testing.T) {
	d, _, err := openFakeMlx5(t, func([]byte) {})
	must(t, err)
	a := &AH{object: object{dev: d, kind: "AH"}, attr: AHAttr{Port: 1}}
	errorIs(t, (mlx5Driver{}).openAH(a, udata{out: make([]byte, 16)}), errors.ErrUnsupported, "an AH without the peer's Ethernet address")
	if err := (mlx5Driver{}).openAH(a, udata{out: make([]byte, 15)}); err == nil || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an AH with a short answer: %v", err)
	}
	s := &SRQ{object: object{dev: d, kind: "SRQ"}}
	must(t, func() error { _, err := mlx5Driver{}.prepareSRQ(s, &SRQOptions{MaxWR: 4, MaxSGE: 1}); return err }())
	if err := (mlx5Driver{}).mapSRQ(s, udata{out: make([]byte, 7)}); err == nil || s.num != 0 || s.maxWR != 0 {
		t.Errorf("an SRQ with a short answer: %v", err)
	}
	must(t, mlx5Driver{}.freeSRQ(s), d.Close())
}

// TestMlx5AddressCache: the second AH of a port costs no query of its GID, unless the GID is new.
func TestMlx5AddressCache(t *testing.T) {
	d, k, err := openFakeMlx5(t, func([]byte) {})
	must(t, err)
	add := func(index uint32) {
		e := abi.GIDEntry{GIDIndex: index, PortNum: 1, GIDType: 2, NetdevIfindex: 3}
		g := gid(t, "10.1.0.1")
		copy(bytesOf(&e.GID), g[:])
		k.gids = append(k.gids, e)
	}
	add(1)
	open := func(index uint8, want ...string) {
		t.Helper()
		a := &AH{object: object{dev: d, kind: "AH"}, attr: AHAttr{Port: 1, Global: true, GRH: GRH{SGIDIndex: index, FlowLabel: 5}}}
		k.took()
		must(t, mlx5Driver{}.openAH(a, udata{out: []byte{16, 0, 0, 0, 1, 2, 3, 4, 5, 6, 15: 0}}))
		got := slices.DeleteFunc(k.took(), func(c string) bool { return !strings.HasPrefix(c, "ioctl QUERY_GID") })
		if !slices.Equal(got, want) {
			t.Errorf("GID %d: asked %q, want %q", index, got, want)
		}
	}
	open(1, "ioctl QUERY_GID_TABLE")
	open(1)
	add(2) // without an event yet
	open(2, "ioctl QUERY_GID_ENTRY")
	must(t, d.Close())
}

// TestMlx5ClockPage: the page of the clock is mapped once, and not any more when the device is closed.
func TestMlx5ClockPage(t *testing.T) {
	d, k, err := openFakeMlx5(t, func([]byte) {})
	must(t, err)
	must(t, k.file.Truncate(doorbells))
	before := k.ringsMapped()
	for range 2 {
		if _, err := d.ReadClock(); err != nil {
			t.Fatal(err)
		}
		if n := k.ringsMapped() - before; n != os.Getpagesize() {
			t.Errorf("%d bytes are mapped for the clock, want a page", n)
		}
	}
	must(t, d.Close())
	if n := k.ringsMapped(); n != 0 {
		t.Errorf("%d bytes are still mapped", n)
	}
}

// TestMlx5ClockTogether: goroutines that read the clock at the same time share one page.
func TestMlx5ClockTogether(t *testing.T) {
	for range 20 {
		d, k, err := openFakeMlx5(t, func([]byte) {})
		must(t, err)
		must(t, k.file.Truncate(doorbells))
		before := k.ringsMapped()
		read := func() {
			if _, err := d.ReadClock(); err != nil {
				t.Error(err)
			}
		}
		together(read, read, read, read)
		if n := k.ringsMapped() - before; n != os.Getpagesize() {
			t.Errorf("%d bytes are mapped for the clock, want a page", n)
		}
		must(t, d.Close())
	}
}

// TestMlx5SRQList: a receive of an SRQ ends its list behind its own entries, whatever was there.
func TestMlx5SRQList(t *testing.T) {
	c := newMlx5Card(t, true, true, 64)
	const header, entry = 16, 16
	slot := c.srq.region.Bytes()[header:][:3*entry]
	for n := range 4 {
		for i := range slot {
			slot[i] = 0xee
		}
		var sgl []SGE
		for range n {
			sgl = append(sgl, c.sge(8, 100))
		}
		must(t, c.srq.PostRecv(1, sgl...))
		for i := range n {
			if got := slot[entry*i:][:8]; !slices.Equal(got, append(b32(100), b32(cardKey)...)) {
				t.Errorf("%d SGEs: entry %d is %x", n, i, got)
			}
		}
		if n < 3 {
			if got := slot[entry*n:][:8]; !slices.Equal(got, append(b32(0), b32(0x100)...)) { // MLX5_INVALID_LKEY
				t.Errorf("%d SGEs: behind them is %x", n, got)
			}
		}
		c = newMlx5Card(t, true, true, 64)
		slot = c.srq.region.Bytes()[header:][:3*entry]
	}
}

// TestMlx5NoRingMemory: a queue is refused if there is no memory for its ring, and the memory of its other ring
// is free again.
func TestMlx5NoRingMemory(t *testing.T) {
	const most = 1 << 50 // more than an address space holds
	c := newMlx5Card(t, true, true, 64)
	m := c.dev.mlx5
	m.MaxRecvWR, m.MaxSRQWR, m.MaxBlocks = most, most, most
	w, s, q := &WQ{}, &SRQ{kind: kindMlx5}, &QP{kind: kindMlx5}
	w.dev, s.dev, q.dev = c.dev, c.dev, c.dev
	qp := func(o QPOptions) (udata, error) {
		o.SendCQ, o.RecvCQ, o.MaxSendSGE, o.MaxRecvSGE = c.cq, c.cq, 1, 1
		return mlx5Driver{}.prepareQP(q, &qpSpec{QPOptions: o, pd: &PD{}})
	}
	for what, prepare := range map[string]func() (udata, error){
		"WQ":                   func() (udata, error) { return w.prepareRing(&WQOptions{CQ: c.cq, MaxWR: most, MaxSGE: 1}) },
		"SRQ":                  func() (udata, error) { return mlx5Driver{}.prepareSRQ(s, &SRQOptions{MaxWR: most / 2, MaxSGE: 1}) },
		"QP":                   func() (udata, error) { return qp(QPOptions{Type: ib.RC, MaxSendWR: 8, MaxRecvWR: most}) },
		"raw packets, receive": func() (udata, error) { return qp(QPOptions{Type: ib.RawPacket, MaxSendWR: 8, MaxRecvWR: most}) },
		"raw packets, send":    func() (udata, error) { return qp(QPOptions{Type: ib.RawPacket, MaxSendWR: most / 2, MaxRecvWR: 8}) },
	} {
		u, err := prepare()
		if !errors.Is(err, syscall.ENOMEM) || u.in != nil {
			t.Errorf("%s: the kernel would be told %x, and the program %v; want ENOMEM", what, u.in, err)
		}
		if q.rqRegion != nil && q.rqRegion.Bytes() != nil {
			t.Errorf("%s: the ring of receives is still mapped", what)
		}
	}
}
