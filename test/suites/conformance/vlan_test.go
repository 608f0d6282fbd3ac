package conformance

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// vlanEnv is set to 1 in VMs with the kernel module 8021q.
const vlanEnv = "GOVERBS_VLAN"

// vlanID is the number of the VLAN of the tests.
const vlanID = 88

// station is an address on a network interface, with its GID.
type station struct {
	dev  *uverbs.Device
	link netlink.Link
	ip   net.IP
	gid  uverbs.GIDEntry
}

// newStation gives a network interface of a device an address, and waits for its GID.
func newStation(t *testing.T, dev *uverbs.Device, link netlink.Link, cidr string) *station {
	t.Helper()
	addr, err := netlink.ParseAddr(cidr)
	must(t, err, netlink.AddrAdd(link, addr))
	t.Cleanup(func() { must(t, netlink.AddrDel(link, addr)) })
	return &station{dev: dev, link: link, ip: addr.IP, gid: waitGID(t, dev, addr.IP)}
}

// newVLAN makes a VLAN interface on a network interface.
func newVLAN(t *testing.T, name, parent string) netlink.Link {
	t.Helper()
	base := linkOf(t, parent)
	link := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: base.Attrs().Index}, VlanId: vlanID}
	must(t, netlink.LinkAdd(link))
	t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
	// What rxe receives passes through the kernel, which shall take it from an address of its own.
	must(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/accept_local", []byte("1"), 0), netlink.LinkSetUp(link))
	return linkOf(t, name)
}

func linkOf(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	return link
}

// know tells the kernel where another station is. Both are on one machine, so that the kernel would not
// answer its own question.
func (s *station) know(t *testing.T, peer *station) {
	t.Helper()
	n := &netlink.Neigh{LinkIndex: s.link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: peer.ip, HardwareAddr: peer.link.Attrs().HardwareAddr}
	must(t, netlink.NeighSet(n))
	t.Cleanup(func() { must(t, netlink.NeighDel(n)) })
}

// side makes a side that uses the station's GID.
func (s *station) side(t *testing.T, path uverbs.PathOptions) *side {
	t.Helper()
	path.GIDIndex = new(s.gid.Index)
	return newSide(t, s.dev, uverbs.QPOptions{Path: path})
}

// TestVLAN connects the devices by the GIDs of VLAN interfaces.
func TestVLAN(t *testing.T) {
	testenv.Boot(t, vlanEnv, "mlx5/roce")
	testenv.NeedsRoCE(t, "Ethernet")
	var devs [2]*uverbs.Device
	var on [2]*station
	for i, cidr := range []string{"10.88.0.1/24", "10.88.0.2/24"} {
		devs[i] = openDevice(t, rig.Devices[i])
		name := []string{"vlan0", "vlan1"}[i]
		on[i] = newStation(t, devs[i], newVLAN(t, name, rig.Netdevs[i]), cidr)
	}
	on[0].know(t, on[1])
	on[1].know(t, on[0])
	t.Run("GIDs", func(t *testing.T) { checkVLANGIDs(t, on[0], on[1]) })
	t.Run("traffic", func(t *testing.T) {
		a, b := on[0].side(t, uverbs.PathOptions{}), on[1].side(t, uverbs.PathOptions{})
		connect(t, a, b)
		want := a.fill(0, 3000, 1)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 4000)), a.qp.PostSend(send(2, a.mr.SGE(0, 3000))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		b.holds(t, 0, want)
		want = b.fill(0, 9000, 2)
		oneAfterAnother(t, b, 1, access(uverbs.WRRDMAWrite, b, a, 9000), uverbs.WCRDMAWrite)
		a.holds(t, 0, want)
		if attr, err := a.qp.Query(); err != nil || int(attr.AH.GRH.SGIDIndex) != on[0].gid.Index {
			t.Errorf("the QP uses GID %d, %v, want %d", attr.AH.GRH.SGIDIndex, err, on[0].gid.Index)
		}
	})
	t.Run("connection", func(t *testing.T) { connectByVLAN(t, on[0]) })
	if onMLX5 { // with rxe the kernel takes a packet in the VLAN for every address of the machine
		t.Run("datagram", func(t *testing.T) { datagramInVLAN(t, on[0], on[1]) })
		t.Run("untagged peer", func(t *testing.T) {
			const outside = "10.88.0.3/32" // of an address in the VLAN's subnet, but not in the VLAN
			peer := newStation(t, devs[1], linkOf(t, rig.Netdevs[1]), outside)
			on[0].know(t, peer)
			peer.know(t, on[0])
			checkUnreachable(t, on[0], peer)
		})
	}
}

// datagramInVLAN sends a datagram with a priority: its completion and the way back have the priority, too.
func datagramInVLAN(t *testing.T, from, to *station) {
	const priority = 5
	path := func(s *station) uverbs.QPOptions {
		return uverbs.QPOptions{Type: ib.UD, Path: uverbs.PathOptions{GIDIndex: new(s.gid.Index)}}
	}
	a, b := newSide(t, from.dev, path(from)), newSide(t, to.dev, path(to))
	ah, err := a.pd.CreateAH(uverbs.AHAttr{Port: 1, SL: priority, Global: true, GRH: uverbs.GRH{DGID: to.gid.GID, SGIDIndex: uint8(from.gid.Index), HopLimit: 64}})
	must(t, err)
	closeLater(t, ah)
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)), a.qp.PostSend(datagram(2, ah, b, a.mr.SGE(0, 100))))
	a.want(t, 2, uverbs.WCSend)
	wc := b.want(t, 1, uverbs.WCRecv)
	if wc.SL != priority || wc.SLID != 0 || wc.PKeyIndex != 0 {
		t.Errorf("completion %+v, want SL %d, SLID 0 and P_Key index 0", wc, priority)
	}
	back, err := to.dev.AHAttrFor(1, &wc, b.buf.Bytes())
	if err != nil || back.SL != priority || int(back.GRH.SGIDIndex) != to.gid.Index {
		t.Errorf("the way back is %+v, %v, want SL %d and GID %d", back, err, priority, to.gid.Index)
	}
}

// checkVLANGIDs checks what the library reports of the GID of a VLAN interface, and that it chooses this GID
// and finds its device.
func checkVLANGIDs(t *testing.T, s, peer *station) {
	t.Helper()
	table, err := s.dev.GIDTable(1)
	must(t, err)
	found := 0
	for _, e := range table {
		if e.GID == s.gid.GID {
			found++
			if e.Netdev != s.link.Attrs().Index {
				t.Errorf("%s is of network interface %d, want %d", e, e.Netdev, s.link.Attrs().Index)
			}
		} else if base := linkOf(t, rig.Netdevs[0]).Attrs().Index; e.GID.Addr().Is4() && e.Netdev != base {
			t.Errorf("%s is of network interface %d, want %d", e, e.Netdev, base)
		}
	}
	if found == 0 {
		t.Errorf("the table has no %s: %v", s.gid, table)
	}
	if got, err := s.dev.GID(1, s.gid.Index); err != nil || got != s.gid {
		t.Errorf("entry %d is %v, %v, want %v", s.gid.Index, got, err, s.gid)
	}
	if got, ok := uverbs.ChooseGID(table, peer.gid.GID); !ok || got != s.gid {
		t.Errorf("the library chooses %v for %s, want %v", got, peer.ip, s.gid)
	}
	ip, _ := netip.AddrFromSlice(s.ip.To4())
	for what, open := range map[string]func() (*uverbs.Device, error){
		"by interface": func() (*uverbs.Device, error) { return uverbs.OpenNetdev(s.link.Attrs().Name) },
		"by address":   func() (*uverbs.Device, error) { return uverbs.OpenAddr(ip) },
	} {
		dev, err := open()
		must(t, err)
		if dev.Name() != s.dev.Name() {
			t.Errorf("%s: %s, want %s", what, dev.Name(), s.dev.Name())
		}
		must(t, dev.Close())
	}
	if os.Getenv("RDMAABI") != "write" { // for which the library would read a GID table of a thousand files
		a := newSide(t, s.dev, uverbs.QPOptions{})
		eb, err := peer.side(t, uverbs.PathOptions{}).qp.Endpoint()
		must(t, err)
		if ea, err := a.qp.EndpointFor(eb); err != nil || ea.GID != s.gid.GID {
			t.Errorf("the endpoint is %s, %v, want %s", ea, err, s.ip)
		}
	}
}

// settle waits until nothing is closed any more: package cm keeps for a second or two what the next
// connection could use, and TestWalk counts.
func settle(t *testing.T) {
	t.Helper()
	last, since := holdings(t), time.Now()
	for end := time.Now().Add(deadline); time.Since(since) < 3*time.Second && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if now := holdings(t); now != last {
			last, since = now, time.Now()
		}
	}
}

// connectByVLAN dials the address of a VLAN interface.
func connectByVLAN(t *testing.T, s *station) {
	t.Helper()
	t.Cleanup(func() { settle(t) })
	ctx := withDeadline(t)
	address := net.JoinHostPort(s.ip.String(), "7701")
	l, err := cm.Listen(ctx, address, cm.ListenOptions{})
	must(t, err)
	closeLater(t, l)
	accepted := make(chan *cm.Conn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.Accept(ctx); err != nil {
			t.Error(err)
		} else {
			accepted <- c
		}
	}()
	client, err := cm.Dial(ctx, address, cm.DialOptions{})
	must(t, err)
	closeLater(t, client)
	server := <-accepted
	if server == nil {
		t.FailNow()
	}
	closeLater(t, server)
	must(t, client.Send(ctx, []byte("by the VLAN")))
	if got, err := server.Recv(ctx); err != nil || string(got) != "by the VLAN" {
		t.Errorf("received %q, %v", got, err)
	}
	for _, c := range []*cm.Conn{client, server} {
		attr, err := c.QP().Query()
		must(t, err)
		gid, err := s.dev.GID(1, int(attr.AH.GRH.SGIDIndex))
		if dev := c.QP().Device().Name(); err != nil || gid.GID != s.gid.GID || dev != s.dev.Name() {
			t.Errorf("the connection uses %s of %s, %v, want %s of %s", gid, dev, err, s.gid, s.dev.Name())
		}
	}
}

// checkUnreachable checks that nothing passes between two stations that the kernel takes for neighbors.
func checkUnreachable(t *testing.T, from, to *station) {
	t.Helper()
	path := uverbs.PathOptions{Timeout: 12, RetryCount: 1}
	for _, s := range [][2]*station{{from, to}, {to, from}} {
		a, b := s[0].side(t, path), s[1].side(t, path)
		connect(t, a, b)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 100)), a.qp.PostSend(send(2, a.mr.SGE(0, 10))))
		if wc := a.next(t); wc.Status != uverbs.WCRetryExcErr {
			t.Errorf("from %s to %s: %v, want %s", s[0].gid, s[1].gid, wc.Err(), uverbs.WCRetryExcErr)
		}
		b.none(t)
	}
}
