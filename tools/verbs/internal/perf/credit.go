package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// On iWARP a message that finds no receive ends the connection, and a send is complete when TCP
// has it. So in bandwidth tests the receiver writes to the sender by RDMA WRITE how many receives
// it has reposted, and the sender posts no more than that, as perftest's programs do among
// themselves. A queue pair has one such WRITE in flight at a time.

// The memory that a queue pair has for its credits: its size and offsets, in bytes.
const (
	ownSize   = cacheLine
	ownTold   = 0 // the count that the peer has written, a number of 32 bits
	ownTell   = 4 // the count that the peer gets
	ownGreets = 8 // a byte that is sent before all else
	ownAsks   = 9 // a byte that is read from the peer, after which it has all that was written
	toldSize  = 4
)

// creditID marks the ID of a WRITE of credits. The ID has the number of the queue pair in the same
// bits as a send's.
const creditID = 1 << 63

// credit is what a queue pair counts. Nothing of it begins anew with a size.
type credit struct {
	sent    uint32 // messages sent
	taken   uint32 // receives posted again
	told    uint32 // of them, in the last WRITE to the peer
	telling bool
}

// own returns where in the memory what a queue pair needs itself is.
func (e *End) own(qp int) int { return e.memory.own + ownSize*qp }

// sendDepth is how long a send queue must be.
func (e *End) sendDepth() int {
	if e.Limits.IWARP {
		return e.Config.Depth + 1 // for the WRITE of credits
	}
	return e.Config.Depth
}

// room returns for how many more messages the peer has receives. The peer's count may have arrived
// in part, the low bytes first. Then it is less than the whole, as the count only grows (to 2^32,
// and then from 0).
func (e *End) room(qp int) int {
	f := &e.flows[qp]
	return room(f.remote.Recvs, f.credit.sent, word(e.MR.Bytes(), e.own(qp)+ownTold))
}

// room is for a peer that began with so many receives. The peer writes told, and may write
// anything: the result is from 0 to recvs in any case.
func room(recvs int, sent, told uint32) int { return max(0, recvs-int(sent-told)) }

// tell writes the number of receives to the peer, if it is time.
func (e *End) tell() error {
	const part = 4 // of the receives
	for i := range e.flows {
		f := &e.flows[i]
		if f.telling || f.taken-f.told < uint32(max(1, e.memory.slots/part)) {
			continue
		}
		f.told, f.telling = f.taken, true
		at := e.own(i) + ownTell
		binary.NativeEndian.PutUint32(e.MR.Bytes()[at:], f.told)
		err := f.qp.PostSend(uverbs.SendWR{
			ID: creditID | uint64(i)<<sendShift, Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled,
			SGL: []uverbs.SGE{e.MR.SGE(at, toldSize)}, RemoteAddr: f.remote.Own + ownTold, RKey: f.remote.RKey,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// settled waits until the peer has all that was written. On iWARP a WRITE may complete earlier, but
// a READ returns after it. Nothing else is in flight.
func (e *End) settled() error {
	for i := range e.flows {
		f := &e.flows[i]
		if f.remote.Own == 0 { // of perftest, which does not ask
			return nil
		}
		err := f.qp.PostSend(uverbs.SendWR{
			Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled,
			SGL: []uverbs.SGE{e.MR.SGE(e.own(i)+ownAsks, 1)}, RemoteAddr: f.remote.Own + ownAsks, RKey: f.remote.RKey,
		})
		if err != nil {
			return err
		}
		if err := e.sendDone(f); err != nil {
			return err
		}
	}
	return nil
}

// awaitGreeting posts the receive for the first message of the client's queue pair, which sends
// first on iWARP.
func (e *End) awaitGreeting(qp *uverbs.QP) error {
	if !e.Limits.IWARP || !e.Server {
		return nil
	}
	return qp.PostRecv(0, e.MR.SGE(e.own(len(e.QPs)-1)+ownGreets, 1))
}

// greet has the client's queue pairs send first, as the server's may only then send. The server
// has accepted all of them.
func (e *End) greet(ctx context.Context) error {
	if !e.Limits.IWARP {
		return nil
	}
	for i, qp := range e.QPs {
		err := qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{e.MR.SGE(e.own(i)+ownGreets, 1)}})
		if err != nil {
			return err
		}
		if err := e.one(ctx, e.SendCQ, qp); err != nil {
			return err
		}
	}
	return nil
}

// greeted waits until the client has done so.
func (e *End) greeted(ctx context.Context) error {
	if !e.Limits.IWARP {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerTime, errSilent)
	defer cancel()
	for _, qp := range e.QPs {
		if err := e.one(ctx, e.RecvCQ, qp); err != nil {
			return err
		}
	}
	return nil
}

// one waits for a completion before there is any traffic.
func (e *End) one(ctx context.Context, cq *uverbs.CQ, qp *uverbs.QP) error {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTime, errSilent)
	defer cancel()
	for wc := e.wcs[:1]; ; {
		n, err := cq.Poll(wc)
		switch {
		case err != nil:
			return err
		case n == 1:
			return qp.Err(&wc[0])
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Microsecond):
		}
	}
}

// errSilent says that a queue pair is connected and nothing comes.
var errSilent = refuse(errors.New("the first message over a queue pair has not come, which the client sends"))
