package engine

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// A lane connects a device to others. Batches that arrive wait for a goroutine; without room for
// them they are lost.
type lane struct {
	all map[netip.Addr]*lane
	in  chan fakePacket
}

func (l *lane) Resolve(_, to netip.Addr) (netip.AddrPort, syscall.Errno) {
	return netip.AddrPortFrom(to, 4791), 0
}
func (l *lane) TakesLarge(netip.AddrPort) bool { return false }
func (l *lane) Join(netip.Addr) syscall.Errno  { return 0 }
func (l *lane) Leave(netip.Addr)               {}

func (l *lane) Send(from netip.Addr, b *udp.Batch) {
	for i := range b.Len() {
		to, data := b.Packet(i)
		select {
		case l.all[to.Addr()].in <- fakePacket{from: from, to: to.Addr(), data: slices.Clone(data)}:
		default:
		}
	}
}

// receive gives packets to the device until one comes from nowhere.
func (l *lane) receive(d *Device) {
	r := d.NewReceiver()
	for k := range l.in {
		if !k.from.IsValid() {
			return
		}
		r.Packet(&Meta{From: k.from, To: k.to}, k.data)
		r.Flush()
	}
}

// crowdBuffer is the size of the registered memory of each QP of a crowd, in bytes.
const crowdBuffer = 4 << 20

// A crowd is a number of QPs on two devices with random connections.
type crowd struct {
	sides []*side
	rings []sync.Mutex // of the program, for each side
}

// act does something at random to one of the QPs. Actions that the QP does not permit fail.
func (c *crowd) act(r *rand.Rand) {
	i := r.IntN(len(c.sides))
	s, peer := c.sides[i], c.sides[i^1]
	if r.IntN(4) == 0 {
		peer = c.sides[r.IntN(len(c.sides))]
	}
	switch r.IntN(100) {
	case 0:
		s.qp.Modify(&QPAttr{State: []State{Err, SQD, RTS}[r.IntN(3)]}, AttrState)
	case 1, 2:
		s.join(peer)
		peer.join(s)
	case 3:
		s.qp.Query()
	default:
		c.rings[i].Lock()
		s.postSome(peer, r)
		c.rings[i].Unlock()
		s.qp.Doorbell()
	}
}

// join connects a QP to another one, as far as others do not do so at the same time.
func (s *side) join(peer *side) {
	const (
		rtr = rtrMask | AttrMaxDestRdAtomic | AttrMinRNRTimer
		rts = rtsMask | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrMaxRdAtomic
	)
	way := AV{GRH: true, Port: 1, DGID: (*peer.d.gids.Load())[0].GID}
	s.qp.Modify(&QPAttr{State: Reset}, AttrState)
	s.qp.Modify(&QPAttr{State: Init, Port: 1, AccessFlags: allAccess}, initMask|AttrAccess)
	s.qp.Modify(&QPAttr{State: RTR, PathMTU: 1, DestQPN: peer.qp.num, MaxDestRdAtomic: 4, MinRNRTimer: 1, AV: way}, rtr)
	s.qp.Modify(&QPAttr{State: RTS, Timeout: 8, RetryCount: 3, RNRRetry: 7, MaxRdAtomic: 4}, rts)
}

// postSome posts some random requests and receives, as far as there is room, and forgets completions.
func (s *side) postSome(peer *side, r *rand.Rand) {
	for range r.IntN(8) {
		if s.qp.sq.Full(s.qp.sq.Producer(), s.qp.sq.Consumer()) {
			break
		}
		wr := signaled(1, []uint32{ring.OpSend, ring.OpWrite, ring.OpRead, ring.OpAtomicFAA}[r.IntN(4)], s.sge(0, r.IntN(20000))).to(peer, align(peer))
		switch {
		case wr.opcode == ring.OpAtomicFAA:
			wr.sges[0].length = 8
		case wr.opcode == ring.OpRead && r.IntN(8) == 0: // the response takes several goroutines
			wr.sges[0].length = crowdBuffer / 2
		}
		s.put(wr)
	}
	for range 4 {
		if !s.qp.rq.Full(s.qp.rq.Producer(), s.qp.rq.Consumer()) {
			s.recv(2, s.sge(0, 40000))
		}
	}
	done := s.cq.Ring()
	done.SetConsumer(done.Producer())
}

// TestCrowd does all that a program can do with QPs in several goroutines, and closes the devices
// meanwhile. Afterwards no QP has a worker, and none waits for the end of a response.
func TestCrowd(t *testing.T) {
	var c crowd
	var work, receivers sync.WaitGroup
	lanes := map[netip.Addr]*lane{}
	var devices []*Device
	var running sync.WaitGroup // goroutines of the engine
	for _, addr := range []string{"10.0.0.1", "10.0.0.2"} {
		l := &lane{all: lanes, in: make(chan fakePacket, 256)}
		d := newDevice(t, Config{Network: l, Go: func(f func()) { running.Go(f) }}, addr)
		lanes[netip.MustParseAddr(addr)] = l
		devices = append(devices, d)
		for range 6 {
			c.sides = append(c.sides, newSide(t, d, sideOptions{recvWR: 63, sendWR: 63, bufSize: crowdBuffer}))
		}
	}
	c.rings = make([]sync.Mutex, len(c.sides))
	for i, d := range devices {
		receivers.Go(func() { lanes[addrOfGID((*devices[i].gids.Load())[0].GID)].receive(d) })
	}
	for g := range 4 {
		work.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			for n := range 1500 {
				if g == 0 && n == 1200 {
					devices[1].Close()
				}
				c.act(r)
			}
		})
	}
	work.Wait()
	for _, s := range c.sides {
		check(t, s.qp.Close())
	}
	for _, l := range lanes {
		l.in <- fakePacket{}
	}
	receivers.Wait()
	running.Wait()
	for i, s := range c.sides {
		for s.inUse() { // in a goroutine of a timer that was expiring; without an end if the QP is lost
			runtime.Gosched()
		}
		if len(s.qp.resp.waiting) > 0 || s.qp.timer.place != 0 {
			t.Errorf("QP %d is left with %d bytes waiting and timer %+v", i, len(s.qp.resp.waiting), s.qp.timer)
		}
	}
}

// inUse reports whether a worker runs the QP, or sends its response to a READ.
func (s *side) inUse() bool {
	s.qp.mu.Lock()
	defer s.qp.mu.Unlock()
	return s.qp.running || s.qp.resp.busy
}
