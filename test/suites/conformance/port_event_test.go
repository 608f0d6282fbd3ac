package conformance

import (
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestInjectedPort: what becomes of a port's addresses and keys is told, and can be read then. On
// InfiniBand the subnet manager changes them, on RoCE those of the interface do.
func TestInjectedPort(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		device := rig.Devices[1]
		do := inject(t, device)
		dev := openDevice(t, device)
		told := func(want uverbs.EventType) {
			t.Helper()
			if ev := event(t, dev, want); ev != (uverbs.Event{Type: want, Port: 1}) {
				t.Errorf("event is %+v, want one of port 1", ev)
			}
		}
		if rig.InfiniBand() {
			portOfSubnet(t, dev, do, told)
			noViolation(t, do)
			return
		}
		link, err := netlink.LinkByName(rig.Netdevs[1])
		must(t, err)
		addr, err := netlink.ParseAddr("10.9.0.1/24")
		must(t, err, netlink.AddrAdd(link, addr))
		t.Cleanup(func() { must(t, netlink.AddrDel(link, addr)) })
		want, err := ib.ParseGID("10.9.0.1")
		must(t, err)
		for has := false; !has; { // events of other addresses may come first
			told(uverbs.EventGIDChange)
			table, err := dev.GIDTable(1)
			must(t, err)
			for _, e := range table {
				has = has || e.GID == want
			}
		}
		noViolation(t, do)
	})
}

// portOfSubnet is TestInjectedPort on InfiniBand.
func portOfSubnet(t *testing.T, dev *uverbs.Device, do func(string, ...any) string, told func(uverbs.EventType)) {
	t.Helper()
	attr, err := dev.Port(1)
	must(t, err)
	lid := func(want uint16) {
		t.Helper()
		do("lid %d", want)
		told(uverbs.EventLIDChange)
		if got, err := dev.Port(1); err != nil || got.LID != want {
			t.Errorf("the LID is %#x, %v, want %#x", got.LID, err, want)
		}
	}
	lid(0x99)
	lid(attr.LID)
	free := slices.Index(pkeysOf(t, rig.Devices[1]), 0)
	pkey := func(want uint16) {
		t.Helper()
		do("pkey %d %d", free, want)
		told(uverbs.EventPKeyChange)
		if got, err := dev.PKey(1, free); err != nil || got != want {
			t.Errorf("P_Key %d is %#x, %v, want %#x", free, got, err, want)
		}
	}
	pkey(0x8123)
	if i, err := dev.PKeyIndex(1, 0x8123); i != free || err != nil {
		t.Errorf("0x8123 is at %d, %v, want %d", i, err, free)
	}
	pkey(0)
	const other = "fe80::1234"
	want, err := ib.ParseGID(other)
	must(t, err)
	// The kernel updates the table, and reports GIDs on Ethernet only.
	gid := func(addr string, there bool) {
		t.Helper()
		do("gid 3 %s", addr)
		for end := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
			got, err := dev.GID(1, 3)
			if has := err == nil && got.GID == want; has == there {
				return
			} else if time.Now().After(end) {
				t.Fatalf("GID 3 is %v, %v; want %v: %t", got, err, want, there)
			}
		}
	}
	gid(other, true)
	gid("::", false)
	do("reregister")
	told(uverbs.EventClientReregister)
}

// TestInjectedMigration: a peer's wish to take the other path that a QP can't follow is told, and the QP
// works on.
func TestInjectedMigration(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		do := inject(t, deviceName)
		a, b := pair(t, uverbs.QPOptions{})
		do("fail-migration %d", a.qp.QPN())
		if ev := event(t, a.dev, uverbs.EventPathMigErr); ev != (uverbs.Event{Type: uverbs.EventPathMigErr, QP: a.qp.QP}) {
			t.Errorf("event is %s, want %s of QP %d", ev, uverbs.EventPathMigErr, a.qp.QPN())
		}
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)), a.qp.PostSend(send(2, a.mr.SGE(0, 8))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		noViolation(t, do)
	})
}

// TestModeration: a CQ that is told to has one event for several completions, or for the time since
// the first, and without has one for each. That it is for the number shows where it comes before the
// time is over, which a slow machine may not manage every time.
func TestModeration(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "CQ moderation", "mlx5")
		const count, period = 4, 4 * time.Millisecond
		a, b := pair(t, uverbs.QPOptions{})
		id := uint64(0)
		// deliver has n messages arrive, and returns how long the event was in coming.
		deliver := func(n int) time.Duration {
			t.Helper()
			must(t, b.cq.Notify())
			begin := time.Now()
			for range n {
				must(t, b.qp.PostRecv(id, b.mr.SGE(0, 8)), a.qp.PostSend(send(id, a.mr.SGE(0, 8))))
				a.want(t, id, uverbs.WCSend)
				id++
			}
			raised(t, b, true)
			took := time.Since(begin)
			for i := range n {
				b.want(t, id-uint64(n-i), uverbs.WCRecv)
			}
			return took
		}
		early := func(n int) bool {
			for end := time.Now().Add(deadline); time.Now().Before(end); {
				if deliver(n) < period {
					return true
				}
			}
			return false
		}
		must(t, b.cq.Modify(count, period))
		if took := deliver(count - 1); took < period*9/10 {
			t.Errorf("%d completions of %d had an event after %s, want %s", count-1, count, took, period)
		}
		if !early(count) {
			t.Errorf("%d completions have no event before %s", count, period)
		}
		must(t, b.cq.Modify(0, 0))
		if !early(1) {
			t.Errorf("without moderation a completion has no event before %s", period)
		}
		attr := a.dev.Attr()
		argError(t, b.cq.Modify(int(attr.MaxCQModerationCount)+1, period), "count")
		argError(t, b.cq.Modify(count, time.Duration(attr.MaxCQModerationPeriod+1)*time.Microsecond), "period")
	})
}
