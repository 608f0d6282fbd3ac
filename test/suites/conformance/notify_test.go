package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// raised checks whether the CQ of a side has raised an event.
func raised(t *testing.T, s *side, want bool) {
	t.Helper()
	wait := 50 * time.Millisecond
	if want {
		wait = deadline
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	cq, err := s.ch.Next(ctx)
	if want && (cq != s.cq || err != nil) || !want && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Wait is %p, %v, want an event: %t", cq, err, want)
	}
}

// TestNotifyOperations: the completion of each operation raises one event, on the side that
// asked for it.
func TestNotifyOperations(t *testing.T) {
	testenv.Guest(t)
	for name, c := range map[string]struct {
		op   uverbs.WROpcode
		want uverbs.WCOpcode
	}{
		"write":            {uverbs.WRRDMAWrite, uverbs.WCRDMAWrite},
		"read":             {uverbs.WRRDMARead, uverbs.WCRDMARead},
		"compare and swap": {uverbs.WRCompareSwap, uverbs.WCCompareSwap},
		"fetch and add":    {uverbs.WRFetchAdd, uverbs.WCFetchAdd},
		"bind":             {uverbs.WRBindMW, uverbs.WCBindMW},
	} {
		t.Run(name, func(t *testing.T) {
			switch c.op {
			case uverbs.WRCompareSwap, uverbs.WRFetchAdd:
				testenv.NeedsIB(t, "atomics")
			case uverbs.WRBindMW:
				testenv.NeedsIB(t, "memory windows")
			}
			a, b := pair(t, uverbs.QPOptions{})
			needsAtomics(t, a.dev, c.op)
			wr := send(1, a.mr.SGE(0, 8))
			wr.Opcode, wr.RemoteAddr, wr.RKey = c.op, b.mr.Addr(), b.mr.RKey()
			if c.op == uverbs.WRBindMW {
				mw, mr := window(t, a, uverbs.MWType2)
				wr = uverbs.SendWR{ID: 1, Opcode: c.op, Flags: uverbs.SendSignaled, Bind: uverbs.BindInfo{
					MW: mw, MR: mr, Addr: mr.Addr(), Length: 100, Access: uverbs.AccessRemoteRead,
				}}
			}
			must(t, a.cq.Notify(), b.cq.Notify(), a.qp.PostSend(wr))
			raised(t, a, true)
			a.want(t, 1, c.want)
			raised(t, b, false)
		})
	}
}

// TestNotifyWithUnreadEvent checks that an event that nobody has read yet does not suppress the
// next one, on rxe.
func TestNotifyWithUnreadEvent(t *testing.T) {
	a, b := pairOnce(t, uverbs.QPOptions{})
	for id := range uint64(2) {
		wr := send(id, a.mr.SGE(0, 8))
		wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, b.mr.Addr(), b.mr.RKey()
		must(t, a.cq.Notify(), a.qp.PostSend(wr))
		a.want(t, id, uverbs.WCRDMAWrite)
	}
	raised(t, a, true)
	if !onMLX5 && !rig.EFA() { // to them the second request is the first one, until the event has been read
		raised(t, a, true)
	}
	raised(t, a, false)
}

// TestNotifyChange checks that Notify after NotifySolicited, and NotifySolicited after Notify, both
// request an event for any completion.
func TestNotifyChange(t *testing.T) {
	testenv.NotOnEFA(t, "solicited events")
	testenv.Guest(t)
	for name, asks := range map[string][]func(*uverbs.CQ) error{
		"any after solicited": {(*uverbs.CQ).NotifySolicited, (*uverbs.CQ).Notify},
		"solicited after any": {(*uverbs.CQ).Notify, (*uverbs.CQ).NotifySolicited},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, uverbs.QPOptions{})
			for _, ask := range asks {
				must(t, ask(b.cq))
			}
			must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)), a.qp.PostSend(send(2, a.mr.SGE(0, 8))))
			a.want(t, 2, uverbs.WCSend)
			raised(t, b, true)
			b.want(t, 1, uverbs.WCRecv)
			raised(t, a, false)
		})
	}
}

// TestNotifyWithoutChannel checks that a CQ without a channel cannot raise an event.
func TestNotifyWithoutChannel(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		cq, err := openDevice(t, deviceName).CreateCQ(uverbs.CQOptions{Size: 8})
		must(t, err)
		closeLater(t, cq)
		argError(t, cq.Notify(), "Channel of the CQ")
		argError(t, cq.NotifySolicited(), "Channel of the CQ")
	})
}

// pairOnce is pair for a test that runs once, on the way that the library chooses.
func pairOnce(t *testing.T, o uverbs.QPOptions) (a, b *side) {
	t.Helper()
	testenv.Guest(t)
	return pair(t, o)
}
