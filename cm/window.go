package cm

import (
	"context"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// A connection starts with memory for a few small messages, which costs little. Memory for Depth
// messages of MessageSize takes longer to register than everything else that a connection needs. It
// is allocated when it is needed: when the peer has a larger message, when the peer sends more
// messages than this side takes. The peer does not depend on what the program on this side does: when no
// goroutine is in a method of the connection attendDelay after the start or later, the connection starts one
// that waits for the request of the peer. So a connection that is idle or has small messages never allocates
// that memory.
//
// A queue pair uses receives in the order in which they were posted, so that the first messages of
// the peer meet the small ones. When this side has posted the large ones it tells the peer how many
// small ones it has posted. The peer must use up the rest of these, with small messages or with pad
// messages, before it sends a large message.

const (
	firstDepth = 4                      // messages that the peer may send at the start
	firstRecvs = firstDepth + spareRecv // small receives
	firstSize  = 448                    // bytes of a small receive; all of them together take less than a page
	firstData  = firstSize - headerSize // bytes of data that fit into a small receive
)

// attendDelay is how long after its start a connection with small receives starts a goroutine that waits for
// the peer to ask for large ones, unless another goroutine waits on the connection. Tests change it.
var attendDelay = 100 * time.Millisecond

// laterDelays is how many attendDelays after the last goroutine has left its methods a connection
// is looked at again. There is no look while a goroutine waits, so that an idle connection does not
// wake up for it.
const laterDelays = 10

// window is the state of the receives of this side.
type window struct {
	smallMem    memory // slots of the small receives, empty if there are none
	startsSmall bool   // the connection has started with small receives
	grown       bool   // the large receives are posted
	smallInUse  int    // small slots in use
	smallPosted uint32 // receives posted before the first large one
	announced   bool   // the peer knows of the large receives

	attendAt time.Time // when to start attend unless a goroutine waits; zero before Accept has returned the connection
	attended bool      // a goroutine waited at attendAt, or attend does; the time begins anew when the last one leaves
	relieved bool      // since attend has started, the program has called a method that waits

	wantedEarly bool // the peer has asked for large receives before that
	wantedLate  bool // the peer has asked for them when it had been told of them already
	over        bool // the peer has disconnected: the window does not grow any more
}

// peerWindow is what this side knows about the peer's receives.
type peerWindow struct {
	mayBeSmall   bool   // the next receive of the peer may be a small one
	grown        bool   // the peer has posted large receives
	smallTotal   uint32 // how many small ones it has posted before those
	firstCredits uint32 // how many messages it could receive at the start
	sent         uint32 // messages of any kind sent to the peer; counts while mayBeSmall matters
	wantSent     bool   // this side has asked for large receives
}

// recordGrown handles the peer's announcement of large receives. The argument is how many small
// ones it has posted before them: those of the start, and at most one for each message that was
// sent to it.
func (p *peerWindow) recordGrown(recvs uint32) error {
	if !p.mayBeSmall || p.grown {
		return protoErr("a second announcement of large receives")
	}
	left := int32(recvs - p.sent)
	if left > int32(p.firstCredits+spareRecv) {
		return protoErr("it claims %d small receives; after %d messages to it there can be at most %d", recvs, p.sent, p.sent+p.firstCredits+spareRecv)
	}
	p.grown, p.smallTotal = true, p.sent+uint32(max(left, 0))
	return nil
}

// startsSmall reports whether a connection with these options starts with small receives.
func (o *ConnOptions) startsSmall() bool {
	const least = 64 << 10 // with fewer bytes it is not worth it
	return o.Depth >= 3*firstDepth && o.Depth*o.MessageSize >= least
}

// makeWindow allocates the memory of the first receives.
func (c *Conn) makeWindow(recvs int) (err error) {
	n := recvs
	if c.o.startsSmall() {
		c.win.startsSmall, n = true, firstRecvs
		if c.win.smallMem, err = c.domain.first.alloc(n, firstSize); err != nil {
			return err
		}
		c.win.smallInUse = n
	} else if c.mem, err = c.domain.pool.alloc(n, headerSize+c.o.MessageSize); err != nil {
		return err
	}
	return nil
}

// recvs returns the largest number of posted receives.
func (c *Conn) recvs() int {
	if c.win.startsSmall {
		return len(c.inbox) + firstRecvs
	}
	return len(c.inbox)
}

// entries returns the largest number of outstanding completions.
func (c *Conn) entries() int { return c.recvs() + c.sends() }

// sends returns the number of work requests that the send queue has room for.
func (c *Conn) sends() int { return len(c.sendRing) + len(c.opRing) }

// postAll posts the receives that a connection starts with. The numbers of the small slots follow
// those of the large ones.
func (c *Conn) postAll() error {
	from, n := 0, len(c.inbox)
	if c.win.startsSmall {
		from, n = n, firstRecvs
	}
	return c.postRecvs(from, n)
}

// slotMemory returns the memory that a slot is in, and its index there.
func (c *Conn) slotMemory(slot int) (m *memory, i int) {
	if i := slot - len(c.inbox); i >= 0 {
		return &c.win.smallMem, i
	}
	return &c.mem, slot
}

// postRecv posts the receive of a slot, which countRepost has counted.
func (c *Conn) postRecv(slot int) error {
	m, i := c.slotMemory(slot)
	return c.qp.PostRecv(recvBit|uint64(slot), m.sge(i, m.size))
}

// postRecvs posts n receives for the first time, beginning with that of slot from.
func (c *Conn) postRecvs(from, n int) error {
	wrs, sges := make([]uverbs.RecvWR, n), make([]uverbs.SGE, n)
	for i := range wrs {
		c.countRepost(from + i)
		m, at := c.slotMemory(from + i)
		sges[i] = m.sge(at, m.size)
		wrs[i] = uverbs.RecvWR{ID: recvBit | uint64(from+i), SGL: sges[i : i+1]}
	}
	return c.qp.PostRecvs(wrs...)
}

// countRepost counts the receive of a slot that is about to be posted, and reports whether to post
// it. Small receives are not posted again once there are large ones. Their memory is released with
// the last of them.
func (c *Conn) countRepost(slot int) bool {
	w := &c.win
	if slot >= len(c.inbox) && w.grown {
		if w.smallInUse--; w.smallInUse == 0 {
			w.smallMem.release()
		}
		return false
	}
	if !w.grown {
		w.smallPosted++
	}
	return true
}

// grow allocates the memory of the large receives and posts them. The peer is told soon after.
// Until then it may use up all small receives without harm, because there are as many large ones as
// it has credits.
func (c *Conn) grow() error {
	if grown, err := c.allocLarge(); !grown {
		return err
	}
	return c.postLarge()
}

// allocLarge allocates the memory of the large receives, if they are due. It reports whether to post them.
func (c *Conn) allocLarge() (grown bool, err error) {
	w := &c.win
	if !w.startsSmall || w.grown || w.over || c.closing || c.eof || c.err != nil {
		return false, nil
	}
	if w.attendAt.IsZero() { // a peer gets no more memory before the program has accepted the connection
		w.wantedEarly = true
		return false, nil
	}
	mem, err := c.domain.pool.alloc(len(c.inbox), headerSize+c.o.MessageSize)
	if err != nil {
		return false, err
	}
	c.mem, w.grown = mem, true
	c.consumed += c.o.Depth - firstDepth
	return true, nil
}

// postLarge posts the large receives.
func (c *Conn) postLarge() error {
	return c.postRecvs(0, len(c.inbox))
}

// attendDue reports whether the connection starts attend at attendAt unless a goroutine waits then.
func (c *Conn) attendDue() bool {
	w := &c.win
	return w.startsSmall && !w.grown && !w.attended && !w.over && !c.eof && !w.attendAt.IsZero()
}

// startAttend starts attend if it is time and no goroutine waits. The caller holds c.mu.
func (c *Conn) startAttend(now time.Time) {
	if !c.attendDue() || now.Before(c.win.attendAt) {
		return
	}
	c.win.attended = true
	if c.users == 0 {
		c.users++
		c.win.relieved = false
		go c.attend()
	}
}

// attend handles what arrives until the window has grown, which the peer asks for, or the program has called a
// method that waits, though it may be there no more: a program that sends and receives in turn would be woken twice
// for each message. It is the only goroutine of a connection, and no deeper in calls than necessary: its stack
// is as small as they are made.
func (c *Conn) attend() {
	c.mu.Lock()
	c.waitParked(context.Background(), attendOver, 0) // an error ends the methods of the program, too
	c.end()
	c.mu.Unlock()
}

// attendOver reports whether attend is over.
func attendOver(c *Conn, _ uint64) bool {
	return c.win.grown || c.win.over || c.win.relieved || c.eof || c.err != nil || c.closing
}

// accepted is called when Accept returns the connection. From then on the peer can get large
// receives.
func (c *Conn) accepted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.destroying || c.err != nil || c.liveness.timer == nil {
		return
	}
	c.win.attendAt = time.Now().Add(attendDelay)
	if c.win.wantedEarly {
		c.growOrFail()
		c.returnCredits()
	}
	if c.err == nil {
		c.liveness.schedule(c, c.liveness.busy)
	}
}

// growOrFail grows the window, and fails the connection if that fails.
func (c *Conn) growOrFail() {
	if err := c.grow(); err != nil {
		c.fail(err)
	}
}

// peerTakes reports whether the next receive of the peer has room for size bytes of data.
func (c *Conn) peerTakes(size int) bool {
	p := &c.peer
	if p.mayBeSmall && p.grown && int32(p.sent-p.smallTotal) >= 0 {
		p.mayBeSmall = false
	}
	return !p.mayBeSmall || size <= firstData
}

// hasGrown reports whether the peer has announced large receives.
func hasGrown(c *Conn, _ uint64) bool {
	return c.peer.grown || c.endSent || c.peerClosedRead || c.err != nil || c.closing
}

// prepareLarge takes one step towards sending a large message: it asks the peer for large receives,
// waits for them, or uses up one small receive with a pad.
func (c *Conn) prepareLarge(ctx context.Context) error {
	p := &c.peer
	switch {
	case p.wantSent && !p.grown:
		return c.await(ctx, hasGrown, 0)
	case !canSendControl(c, 0):
		return c.await(ctx, canSendControl, 0)
	case p.grown:
		c.sendControl(header{kind: msgPad})
	default:
		c.sendWant()
	}
	return nil
}

// sendWant asks the peer for large receives, which costs a credit. The caller has checked that
// there is a credit, and room for a control message.
func (c *Conn) sendWant() {
	c.peer.wantSent = true
	c.credits--
	c.sendControl(header{kind: msgWant})
}
