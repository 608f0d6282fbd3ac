package uverbs

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// age makes the cached results older than maxAge.
func (d *Device) age() {
	for i := range d.ports.ports {
		if a := d.ports.ports[i].Load(); a != nil {
			a.asked.Store(a.asked.Load() - int64(maxAge))
		}
	}
	if t := d.ports.gids.Load(); t != nil {
		t.asked.Store(t.asked.Load() - int64(maxAge))
	}
	for i := range d.ports.own {
		if c := d.ports.own[i].Load(); c != nil {
			c.asked.Store(c.asked.Load() - int64(maxAge))
		}
	}
}

// queries returns the queries about ports among the commands.
func queries(all []string) []string {
	return slices.DeleteFunc(all, func(c string) bool { return c != "ioctl QUERY_PORT" && c != "ioctl QUERY_GID_TABLE" })
}

// TestPortCache: a port is queried again only after an event about it, whether the program has read
// the event or not; about the MTU, for which there is no event, each time.
func TestPortCache(t *testing.T) {
	f := connectable(t, QPOptions{})
	const port, table = "ioctl QUERY_PORT", "ioctl QUERY_GID_TABLE"
	endpoint := func(what string, want ...string) {
		t.Helper()
		f.dev.age()
		f.took()
		value(f.qp.Endpoint())(t)
		if got := queries(f.took()); !slices.Equal(got, want) {
			t.Errorf("%s: asked %q, want %q", what, got, want)
		}
	}
	value(f.qp.Endpoint())(t)
	endpoint("nothing has happened")
	f.raiseAsync(t, EventGIDChange, 1)
	endpoint("an unread event", port, table)
	value(waitEvent(t, f.dev))(t)
	endpoint("an event that was read since", port, table)
	endpoint("nothing has happened since")
	f.raiseAsync(t, EventCommEst, f.qp.cookie)
	value(waitEvent(t, f.dev))(t)
	endpoint("an event about the QP")
	f.port.ActiveMTU = uint8(ib.MTU256)
	endpoint("a new MTU")
	f.dev.age()
	f.took()
	must(t, f.qp.Connect(t.Context(), Endpoint{QPN: 77, GID: gid(t, "10.1.0.2")}))
	if got := queries(f.took()); !slices.Equal(got, []string{port}) {
		t.Errorf("Connect: asked %q, want %q", got, port)
	}
	if got := f.qp.peer.Load().mtu; got != ib.MTU256 {
		t.Errorf("the path MTU is %d bytes, want 256", got.Bytes())
	}
}

// TestGIDChoiceKept: the choice for an unknown peer, for which the host's addresses are read, serves all QPs of a port
// until an event about a port. This kernel's table does not have the GID, so only the choice can.
func TestGIDChoiceKept(t *testing.T) {
	f := connectable(t, QPOptions{})
	real := value(f.qp.Endpoint())(t).GID
	kept := gid(t, "10.9.9.9")
	c := newCached[GIDEntry](f.dev)
	c.value, c.made = GIDEntry{Port: 1, GID: kept}, c.made+time.Hour
	endpoint := func(what string, want ib.GID) {
		t.Helper()
		f.dev.age()
		f.qp.told.Store(nil)
		if got := value(f.qp.Endpoint())(t).GID; got != want {
			t.Errorf("%s: the GID is %s, want %s", what, got.Addr(), want.Addr())
		}
	}
	f.dev.ports.own[1].Store(c)
	endpoint("nothing has happened", kept)
	f.qp.told.Store(&real)
	if got := value(f.qp.Endpoint())(t).GID; got != real {
		t.Errorf("a GID that the peer knows: the GID is %s, want %s", got.Addr(), real.Addr())
	}
	f.qp.told.Store(nil)
	if got := value(f.qp.EndpointFor(Endpoint{GID: gid(t, "10.1.0.2")}))(t).GID; got != real {
		t.Errorf("a known peer: the GID is %s, want %s", got.Addr(), real.Addr())
	}
	c.made -= time.Hour + maxChoiceAge
	endpoint("the choice is old", real)
	c.made += time.Hour
	f.dev.ports.own[1].Store(c)
	f.raiseAsync(t, EventGIDChange, 1)
	endpoint("an unread event", real)
	f.dev.ports.own[1].Store(c)
	value(waitEvent(t, f.dev))(t)
	endpoint("an event that was read since", real)
	f.dev.age()
	before := f.dev.ports.own[1].Load()
	before.made += time.Hour
	endpoint("nothing has happened since", real)
	if f.dev.ports.own[1].Load() != before {
		t.Error("the choice was made again")
	}
}

// TestPortCacheRecent: Connect does not query what Endpoint has queried less than maxAge before.
func TestPortCacheRecent(t *testing.T) {
	f := connectable(t, QPOptions{})
	f.raiseAsync(t, EventGIDChange, 1) // so that only the time counts
	value(f.qp.Endpoint())(t)
	for i := range f.dev.ports.ports {
		if a := f.dev.ports.ports[i].Load(); a != nil {
			a.asked.Store(1 << 62)
		}
	}
	f.dev.ports.gids.Load().asked.Store(1 << 62)
	f.took()
	must(t, f.qp.Connect(t.Context(), Endpoint{QPN: 77, GID: gid(t, "10.1.0.2")}))
	if got := queries(f.took()); len(got) != 0 {
		t.Errorf("Connect asked: %q", got)
	}
}

// TestManyGIDs: a table with more used entries than usual is read whole.
func TestManyGIDs(t *testing.T) {
	d, k := fakeDevice(t, pathIoctl)
	k.port.GIDTblLen = 1024
	k.gids = make([]abi.GIDEntry, usualGIDs+1)
	for i := range k.gids {
		k.gids[i].GIDIndex, k.gids[i].PortNum = uint32(i), 1
	}
	if table := value(d.GIDTable(1))(t); len(table) != usualGIDs+1 {
		t.Errorf("%d entries, want %d", len(table), usualGIDs+1)
	}
	k.refuse["QUERY_GID_TABLE"] = syscall.EINVAL
	if table, err := d.GIDTable(1); errnoOf(err) != syscall.EINVAL {
		t.Errorf("refused: %d entries, %v, want EINVAL", len(table), err)
	}
}
