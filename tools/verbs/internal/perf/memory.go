package perf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/uverbs"
)

// Sizes of memory, in bytes.
const (
	cacheLine   = 64
	cycle       = 4096     // short messages of a bandwidth test go through so much memory, one after the other
	datagramGap = 64       // before a received datagram: the GRH, so that the data begins at a cache line
	verifyRoom  = 64 << 20 // with Verify each receive has memory of its own, up to so much for all
)

// layout says where in an end's memory things are: what is sent of each queue pair, and then
// where it receives or the peer reads and writes, and last what has to do with no message.
type layout struct {
	send, recv int // of a queue pair
	slots      int // receives of a queue pair
	recvSize   int // of a receive
	step       int // from a slot to the next, if each has memory of its own; else 0
	base       int // of what is received
	own        int // of what the queue pairs themselves need: ownSize bytes each
	size       int // of all
}

// roundUp rounds up to a multiple of a power of two.
func roundUp(n, to int) int { return (n + to - 1) &^ (to - 1) }

// newLayout plans the memory for a config.
func newLayout(c *Config) layout {
	longest := roundUp(c.maxSize(), cacheLine)
	l := layout{send: cycle + longest, slots: c.RecvDepth, recvSize: c.maxSize()}
	gap := 0
	if c.Type == UD {
		gap = datagramGap
		l.recvSize += uverbs.GRHSize
	}
	if total := c.total(); total > 0 {
		l.slots = min(l.slots, total)
	}
	if !c.receives(true) {
		l.slots = 1
	}
	l.recv = cycle + longest + gap
	if c.Verify && c.Op == Send {
		l.step = longest + gap
		l.slots = max(1, min(l.slots, verifyRoom/(l.step*c.QPs)))
		l.recv = l.step * l.slots
	}
	l.base = l.send * c.QPs
	l.own = roundUp(l.base+l.recv*c.QPs, cacheLine)
	l.size = l.own + ownSize*c.QPs
	return l
}

// What one of several things takes of this machine's memory, in bytes, at most: the kernel's, the
// device driver's and this program's together. Depths are rounded up to a power of two by drivers.
const (
	clientRoom = 64 << 10 // a client, with its connection
	qpRoom     = 16 << 10 // a queue pair with all of its objects, and its part of the message peers
	sendRoom   = 1 << 10  // an entry of a send queue and its CQ
	recvRoom   = 1 << 9   // an entry of a receive queue and its CQ, with its scatter/gather entry
	wrRoom     = 256      // a work request of this program, with its scatter/gather entry
)

// footprint returns how much memory the server's side of a test takes, in bytes.
func footprint(c *Config, l Limits) int {
	e := End{Config: *c, Limits: l, memory: newLayout(c)}
	wrs := c.list() + cycle/cacheLine // see flow.build
	perQP := qpRoom + sendRoom*max(e.sendDepth(), leastDepth) + recvRoom*e.memory.slots + wrRoom*wrs
	if c.split() {
		perQP += qpRoom // one that receives beside the one that sends
	}
	n := clientRoom + e.memory.size + (1+c.QPs)*perQP // with the path
	if c.Verify {
		n += c.maxSize() // what messages are compared with
	}
	return n
}

// heaps is where the kernel has heaps that make dma-bufs.
const heaps = "/dev/dma_heap/"

// heap returns the name of the dma-buf heap to take memory from, or "" if there is none.
func (l *Local) heap() string {
	if name, ok := strings.CutPrefix(l.DMABuf, heaps); ok {
		return name
	}
	return ""
}

// Foreign reports whether the memory is not the program's to look at.
func (l *Local) Foreign() bool { return l.DM || l.DMABuf != "" && l.heap() == "" }

// openDMABuf opens the dma-buf that a name stands for, also a descriptor that this process was started with, as
// /proc/self/fd/3, which cannot be opened again.
func openDMABuf(name string) (*os.File, error) {
	for _, dir := range []string{"/proc/self/fd/", "/dev/fd/"} {
		number, ok := strings.CutPrefix(name, dir)
		if fd, err := strconv.ParseUint(number, 10, 31); ok && err == nil {
			own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return nil, &os.PathError{Op: "open", Path: name, Err: err}
			}
			return os.NewFile(uintptr(own), name), nil
		}
	}
	return os.Open(name)
}

// registerDM allocates and registers memory of the device, which begins with zeros and not with what was there before.
func (e *End) registerDM(access uverbs.Access) error {
	dm := objects.Open(&e.opened, func() (*uverbs.DM, error) { return e.Dev.AllocDM(e.memory.size, uverbs.DMOptions{}) })
	e.opened.Do(func() error {
		_, err := dm.WriteAt(make([]byte, e.memory.size), 0)
		return err
	})
	e.MR = objects.Open(&e.opened, func() (*uverbs.MR, error) { return e.PD.RegDM(dm, 0, e.memory.size, access) })
	if err := e.opened.Err(); err != nil {
		return lacks("use-dm", e.Dev.Name(), err)
	}
	return nil
}

// handle makes the DMA handle that the memory is registered with, or nil without hints.
func (e *End) handle() (*uverbs.DMAH, error) {
	if e.Local.DMAH == nil {
		return nil, nil
	}
	h := objects.Open(&e.opened, func() (*uverbs.DMAH, error) { return e.Dev.AllocDMAH(*e.Local.DMAH) })
	if err := e.opened.Err(); err != nil {
		return nil, lacks("ph", e.Dev.Name(), err)
	}
	return h, nil
}

// sendAt returns where the n-th message of a queue pair is sent from, or comes to in a READ,
// and where in the peer's memory it goes or comes from.
func (e *End) sendAt(qp, n, size int) (offset, remote int) {
	d := n % e.places(size) * roundUp(size, cacheLine)
	return e.memory.send*qp + d, d
}

// places returns how many messages of a size go through memory one after the other.
func (e *End) places(size int) int {
	if e.Config.Metric == Lat || size > cycle/2 {
		return 1
	}
	return cycle / roundUp(size, cacheLine)
}

// recvAt returns where the data of a receive goes; for a datagram the header comes before it.
func (e *End) recvAt(qp, slot, size int) int {
	off := e.memory.base + e.memory.recv*qp
	if e.Config.Type == UD {
		off += datagramGap
	}
	if e.memory.step != 0 {
		return off + slot*e.memory.step
	}
	return off + slot%e.places(size)*roundUp(size, cacheLine)
}

// target returns the address of the memory that a queue pair of the peer reads and writes.
func (e *End) target(qp int) uint64 {
	return e.MR.Addr() + uint64(e.memory.base+e.memory.recv*qp)
}

// pattern fills memory with what a message of a queue pair has in it. No byte is 0, which is
// what memory has in which nothing has come.
func pattern(b []byte, qp int) {
	for i := range b {
		b[i] = byte((i+37*qp)%251) + 1
	}
}

// Prepare makes ready for messages of a size: memory, work requests and receives. It comes
// before the peer begins.
func (e *End) Prepare(size int) error {
	e.peerHas.Store(0)
	e.expired, e.limited = new(atomic.Bool), new(atomic.Bool)
	e.done = 0
	e.count.Store(0)
	if cap(e.hold) < size && e.Config.Verify {
		e.hold = make([]byte, e.Config.maxSize())
	}
	for i := range e.flows {
		e.fill(i, size)
		e.flows[i].build(e, i, size)
		if err := e.flows[i].fillQueue(e, i, size); err != nil {
			return err
		}
	}
	e.running.Store(true)
	return nil
}

// fill writes what the test wants to find in memory.
func (e *End) fill(qp, size int) {
	if e.Local.Foreign() {
		return
	}
	mem := e.MR.Bytes()
	sent := mem[e.memory.send*qp : e.memory.send*(qp+1)]
	got := mem[e.memory.base+e.memory.recv*qp : e.memory.base+e.memory.recv*(qp+1)]
	step := roundUp(size, cacheLine)
	put := func(b []byte) {
		for p := range e.places(size) {
			pattern(b[p*step:p*step+size], qp)
			if e.tamper != nil {
				e.tamper(b[p*step : p*step+size])
			}
		}
	}
	switch {
	case e.Config.Op == Read:
		clear(sent)
		put(got) // the peer reads it
	case e.Config.Op == Atomic:
		clear(sent)
		clear(got)
		if e.tamper != nil {
			e.tamper(got[:atomicSize])
		}
	case e.Config.Metric == Lat && e.Config.Op == Write || e.Config.Verify:
		put(sent)
		if !e.NoBarrier {
			clear(got)
		}
	default:
		put(sent)
	}
}

// mismatch compares a message with what it must be.
func (e *End) mismatch(what string, qp int, got []byte) error {
	want := e.hold[:len(got)]
	pattern(want, qp)
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range got {
		if got[i] != want[i] {
			return &DataError{What: what, QP: qp, Offset: i, Got: got[i], Want: want[i]}
		}
	}
	return nil
}

// DataError reports data that differs from what was sent.
type DataError struct {
	What      string // What describes the data, such as "a message".
	QP        int    // QP is the number of the queue pair, from 0.
	Offset    int    // Offset is the position in the message, in bytes.
	Got, Want byte
}

// Error implements error.
func (d *DataError) Error() string {
	return fmt.Sprintf("wrong data in %s of queue pair %d: byte %d is %#02x, expected %#02x", d.What, d.QP, d.Offset, d.Got, d.Want)
}

// VerifyMemory compares what the peer has written into this side's memory, or added to it, with
// what it says it has done: done operations of each queue pair.
func (e *End) VerifyMemory(size int, done int64) error {
	if e.Local.Foreign() {
		return nil
	}
	mem := e.MR.Bytes()
	for qp := range e.flows {
		got := mem[e.memory.base+e.memory.recv*qp:]
		if e.Config.Op == Atomic {
			sum := uint64(0)
			for p := range e.places(size) {
				sum += binary.NativeEndian.Uint64(got[p*cacheLine:])
			}
			want := uint64(done)
			if e.Config.AtomicType == Swap {
				want = min(want, uint64(e.places(size)))
			}
			if sum != want {
				return refusef("wrong data: the counters of queue pair %d are %d after %d atomics, expected %d", qp, sum, done, want)
			}
			continue
		}
		if e.Config.Op == Write && e.Config.Metric == BW {
			if err := e.verifyPlaces("what was written", qp, size, min(int(done), e.places(size)), got); err != nil {
				return err
			}
		}
	}
	return nil
}

// verifyPlaces compares all messages that are in memory.
func (e *End) verifyPlaces(what string, qp, size, places int, mem []byte) error {
	for p := range places {
		if err := e.mismatch(what, qp, mem[p*roundUp(size, cacheLine):][:size]); err != nil {
			return err
		}
	}
	return nil
}

// verifyRead compares what READs have fetched.
func (e *End) verifyRead(size int, done int64) error {
	for qp := range e.flows {
		mem := e.MR.Bytes()[e.memory.send*qp:]
		if err := e.verifyPlaces("what was read", qp, size, min(int(done), e.places(size)), mem); err != nil {
			return err
		}
	}
	return nil
}
