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

// manyPairs is how many connections TestSharedCQs has.
const manyPairs = 100

// TestSharedCQs: hundreds of QPs on two CQs, one per direction, both on one channel. Each
// connection is a goroutine that posts; one goroutine polls and passes on who completed.
func TestSharedCQs(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	eachPath(t, func(t *testing.T) {
		const messages, size = 20, 32
		dev := openDevice(t, deviceName)
		pd, err := dev.AllocPD()
		must(t, err)
		closeLater(t, pd)
		buf, err := uverbs.AllocBuffer(2 * manyPairs * messages * size)
		must(t, err)
		closeLater(t, buf)
		mr, err := pd.RegMR(buf, uverbs.AccessLocalWrite)
		must(t, err)
		closeLater(t, mr)
		ch, err := dev.CreateCompChannel()
		must(t, err)
		closeLater(t, ch)
		var cqs [2]*uverbs.CQ
		for i := range cqs {
			cqs[i], err = dev.CreateCQ(2*manyPairs*messages, uverbs.CQOptions{Channel: ch})
			must(t, err)
			closeLater(t, cqs[i])
		}

		// Without the ioctl a GID table is a thousand files, so the index is given.
		path := uverbs.PathOptions{GID: uverbs.GIDAt(gidOf(t, dev).Index)}
		// done has a place for every completion of a QP, so that nobody waits for a poster.
		done := map[uint32]chan uverbs.WC{}
		var qps [manyPairs][2]*uverbs.QP
		var group sync.WaitGroup
		errs := make(chan error, manyPairs+1)
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
			group.Go(func() {
				if err := converse(ctx, qps[i][0], qps[i][1], mr, 2*i*messages*size, messages, size, done); err != nil {
					errs <- fmt.Errorf("connection %d: %w", i, err)
				}
			})
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
		cq, err := ch.Wait(ctx)
		if err != nil {
			return err
		}
		if err := cq.Notify(); err != nil {
			return err
		}
	}
}

// converse connects two QPs, sends messages from one to the other and checks them.
func converse(ctx context.Context, from, to *uverbs.QP, mr *uverbs.MR, offset, messages, size int, done map[uint32]chan uverbs.WC) error {
	a, err := from.Endpoint()
	if err != nil {
		return err
	}
	b, err := to.Endpoint()
	if err != nil {
		return err
	}
	if err := errors.Join(from.Connect(ctx, b), to.Connect(ctx, a)); err != nil {
		return err
	}
	into := offset + messages*size
	mem := mr.Bytes()
	for i := range messages {
		for j := range size {
			mem[offset+i*size+j] = byte(offset + i*7 + j)
		}
		if err := to.PostRecv(uint64(i), mr.SGE(into+i*size, size)); err != nil {
			return err
		}
	}
	for i := range messages {
		if err := from.PostSend(send(uint64(i), mr.SGE(offset+i*size, size))); err != nil {
			return err
		}
	}
	for _, qp := range []*uverbs.QP{from, to} {
		for i := range messages {
			select {
			case wc := <-done[qp.QPN()]:
				if err := qp.Err(&wc); err != nil {
					return err
				}
				if wc.ID != uint64(i) {
					return fmt.Errorf("QP %d completed %d, want %d", qp.QPN(), wc.ID, i)
				}
			case <-ctx.Done():
				return fmt.Errorf("QP %d has completed %d of %d: %w", qp.QPN(), i, messages, ctx.Err())
			}
		}
	}
	if string(mem[into:into+messages*size]) != string(mem[offset:offset+messages*size]) {
		return errors.New("the data is not what was sent")
	}
	return nil
}
