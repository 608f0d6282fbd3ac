package conformance

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// iwarpAddr is the address of a device of iWARP.
func iwarpAddr(dev *uverbs.Device) netip.Addr {
	if dev.Name() == rig.Devices[1] {
		return netip.MustParseAddr(rig.Addrs[1])
	}
	return netip.MustParseAddr(rig.Addrs[0])
}

// connectByCM connects an ID with one that listens, until the end of the test. Each side has the number of its QP in
// its parameters. It returns the ID and the event with the peer's.
func connectByCM(t testing.TB, from, to netip.Addr, mine, peers rdmacm.ConnParam) (*rdmacm.ID, *rdmacm.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	check := func(errs ...error) {
		t.Helper()
		must(t, errors.Join(errs...))
	}
	newID := func() *rdmacm.ID {
		t.Helper()
		ch, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
		check(err)
		id, err := ch.NewID(rdmacm.TCP)
		check(err)
		t.Cleanup(func() { check(id.Close(), ch.Close()) })
		return id
	}
	id := newID()
	var l *rdmacm.ID
	check(rdmacm.RetryPort(func() error {
		l = newID()
		return errors.Join(l.Bind(rdmacm.Addr{IP: to}), l.Listen(1))
	}))
	at, err := l.Addrs()
	check(err)
	accepted := make(chan error, 1)
	go func() {
		e, err := l.NextRequest(ctx)
		if err == nil {
			t.Cleanup(func() { check(e.ID.Close()) })
			err = e.ID.AcceptWait(ctx, peers)
		}
		accepted <- err
	}()
	check(id.ResolveWait(ctx, rdmacm.Addr{IP: from}, at.Local))
	e, err := id.ConnectWait(ctx, mine)
	if err == nil && e.Type == rdmacm.EventConnectResponse { // not on iWARP
		err = id.Establish()
	}
	check(err, <-accepted)
	return id, e
}

// joinIWARP connects two QPs by the connection manager, until the end of the test. On iWARP
// nothing else can, and the side that connects must be heard of first: it writes nothing to the
// other.
func joinIWARP(t testing.TB, a, b *uverbs.QP, cq *uverbs.CQ) {
	t.Helper()
	check := func(errs ...error) {
		t.Helper()
		must(t, errors.Join(errs...))
	}
	param := func(q *uverbs.QP) rdmacm.ConnParam {
		return rdmacm.ConnParam{QPN: q.QPN(), ResponderResources: 16, InitiatorDepth: 16}
	}
	connectByCM(t, iwarpAddr(a.Device()), iwarpAddr(b.Device()), param(a), param(b))
	check(a.SetKernelState(ib.QPRTS))
	check(a.PostSend(uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled}))
	var wc [1]uverbs.WC
	for end := time.Now().Add(deadline); ; {
		n, err := cq.Poll(wc[:])
		check(err)
		if n == 1 {
			check(wc[0].Err())
			break
		}
		if time.Now().After(end) {
			t.Fatal("a WRITE of nothing does not complete")
		}
	}
	check(b.SetKernelState(ib.QPRTS))
}

// TestIWARPFailedRequests: what a work request may not is refused to it where that is known on this side,
// and otherwise by the peer, who ends the connection without a reason. Nothing is read or
// written in either case, and the QP is in ERR, or does not get through any more. That memory may be
// read is no right on soft iWARP: who has the key reads it.
func TestIWARPFailedRequests(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "iWARP", "siw")
	const n = 100
	for _, c := range []struct {
		name  string
		op    uverbs.WROpcode
		local bool // this side knows
		apply func(t *testing.T, wr *uverbs.SendWR, a, b *side)
	}{
		{"wrong lkey", uverbs.WRSend, true, func(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.SGL[0].LKey ^= 0x5500 }},
		{"past the local MR", uverbs.WRRDMAWrite, true, func(_ *testing.T, wr *uverbs.SendWR, a, _ *side) { wr.SGL[0].Addr = a.mr.Addr() + bufferSize - n/2 }},
		{"local MR of another PD", uverbs.WRRDMAWrite, true, func(t *testing.T, wr *uverbs.SendWR, a, _ *side) { wr.SGL[0].LKey = foreignIWARP(t, a).LKey() }},
		{"wrong rkey", uverbs.WRRDMAWrite, false, func(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.RKey ^= 0x5500 }},
		{"READ, wrong rkey", uverbs.WRRDMARead, false, func(_ *testing.T, wr *uverbs.SendWR, _, _ *side) { wr.RKey ^= 0x5500 }},
		{"past the remote MR", uverbs.WRRDMAWrite, false, func(_ *testing.T, wr *uverbs.SendWR, _, b *side) { wr.RemoteAddr = b.mr.Addr() + bufferSize - n/2 }},
		{"READ past the remote MR", uverbs.WRRDMARead, false, func(_ *testing.T, wr *uverbs.SendWR, _, b *side) { wr.RemoteAddr = b.mr.Addr() + bufferSize - n/2 }},
		{"remote MR of another PD", uverbs.WRRDMAWrite, false, func(t *testing.T, wr *uverbs.SendWR, _, b *side) { wr.RKey = foreignIWARP(t, b).RKey() }},
		{"no REMOTE_WRITE", uverbs.WRRDMAWrite, false, func(t *testing.T, wr *uverbs.SendWR, _, b *side) {
			mr, err := b.pd.RegMR(b.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteRead})
			must(t, err)
			closeLater(t, mr)
			wr.RKey = mr.RKey()
		}},
		{"no receive", uverbs.WRSend, false, func(*testing.T, *uverbs.SendWR, *side, *side) {}},
		{"receive too short", uverbs.WRSend, false, func(t *testing.T, _ *uverbs.SendWR, _, b *side) {
			must(t, b.qp.PostRecv(9, b.mr.SGE(0, n/2)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pairOnce(t, uverbs.QPOptions{})
			mine, theirs := slices.Clone(a.fill(0, bufferSize, 1)), slices.Clone(b.fill(0, bufferSize, 101))
			wr := send(1, a.mr.SGE(0, n))
			wr.Opcode = c.op
			if c.op != uverbs.WRSend {
				wr.RemoteAddr, wr.RKey = b.mr.Addr(), b.mr.RKey()
			}
			c.apply(t, &wr, a, b)
			must(t, a.qp.PostSend(wr))
			wc := a.next(t)
			err := a.qp.Err(&wc)
			if wc.ID != 1 || c.local && wc.Status != uverbs.WCLocProtErr && wc.Status != uverbs.WCLocQPOpErr {
				t.Errorf("completion of %d: %v", wc.ID, err)
			}
			if c.op == uverbs.WRRDMARead && err == nil {
				t.Error("the READ has succeeded")
			}
			if c.local {
				a.inError(t)
			} else {
				a.over(t, b)
			}
			a.holds(t, 0, mine[:bufferSize-1]) // over has the last byte
			b.holds(t, 0, theirs)
		})
	}
}

// over waits for the end of a connection, by asking the peer until there is no answer.
func (s *side) over(t *testing.T, peer *side) {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(time.Millisecond) {
		ask := send(2, s.mr.SGE(bufferSize-1, 1))
		ask.Opcode, ask.RemoteAddr, ask.RKey = uverbs.WRRDMARead, peer.mr.Addr()+bufferSize-1, peer.mr.RKey()
		if s.qp.PostSend(ask) != nil {
			return
		}
		answered := false
		for soon := time.Now().Add(300 * time.Millisecond); !answered; {
			var wc [1]uverbs.WC
			n, err := s.cq.Poll(wc[:])
			must(t, err)
			if n == 1 && wc[0].Status != uverbs.WCSuccess || n == 0 && time.Now().After(soon) {
				return // flushed, or left lying until somebody moves the QP
			}
			answered = n == 1
		}
	}
	t.Error("the connection goes on")
}

// foreignIWARP registers a side's buffer in another PD.
func foreignIWARP(t *testing.T, s *side) *uverbs.MR {
	t.Helper()
	mr, err := newPD(t, s.dev).RegMR(s.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead})
	must(t, err)
	closeLater(t, mr)
	return mr
}
