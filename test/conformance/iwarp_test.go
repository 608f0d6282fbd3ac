package conformance

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
)

// iwarpAddr is the address of a device of iWARP.
func iwarpAddr(dev *uverbs.Device) netip.Addr {
	if dev.Name() == rig.Devices[1] {
		return netip.MustParseAddr("10.1.0.2")
	}
	return netip.MustParseAddr("10.1.0.1")
}

// joinIWARP connects two QPs by the connection manager, until the end of the test. On iWARP
// nothing else can, and the side that connects must be heard of first: it writes nothing to the
// other.
func joinIWARP(t testing.TB, a, b *uverbs.QP, cq *uverbs.CQ) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	check := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	newID := func() *cm.ID {
		t.Helper()
		ch, err := cm.OpenChannel()
		check(err)
		id, err := ch.NewID(cm.TCP)
		check(err)
		t.Cleanup(func() { check(id.Close(), ch.Close()) })
		return id
	}
	param := func(q *uverbs.QP) cm.ConnParam {
		return cm.ConnParam{QPN: q.QPN(), ResponderResources: 16, InitiatorDepth: 16}
	}
	l, id := newID(), newID()
	check(l.Bind(netip.AddrPortFrom(iwarpAddr(b.Device()), 0)), l.Listen(1))
	at, err := l.Addrs()
	check(err)
	accepted := make(chan error, 1)
	go func() {
		e, err := l.Request(ctx)
		if err == nil {
			t.Cleanup(func() { check(e.ID.Close()) })
			err = e.ID.AcceptWait(ctx, param(b), cm.ECE{})
		}
		accepted <- err
	}()
	check(id.Resolve(ctx, netip.AddrPortFrom(iwarpAddr(a.Device()), 0), netip.AddrPortFrom(at.Local.IP, at.Local.Port)))
	_, err = id.ConnectWait(ctx, param(a), cm.ECE{})
	check(err, <-accepted, a.Moved(uverbs.RTS))
	check(a.PostSend(uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.Signaled}))
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
	check(b.Moved(uverbs.RTS))
}
