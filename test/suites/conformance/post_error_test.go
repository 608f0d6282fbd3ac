package conformance

import (
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestQueueFull fills the send queue towards a peer that does not answer. A peer without
// a receive would do as well, were it not for rxe of Linux 5.10: on loopback it then
// sends again and again within the doorbell, and never returns.
func TestQueueFull(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Long)
	testenv.NeedsIB(t, "send queues that fill up")
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{
			MaxSendWR: 4, MaxRecvWR: 4,
			Path: uverbs.PathOptions{Timeout: 16, RetryCount: 1},
		})
		filled := b.qp
		if rig.EFA() { // where the messages below need the receives of b
			filled = a.qp
		}
		for err := error(nil); ; {
			if err = filled.PostRecv(1); err != nil {
				if !errors.Is(err, uverbs.ErrQueueFull) {
					t.Fatalf("receive queue: %v, want ErrQueueFull", err)
				}
				break
			}
		}
		if !rig.EFA() { // which keeps a message that finds no receive
			must(t, b.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState))
		}
		n := 0
		var err error
		for ; err == nil; n++ {
			err = a.qp.PostSend(send(uint64(n), a.mr.SGE(0, 8)))
		}
		n-- // the last was refused
		if !errors.Is(err, uverbs.ErrQueueFull) || n < 4 || n != a.qp.Caps().MaxSendWR {
			t.Fatalf("after %d sends: %v, want ErrQueueFull after %d", n, err, a.qp.Caps().MaxSendWR)
		}
		if err := a.qp.PostSend(make([]uverbs.SendWR, 1000)...); !errors.As(err, new(*uverbs.ArgError)) {
			t.Fatalf("a batch larger than the queue: %v, want an ArgError", err)
		}
		// All of them complete, in order, and then there is room again.
		for i := range n {
			if rig.EFA() {
				must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)))
				a.next(t)
				continue
			}
			if wc := a.next(t); wc.ID != uint64(i) || wc.Status == uverbs.WCSuccess {
				t.Fatalf("completion %d is %+v, want a failure of %d", i, wc, i)
			}
		}
		must(t, a.qp.PostSend(send(99)))
	})
}

// TestNoOpcode: a work request whose operation was forgotten is refused with its batch, and the queue is
// as before.
func TestNoOpcode(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		a, b := pair(t, uverbs.QPOptions{})
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)))
		forgotten := uverbs.SendWR{ID: 6, SGL: []uverbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		for i, batch := range [][]uverbs.SendWR{{forgotten}, {send(5, a.mr.SGE(0, 8)), forgotten}} {
			err := a.qp.PostSend(batch...)
			if p, ok := errors.AsType[*uverbs.PostError](err); !ok || p.Index != i || p.Field != "Opcode" || !errors.Is(err, uverbs.ErrOpcode) {
				t.Errorf("without an opcode: %v, want a PostError of work request %d", err, i)
			}
		}
		must(t, a.qp.PostSend(send(7, a.mr.SGE(0, 8))))
		if wc := a.next(t); wc.ID != 7 || wc.Err() != nil {
			t.Errorf("the first completion is %+v, want that of work request 7", wc)
		}
	})
}

// wrongKey posts one work request and returns the status that it ends with.
func wrongKey(t *testing.T, wr uverbs.SendWR) (uverbs.WCStatus, error) {
	a, b := pair(t, uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 10, RetryCount: 2}})
	for i := range wr.SGL {
		wr.SGL[i].Addr += a.mr.Addr()
		wr.SGL[i].LKey += a.mr.LKey()
	}
	wr.RemoteAddr += b.mr.Addr()
	wr.RKey += b.mr.RKey()
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 100)), a.qp.PostSend(wr))
	wc := a.next(t)
	return wc.Status, a.qp.Err(&wc)
}

func TestRemoteAccess(t *testing.T) {
	testenv.NeedsIB(t, "acknowledgements")
	eachPath(t, func(t *testing.T) {
		access := []uverbs.WCStatus{uverbs.WCRemAccessErr}
		if rxeBefore(t, 6, 0) && testenv.KnownBug(t, "no-nak") { // so the retries run out
			access = append(access, uverbs.WCRetryExcErr)
		}
		for _, c := range []struct {
			name   string
			wr     uverbs.SendWR
			status []uverbs.WCStatus
		}{
			{"wrong rkey", uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, SGL: []uverbs.SGE{{Length: 8}}, RKey: 0x1000}, access},
			{"beyond the MR", uverbs.SendWR{Opcode: uverbs.WRRDMARead, SGL: []uverbs.SGE{{Length: 8}}, RemoteAddr: bufferSize - 4}, access},
			// The manual says protection error. rxe of Linux 6.1 says operation error, that of
			// 6.12 flushes the request, for it moves the QP to ERR before it completes it.
			{"wrong lkey", uverbs.SendWR{Opcode: uverbs.WRSend, SGL: []uverbs.SGE{{Length: 8, LKey: 0x1000}}}, []uverbs.WCStatus{uverbs.WCLocProtErr, uverbs.WCLocQPOpErr, uverbs.WCWRFlushErr}},
		} {
			t.Run(c.name, func(t *testing.T) {
				c.wr.Flags = uverbs.SendSignaled
				status, err := wrongKey(t, c.wr)
				if !slices.Contains(c.status, status) || !errors.Is(err, status) {
					t.Errorf("status %s (%v), want one of %s", status, err, c.status)
				}
			})
		}
	})
}
