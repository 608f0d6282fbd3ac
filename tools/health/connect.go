package health

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// connectTime limits each step of a connection: connecting, and a message of each size and its echo.
const connectTime = 4 * time.Second

// Sizes of the messages that a connection carries, beside the path MTU.
const (
	smallMessage = 64
	largeMessage = 64 << 10
)

// mostAddresses is how many addresses of a port are tried.
const mostAddresses = 8

// connOptions are the options of a connection, on both sides. They take little memory.
var connOptions = cm.ConnOptions{MessageSize: largeMessage, Depth: 1, Linger: 500 * time.Millisecond, Tuning: cm.Tuning{SendDepth: 1, Transfers: 1}}

// Serve answers [Options.Peer] of other hosts until the context ends. It listens on an address as [cm.Listen] does,
// calls ready with what it listens on, and sends each message of a client back, for a minute at most.
func Serve(ctx context.Context, address string, ready func(net.Addr)) error {
	l, err := cm.Listen(ctx, address, cm.ListenOptions{ConnOptions: connOptions, MaxConns: 64})
	if err != nil {
		return err
	}
	ready(l.Addr())
	return serve(ctx, l)
}

// listener is what [serve] needs of a [cm.Listener].
type listener interface {
	Accept(context.Context) (*cm.Conn, error)
	Close() error
}

// serve serves the clients of a listener until the context ends or the listener fails.
func serve(ctx context.Context, l listener) error {
	clientCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var clients sync.WaitGroup
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				err = nil
			}
			cancel()
			err = errors.Join(err, l.Close())
			clients.Wait()
			return err
		}
		clients.Go(func() { echo(clientCtx, c) })
	}
}

// clientTime is how long a client is served.
const clientTime = time.Minute

// echo sends each message of a client back.
func echo(ctx context.Context, c *cm.Conn) {
	ctx, cancel := context.WithTimeout(ctx, clientTime)
	defer cancel()
	defer c.Close()
	for {
		msg, err := c.Recv(ctx)
		if err != nil || c.Send(ctx, msg) != nil {
			return
		}
	}
}

// attempt is what came of a connection.
type attempt struct {
	device string // that the connection manager has chosen, if it is another one than the one that is examined
	mtu    int    // path MTU that both sides have agreed on, in bytes; 0 on iWARP
	sizes  []int  // messages that went through
	failed int    // size of the one that did not; 0 if there is no connection
	err    error
}

// String says what went through.
func (a attempt) String() string {
	if a.failed == 0 && a.err != nil {
		return "no connection"
	}
	text := "connected"
	if a.device != "" {
		text += " by device " + a.device
	}
	if a.mtu > 0 {
		text += fmt.Sprintf(" with a path MTU of %d", a.mtu)
	}
	if len(a.sizes) > 0 {
		text += fmt.Sprintf("; echoes came of messages of %s bytes", strings.ReplaceAll(strings.Trim(fmt.Sprint(a.sizes), "[]"), " ", ", "))
	}
	return text
}

// late reports whether the other side did not answer in time.
func (a attempt) late() bool {
	return errors.Is(a.err, context.DeadlineExceeded) || errors.Is(a.err, syscall.ETIMEDOUT) || errors.Is(a.err, errLate)
}

// errLate is the cause of a step that takes too long.
var errLate = fmt.Errorf("no answer within %s", connectTime)

// liveConnect connects from an address of a device to another host, or to the same address if to is empty, and
// exchanges messages of three sizes.
func liveConnect(ctx context.Context, device string, from netip.Addr, to string) attempt {
	const steps = 4
	ended := make(chan attempt, 1)
	_, err := within(ctx, (steps+1)*connectTime, time.Second, func(ctx context.Context) (string, error) {
		if to != "" {
			ended <- play(ctx, device, from, to)
			return "", nil
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		served := make(chan error, 1)
		ready := make(chan net.Addr, 1)
		go func() {
			served <- Serve(ctx, netip.AddrPortFrom(from, 0).String(), func(at net.Addr) { ready <- at })
		}()
		select {
		case err := <-served:
			return "", err
		case at := <-ready:
			ended <- play(ctx, device, from, at.String())
			cancel()
			return "", <-served
		}
	})
	var a attempt
	select {
	case a = <-ended:
	default:
	}
	a.err = cmp.Or(a.err, err)
	return a
}

// limited makes a step of a connection, which ends with errLate if the limit ends it. A failure of another kind stays
// what it is, even if it came late.
func limited(ctx context.Context, limit time.Duration, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	err := step(ctx)
	if errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), errLate) {
		err = errLate
	}
	return err
}

// play is the client of a connection.
func play(ctx context.Context, device string, from netip.Addr, to string) (a attempt) {
	var c *cm.Conn
	a.err = limited(ctx, connectTime, func(ctx context.Context) (err error) {
		c, err = cm.Dial(ctx, to, cm.DialOptions{ConnOptions: connOptions, LocalAddr: netip.AddrPortFrom(from, 0)})
		return err
	})
	if a.err != nil {
		return a
	}
	defer c.Close()
	info := c.QP().Device().Info()
	if info.Name != device {
		a.device = info.Name
	}
	sizes := []int{smallMessage, largeMessage}
	if !info.IWARP() {
		var attr uverbs.QPAttr
		if attr, a.err = c.QP().Query(); a.err != nil {
			return a
		}
		a.mtu = attr.PathMTU.Bytes()
		sizes = []int{smallMessage, a.mtu, largeMessage}
	}
	for _, size := range sizes {
		a.err = limited(ctx, connectTime, func(ctx context.Context) error {
			msg := bytes.Repeat([]byte("goverbs\n"), size/len("goverbs\n"))
			if err := c.Send(ctx, msg); err != nil {
				return err
			}
			got, err := c.Recv(ctx)
			if err == nil && !bytes.Equal(got, msg) {
				err = fmt.Errorf("another message of %d bytes came back", len(got))
			}
			return err
		})
		if a.err != nil {
			a.failed = size
			return a
		}
		a.sizes = append(a.sizes, size)
	}
	return a
}

// ownAddr is an address of this host that belongs to a port, and the network interface that has it.
type ownAddr struct {
	netip.Addr
	index int
}

// liveOwn finds the addresses of this network namespace that belong to a port: on RoCE those that have a GID, on
// iWARP those of the port's network interface, and on InfiniBand those of IPoIB.
func liveOwn(p portFacts, iwarp bool) (own []ownAddr) {
	links, _ := net.Interfaces() // without the list nothing is known to be here
	for _, link := range links {
		addrs, _ := link.Addrs()
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			addr := prefix.Addr()
			belongs := slices.ContainsFunc(p.gids, func(e uverbs.GIDEntry) bool {
				if p.LinkLayer == ib.LinkLayerInfiniBand {
					const last = 4 // bytes of an address of IPoIB that come before the GID
					return len(link.HardwareAddr) == last+len(e.GID) && bytes.Equal(link.HardwareAddr[last:], e.GID[:])
				}
				return e.Netdev == link.Index && e.GID.Addr() == addr
			})
			if iwarp {
				belongs = p.NetdevIndex == link.Index
			}
			if !belongs {
				continue
			}
			if addr.IsLinkLocalUnicast() {
				addr = addr.WithZone(link.Name)
			}
			own = append(own, ownAddr{addr, link.Index})
		}
	}
	return own
}

// checkConnections connects from each address of a port, to the same address or to the peer, and reports whether
// at least one connection went through.
func (m *machine) checkConnections(ctx context.Context, info uverbs.DeviceInfo, p portFacts, peer string) (bool, Finding) {
	f := Finding{Code: choose(peer == "", CodeCM, CodePeer), Device: info.Name, Port: int(p.Num)}
	var good, bad, others []string // addresses whose connections go through, do not, or use another device
	var failed []attempt
	tried, mtu, again, device := 0, 0, true, ""
	try := func(from ownAddr, to string) attempt {
		name := cmp.Or(to, "itself")
		m.progress(fmt.Sprintf("%s: a connection from %s to %s, up to %s for each step", info.Name, from, name, connectTime))
		a := m.connect(ctx, info.Name, from.Addr, to)
		f.see("%s to %s: %s", from, name, a)
		if a.err != nil {
			f.see("%s to %s: %s", from, name, a.err)
		}
		return a
	}
	for _, from := range p.own {
		to := []string{""}
		if peer != "" {
			to = m.peersFor(from.Addr)
		}
		if len(to) == 0 {
			continue
		}
		if ctx.Err() != nil {
			return false, Finding{}
		}
		if tried == mostAddresses {
			f.see("more than %d addresses are not tried", tried)
			break
		}
		tried++
		a := try(from, to[0])
		if peer == "" && again && a.failed == 0 && a.late() && ctx.Err() == nil { // a machine under load may be late once
			again, a = false, try(from, "")
		}
		for _, next := range to[1:] {
			if a.err == nil || ctx.Err() != nil {
				break
			}
			if b := try(from, next); b.err == nil {
				a = b
			}
		}
		switch {
		case a.err != nil:
			failed, bad = append(failed, a), append(bad, from.String())
		case a.device != "":
			device, others = a.device, append(others, from.String())
		default:
			good, mtu = append(good, from.String()), max(mtu, a.mtu)
			m.reached = m.reached || peer != ""
		}
	}
	name, from := cmp.Or(peer, "itself"), strings.Join(good, ", ")
	switch {
	case tried == 0 && peer == "":
		return true, Finding{} // InfiniBand without IPoIB; other ports have a finding about their addresses
	case tried == 0:
		f.see("addresses of %s: %s", peer, m.peers)
		return false, f.conclude(LevelError, "the port has no address from which %s can be reached", peer)
	case len(failed) == 0 && len(good) == 0 && peer == "": // nothing is known of this device
		return true, f.conclude(LevelInfo, "connections from %s use device %s", strings.Join(others, ", "), device)
	case len(failed) == 0 && len(good) == 0:
		return false, f.conclude(LevelError, "connections from %s to %s use device %s", strings.Join(others, ", "), peer, device)
	case len(failed) == 0 && mtu > 0 && mtu < p.attr.ActiveMTU.Bytes():
		return true, f.conclude(LevelInfo, "the connection manager connects to %s from %s, with a path MTU of %d there; it is %d here", name, from, mtu, p.attr.ActiveMTU.Bytes())
	case len(failed) == 0:
		return true, f.conclude(LevelOK, "the connection manager connects to %s from %s, and messages of %d bytes to %d KiB get through", name, from, smallMessage, largeMessage>>10)
	}
	first, went := failed[0], len(good) > 0
	from = strings.Join(bad, ", ")
	switch {
	case !slices.ContainsFunc(failed, func(a attempt) bool { return !errors.Is(a.err, syscall.ENOMEM) }):
		f.Fix = memlockFixes()
		went = went || peer == "" // other findings are about the limit of pinned memory
	case peer != "" && went && first.failed == 0:
		f.see("the routes from %s may lead elsewhere: ip route get %s from ADDRESS", from, m.peers[0].Addr())
		return true, f.conclude(LevelInfo, "the connection manager connects to %s from %s, but not from %s", peer, strings.Join(good, ", "), from)
	case peer != "":
		explainPeer(&f, first, p, peer)
	case first.failed == 0 && first.late() && !went:
		return false, explainDeaf(&f, info, p, from)
	}
	level := choose(went, LevelWarning, LevelError)
	if first.failed > 0 {
		return went, f.conclude(level, "from %s to %s: a message of %d bytes does not get through", from, name, first.failed)
	}
	return went, f.conclude(level, "no connection by the connection manager from %s to %s", from, name)
}

// peersFor returns the addresses of the peer that an address of this host may reach, with their port: those of the same
// family, and for a link-local one those of the same link.
func (m *machine) peersFor(from netip.Addr) (all []string) {
	for _, to := range m.peers {
		if a := to.Addr(); a.Is4() == from.Is4() && a.IsLinkLocalUnicast() == from.IsLinkLocalUnicast() && a.Zone() == from.Zone() {
			all = append(all, to.String())
		}
	}
	return all
}

// explainDeaf is about a connection manager that does not answer this host itself, although the ping-pong of two
// queue pairs has gone through.
func explainDeaf(f *Finding, info uverbs.DeviceInfo, p portFacts, from string) Finding {
	f.see("queue pairs that are connected without the connection manager work, as the ping-pong shows")
	switch {
	case info.InProcess:
		f.see("likely: packets of management are lost, which only the connection manager sends")
	case info.Driver == netlinkrdma.DriverRXE.String():
		f.see("likely, as rxe has this bug: the connection manager has sent something while the link was down, and its queue pair (QP 1) is dead since")
		f.fix("verbs link delete %s; verbs link add %s type rxe netdev %s (ends its connections)", info.Name, info.Name, cmp.Or(p.Netdev, "IFACE"))
	default:
		f.fix("set the port's network interface down and up (ends all traffic of the interface)")
		f.fix("load the driver again (ends the connections of all its devices)")
	}
	return f.conclude(LevelError, "the connection manager gets no answer from %s, on this host; every connection by address fails", from)
}

// ethernetPathMTU is the path MTU that every Ethernet interface and switch lets through.
const ethernetPathMTU = 1024

// explainPeer adds what to do about a connection to another host.
func explainPeer(f *Finding, a attempt, p portFacts, peer string) {
	refused, refuses := errors.AsType[*cm.RefusedError](a.err)
	switch {
	case refuses:
		f.fix("the server on %s refuses with %q: try again later, or end its other clients", peer, refused.Why)
	case errors.Is(a.err, syscall.ECONNREFUSED):
		f.fix("on %s: verbs doctor --serve", peer)
	case a.mtu > ethernetPathMTU && a.failed > smallMessage && a.failed <= a.mtu:
		f.see("shorter messages get through, so packets of the path MTU, %d bytes, are lost on the way", a.mtu)
		f.fix("give all switches and interfaces between the hosts an MTU of %d, or here: ip link set dev %s mtu 1500", a.mtu+mostHeaders, cmp.Or(p.Netdev, "IFACE"))
	case a.failed == 0 && a.late():
		f.fix("on %s: verbs doctor --serve, and verbs doctor", peer)
		f.fix("on both hosts and between them let UDP port %d through, or on iWARP the TCP port: nft insert rule inet filter input udp dport %d accept", p.udpPort, p.udpPort)
	default:
		f.fix("look for lost packets: verbs stat, here and on %s", peer)
	}
}

// DefaultPort is the port of [Serve], in the port space TCP of the connection manager.
const DefaultPort = 7175

// findPeer looks up the addresses of the peer.
func (m *machine) findPeer(ctx context.Context) (f Finding) {
	f.Code = CodePeer
	var err error
	if m.peers, err = m.lookUp(ctx, m.peer); err != nil {
		f.see("%s", err)
		return f.conclude(LevelError, "host %s has no address that is known here", m.peer)
	}
	return Finding{}
}

// lookUp finds the addresses of a peer, whose port may be left out.
func lookUp(ctx context.Context, peer string) (all []netip.AddrPort, err error) {
	host, service, err := net.SplitHostPort(peer)
	if err != nil {
		host, service = strings.Trim(peer, "[]"), strconv.Itoa(DefaultPort)
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for _, a := range addrs {
		all = append(all, netip.AddrPortFrom(a.Unmap(), uint16(port)))
	}
	return all, err
}
