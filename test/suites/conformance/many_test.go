package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// manyPairs is how many connections TestSharedCQs has, of two QPs each.
const manyPairs = 125

// TestSharedCQs: hundreds of QPs on two CQs, one per direction, both on one channel. Each
// QP has a goroutine that connects it and posts; one goroutine polls and passes on who completed.
func TestSharedCQs(t *testing.T) {
	testenv.NotOnEFA(t, "connections")
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "GIDs")
	eachPath(t, func(t *testing.T) {
		const messages, size = 20, 32
		dev := openDevice(t, deviceName)
		pd, err := dev.AllocPD()
		must(t, err)
		closeLater(t, pd)
		buf, err := uverbs.AllocBuffer(2*manyPairs*messages*size, uverbs.BufferOptions{})
		must(t, err)
		closeLater(t, buf)
		mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		must(t, err)
		closeLater(t, mr)
		ch, err := dev.CreateCompChannel()
		must(t, err)
		closeLater(t, ch)
		var cqs [2]*uverbs.CQ
		for i := range cqs {
			cqs[i], err = dev.CreateCQ(uverbs.CQOptions{Size: 2 * manyPairs * messages, Channel: ch})
			must(t, err)
			closeLater(t, cqs[i])
		}

		// Without the ioctl a GID table is a thousand files, so the index is given.
		path := uverbs.PathOptions{GIDIndex: new(gidOf(t, dev).Index)}
		// done has a place for every completion of a QP, so that nobody waits for a poster.
		done := map[uint32]chan uverbs.WC{}
		var qps [manyPairs][2]*uverbs.QP
		var group sync.WaitGroup
		errs := make(chan error, 2*manyPairs)
		for i := range qps {
			for side := range 2 {
				qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cqs[side], RecvCQ: cqs[side], MaxSendWR: messages, MaxRecvWR: messages, Path: path})
				must(t, err)
				closeLater(t, qp)
				qps[i][side] = qp
				done[qp.QPN()] = make(chan uverbs.WC, messages)
			}
		}
		ctx, stop := context.WithCancel(withDeadline(t))
		polled := make(chan error, 1)
		go func() { polled <- dispatch(ctx, ch, cqs[:], done) }()
		for i := range qps {
			c := &conversation{ctx: ctx, mr: mr, offset: 2 * i * messages * size, messages: messages, size: size, posted: make(chan struct{})}
			ends := [2]chan uverbs.Endpoint{make(chan uverbs.Endpoint, 1), make(chan uverbs.Endpoint, 1)}
			for side, run := range []func(*uverbs.QP, chan uverbs.WC) error{c.send, c.receive} {
				qp := qps[i][side]
				group.Go(func() {
					err := c.connect(qp, ends[side], ends[1-side])
					if err == nil {
						err = run(qp, done[qp.QPN()])
					}
					if err != nil {
						errs <- fmt.Errorf("connection %d, QP %d: %w", i, qp.QPN(), err)
					}
				})
			}
		}
		group.Wait()
		stop()
		if err := <-polled; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		close(errs)
		for err := range errs {
			t.Error(err)
		}
	})
}

// dispatch waits for events and hands completions to the QP that they are of.
func dispatch(ctx context.Context, ch *uverbs.CompChannel, cqs []*uverbs.CQ, done map[uint32]chan uverbs.WC) error {
	var wcs [64]uverbs.WC
	for _, cq := range cqs {
		if err := cq.Notify(); err != nil {
			return err
		}
	}
	for {
		for _, cq := range cqs {
			for {
				n, err := cq.Poll(wcs[:])
				if err != nil {
					return err
				}
				for _, wc := range wcs[:n] {
					done[wc.QPN] <- wc
				}
				if n < len(wcs) {
					break
				}
			}
		}
		cq, err := ch.Next(ctx)
		if err != nil {
			return err
		}
		if err := cq.Notify(); err != nil {
			return err
		}
	}
}

// conversation is what two QPs have to tell each other.
type conversation struct {
	ctx                    context.Context
	mr                     *uverbs.MR
	offset, messages, size int           // the messages are at offset of mr, and where they go behind them
	posted                 chan struct{} // closed when the receives are there
}

// connect connects one of the QPs, whose peer's address comes from the other goroutine.
func (c *conversation) connect(qp *uverbs.QP, mine chan<- uverbs.Endpoint, theirs <-chan uverbs.Endpoint) error {
	end, err := qp.Endpoint()
	if err != nil {
		return err
	}
	mine <- end
	select {
	case end = <-theirs:
		return qp.Connect(c.ctx, end)
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// send sends the messages.
func (c *conversation) send(qp *uverbs.QP, done chan uverbs.WC) error {
	mem := c.mr.Bytes()[c.offset:][:c.messages*c.size]
	for i := range mem {
		mem[i] = c.byte(i)
	}
	select {
	case <-c.posted:
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	for i := range c.messages {
		if err := qp.PostSend(send(uint64(i), c.mr.SGE(c.offset+i*c.size, c.size))); err != nil {
			return err
		}
	}
	return c.completed(qp, done)
}

// receive receives the messages and checks them.
func (c *conversation) receive(qp *uverbs.QP, done chan uverbs.WC) error {
	into := c.offset + c.messages*c.size
	for i := range c.messages {
		if err := qp.PostRecv(uint64(i), c.mr.SGE(into+i*c.size, c.size)); err != nil {
			return err
		}
	}
	close(c.posted)
	if err := c.completed(qp, done); err != nil {
		return err
	}
	for i, b := range c.mr.Bytes()[into:][:c.messages*c.size] {
		if b != c.byte(i) {
			return fmt.Errorf("byte %d is %d, want %d", i, b, c.byte(i))
		}
	}
	return nil
}

// byte is the i-th byte of the messages.
func (c *conversation) byte(i int) byte { return byte(c.offset + i/c.size*7 + i%c.size) }

// completed waits until all of a QP's work requests have completed, in their order.
func (c *conversation) completed(qp *uverbs.QP, done chan uverbs.WC) error {
	for i := range c.messages {
		select {
		case wc := <-done:
			if err := qp.Err(&wc); err != nil {
				return err
			}
			if wc.ID != uint64(i) {
				return fmt.Errorf("completed %d, want %d", wc.ID, i)
			}
		case <-c.ctx.Done():
			return fmt.Errorf("has completed %d of %d: %w", i, c.messages, c.ctx.Err())
		}
	}
	return nil
}
