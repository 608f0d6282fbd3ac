package soft

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/soft/internal/engine"
	"github.com/goverbs/goverbs/uverbs/soft/internal/fault"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
)

// network carries the packets of a device between its UDP socket and its engine.
type network struct {
	socket *udp.Socket
	path   *fault.Path // between the socket and the engine
	engine *engine.Device
	late   *engine.Receiver // of packets that faults have delayed
	done   sync.WaitGroup   // the goroutine that receives
	link   *linkWatch

	onlyWay bool // packets between devices of this process come this way, too

	handle udp.Handler // of unicast packets
	flush  udp.Done    // ends a batch of them
	behind udp.Done    // ends one for a program that may answer now

	empty atomic.Uint32 // polls since packets have arrived or a CQ was armed
}

// networks are the networks of all devices of this process.
var networks struct {
	mu  sync.Mutex
	all atomic.Pointer[[]*network] // replaced under mu; nil until there was one
}

// changeNetworks replaces the list of networks by what f makes of a copy.
func changeNetworks(f func(all []*network) []*network) {
	networks.mu.Lock()
	defer networks.mu.Unlock()
	var all []*network
	if old := networks.all.Load(); old != nil {
		all = slices.Clone(*old)
	}
	all = f(all)
	networks.all.Store(&all)
}

// wantedBuffer is the size in bytes of the receive buffer that a device asks for.
const wantedBuffer = udp.DefaultReceiveBuffer

// openNetwork opens the socket of a device, and those that watch the network interface with an index.
// Packets arrive from start on. onlyWay says that those between devices of this process come this way, too.
func openNetwork(local netip.AddrPort, link int, onlyWay bool) (*network, error) {
	n := &network{onlyWay: onlyWay}
	var err error
	if n.socket, err = udp.Open(local, udp.Options{ReceiveBuffer: wantedBuffer, Large: func() bool { return n.path.Quiet() }}); err != nil {
		return nil, err
	}
	n.link = watchLink(link, local.Addr())
	return n, nil
}

// pathOptions returns what the place between the engine and the socket needs to know. Its functions
// are called when the network has started.
func (n *network) pathOptions() fault.PathOptions {
	return fault.PathOptions{
		Local: netip.AddrPortFrom(n.addr(), n.socket.LocalAddr().Port()),
		Send:  n.socket.Send,
		Late:  func(from netip.AddrPort, packet []byte, meta udp.Meta) { n.takeLate(from, packet, meta) },
		Flush: func() { n.late.Flush() },
	}
}

// takeLate gives a packet to the engine that faults have delayed.
func (n *network) takeLate(from netip.AddrPort, packet []byte, meta udp.Meta) {
	n.late.Packet(&engine.Meta{From: from.Addr(), To: meta.To.Addr(), IP: meta.IP, ID: meta.ID}, packet)
}

// start begins to receive.
func (n *network) start(d *engine.Device) {
	n.engine, n.late = d, d.NewReceiver()
	r := d.NewReceiver()
	n.handle = n.handler(r)
	n.flush = func() bool {
		n.empty.Store(0)
		r.Flush()
		return true
	}
	n.behind = func() bool {
		n.empty.Store(0)
		r.FlushBehind()
		return true
	}
	changeNetworks(func(all []*network) []*network { return append(all, n) })
	n.done.Go(func() { n.socket.Receive(n.handle, n.flush) }) // until it is closed
}

// skip reports whether a program that has found no completion is unlikely to wait for packets by polling. It
// may have taken the completions of the last packets and be about to arm a CQ and sleep, or have done so.
func (n *network) skip() bool { return n.empty.Add(1) == 1 }

// armed says that a CQ was armed.
func (d *Device) armed() {
	if n := d.network; n != nil {
		n.empty.Store(0)
		d.engine.FlushHeld()
	}
}

// poll handles the packets that have arrived, and reports whether there were some.
func (n *network) poll(done udp.Done) bool {
	n.engine.FlushHeld()
	return n.socket.Poll(n.handle, done)
}

// smallPacket is what the kernel counts for a small packet in the receive buffer of a socket, at least, in bytes.
const smallPacket = 512

// drain handles the packets that have arrived, but not without end those that go on arriving: no more than the
// receive buffer of the socket holds, if each batch has one packet.
func (n *network) drain() {
	for range n.socket.ReceiveBuffer()/smallPacket + 1 {
		if !n.socket.Look(n.handle, n.flush) {
			return
		}
	}
}

// emptyPolls is how many polls of a device in a row find nothing before the other devices have their
// turn: looking costs a system call.
const emptyPolls = 8

// poll handles the packets that have arrived. If there are none, it lets another goroutine of the device
// run, which may be waiting for the processor.
//
// A goroutine that polls without end keeps a processor, and while it does, the Go runtime looks for
// packets only every 10 ms if there is no other processor. So it also does the work of the other devices.
func (d *Device) poll() {
	if n := d.network; n != nil {
		if n.skip() {
			return
		}
		if n.poll(n.behind) {
			d.empty.Store(0)
			return
		}
	}
	if d.empty.Add(1)%emptyPolls == 0 && d.pollOthers() {
		return
	}
	runtime.Gosched()
}

// pollOthers handles the packets that have arrived at the other devices of this process, and reports
// whether there were some.
func (d *Device) pollOthers() (found bool) {
	all := networks.all.Load()
	if all == nil {
		return false
	}
	for _, n := range *all {
		if n != d.network && n.poll(n.flush) {
			found = true
		}
	}
	return found
}

// handler returns a handler of packets from the socket: through the faults, to the engine.
func (n *network) handler(r *engine.Receiver) udp.Handler {
	handle := n.path.Handler(receiver(r))
	return func(from netip.AddrPort, packet []byte, meta udp.Meta) {
		if n.fromDevice(from) {
			handle(from, packet, meta)
		}
	}
}

// receiver returns a handler that gives packets to the engine.
func receiver(r *engine.Receiver) udp.Handler {
	var m engine.Meta // of one goroutine
	return func(from netip.AddrPort, packet []byte, meta udp.Meta) {
		m = engine.Meta{From: from.Addr(), To: meta.To.Addr(), IP: meta.IP, ID: meta.ID}
		r.Packet(&m, packet)
	}
}

// close closes the socket and waits for the goroutine that receives.
func (n *network) close() {
	if n != nil {
		changeNetworks(func(all []*network) []*network {
			return slices.DeleteFunc(all, func(other *network) bool { return other == n })
		})
		n.link.close()
		n.socket.Close()
		n.done.Wait()
	}
}

// addr returns the address of the socket without its zone, as GIDs have it.
func (n *network) addr() netip.Addr { return n.socket.LocalAddr().Addr().WithZone("") }

// Resolve returns where packets to a peer are sent. Only the address of the socket reaches other hosts:
// the other entries of the GID table exist in this process alone, with groups as well.
func (n *network) Resolve(from, to netip.Addr) (netip.AddrPort, syscall.Errno) {
	local := n.socket.LocalAddr()
	peer := netip.AddrPortFrom(to, local.Port())
	switch {
	case to.IsMulticast():
		return peer, 0
	case from != n.addr() || to.IsUnspecified():
		return peer, syscall.ENETUNREACH
	case to.Is6() && to.IsLinkLocalUnicast():
		peer = netip.AddrPortFrom(to.WithZone(local.Addr().Zone()), local.Port())
	}
	return peer, lookUpRoute(local.Addr(), peer)
}

// lookUpRoute returns the errno of the system's search for a way from a local address to a peer. It
// connects a UDP socket, which sends nothing.
func lookUpRoute(from netip.Addr, to netip.AddrPort) syscall.Errno {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
	if err == nil {
		c.Close()
		return 0
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok || errno == syscall.EINVAL { // from a loopback address to elsewhere
		return syscall.ENETUNREACH
	}
	return errno
}

// Send sends packets. Those that the system refuses are lost, as are those from other addresses than
// the socket's.
func (n *network) Send(from netip.Addr, b *udp.Batch) {
	if from == n.addr() {
		n.path.Send(b)
	}
}

// TakesLarge reports whether the payload of a packet to a peer may be larger than the MTU.
func (n *network) TakesLarge(to netip.AddrPort) bool { return n.socket.TakesLarge(to) }

// Join makes the interface of the socket a member of a multicast group. A group of the other address
// family exists in this process alone.
func (n *network) Join(group netip.Addr) syscall.Errno {
	if group.Is4() != n.addr().Is4() {
		return 0
	}
	r := n.engine.NewReceiver()
	handle := n.handler(r)
	err := n.socket.JoinGroup(group, func(from netip.AddrPort, packet []byte, meta udp.Meta) {
		if n.onlyWay || from.Addr() != n.addr() { // the engine has delivered those of the device itself
			handle(from, packet, meta)
			r.Flush()
		}
	})
	if err == nil {
		return 0
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return syscall.EOPNOTSUPP
}

// Leave ends a membership.
func (n *network) Leave(group netip.Addr) {
	if group.Is4() == n.addr().Is4() {
		n.socket.LeaveGroup(group)
	}
}
