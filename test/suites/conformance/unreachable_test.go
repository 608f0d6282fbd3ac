package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// setLink sets a network interface up or down and waits until the port follows.
func setLink(t *testing.T, dev *uverbs.Device, netdev string, up bool) {
	t.Helper()
	link, err := netlink.LinkByName(netdev)
	must(t, err)
	state, set := ib.PortDown, netlink.LinkSetDown
	if up {
		state, set = ib.PortActive, netlink.LinkSetUp
	}
	must(t, set(link))
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		attr, err := dev.Port(1)
		must(t, err)
		if attr.State == state {
			return
		}
	}
	t.Fatalf("port of %s does not become %s", netdev, state)
}

// TestUnreachablePeer checks the error for a peer that cannot be reached: it names the local GID,
// the network interface and what is missing there.
func TestUnreachablePeer(t *testing.T) {
	testenv.NeedsIB(t, "GIDs")
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "Ethernet")
	testenv.NeedsKernel(t, "routes and neighbours")
	testenv.Tags(t, testenv.Machine)
	table, err := openDevice(t, deviceName).GIDTable(1)
	must(t, err)
	linkLocal := slices.IndexFunc(table, func(e uverbs.GIDEntry) bool { return e.GID.Addr().IsLinkLocalUnicast() })
	if linkLocal < 0 {
		t.Fatalf("there is no link-local GID: %v", table)
	}
	linkLocal = table[linkLocal].Index
	for _, c := range []struct {
		peer  string
		index int
		want  []string
	}{
		{"192.0.2.1", ipv4Index, []string{"no route", rig.Netdevs[0], "10.1.0.1/24"}},
		{"10.1.0.99", ipv4Index, []string{"10.1.0.99 does not answer ARP on " + rig.Netdevs[0]}},
		{"fd00:9::1", rig.GID6, []string{"no route", rig.Netdevs[0], "fd00:1::1/64"}},
		{"fd00:1::99", rig.GID6, []string{"fd00:1::99 does not answer neighbour discovery on " + rig.Netdevs[0]}},
		{"10.1.0.2", rig.GID6, []string{"the peer is IPv4 and the GID IPv6", fmt.Sprintf("; GID %d: ", ipv4Index), "(10.1.0.1, RoCE v2) matches the peer's family"}},
		{"10.1.0.3", linkLocal, []string{"the peer is IPv4 and the GID IPv6", fmt.Sprintf("; GID %d: ", ipv4Index), "(10.1.0.1, RoCE v2) matches the peer's family"}},
		{"fd00:1::2", ipv4Index, []string{"the peer is IPv6 and the GID IPv4", fmt.Sprintf("; GID %d: ", rig.GID6), "(fd00:1::1, RoCE v2) matches the peer's family"}},
	} {
		t.Run(c.peer, func(t *testing.T) {
			t.Parallel() // the kernel waits for answers
			s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{Path: uverbs.PathOptions{GIDIndex: new(c.index)}})
			peer, err := ib.ParseGID(c.peer)
			must(t, err)
			err = s.qp.Connect(t.Context(), uverbs.Endpoint{QPN: 77, GID: peer})
			says(t, err, append(c.want, "INIT to RTR", "peer "+c.peer, fmt.Sprintf("from GID %d: ", c.index))...)
			if s.qp.State() != ib.QPInit {
				t.Errorf("the QP is in state %s", s.qp.State())
			}
			_, err = s.pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: peer, SGIDIndex: uint8(c.index), HopLimit: 1}})
			says(t, err, append(c.want, "CREATE_AH")...)
		})
	}
}

// TestInterfaceDown checks the error for a peer when the interface of the GID was set down in the
// meantime.
func TestInterfaceDown(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsLinks(t)
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tf0"}, PeerName: "tf1"}))
	link, err := netlink.LinkByName("tf0")
	must(t, err)
	t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
	peer, err := netlink.LinkByName("tf1")
	must(t, err, netlink.LinkSetUp(peer), netlink.LinkSetUp(link))
	must(t, netlinkrdma.AddLink("rxetf", "rxe", "tf0"))
	t.Cleanup(func() { must(t, netlinkrdma.DeleteLink("rxetf")) })

	dev := openDevice(t, "rxetf")
	setLink(t, dev, "tf0", true)
	s := newSide(t, dev, uverbs.QPOptions{Path: uverbs.PathOptions{GIDIndex: new(0)}}) // it has no IPv4 address
	e, err := s.qp.Endpoint()
	must(t, err)
	e.GID[15]++
	setLink(t, dev, "tf0", false)
	ah := uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: e.GID, HopLimit: 1}}
	err = s.qp.Modify(uverbs.QPAttr{State: ib.QPRTR, AH: ah, PathMTU: ib.MTU1024, DestQPN: 77},
		uverbs.AttrState|uverbs.AttrAH|uverbs.AttrPathMTU|uverbs.AttrDestQPN|uverbs.AttrRQPSN|uverbs.AttrMaxDestRdAtomic|uverbs.AttrMinRNRTimer)
	_, ahErr := s.pd.CreateAH(ah)
	for verb, err := range map[string]error{fmt.Sprintf("MODIFY_QP INIT to RTR of QP %d", s.qp.QPN()): err, "CREATE_AH": ahErr} {
		if !errors.Is(err, syscall.ENETUNREACH) && !errors.Is(err, syscall.ENODEV) { // as the kernel looks at the route first or not
			t.Errorf("%v is neither ENETUNREACH nor ENODEV", err)
		}
		says(t, err, verb, "from GID 0 of port 1", "tf0 is down", "to fe80::")
	}
}

// TestPeerGone closes the peer's QP: the sender learns it, with the peer's address.
func TestPeerGone(t *testing.T) {
	testenv.NotOnEFA(t, "connections")
	testenv.NeedsIB(t, "acknowledgements")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		o := uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 10, RetryCount: 1}}
		a, b := newSide(t, dev, o), newSide(t, dev, o)
		connect(t, a, b)
		qpn := b.qp.QPN()
		must(t, b.qp.Close())
		must(t, a.qp.PostSend(send(1, a.mr.SGE(0, 8)), send(2, a.mr.SGE(0, 8))))
		wc := a.next(t)
		err := a.qp.Err(&wc)
		if wc.ID != 1 || !errors.Is(err, uverbs.WCRetryExcErr) {
			t.Fatalf("first completion is %+v (%v), want a retry error of 1", wc, err)
		}
		says(t, err, peerName, "QP "+strconv.Itoa(int(qpn)), "2 attempts")
		if !onMLX5 { // whose counters the model does not count up
			says(t, err, "port has counted: ", "sent_pkts ")
		}
		wc = a.next(t)
		if wc.ID != 2 || !uverbs.IsFlush(a.qp.Err(&wc)) {
			t.Fatalf("second completion is %+v, want a flush of 2", wc)
		}
		a.reaches(t, ib.QPErr)
		// A completion that was polled before Close is explained after it too, without the ring.
		must(t, a.qp.Close())
		errorIs(t, a.qp.Err(&uverbs.WC{ID: 3, Status: uverbs.WCLocProtErr}), uverbs.WCLocProtErr, "a completion after Close")
	})
}
