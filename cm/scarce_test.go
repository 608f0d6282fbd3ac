package cm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// scarce makes a software device with limits, and returns an address to listen at. At the end of the
// test the connections have left nothing open on it.
func scarce(t *testing.T, limits soft.Limits) (dev *soft.Device, address string) {
	t.Helper()
	dev = value(soft.New(soft.Options{Limits: limits}))(t)
	t.Cleanup(func() { must(t, dev.Close()) })
	return dev, netip.AddrPortFrom(dev.Addr(), 0).String()
}

// untilIdle waits until no connection has the device open, which takes a second.
func untilIdle(t *testing.T, dev *soft.Device) {
	t.Helper()
	until(t, "the device is closed", func() bool {
		devices.mu.Lock()
		defer devices.mu.Unlock()
		for _, d := range devices.open {
			if d.dev != nil && d.dev.Name() == dev.Name() {
				return false
			}
		}
		return true
	})
}

// TestScarceDevice: a connection for which the device has too few objects fails with the device's error
// on the side that needs them, and the peer learns that it is refused. Its objects are released:
// where there is just enough for one connection, it works again and again.
func TestScarceDevice(t *testing.T) {
	var all []*soft.Device
	for kind, limit := range map[string]func(l *soft.Limits) *int{
		"QPs": func(l *soft.Limits) *int { return &l.QPs },
		"CQs": func(l *soft.Limits) *int { return &l.CQs },
		"MRs": func(l *soft.Limits) *int { return &l.MRs },
		"PDs": func(l *soft.Limits) *int { return &l.PDs },
	} {
		for _, isolation := range []Isolation{SharedPD, ListenerPD, ConnPD} {
			for n, enough := 1, false; !enough; n++ {
				var limits soft.Limits
				*limit(&limits) = n
				dev, address := scarce(t, limits)
				all = append(all, dev)
				if enough = worksAlways(t, address, isolation); !enough && n == 9 {
					t.Fatalf("%s: %d %s are not enough for a connection", isolation, n, kind)
				}
			}
		}
	}
	for _, dev := range all {
		untilIdle(t, dev)
	}
}

// worksAlways reports whether three connections to an address of this process work, one after the other.
// It fails the test if only some of them do.
func worksAlways(t *testing.T, address string, isolation Isolation) bool {
	t.Helper()
	ctx := within(t)
	l := value(Listen(ctx, address, ListenOptions{ConnOptions: ConnOptions{Isolation: isolation}}))(t)
	defer func() { must(t, l.Close()) }()
	worked := 0
	var errs []error
	for range 3 {
		if isolation == ListenerPD { // is for listeners
			isolation = SharedPD
		}
		err := exchange(ctx, l, ConnOptions{Isolation: isolation})
		errs = append(errs, err)
		refused, atPeer := errors.AsType[*RefusedError](err)
		switch {
		case err == nil:
			worked++
		case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EINVAL): // as rxe says it
		case atPeer && refused != nil:
		default:
			t.Errorf("an error that is not the device's: %v", err)
		}
	}
	if worked != 0 && worked != 3 {
		t.Errorf("%d of 3 connections worked: %v", worked, errs)
	}
	return worked > 0
}

// exchange sends a message each way over a new connection.
func exchange(ctx context.Context, l *Listener, o ConnOptions) error {
	local := netip.AddrPortFrom(l.Addr().(rdmacm.Addr).IP, 0) // and not another device of the process
	client, err := Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: o, LocalAddr: local})
	if err != nil {
		return err
	}
	server, err := l.Accept(ctx)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	err = client.Send(ctx, []byte("there"))
	if err == nil {
		_, err = server.Recv(ctx)
	}
	if err == nil {
		err = server.Send(ctx, []byte("back"))
	}
	if err == nil {
		_, err = client.Recv(ctx)
	}
	return errors.Join(err, client.Close(), server.Close())
}

// TestCompletionPool: completions are used again for the same number of entries, without what was left
// in them, and closed when there are too many of them or the device is closed.
func TestCompletionPool(t *testing.T) {
	s, _ := scarce(t, soft.Limits{CQs: 2})
	dev := value(uverbs.Open(s.Name(), uverbs.OpenOptions{}))(t)
	p := &completionPool{dev: dev}
	one, two := value(p.get(7))(t), value(p.get(15))(t)
	if _, err := p.get(7); err == nil {
		t.Error("a third CQ was made")
	}
	must(t, p.put(one, 7))
	if again := value(p.get(7))(t); again.cq != one.cq || again.ch != one.ch || p.n != 0 {
		t.Errorf("another CQ, and %d are idle", p.n)
	}
	must(t, p.put(one, 7), p.put(two, 15))
	if _, err := p.get(31); err == nil {
		t.Error("a CQ of 7 or 15 entries is used for 31")
	}
	c := value(p.get(15))(t)
	p.n = maxIdle // as if there were others
	must(t, p.put(c, 15))
	if p.n != maxIdle {
		t.Errorf("%d are idle, want %d", p.n, maxIdle)
	}
	must(t, value(newCompletions(dev, 15))(t).close()) // c was closed
	pd := value(dev.AllocPD())(t)
	qp := value(pd.CreateQP(uverbs.QPOptions{SendCQ: one.cq, RecvCQ: one.cq}))(t)
	if err := p.close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a CQ that is in use: %v, want EBUSY", err)
	}
	must(t, qp.Close(), pd.Close(), one.close(), dev.Close())
}

// TestCompletionsTrimmed: completions that nobody has used for a second are closed, and those that are
// used are not.
func TestCompletionsTrimmed(t *testing.T) {
	s, _ := scarce(t, soft.Limits{CQs: 2})
	dev := value(uverbs.Open(s.Name(), uverbs.OpenOptions{}))(t)
	p := &completionPool{dev: dev}
	idle, used := value(p.get(7))(t), value(p.get(7))(t)
	for range 2 { // the timer is set again
		must(t, p.put(idle, 7))
		p.mu.Lock()
		if !p.trim && p.n > 0 {
			t.Error("the next completions that are idle will set another timer")
		}
		p.mu.Unlock()
		until(t, "there is room for another CQ", func() bool {
			c, err := newCompletions(dev, 7)
			return err == nil && c.close() == nil
		})
		idle = value(p.get(7))(t)
	}
	must(t, used.cq.Notify(), idle.close(), used.close(), p.close(), dev.Close())
}

// TestDomainKept: the PD of a listener is kept for a while after its last connection, and then closed,
// each time. One of a single connection is closed at once.
func TestDomainKept(t *testing.T) {
	s, _ := scarce(t, soft.Limits{PDs: 2})
	d := value(useDevice(deviceIndex(t, s.Name())))(t)
	for _, keep := range []time.Duration{0, 50 * time.Millisecond} {
		m := &domain{dev: d, keepFor: keep}
		room := func() bool {
			pd, err := d.dev.AllocPD()
			return err == nil && pd.Close() == nil
		}
		for range 3 {
			pd := value(m.use())(t)
			if value(m.use())(t) != pd {
				t.Error("two connections have two PDs")
			}
			m.release()
			if room() {
				t.Error("the PD of a connection is closed")
			}
			m.release()
			if keep == 0 && !room() {
				t.Error("a PD that is not kept is open")
			}
			until(t, "the PD is closed", room)
		}
	}
	until(t, "the device has one reference", func() bool { // a PD is closed before its reference is returned
		devices.mu.Lock()
		defer devices.mu.Unlock()
		return d.refs == 1
	})
	d.release()
	untilIdle(t, s)
}

// deviceIndex returns the index of a device.
func deviceIndex(t *testing.T, name string) uint32 {
	t.Helper()
	for _, i := range value(uverbs.Devices())(t) {
		if i.Name == name {
			return i.Index
		}
	}
	t.Fatalf("there is no device %s", name)
	return 0
}

// TestScarcePackets: a datagram connection for which the device has too few objects fails, and leaves
// nothing open.
func TestScarcePackets(t *testing.T) {
	for kind, limits := range map[string]soft.Limits{"QPs": {QPs: 1}, "CQs": {CQs: 3}, "one CQ": {CQs: 1}, "MRs": {MRs: 1}} {
		dev, address := scarce(t, limits)
		ctx := within(t)
		one, err := ListenPacket(ctx, address, PacketOptions{})
		if err == nil {
			_, err = ListenPacket(ctx, address, PacketOptions{Depth: 9000, SendDepth: 9000})
			must(t, one.Close())
		}
		if err == nil || !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want the device's error", kind, err)
		}
		untilIdle(t, dev)
	}
	if _, err := ListenPacket(within(t), "nothing", PacketOptions{}); err == nil {
		t.Error("an address without a port is listened at")
	} else if _, ok := errors.AsType[*net.AddrError](err); !ok {
		t.Errorf("an address without a port: %v", err)
	}
}
