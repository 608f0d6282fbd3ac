package conformance

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// spareDevice makes a pair of network interfaces and an RDMA device on one of them: the
// addresses of ve0 and ve1 would not survive being down.
func spareDevice(t *testing.T) (dev *uverbs.Device, netdev string) {
	t.Helper()
	testenv.NeedsLinks(t)
	netdev = "ta0"
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: netdev}, PeerName: "ta1"}))
	link, err := netlink.LinkByName(netdev)
	must(t, err)
	t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
	peer, err := netlink.LinkByName("ta1")
	must(t, err, netlink.LinkSetUp(peer), netlink.LinkSetUp(link))
	must(t, netlinkrdma.AddLink("rxeta", "rxe", netdev))
	t.Cleanup(func() { must(t, netlinkrdma.DeleteLink("rxeta")) })
	dev = openDevice(t, "rxeta")
	setLink(t, dev, netdev, true)
	return dev, netdev
}

// event waits for an event of one of some types and skips those of others.
func event(t *testing.T, dev *uverbs.Device, types ...uverbs.EventType) uverbs.Event {
	t.Helper()
	ctx := withDeadline(t)
	for {
		ev, err := dev.NextEvent(ctx)
		if err != nil {
			t.Fatalf("waiting for %s: %v", types, err)
		}
		t.Log(ev)
		for _, want := range types {
			if ev.Type == want {
				return ev
			}
		}
	}
}

// noEvent makes sure that there is none for a while.
func noEvent(t *testing.T, dev *uverbs.Device) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if ev, err := dev.NextEvent(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("unexpected event %s, %v", ev, err)
	}
}

// TestPortEvents takes the interface down and up, with nobody waiting meanwhile. A kernel
// may tell a state more than once, and events of the GID table come between. Its work
// queue may change the order of the events, seen on a busy machine.
func TestPortEvents(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev, netdev := spareDevice(t)
		for range 2 {
			setLink(t, dev, netdev, false)
			setLink(t, dev, netdev, true)
		}
		for count := map[uverbs.EventType]int{}; count[uverbs.EventPortErr] < 2 || count[uverbs.EventPortActive] < 2; {
			ev := event(t, dev, uverbs.EventPortErr, uverbs.EventPortActive)
			if ev != (uverbs.Event{Type: ev.Type, Port: 1}) {
				t.Fatalf("event is %+v, want one of port 1", ev)
			}
			count[ev.Type]++
		}
	})
}

// TestGIDEvents gives the interface an address and takes it away.
func TestGIDEvents(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev, netdev := spareDevice(t)
		link, err := netlink.LinkByName(netdev)
		must(t, err)
		addr, err := netlink.ParseAddr("10.9.0.1/24")
		must(t, err)
		want, err := ib.ParseGID("10.9.0.1")
		must(t, err)
		// Events of other addresses may come first.
		until := func(there bool) {
			t.Helper()
			for has := !there; has != there; {
				if ev := event(t, dev, uverbs.EventGIDChange); ev != (uverbs.Event{Type: uverbs.EventGIDChange, Port: 1}) {
					t.Fatalf("event is %+v, want one of port 1", ev)
				}
				table, err := dev.GIDTable(1)
				must(t, err)
				has = false
				for _, e := range table {
					has = has || e.GID == want
				}
			}
		}
		must(t, netlink.AddrAdd(link, addr))
		until(true)
		must(t, netlink.AddrDel(link, addr))
		until(false)
	})
}

// overrun makes a CQ for one completion and has a QP complete three.
func overrun(t *testing.T, dev *uverbs.Device) (*uverbs.CQ, *uverbs.QP) {
	t.Helper()
	pd, err := dev.AllocPD()
	must(t, err)
	closeLater(t, pd)
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 1})
	must(t, err)
	closeLater(t, cq)
	qp, err := pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq})
	must(t, err)
	closeLater(t, qp)
	must(t, initQP(qp), qp.PostRecv(1), qp.PostRecv(2), qp.PostRecv(3))
	must(t, qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
	return cq, qp
}

// breaks says that a test does on purpose what a modelled card takes for a violation, and has
// the card see it.
func breaks(t *testing.T, dev *uverbs.Device, rule string) {
	t.Helper()
	if testenv.Modelled() {
		b, err := testenv.OpenCard(dev.Name())
		must(t, err)
		t.Cleanup(func() {
			n, err := b.Do("forgive %s", rule)
			must(t, err, b.Close())
			if n == "0" {
				t.Errorf("the card has not seen %s", rule)
			}
		})
	}
}

// TestCQErrEvent: a completion for which the CQ has no room is told, with the CQ.
func TestCQErrEvent(t *testing.T) {
	testenv.NotOnEFA(t, "asynchronous events of objects")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		breaks(t, dev, "cq-overrun")
		cq, _ := overrun(t, dev)
		if ev := event(t, dev, uverbs.EventCQErr); ev != (uverbs.Event{Type: uverbs.EventCQErr, CQ: cq}) {
			t.Errorf("event is %+v, want one of CQ %p", ev, cq)
		}
		if wc := (&side{cq: cq}).next(t); wc.ID != 1 || wc.Status != uverbs.WCWRFlushErr {
			t.Errorf("completion is %+v, want the flush of 1", wc)
		}
	})
}

// TestEventOfClosedObject closes objects that have unread events: Close does not wait for a reader,
// and no event reaches the objects that are created later.
func TestEventOfClosedObject(t *testing.T) {
	testenv.NotOnEFA(t, "asynchronous events of objects")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		breaks(t, dev, "cq-overrun")
		for range 3 {
			cq, qp := overrun(t, dev)
			(&side{cq: cq}).next(t)
			must(t, qp.Close(), cq.Close())
		}
		noEvent(t, dev)
		cq, _ := overrun(t, dev)
		if ev := event(t, dev, uverbs.EventCQErr); ev.CQ != cq {
			t.Errorf("event is %+v, want one of CQ %p", ev, cq)
		}
	})
}

// TestWaitEventCanceled ends a wait by its context and by closing the device.
func TestWaitEventCanceled(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		noEvent(t, dev)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		errorIs(t, errorOf(dev.NextEvent(ctx)), context.Canceled, "NextEvent")
		closed := make(chan error, 1)
		time.AfterFunc(5*time.Millisecond, func() { closed <- dev.Close() })
		for range 2 {
			errorIs(t, errorOf(dev.NextEvent(withDeadline(t))), os.ErrClosed, "NextEvent while the device is closed")
		}
		must(t, <-closed)
	})
}
