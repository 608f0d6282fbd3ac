package ibcm

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// network joins managers in a test. Time passes only when the network has nothing to do.
type network struct {
	t       *testing.T
	now     time.Time
	rand    *rand.Rand
	packets []packet // by time of arrival
	hosts   map[netip.Addr]*host
	sent    []sent // every MAD that was sent

	// fate returns the delays with which copies of a MAD arrive; none means that it is lost. If it
	// is nil, every MAD arrives at once.
	fate func(m Message) []time.Duration
}

// packet is a MAD under way.
type packet struct {
	at       time.Time
	src, dst netip.Addr
	mad      [MADSize]byte
}

// sent is a MAD that was sent.
type sent struct {
	at       time.Duration // since the start
	src, dst netip.Addr
	tid      uint64
	message  Message
}

// start is the time at which a network starts.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newNetwork(t *testing.T, seed uint64) *network {
	return &network{t: t, now: start, rand: rand.New(rand.NewPCG(seed, 1)), hosts: map[netip.Addr]*host{}}
}

// host is a device with its manager and a program that uses it.
type host struct {
	n    *network
	addr netip.Addr
	m    *Manager

	services map[uint64]bool
	verdict  Verdict
	requests []*ID            // requests that were accepted
	events   map[*ID]*[]Event // events of each ID
	react    func(*ID, Event) // the program's reaction to an event; may be nil
}

// host adds a host with an address and a GUID.
func (n *network) host(addr string, guid uint64) *host {
	h := &host{n: n, addr: netip.MustParseAddr(addr), services: map[uint64]bool{}, events: map[*ID]*[]Event{}}
	h.m = New(Config{
		GUID: guid, AckDelay: 15, Flush: true, Transport: n, Now: func() time.Time { return n.now }, Rand: n.rand.Uint32,
		Listening: func(service uint64) bool { return h.services[service] },
		Request:   h.request,
	})
	n.hosts[h.addr] = h
	return h
}

// request decides about a request as the verdict of the host says.
func (h *host) request(id *ID, e Event) Verdict {
	if h.verdict == Accept {
		id.Handler = h.handle
		h.requests = append(h.requests, id)
		h.handle(id, e)
	}
	return h.verdict
}

// handle records an event.
func (h *host) handle(id *ID, e Event) {
	if h.events[id] == nil {
		h.events[id] = &[]Event{}
	}
	*h.events[id] = append(*h.events[id], e)
	if h.react != nil {
		h.react(id, e)
	}
}

// types returns the types of the events of an ID so far.
func (h *host) types(id *ID) []EventType {
	var all []EventType
	if h.events[id] != nil {
		for _, e := range *h.events[id] {
			all = append(all, e.Type)
		}
	}
	return all
}

// last returns the last request that the host has accepted.
func (h *host) last() *ID {
	h.n.t.Helper()
	if len(h.requests) == 0 {
		h.n.t.Fatalf("%s has no request", h.addr)
	}
	return h.requests[len(h.requests)-1]
}

// SendMAD implements Transport.
func (n *network) SendMAD(src, dst netip.Addr, mad []byte) {
	tid, m, err := Decode(mad)
	if err != nil {
		n.t.Fatalf("a manager has sent %x: %v", mad, err)
	}
	n.sent = append(n.sent, sent{n.now.Sub(start), src, dst, tid, m})
	delays := []time.Duration{0}
	if n.fate != nil {
		delays = n.fate(m)
	}
	for _, d := range delays {
		n.packets = append(n.packets, packet{n.now.Add(d), src, dst, [MADSize]byte(mad)})
	}
	slices.SortStableFunc(n.packets, func(a, b packet) int { return a.at.Compare(b.at) })
}

// step lets the next thing happen, unless it is later than end. It reports whether something did.
func (n *network) step(end time.Time) bool {
	next, due := end, (*host)(nil)
	for _, h := range n.hosts {
		if at, ok := h.m.Deadline(); ok && (at.Before(next) || at.Equal(next) && (due == nil || h.addr.Less(due.addr))) {
			next, due = at, h
		}
	}
	if len(n.packets) > 0 && !n.packets[0].at.After(next) {
		p := n.packets[0]
		n.packets = n.packets[1:]
		n.now = p.at
		if h := n.hosts[p.dst]; h != nil {
			h.m.Receive(p.src, p.dst, p.mad[:])
		}
		return true
	}
	if due == nil {
		return false
	}
	n.now = next
	due.m.Advance()
	return true
}

// run lets time pass.
func (n *network) run(d time.Duration) {
	end := n.now.Add(d)
	for n.step(end) {
	}
	n.now = end
}

// settle delivers the messages under way, without waiting for timers.
func (n *network) settle() { n.run(0) }

// count returns how many messages of a kind were sent from an address.
func (n *network) count(a Attr, from *host) (all int) {
	for _, s := range n.sent {
		if s.message.Attr() == a && s.src == from.addr {
			all++
		}
	}
	return all
}

// tcpService is the service ID of port 7 in the port space for connections.
const tcpService = 0x0000000001060007

// request returns the parameters of a request from one host to another.
func (h *host) requestTo(to *host) *Request {
	return &Request{
		Path:    Path{Src: h.addr, Dst: to.addr, HopLimit: 64, MTU: 3, Lifetime: 16, PKey: 0xffff, FlowLabel: 0x1234, TrafficClass: 8},
		Service: tcpService, QPType: ib.RC, QPN: 0x100 + h.n.rand.Uint32()&0xffff, PSN: h.n.rand.Uint32() & 0xffffff,
		ResponderResources: 3, InitiatorDepth: 2, RetryCount: 7, RNRRetryCount: 6, RemoteTimeout: 20, LocalTimeout: 20, MaxRetries: 15,
		Private: []byte("request"),
	}
}

// reply returns the parameters of a reply.
func (h *host) reply() *Reply {
	return &Reply{
		QPN: 0x20000 + h.n.rand.Uint32()&0xffff, PSN: h.n.rand.Uint32() & 0xffffff, ResponderResources: 2, InitiatorDepth: 3,
		RNRRetryCount: 5, Private: []byte("reply"),
	}
}

// pair returns a client and a server that listens.
func pair(t *testing.T) (n *network, client, server *host) {
	n = newNetwork(t, 1)
	client, server = n.host("10.0.0.1", 0xa), n.host("10.0.0.2", 0xb)
	server.services[tcpService] = true
	return n, client, server
}

// connect sends a request that is answered by nobody yet.
func (h *host) connect(to *host) *ID {
	h.n.t.Helper()
	id := h.m.NewID(h.handle)
	if errno := id.SendREQ(h.requestTo(to)); errno != 0 {
		h.n.t.Fatal(errno)
	}
	return id
}

// ok fails the test if an operation has failed.
func (n *network) ok(results ...error) {
	n.t.Helper()
	for _, err := range results {
		if err != nil && err != error(noError) {
			n.t.Fatal(err)
		}
	}
}

// established connects two hosts.
func established(t *testing.T) (n *network, client, server *host, a, p *ID) {
	t.Helper()
	n, client, server = pair(t)
	a = client.connect(server)
	n.settle()
	p = server.last()
	n.ok(p.SendREP(server.reply()))
	n.settle()
	n.ok(a.SendRTU())
	n.settle()
	return n, client, server, a, p
}
