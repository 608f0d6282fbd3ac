package conformance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// manyGIDs is how many entries TestManyGIDs wants in the table, if it has so many.
const manyGIDs = 250

// gidTable is the GID table of a port whose interface gets additional addresses.
type gidTable struct {
	dev   *uverbs.Device
	link  netlink.Link
	added []*netlink.Addr

	versions int // of RoCE: the entries of each GID
}

// newGIDTable opens the GID table of a device. Additional addresses are removed at the end of the
// test.
func newGIDTable(t *testing.T, dev *uverbs.Device, netdev string) *gidTable {
	t.Helper()
	link, err := netlink.LinkByName(netdev)
	must(t, err)
	g := &gidTable{dev: dev, link: link}
	g.versions = len(g.entries(t, g.all(t)[0].GID))
	t.Cleanup(func() {
		for _, addr := range g.added {
			must(t, netlink.AddrDel(g.link, addr))
		}
	})
	return g
}

// all returns all entries.
func (g *gidTable) all(t *testing.T) []uverbs.GIDEntry {
	t.Helper()
	all, err := g.dev.GIDTable(1)
	must(t, err)
	return all
}

// entries returns the entries of a GID.
func (g *gidTable) entries(t *testing.T, gid ib.GID) []uverbs.GIDEntry {
	t.Helper()
	return slices.DeleteFunc(g.all(t), func(e uverbs.GIDEntry) bool { return e.GID != gid })
}

// add gives the interface another address and returns its GID.
func (g *gidTable) add(t *testing.T) ib.GID {
	t.Helper()
	n := len(g.added)
	text := fmt.Sprintf("10.78.%d.%d", n/200, n%200+1)
	addr, err := netlink.ParseAddr(text + "/32")
	must(t, err, netlink.AddrAdd(g.link, addr))
	g.added = append(g.added, addr)
	gid, err := ib.ParseGID(text)
	must(t, err)
	return gid
}

// await waits until the table has all entries of a GID, one for each version of RoCE, and returns them.
// The kernel adds one after the other.
func (g *gidTable) await(t *testing.T, gid ib.GID) []uverbs.GIDEntry {
	t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
		if entries := g.entries(t, gid); len(entries) == g.versions {
			return entries
		} else if time.Now().After(end) {
			t.Fatalf("the table has %d entries of %s, want %d: %v", len(entries), gid, g.versions, g.all(t))
		}
	}
}

// TestManyGIDs gives an interface so many addresses that the GID table of its port is nearly full,
// and connects by the last entry.
func TestManyGIDs(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Long)
	testenv.NeedsIB(t, "GIDs")
	testenv.NeedsRoCE(t, "Ethernet")
	testenv.Guest(t)
	testenv.NeedsKernel(t, "addresses of network interfaces")
	testenv.Tags(t, testenv.Machine)
	dev := openDevice(t, rig.Devices[1])
	port, err := dev.Port(1)
	must(t, err)
	table := newGIDTable(t, dev, rig.Netdevs[1])
	var gids []ib.GID
	limit := min(manyGIDs, port.GIDTableLen)
	for len(table.all(t))+table.versions <= limit {
		gid := table.add(t)
		gids = append(gids, gid)
		table.await(t, gid)
	}
	if n := len(table.all(t)); n < limit-4 {
		t.Errorf("the table has %d entries, want about %d", n, limit)
	}
	for _, gid := range gids {
		table.await(t, gid)
	}
	last := gids[len(gids)-1]
	var at uverbs.GIDEntry
	for _, e := range table.await(t, last) {
		if e.Type == ib.GIDTypeRoCEv2 {
			at = e
		}
	}
	if got, err := dev.GID(1, at.Index); got != at || err != nil || at.GID != last {
		t.Fatalf("entry %d is %v, %v, want %v", at.Index, got, err, at)
	}
	o := uverbs.QPOptions{Path: uverbs.PathOptions{GIDIndex: new(at.Index)}}
	a, b := newSide(t, dev, o), newSide(t, dev, o)
	connect(t, a, b)
	want := a.fill(0, 1000, 5)
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)), a.qp.PostSend(send(2, a.mr.SGE(0, 1000))))
	a.want(t, 2, uverbs.WCSend)
	b.want(t, 1, uverbs.WCRecv)
	b.holds(t, 0, want)
}
