//go:build amd64 || arm64

package uverbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// fault is the completion of a receive whose page was missing.
func (c *card) fault(entry uint16) {
	c.put(14, map[int][]byte{60: b16(entry), 55: {0x22}, 54: {0x93}})
}

// TestMlx5PageFault: a receive of an SRQ whose page was missing is posted again and not shown, and
// what completes after it is there in the same Poll. Of a QP's own receive queue it is a failure.
func TestMlx5PageFault(t *testing.T) {
	for _, userIndex := range []bool{false, true} {
		c := newMlx5Card(t, userIndex, true, 64)
		for id := range uint64(4) {
			must(t, c.srq.PostRecv(100+id, c.sge(0, 10)))
		}
		must(t, c.qp.PostSend(SendWR{ID: 1, Opcode: WRSend, Flags: SendSignaled}))
		c.fault(1)
		if got := c.poll(); len(got) != 0 {
			t.Errorf("index %v: a page fault is shown as %+v", userIndex, got)
		}
		if got := c.srq.mlx5.rec.Load(0); got != 5 {
			t.Errorf("index %v: the device knows of %d receives, want 5", userIndex, got)
		}
		c.put(2, map[int][]byte{60: b16(0), 44: b32(5)})
		c.fault(2)
		c.fault(3)
		c.put(0, map[int][]byte{60: b16(0)})
		c.put(2, map[int][]byte{60: b16(4), 44: b32(6)}) // the one that was posted again first
		var wcs [2]WC
		if n, err := c.cq.Poll(wcs[:]); n != 2 || err != nil || wcs[0].ID != 100 || wcs[1].ID != 1 || wcs[1].Opcode != WCSend {
			t.Errorf("index %v: %d, %v, %+v", userIndex, n, err, wcs)
		}
		if got := c.poll(); len(got) != 1 || got[0].ID != 101 || got[0].ByteLen != 6 || got[0].Status != WCSuccess {
			t.Errorf("index %v: the receive that was posted again is %+v", userIndex, got)
		}
		if n := c.srq.mlx5.rq.Posted(); n != 2 {
			t.Errorf("index %v: %d receives are posted, want 2", userIndex, n)
		}
		if got := c.cq.mlx5.rec.Load(0); got != c.pi {
			t.Errorf("index %v: the consumer index is %d, want %d", userIndex, got, c.pi)
		}

		// A QP that goes takes its completions along, and not the receives.
		c.fault(5)
		c.cq.cleanMlx5(&c.qp.mlx5.owner)
		if n := c.srq.mlx5.rq.Posted(); n != 2 {
			t.Errorf("index %v: %d receives are posted after the sweep, want 2", userIndex, n)
		}
		c.fault(9) // which is of nothing
		if n, err := c.cq.Poll(wcs[:]); n != 0 || !errors.Is(err, ErrCQOverrun) {
			t.Errorf("index %v: a page fault of nothing: %d, %v", userIndex, n, err)
		}

		c = newMlx5Card(t, userIndex, false, 64)
		must(t, c.qp.PostRecv(7, c.sge(0, 10)))
		c.fault(0)
		if got := c.poll(); len(got) != 1 || got[0].ID != 7 || got[0].Status != WCRemAbortErr || got[0].VendorErr != 0x93 {
			t.Errorf("index %v: of a receive queue: %+v", userIndex, got)
		}
	}
}

// TestMlx5SRQRoom: an SRQ has entries that cool down where the device may have page faults on receives,
// and the program does not see them.
func TestMlx5SRQRoom(t *testing.T) {
	for caps, want := range map[ODPCaps]uint32{0: 15, ODPRecv: 15, ODPSRQRecv: 31} {
		c := newMlx5Card(t, true, false, 64)
		c.dev.attr.ODPCapsRC = caps
		s := &SRQ{kind: kindMlx5}
		s.dev, s.object.kind = c.dev, "SRQ"
		o := SRQOptions{MaxWR: 8, MaxSGE: 1}
		value(mlx5Driver{}.prepareSRQ(s, &o))(t)
		must(t, mlx5Driver{}.mapSRQ(s, udata{out: make([]byte, 8)}))
		attr := SRQAttr{MaxWR: o.MaxWR}
		s.queriedMlx5(&attr)
		if o.MaxWR != int(want) || s.Attr().MaxWR != 15 || attr != s.Attr() {
			t.Errorf("with %#x the kernel is told of %d receives, want %d, and the program of %+v and %+v", caps, o.MaxWR, want, s.Attr(), attr)
		}
		must(t, mlx5Driver{}.freeSRQ(s))
	}
}

// TestMlx5RecvOutOfOrder: receives that the device completes out of order are all shown, plain ones
// and others, and so are those that follow.
func TestMlx5RecvOutOfOrder(t *testing.T) {
	for _, userIndex := range []bool{false, true} {
		c := newMlx5Card(t, userIndex, false, 64)
		for round := range uint16(5) {
			for id := range uint64(8) {
				must(t, c.qp.PostRecv(id, c.sge(0, 10)))
			}
			if err := c.qp.PostRecv(8); !errors.Is(err, ErrQueueFull) {
				t.Fatalf("one more receive: %v", err)
			}
			order := []uint16{1, 0, 3, 4, 2, 5, 7, 6}
			for i, entry := range order {
				opcode := byte(2)
				if i%3 == 2 {
					opcode = 3 // with immediate
				}
				c.put(opcode, map[int][]byte{60: b16(8*round + entry), 44: b32(uint32(entry) + 1)})
			}
			got := c.poll()
			if len(got) != len(order) {
				t.Fatalf("index %v: %d completions, want %d", userIndex, len(got), len(order))
			}
			for i, wc := range got {
				if wc.ID != uint64(order[i]) || wc.ByteLen != uint32(order[i])+1 || wc.Status != WCSuccess {
					t.Errorf("index %v: completion %d is %+v, want that of %d", userIndex, i, wc, order[i])
				}
			}
		}
	}
}

// TestMlx5AtomicLength: the completion of an atomic is about 8 bytes, whatever the device has written
// where that of a READ has its length.
func TestMlx5AtomicLength(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	must(t, c.qp.PostSend(
		SendWR{ID: 1, Opcode: WRCompareSwap, Flags: SendSignaled, SGL: []SGE{c.sge(0, 8)}},
		SendWR{ID: 2, Opcode: WRFetchAdd, Flags: SendSignaled, SGL: []SGE{c.sge(8, 8)}},
		SendWR{ID: 3, Opcode: WRRDMARead, Flags: SendSignaled, SGL: []SGE{c.sge(8, 8)}},
	))
	c.put(0, map[int][]byte{60: b16(0), 44: b32(0xdead)})
	c.put(0, map[int][]byte{60: b16(1), 44: b32(8)}, 1, 2, 3, 4, 5, 6, 7, 8)
	c.put(0, map[int][]byte{60: b16(2), 44: b32(77)})
	got := c.poll()
	for i, want := range []uint32{8, 8, 77} {
		if got[i].ByteLen != want || got[i].Status != WCSuccess {
			t.Errorf("completion %d is %+v, want %d bytes", i, got[i], want)
		}
	}
}

// TestNoAtomics: where the device has no atomics they are refused as a feature that it does not
// support, and nothing is posted.
func TestNoAtomics(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	f.dev.attr.AtomicCap = ib.AtomicNone
	qp := value(f.pd.CreateQP(QPOptions{SendCQ: f.cq, RecvCQ: f.cq}))(t)
	qp.state.Store(uint32(ib.QPRTS))
	for _, wr := range []SendWR{
		{Opcode: WRCompareSwap, RemoteAddr: 8, SGL: []SGE{f.mr.SGE(0, 8)}},
		{Opcode: WRFetchAdd, RemoteAddr: 8, SGL: []SGE{f.mr.SGE(0, 8)}},
	} {
		err := qp.PostSend(wr)
		var feature *FeatureError
		var post *PostError
		if !errors.As(err, &post) || !errors.As(err, &feature) || feature.Feature != "atomics" || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", wr.Opcode, err)
		}
	}
	errorIs(t, qp.PostSend(SendWR{Opcode: 200}), ErrOpcode, "an operation that there is not")
	must(t, qp.Close())
}

// TestMlx5SendErrors: what an error says of a send that the device refuses, or that the peer does not answer.
func TestMlx5SendErrors(t *testing.T) {
	for name, f := range map[string]struct {
		typ      ib.QPType
		link     ib.LinkLayer
		wr       SendWR
		syndrome byte
		want     string
		not      string
	}{
		"datagram above the MTU":   {ib.UD, ib.LinkLayerEthernet, SendWR{Opcode: WRSend}, 1, "a datagram may be as long as the port's MTU", "receive"},
		"READ without MaxRdAtomic": {ib.RC, ib.LinkLayerEthernet, SendWR{Opcode: WRRDMARead, RemoteAddr: 0x1000, RKey: 3}, 2, "the QP sends no READ or atomic, as its MaxRdAtomic is 0", "route"},
		"no answer on RoCE":        {ib.RC, ib.LinkLayerEthernet, SendWR{Opcode: WRSend}, 0x15, "UDP port 4791", "partition"},
		"no answer on InfiniBand":  {ib.RC, ib.LinkLayerInfiniBand, SendWR{Opcode: WRSend}, 0x15, "partition", "UDP"},
	} {
		c := newMlx5Card(t, true, false, 64)
		c.dev.setLinkLayer(f.link)
		c.qp.port.Store(1)
		c.qp.peer.Store(&peerInfo{noReads: true})
		c.answer = func() syscall.Errno { return syscall.EIO } // so that nothing more is known
		f.wr.ID, f.wr.Flags, f.wr.SGL = 1, SendSignaled, []SGE{c.sge(0, 64)}
		must(t, c.qp.PostSend(f.wr))
		c.qp.typ = f.typ
		c.put(13, map[int][]byte{60: b16(0), 55: {f.syndrome}})
		wc := c.poll()
		if text := c.qp.Err(&wc[0]).Error(); !strings.Contains(text, f.want) || strings.Contains(text, f.not) {
			t.Errorf("%s: %s; want %q, and not %q", name, text, f.want, f.not)
		}
	}
}
