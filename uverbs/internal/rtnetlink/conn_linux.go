package rtnetlink

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrInterrupted means that a table changed each time while it was read: entries may be missing
// from the result.
var ErrInterrupted = errors.New("the table changed during each of 10 attempts to read it")

// Conn asks the kernel about one network namespace: the one of the thread that called Open, or of
// the calling thread if the Conn is nil. Goroutines may use it concurrently.
type Conn map[int]*nl.SocketHandle

// Here is about the network namespace of the calling thread.
var Here Conn

// Open opens a socket in the network namespace of the calling thread.
func Open() (Conn, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("socket(NETLINK_ROUTE): %w", err)
	}
	_, _ = s.SetSendTimeout(&nl.SocketTimeoutTv), s.SetReceiveTimeout(&nl.SocketTimeoutTv) // always nil
	return Conn{unix.NETLINK_ROUTE: {Socket: s}}, nil
}

// Close closes the socket.
func (c Conn) Close() {
	for _, s := range c {
		s.Close()
	}
}

// Link is a network interface.
type Link struct {
	Index        int
	Name         string
	Flags        uint32 // IFF_UP and so on
	MTU          int
	HardwareAddr net.HardwareAddr // empty for the loopback interface
}

// Links returns the network interfaces.
func (c Conn) Links() (links []Link, err error) {
	all, err := c.dump("network interfaces", unix.RTM_GETLINK, unix.RTM_NEWLINK, unix.SizeofIfInfomsg)
	for _, m := range all {
		links = append(links, m.link())
	}
	return links, err
}

// Link returns a network interface. The error is ENODEV if it does not exist.
func (c Conn) Link(index int) (Link, error) {
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	m, err := c.get(fmt.Sprintf("network interface %d", index), unix.RTM_GETLINK, unix.RTM_NEWLINK, msg)
	if err != nil {
		return Link{}, err
	}
	return m.link(), nil
}

// Addr is an address of a network interface.
type Addr struct {
	Link   int
	Prefix netip.Prefix // the address with the length of its subnet, which is its own length if it has a peer
	Flags  uint32       // IFA_F_TENTATIVE and so on
}

// Addrs returns the addresses of all network interfaces.
func (c Conn) Addrs() (addrs []Addr, err error) {
	all, err := c.dump("addresses", unix.RTM_GETADDR, unix.RTM_NEWADDR, unix.SizeofIfAddrmsg)
	for _, m := range all {
		if a := m.addr(); a.Prefix.IsValid() {
			addrs = append(addrs, a)
		}
	}
	return addrs, err
}

// Neighbour is an entry of the neighbour table.
type Neighbour struct {
	IP           netip.Addr
	HardwareAddr net.HardwareAddr
	State        uint16 // NUD_REACHABLE and so on
}

// Neighbours returns the neighbours that a network interface reaches.
func (c Conn) Neighbours(link int) (neighbours []Neighbour, err error) {
	all, err := c.dump("neighbours", unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, unix.SizeofNdMsg)
	for _, m := range all {
		if index, n := m.neighbour(); index == link {
			neighbours = append(neighbours, n)
		}
	}
	return neighbours, err
}

// Route is the way to an address.
type Route struct {
	Link    int
	Source  netip.Addr // of packets, unless the program has chosen another
	Gateway netip.Addr // zero if the peer is on the subnet
}

// RouteTo returns the route to an address by a network interface, or by any if link is 0.
func (c Conn) RouteTo(to netip.Addr, link int) (Route, error) {
	to = to.Unmap()
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET6, Dst_len: uint8(to.BitLen())}}
	if to.Is4() {
		msg.Family = unix.AF_INET
	}
	data := []nl.NetlinkRequestData{msg, nl.NewRtAttr(unix.RTA_DST, to.AsSlice())}
	if link != 0 {
		data = append(data, nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(link))))
	}
	m, err := c.get(fmt.Sprintf("route to %s", to), unix.RTM_GETROUTE, unix.RTM_NEWROUTE, data...)
	if err != nil {
		return Route{}, err
	}
	return m.route(), nil
}

// get asks for one entry. The first of data is the header that the answer has too.
func (c Conn) get(what string, ask, answer uint16, data ...nl.NetlinkRequestData) (message, error) {
	req := nl.NewNetlinkRequest(int(ask), 0)
	req.Sockets, req.Data = c, data
	all, err := req.Execute(unix.NETLINK_ROUTE, answer)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d replies of the kernel instead of one", len(all))
	}
	if err != nil {
		return message{}, fmt.Errorf("%s: %w", what, err)
	}
	return parse(what, all[0], data[0].Len())
}

// dump asks for a table, whose entries have a header of the given number of bytes. If the error is
// ErrInterrupted, it returns the entries of the last attempt.
func (c Conn) dump(what string, ask, answer uint16, header int) (entries []message, err error) {
	all, err := repeated(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(int(ask), unix.NLM_F_DUMP)
		req.Sockets = c
		req.AddRawData(make([]byte, header))
		return req.Execute(unix.NETLINK_ROUTE, answer)
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	for _, b := range all {
		m, bad := parse(what, b, header)
		if bad != nil {
			return nil, bad
		}
		entries = append(entries, m)
	}
	return entries, err
}

// repeated reads a table until it did not change meanwhile, at most 10 times.
func repeated(read func() ([][]byte, error)) (all [][]byte, err error) {
	for range 10 {
		if all, err = read(); !errors.Is(err, nl.ErrDumpInterrupted) {
			return all, err
		}
	}
	return all, ErrInterrupted
}

// message is an answer of the kernel.
type message struct {
	header []byte
	attrs  []syscall.NetlinkRouteAttr
}

// parse splits an answer into its header and its attributes.
func parse(what string, b []byte, header int) (message, error) {
	if len(b) < header {
		return message{}, fmt.Errorf("%s: an answer of %d bytes, want at least %d", what, len(b), header)
	}
	attrs, err := nl.ParseRouteAttr(b[header : len(b)&^(unix.RTA_ALIGNTO-1)]) // it panics without the last padding
	if err != nil {
		return message{}, fmt.Errorf("%s: attributes of an answer of %d bytes: %w", what, len(b), err)
	}
	return message{b[:header], attrs}, nil
}

// attr returns the value of an attribute, nil if it is missing.
func (m message) attr(typ uint16) []byte {
	for _, a := range m.attrs {
		if a.Attr.Type == typ {
			return a.Value
		}
	}
	return nil
}

// u32 returns the value of an attribute, 0 if it is missing or has another length.
func (m message) u32(typ uint16) uint32 {
	if b := m.attr(typ); len(b) == 4 {
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

// ip returns the value of an attribute, the zero Addr if it is missing or has another length.
func (m message) ip(typ uint16) netip.Addr {
	a, _ := netip.AddrFromSlice(m.attr(typ))
	return a.Unmap()
}

// index returns the network interface from the header, in which it is the second word.
func (m message) index() int { return int(int32(binary.NativeEndian.Uint32(m.header[4:]))) }

// link decodes struct ifinfomsg and its attributes.
func (m message) link() Link {
	l := Link{
		Index: m.index(), Flags: binary.NativeEndian.Uint32(m.header[8:]),
		Name: unix.ByteSliceToString(m.attr(unix.IFLA_IFNAME)), MTU: int(m.u32(unix.IFLA_MTU)),
	}
	if mac := m.attr(unix.IFLA_ADDRESS); len(bytes.Trim(mac, "\x00")) > 0 {
		l.HardwareAddr = mac
	}
	return l
}

// addr decodes struct ifaddrmsg and its attributes.
func (m message) addr() Addr {
	ip, local := m.ip(unix.IFA_ADDRESS), m.ip(unix.IFA_LOCAL)
	bits := int(m.header[1])
	if local.IsValid() && local != ip { // ip is the peer, and the subnet is its
		ip, bits = local, local.BitLen()
	}
	return Addr{Link: m.index(), Prefix: netip.PrefixFrom(ip, bits), Flags: m.u32(unix.IFA_FLAGS)}
}

// neighbour decodes struct ndmsg and its attributes.
func (m message) neighbour() (link int, n Neighbour) {
	return m.index(), Neighbour{
		IP: m.ip(unix.NDA_DST), HardwareAddr: m.attr(unix.NDA_LLADDR), State: binary.NativeEndian.Uint16(m.header[8:]),
	}
}

// route decodes the attributes after struct rtmsg.
func (m message) route() Route {
	r := Route{Link: int(m.u32(unix.RTA_OIF)), Source: m.ip(unix.RTA_PREFSRC), Gateway: m.ip(unix.RTA_GATEWAY)}
	if via := m.attr(unix.RTA_VIA); len(via) > 2 { // struct rtvia: a gateway of the other address family
		r.Gateway, _ = netip.AddrFromSlice(via[2:])
	}
	return r
}
