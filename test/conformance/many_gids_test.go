package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// manyGIDs is how many entries TestManyGIDs wants in the table, if it has so many.
const manyGIDs = 250

// TestManyGIDs gives an interface so many addresses that the GID table of its port is nearly full,
// and connects by the last entry.
func TestManyGIDs(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsIB(t, "GIDs")
	testenv.NeedsEthernet(t)
	testenv.Guest(t)
	dev := openDevice(t, rig.Devices[1])
	port, err := dev.QueryPort(1)
	must(t, err)
	link, err := netlink.LinkByName(rig.Netdevs[1])
	must(t, err)
	table := func() []uverbs.GIDEntry {
		t.Helper()
		all, err := dev.GIDTable(1)
		must(t, err)
		return all
	}
	// add gives the interface an address, and del takes all of them away.
	var added []*netlink.Addr
	add := func() uverbs.GID {
		t.Helper()
		n := len(added)
		text := fmt.Sprintf("10.78.%d.%d", n/200, n%200+1)
		addr, err := netlink.ParseAddr(text + "/32")
		must(t, err, netlink.AddrAdd(link, addr))
		added = append(added, addr)
		gid, err := uverbs.ParseGID(text)
		must(t, err)
		return gid
	}
	t.Cleanup(func() {
		for _, addr := range added {
			must(t, netlink.AddrDel(link, addr))
		}
	})
	entries := func(gid uverbs.GID) (all []uverbs.GIDEntry) {
		for _, e := range table() {
			if e.GID == gid {
				all = append(all, e)
			}
		}
		return all
	}
	// there waits until a GID is in the table.
	there := func(gid uverbs.GID) []uverbs.GIDEntry {
		t.Helper()
		for end := time.Now().Add(deadline); ; time.Sleep(time.Millisecond) {
			if all := entries(gid); len(all) > 0 {
				return all
			} else if time.Now().After(end) {
				t.Fatalf("%s is not in the table: %v", gid, table())
			}
		}
	}
	var gids []uverbs.GID
	limit := min(manyGIDs, port.GIDTableLen)
	for each := 0; len(table())+each <= limit; {
		gid := add()
		gids = append(gids, gid)
		each = len(there(gid)) // one for each version of RoCE
	}
	if n := len(table()); n < limit-4 {
		t.Errorf("the table has %d entries, want about %d", n, limit)
	}
	for _, gid := range gids {
		there(gid)
	}
	last := gids[len(gids)-1]
	var at uverbs.GIDEntry
	for _, e := range there(last) {
		if e.Type == uverbs.GIDTypeRoCEv2 {
			at = e
		}
	}
	if got, err := dev.QueryGID(1, at.Index); got != at || err != nil || at.GID != last {
		t.Fatalf("entry %d is %v, %v, want %v", at.Index, got, err, at)
	}
	o := uverbs.QPOptions{Path: uverbs.PathOptions{GID: uverbs.GIDAt(at.Index)}}
	a, b := newSide(t, dev, o), newSide(t, dev, o)
	connect(t, a, b)
	want := a.fill(0, 1000, 5)
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)), a.qp.PostSend(send(2, a.mr.SGE(0, 1000))))
	a.want(t, 2, uverbs.WCSend)
	b.want(t, 1, uverbs.WCRecv)
	b.holds(t, 0, want)
}
