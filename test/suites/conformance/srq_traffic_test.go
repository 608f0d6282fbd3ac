package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// srqSize is how many bytes a receive of an srqGroup has.
const srqSize = 16

// srqGroup is an SRQ with QPs that take from it, each connected to a sender. A receive's ID
// is its place in the buffer.
type srqGroup struct {
	srq   *uverbs.SRQ
	mr    *uverbs.MR
	from  []*side
	takes []*side
}

// newSRQGroup makes an SRQ for at least a number of receives, and connections.
func newSRQGroup(t *testing.T, dev *uverbs.Device, pairs, receives int, o uverbs.QPOptions) *srqGroup {
	t.Helper()
	pd, srq := newSRQ(t, dev, uverbs.SRQOptions{MaxWR: receives})
	buf := newBuffer(t, srq.Attr().MaxWR*srqSize)
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: remoteRights})
	must(t, err)
	closeLater(t, mr)
	g := &srqGroup{srq: srq, mr: mr}
	for range pairs {
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 128})
		must(t, err)
		closeLater(t, cq)
		qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq})
		must(t, err, qp.Init())
		closeLater(t, qp)
		takes, from := &side{dev: dev, pd: pd, buf: buf, mr: mr, cq: cq, qp: &queuePair{QP: qp}}, newSide(t, dev, o)
		connect(t, from, takes)
		g.takes, g.from = append(g.takes, takes), append(g.from, from)
	}
	return g
}

// post posts the receive of a place.
func (g *srqGroup) post(id uint64) error {
	return g.srq.PostRecv(id, g.mr.SGE(int(id)*srqSize, srqSize))
}

// talk sends a number of messages over one connection in batches, checks that they arrive
// once and in order, and gives each receive back to the SRQ.
func (g *srqGroup) talk(i, messages, batch int) error {
	from, to := g.from[i], g.takes[i]
	message := func(n int) uint64 { return uint64(to.qp.QPN())<<32 + uint64(n) }
	for n := 0; n < messages; n += batch {
		for k := range batch {
			binary.NativeEndian.PutUint64(from.buf.Bytes()[8*k:], message(n+k))
			if err := from.qp.PostSend(send(uint64(n+k), from.mr.SGE(8*k, 8))); err != nil {
				return err
			}
		}
		for k := range batch {
			for _, s := range []*side{from, to} {
				wc, err := s.poll()
				if err == nil {
					err = s.qp.Err(&wc)
				}
				switch {
				case err != nil:
					return err
				case s == from && wc.ID != uint64(n+k):
					return fmt.Errorf("send %d completed, want %d", wc.ID, n+k)
				case s == from:
					continue
				}
				got := binary.NativeEndian.Uint64(g.mr.Bytes()[wc.ID*srqSize:])
				if got != message(n+k) || wc.QPN != to.qp.QPN() || wc.ByteLen != 8 {
					return fmt.Errorf("QP %d received %#x in %+v, want %#x", to.qp.QPN(), got, wc, message(n+k))
				}
				if err := g.post(wc.ID); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// fill posts as many receives as the SRQ holds, from several goroutines. In a VM they hardly
// meet; it is the race detector that sees whether they may.
func (g *srqGroup) fill() error {
	const threads = 8
	room := g.srq.Attr().MaxWR
	if err := inThreads(threads, func(thread int) error {
		for id := thread; id < room; id += threads {
			if err := g.post(uint64(id)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := g.post(0); !errors.Is(err, uverbs.ErrQueueFull) {
		return fmt.Errorf("one more than %d receives: %w, want ErrQueueFull", room, err)
	}
	return nil
}

// TestConcurrentSRQPosts has goroutines fill one SRQ, or several; then one goroutine per connection
// receives and posts to the SRQ again.
func TestConcurrentSRQPosts(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Long)
	testenv.Guest(t)
	for name, c := range map[string]struct{ srqs, pairs, messages, batch int }{
		"one connection, one message at a time": {1, 1, 200, 1},
		"one connection":                        {1, 1, 1024, 32},
		"many connections":                      {1, 8, 256, 16},
		"one SRQ per connection":                {4, 1, 256, 16},
		"several SRQs":                          {3, 3, 128, 16},
	} {
		t.Run(name, func(t *testing.T) {
			dev := openDevice(t, deviceName)
			errs := make(chan error, c.srqs*c.pairs)
			var talks sync.WaitGroup
			for range c.srqs {
				g := newSRQGroup(t, dev, c.pairs, 1000, uverbs.QPOptions{})
				must(t, g.fill())
				for i := range c.pairs {
					talks.Go(func() {
						if err := g.talk(i, c.messages, c.batch); err != nil {
							errs <- err
						}
					})
				}
			}
			talks.Wait()
			close(errs)
			for err := range errs {
				t.Error(err)
			}
		})
	}
}

// TestSRQImmediate: the immediates of many connections complete the receives of one SRQ.
func TestSRQImmediate(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "immediate data")
	testenv.Guest(t)
	const pairs, messages = 10, 8
	g := newSRQGroup(t, openDevice(t, deviceName), pairs, pairs*messages, uverbs.QPOptions{})
	for id := range uint64(pairs * messages) {
		must(t, g.srq.PostRecv(id))
	}
	for i, from := range g.from {
		var wrs []uverbs.SendWR
		for k := range messages {
			place := i*messages + k
			binary.NativeEndian.PutUint64(from.buf.Bytes()[8*k:], uint64(1000+place))
			wr := send(uint64(k), from.mr.SGE(8*k, 8))
			wr.Opcode, wr.Imm = uverbs.WRRDMAWriteWithImm, uint32(place)
			wr.RemoteAddr, wr.RKey = g.mr.Addr()+uint64(place*srqSize), g.mr.RKey()
			wrs = append(wrs, wr)
		}
		must(t, from.qp.PostSend(wrs...))
	}
	used := map[uint64]bool{}
	for i, to := range g.takes {
		for k := range messages {
			g.from[i].want(t, uint64(k), uverbs.WCRDMAWrite)
			wc := to.next(t)
			must(t, to.qp.Err(&wc))
			place := i*messages + k
			if wc.Opcode != uverbs.WCRecvRDMAWrite || wc.Imm != uint32(place) || wc.QPN != to.qp.QPN() || used[wc.ID] {
				t.Errorf("completion %+v, want one of QP %d with immediate %d", wc, to.qp.QPN(), place)
			}
			used[wc.ID] = true
			if got := binary.NativeEndian.Uint64(g.mr.Bytes()[place*srqSize:]); got != uint64(1000+place) {
				t.Errorf("place %d holds %d", place, got)
			}
		}
	}
	g.takes[0].none(t)
}

// TestSRQOfBrokenQP: a QP that enters ERR leaves the receives to the others.
func TestSRQOfBrokenQP(t *testing.T) {
	testenv.Guest(t)
	g := newSRQGroup(t, openDevice(t, deviceName), 2, 4, uverbs.QPOptions{})
	must(t, g.post(0), g.takes[0].qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	g.takes[0].none(t)
	must(t, g.talk(1, 10, 1))
	g.takes[0].none(t)
}

// TestSRQEmpty: a message for which the SRQ has no receive fails when the retries that were
// agreed on are over. The receiver has learned nothing, and takes the next from others.
func TestSRQEmpty(t *testing.T) {
	testenv.NeedsIB(t, "acknowledgements")
	testenv.Guest(t)
	needRNR(t)
	g := newSRQGroup(t, openDevice(t, deviceName), 2, 4, uverbs.QPOptions{Path: uverbs.PathOptions{RNRRetry: 1, MinRNRTimer: 1}})
	must(t, g.from[0].qp.PostSend(send(1, g.from[0].mr.SGE(0, 8))))
	says(t, broken(t, g.from[0], 1, uverbs.WCRNRRetryExcErr), "has 0 receives posted in its SRQ now")
	g.takes[0].none(t)
	must(t, g.post(0), g.talk(1, 10, 1))
}

// TestSRQManySGEs: a receive with more SGEs than the SRQ was created for is refused.
func TestSRQManySGEs(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		pd, srq := newSRQ(t, dev, uverbs.SRQOptions{MaxWR: 4, MaxSGE: 2})
		mr, err := pd.RegMR(newBuffer(t, 4096), uverbs.MROptions{Access: uverbs.AccessLocalWrite})
		must(t, err)
		closeLater(t, mr)
		sgl := make([]uverbs.SGE, srq.Attr().MaxSGE+1)
		for i := range sgl {
			sgl[i] = mr.SGE(i, 1)
		}
		var post *uverbs.PostError
		if err := srq.PostRecvs(uverbs.RecvWR{SGL: sgl[1:]}, uverbs.RecvWR{SGL: sgl}); !errors.As(err, &post) || post.Index != 1 || !errors.Is(err, uverbs.ErrTooManySGE) {
			t.Errorf("%v, want ErrTooManySGE at index 1", err)
		}
		for range srq.Attr().MaxWR { // all of them are free
			must(t, srq.PostRecv(1, sgl[1:]...))
		}
	})
}
