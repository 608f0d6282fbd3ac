package rdmacm

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
)

// bond makes an interface of two, with an address and a device, and the hardware address of the
// active one. It returns the address and a function that makes the other one active.
func bond(t *testing.T) (at netip.Addr, failOver func()) {
	t.Helper()
	testenv.Guest(t)
	testenv.NeedsLinks(t)
	b := netlink.NewLinkBond(netlink.LinkAttrs{Name: "cb"})
	b.Mode, b.FailOverMac = netlink.BOND_MODE_ACTIVE_BACKUP, netlink.BOND_FAIL_OVER_MAC_ACTIVE
	if err := netlink.LinkAdd(b); err != nil {
		t.Fatalf("a bond needs the module bonding in the guest: %v", err)
	}
	t.Cleanup(func() { must(t, netlink.LinkDel(b)) })
	var slaves []netlink.Link
	for _, name := range []string{"cb0", "cb1"} {
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "peer"}))
		slave, peer := value(netlink.LinkByName(name))(t), value(netlink.LinkByName(name+"peer"))(t)
		t.Cleanup(func() { must(t, netlink.LinkDel(peer)) })
		must(t, netlink.LinkSetMaster(slave, b), netlink.LinkSetUp(slave), netlink.LinkSetUp(peer))
		slaves = append(slaves, slave)
	}
	const device = "rxecb"
	must(t, netlink.LinkSetUp(b), netlink.AddrAdd(b, value(netlink.ParseAddr("10.9.1.1/24"))(t)), netlink.LinkSetBondSlaveActive(slaves[0], b),
		netlinkrdma.AddLink(device, "rxe", "cb"))
	t.Cleanup(func() { must(t, netlinkrdma.DeleteLink(device)) })
	return netip.MustParseAddr("10.9.1.1"), func() {
		must(t, netlink.LinkSetBondSlaveActive(slaves[1], b))
	}
}

// TestAddrChange: whoever is on an interface whose hardware address changes, as that of a bond does
// when the other interface takes over, is told, and who waits for something else goes on waiting.
func TestAddrChange(t *testing.T) {
	at, failOver := bond(t)
	c := openKernel(t)
	ctx := within(t)
	l, addr := listen(t, c, TCP, at)
	id := newID(t, c, TCP)
	resolve(t, c, id, addr)
	client, server := establish(t, c, id)

	waits, _ := listen(t, c, TCP, at)
	waits.exclusive.Store(true)
	requested := make(chan error, 1)
	go func() { requested <- second1(waits.NextRequest(ctx)) }()
	failOver() // there and back again is no change to the kernel, which compares with the beginning
	told := map[*ID]int{}
	for len(told) < 3 {
		e := next(t, c, EventAddrChange)
		if told[e.ID]++; e.Status != 0 {
			t.Errorf("event is %+v", e)
		}
	}
	for name, id := range map[string]*ID{"listener": l, "client": client.id, "server": server.id} {
		if told[id] != 1 {
			t.Errorf("the %s was told %d times", name, told[id])
		}
	}
	must(t, waits.Close())
	if err := <-requested; !errors.Is(err, os.ErrClosed) {
		t.Errorf("who waits for a request until the listener is closed: %v", err)
	}
}
