package main

import (
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestInterfaceEvents changes a network interface and compares the events.
func TestInterfaceEvents(t *testing.T) {
	testenv.IPv6(t)
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	testenv.NeedsRights(t, "a network namespace", unix.Unshare(unix.CLONE_NEWNET))
	testenv.Must(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/addr_gen_mode", []byte("1"), 0)) // no link-local addresses
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "link"
	link, bridge := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}
	testenv.Must(t, netlink.LinkAdd(link), netlink.LinkAdd(bridge))
	peer, err := netlink.LinkByName("peer")
	testenv.Must(t, err)
	testenv.Must(t, netlink.LinkSetUp(peer))
	s, err := subscribe()
	testenv.Must(t, err)
	defer s.Close()
	up := interfacesUp{}
	up.look()
	var rows []eventRow // of the interface, not yet compared
	want := func(event, address string, changes ...error) {
		t.Helper()
		testenv.Must(t, changes...)
		for len(rows) == 0 {
			msgs, _, err := s.Receive()
			testenv.Must(t, err)
			for i := range msgs {
				if row, ok := up.event(&msgs[i]); ok && row.NetdevIndex == link.Index {
					rows = append(rows, row)
				}
			}
		}
		if want := (eventRow{Event: event, NetdevIndex: link.Index, Address: address}); rows[0] != want {
			t.Fatalf("event %+v, want %+v", rows[0], want)
		}
		rows = rows[1:]
	}
	addr := func(text string) *netlink.Addr {
		a, err := netlink.ParseAddr(text)
		testenv.Must(t, err)
		a.Flags = unix.IFA_F_NODAD
		return a
	}
	withPeer := addr("10.8.0.1/32")
	withPeer.Peer = addr("10.8.0.2/24").IPNet
	want("NETDEV_UP", "", netlink.LinkSetUp(link))
	want("ADDRESS_ADDED", "10.7.0.1/24", netlink.AddrAdd(link, addr("10.7.0.1/24")))
	want("ADDRESS_ADDED", "10.8.0.1/32", netlink.AddrAdd(link, withPeer))
	want("ADDRESS_ADDED", "fd00:7::1/64", netlink.AddrAdd(link, addr("fd00:7::1/64")))
	// Leaving a bridge has messages that name the interface, and is no event.
	testenv.Must(t, netlink.LinkSetMaster(link, bridge), netlink.LinkSetNoMaster(link))
	want("ADDRESS_DELETED", "10.7.0.1/24", netlink.AddrDel(link, addr("10.7.0.1/24")))
	want("ADDRESS_DELETED", "10.8.0.1/32", netlink.AddrDel(link, withPeer))
	want("ADDRESS_DELETED", "fd00:7::1/64", netlink.AddrDel(link, addr("fd00:7::1/64")))
	want("NETDEV_DOWN", "", netlink.LinkSetDown(peer)) // no carrier
	want("NETDEV_UP", "", netlink.LinkSetUp(peer))
	up[link.Index] = false // as after a lost message: the next look finds the event
	if got, want := up.look(), (eventRow{Event: "NETDEV_UP", NetdevIndex: link.Index}); !slices.Contains(got, want) {
		t.Errorf("look returns %+v, want %+v", got, want)
	}
	want("NETDEV_DOWN", "", netlink.LinkDel(link))
	if _, kept := up[link.Index]; kept {
		t.Errorf("an interface that is gone is kept: %v", up)
	}
	up[link.Index] = true // as after the loss of its end
	if got, want := up.look(), (eventRow{Event: "NETDEV_DOWN", NetdevIndex: link.Index}); !slices.Contains(got, want) {
		t.Errorf("look returns %+v, want %+v", got, want)
	}
}
