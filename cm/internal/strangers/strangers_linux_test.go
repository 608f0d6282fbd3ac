// Package strangers tests that a host disturbs only its own connections, whatever it sends from its own address. It
// has no code but tests.
package strangers

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/internal/ibcm"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/cm/valkey"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Environment variables of the test.
const (
	timeEnv = "GOVERBS_STRANGERS" // how long the attack lasts
	seedEnv = "GOVERBS_SEED"      // seed of an earlier run
)

// Addresses of the hosts. Servers and clients have software devices. Nobody attacks the bystanders.
var (
	serverAddr      = netip.MustParseAddr("127.88.7.2")
	clientAddr      = netip.MustParseAddr("127.88.7.3")
	bystanderServer = netip.MustParseAddr("127.88.7.4")
	bystanderClient = netip.MustParseAddr("127.88.7.5")
	strangerIP      = "127.88.7.9"
	victimIP        = "127.88.7.66"
	forgedIP        = "127.88.7.67"
)

// longest is the longest time that an exchange may take more than twice the slowest of bystanders. An exchange that waits
// for a timer of the connection manager because of an attack takes four seconds or more.
const longest = time.Second

// welcome is what each server sends first.
const welcome = "welcome"

// conn is a connection of any kind.
type conn interface {
	io.ReadWriteCloser
	LocalAddr() net.Addr
	SetDeadline(time.Time) error
}

// service is an honest server.
type service struct {
	name  string
	port  uint16
	hello []byte // private data of a request that its listener understands
	dial  func(ctx context.Context) (conn, error)
}

// place is where the servers and their clients are, and what the servers report. The functions may be nil.
type place struct {
	server, client netip.Addr
	accepted       func(remote net.Addr)
	refused        func(remote rdmacm.Addr, err error)
}

// accepter is a listener of any kind.
type accepter interface {
	Accept() (net.Conn, error)
	Addr() net.Addr
	Close() error
}

// serve sends a welcome on each connection, and then back what it receives. At the end of the context no connection is
// used any more.
func serve(ctx context.Context, l accepter, accepted func(net.Addr), all *sync.WaitGroup) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if accepted != nil {
			accepted(c.RemoteAddr())
		}
		all.Go(func() {
			stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
			defer c.Close()
			defer stop()
			if _, err := io.WriteString(c, welcome); err == nil {
				io.Copy(c, c)
			}
		})
	}
}

// services starts a server of each kind.
func services(t *testing.T, p place) []service {
	t.Helper()
	var all []service
	var serving sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	var listeners []accepter
	t.Cleanup(func() {
		cancel()
		for _, l := range listeners {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		serving.Wait()
	})
	add := func(name string, hello []byte, l accepter, err error, dial func(ctx context.Context, addr string) (conn, error)) {
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().String()
		all = append(all, service{name, netip.MustParseAddrPort(addr).Port(), hello, func(ctx context.Context) (conn, error) { return dial(ctx, addr) }})
		listeners = append(listeners, l)
		serving.Go(func() { serve(ctx, l, p.accepted, &serving) })
	}
	at := netip.AddrPortFrom(p.server, 0).String()
	from := cm.DialOptions{LocalAddr: netip.AddrPortFrom(p.client, 0)}
	l, err := cm.Listen(ctx, at, cm.ListenOptions{Refused: p.refused})
	if err != nil {
		t.Fatal(err)
	}
	add("stream", helloCM, l.Streams(), nil, func(ctx context.Context, addr string) (conn, error) {
		c, err := cm.DialStream(ctx, addr, from)
		return c, err
	})
	l, err = cm.Listen(ctx, at, cm.ListenOptions{Refused: p.refused})
	if err != nil {
		t.Fatal(err)
	}
	add("conn", helloCM, l.Streams(), nil, func(ctx context.Context, addr string) (conn, error) {
		c, err := cm.Dial(ctx, addr, from)
		return messages{c}, err
	})
	rl, err := rsocket.Listen(ctx, at, rsocket.ListenOptions{Refused: p.refused})
	add("rsocket", helloRsocket, rl, err, func(ctx context.Context, addr string) (conn, error) {
		c, err := rsocket.Dial(ctx, addr, rsocket.Options{})
		return c, err
	})
	vl, err := valkey.Listen(ctx, at, valkey.ListenOptions{Refused: p.refused})
	add("valkey", nil, vl, err, func(ctx context.Context, addr string) (conn, error) {
		c, err := valkey.Dial(ctx, addr, valkey.Options{})
		return c, err
	})
	return all
}

// messages is a connection that uses the messages of a cm.Conn.
type messages struct{ *cm.Conn }

func (m messages) Write(b []byte) (int, error) { return len(b), m.Send(context.Background(), b) }

func (m messages) Read(b []byte) (int, error) {
	msg, err := m.Recv(context.Background())
	return copy(b, msg), err
}

// SetDeadline does nothing: the test has a deadline of its own.
func (messages) SetDeadline(time.Time) error { return nil }

// clients are the honest clients of one server host.
type clients struct {
	t        *testing.T
	services []service
	devices  []*soft.Device // those that their packets pass
	running  sync.WaitGroup

	mu     sync.Mutex
	taken  map[string][]time.Duration // guarded by mu: how long the exchanges of each kind took
	losses map[string]int             // guarded by mu: exchanges that are not in taken, as the system lost a datagram meanwhile
}

// lost returns how many datagrams for the clients and their servers the system has lost, as a receive buffer was full.
func (c *clients) lost() uint64 { return overflows(c.devices) }

// overflows returns how many datagrams for devices the system has lost, as a receive buffer was full.
func overflows(devices []*soft.Device) (n uint64) {
	for _, d := range devices {
		n += d.Network().Overflows
	}
	return n
}

// timed calls f and records how long it takes. A lost message of the connection manager is repeated after four
// seconds, which is no one's fault.
func (c *clients) timed(what string, f func() error) error {
	lost, begin := c.lost(), time.Now()
	err := f()
	took := time.Since(begin)
	lost = c.lost() - lost
	c.mu.Lock()
	defer c.mu.Unlock()
	if lost == 0 {
		c.taken[what] = append(c.taken[what], took)
	} else {
		c.losses[what]++
	}
	return err
}

// exchange sends data and compares what comes back.
func exchange(x conn, rng *rand.Rand, n uint64) error {
	want := make([]byte, 8+rng.IntN(1000))
	binary.BigEndian.PutUint64(want, n)
	if _, err := x.Write(want); err != nil {
		return fmt.Errorf("write %d: %w", n, err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(x, got); err != nil {
		return fmt.Errorf("read %d: %w", n, err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("exchange %d: received %q, sent %q", n, got, want)
	}
	return nil
}

// open dials and reads the welcome.
func open(ctx context.Context, s service) (conn, error) {
	x, err := s.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	x.SetDeadline(time.Now().Add(5 * time.Minute))
	got := make([]byte, len(welcome))
	if _, err := io.ReadFull(x, got); err != nil || string(got) != welcome {
		x.Close()
		return nil, fmt.Errorf("the welcome is %q: %w", got, err)
	}
	return x, nil
}

// run has one client of a server use one connection, and another one make new connections, until over is closed.
func (c *clients) run(ctx context.Context, s service, seed uint64, over <-chan struct{}) {
	loop := func(what string, f func(n uint64) error, pause time.Duration) {
		for n := uint64(0); ; n++ {
			if err := c.timed(s.name+" "+what, func() error { return f(n) }); err != nil {
				c.t.Errorf("%s, %s %d: %v", s.name, what, n, err)
				return
			}
			select {
			case <-over:
				return
			case <-time.After(pause):
			}
		}
	}
	c.running.Go(func() {
		x, err := open(ctx, s)
		if err != nil {
			c.t.Errorf("%s: %v", s.name, err)
			return
		}
		defer x.Close()
		rng := rand.New(rand.NewPCG(seed, 1))
		loop("exchange", func(n uint64) error { return exchange(x, rng, n) }, 10*time.Millisecond)
	})
	c.running.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 2))
		loop("connection", func(n uint64) error {
			x, err := open(ctx, s)
			if err != nil {
				return err
			}
			if err := exchange(x, rng, n); err != nil {
				x.Close()
				return err
			}
			return x.Close()
		}, 50*time.Millisecond)
	})
}

// stranger attacks from an address of its own.
type stranger struct {
	*host
	devices  []*soft.Device // those that it attacks
	rng      *rand.Rand
	services []service
	victim   netip.Addr
	comm     uint32 // the last communication ID
	counts   map[string]int
}

// target returns an honest host, and another one that the stranger may claim to be.
func (s *stranger) target() (to, other netip.Addr) {
	if s.rng.IntN(2) == 0 {
		return serverAddr, clientAddr
	}
	return clientAddr, serverAddr
}

// near returns a number near one that was learned, or any.
func (s *stranger) near(v uint32) uint32 {
	distance := 1 + s.rng.Uint32N(1<<s.rng.IntN(16))
	switch s.rng.IntN(4) {
	case 0:
		return v + distance
	case 1:
		return v - distance
	case 2:
		return v ^ distance
	}
	return s.rng.Uint32()
}

// claim returns an address that is not the stranger's.
func (s *stranger) claim() netip.Addr {
	return []netip.Addr{serverAddr, clientAddr, s.victim, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("0.0.0.0")}[s.rng.IntN(5)]
}

// req sends a request. change may be nil.
func (s *stranger) req(to, gid, header netip.Addr, guid uint64, qpn uint32, change func(*ibcm.REQ)) {
	s.comm++
	x := s.services[s.rng.IntN(len(s.services))]
	m := request(gid, header, to, x.port, s.comm, qpn, guid, x.hello)
	m.LocalTimeout, m.MaxRetries, m.Primary.AckTimeout = uint8(s.rng.IntN(32)), uint8(s.rng.IntN(16)), uint8(s.rng.IntN(32))
	if change != nil {
		change(m)
	}
	s.cm(to, m)
}

// attacks are what the stranger does. Each gets a reply that an honest host has sent to it, whose numbers it learns.
var attacks = map[string]func(s *stranger, known ibcm.REP){
	"a request": func(s *stranger, _ ibcm.REP) {
		s.req(serverAddr, s.addr.Addr(), s.addr.Addr(), 1, s.rng.Uint32(), nil)
	},
	"requests in a row": func(s *stranger, _ ibcm.REP) {
		for range 30 {
			s.req(serverAddr, s.addr.Addr(), s.addr.Addr(), 1, s.rng.Uint32(), nil)
		}
	},
	"a request to a host that does not listen": func(s *stranger, known ibcm.REP) {
		s.req(clientAddr, s.source(), s.source(), known.GUID, s.near(known.QPN), nil)
	},
	"the GUID and the QP of another host": func(s *stranger, known ibcm.REP) {
		to, _ := s.target()
		for i := range uint32(20) {
			s.req(to, s.addr.Addr(), s.addr.Addr(), known.GUID, known.QPN-10+i, nil)
		}
	},
	"the communication ID of another host": func(s *stranger, known ibcm.REP) {
		to, _ := s.target()
		s.req(to, s.addr.Addr(), s.addr.Addr(), known.GUID, known.QPN, func(m *ibcm.REQ) { m.CommID = s.near(known.CommID) })
	},
	"the GID of another host": func(s *stranger, known ibcm.REP) {
		to, other := s.target()
		s.req(to, other, other, known.GUID, s.near(known.QPN), nil)
	},
	"the GID of a host that knows nothing": func(s *stranger, known ibcm.REP) {
		s.req(serverAddr, s.victim, s.victim, 2, s.rng.Uint32(), nil)
		for range 10 {
			s.cm(serverAddr, &ibcm.RTU{IDs: ibcm.IDs{CommID: s.comm, RemoteCommID: s.near(known.CommID)}})
		}
	},
	"the address of another host": func(s *stranger, _ ibcm.REP) {
		s.req(serverAddr, s.addr.Addr(), s.claim(), 3, s.rng.Uint32(), nil)
	},
	"REP": func(s *stranger, known ibcm.REP) {
		to, _ := s.target()
		rep := known
		rep.RemoteCommID, rep.CommID = s.near(known.CommID), s.rng.Uint32()
		s.cm(to, &rep)
	},
	"RTU": func(s *stranger, known ibcm.REP) {
		s.cm(serverAddr, &ibcm.RTU{IDs: ibcm.IDs{CommID: s.near(known.CommID), RemoteCommID: s.near(known.CommID)}})
	},
	"REJ": func(s *stranger, known ibcm.REP) {
		to, _ := s.target()
		rej := &ibcm.REJ{IDs: ibcm.IDs{CommID: s.near(known.CommID), RemoteCommID: s.near(known.CommID)}, Rejected: ibcm.Subject(s.rng.IntN(3)), InfoLength: 8}
		rej.Reason = []ibcm.Reason{ibcm.ReasonTimeout, ibcm.ReasonConsumer, ibcm.ReasonStaleConn, ibcm.ReasonInvalidGID}[s.rng.IntN(4)]
		binary.BigEndian.PutUint64(rej.Info[:], known.GUID)
		s.cm(to, rej)
	},
	"MRA": func(s *stranger, known ibcm.REP) {
		to, _ := s.target()
		s.cm(to, &ibcm.MRA{IDs: ibcm.IDs{CommID: s.rng.Uint32(), RemoteCommID: s.near(known.CommID)}, Acknowledged: ibcm.Subject(s.rng.IntN(3)), Timeout: 31})
	},
	"DREQ": func(s *stranger, known ibcm.REP) {
		to, _ := s.target()
		s.cm(to, &ibcm.DREQ{IDs: ibcm.IDs{CommID: s.near(known.CommID), RemoteCommID: s.near(known.CommID)}, QPN: s.near(known.QPN)})
	},
	"DREP": func(s *stranger, known ibcm.REP) {
		to, _ := s.target()
		s.cm(to, &ibcm.DREP{IDs: ibcm.IDs{CommID: s.near(known.CommID), RemoteCommID: s.near(known.CommID)}})
	},
	"SIDR_REQ": func(s *stranger, _ ibcm.REP) {
		to, _ := s.target()
		m := &ibcm.SIDRREQ{RequestID: s.rng.Uint32(), PKey: 0xffff, Service: 0x0111<<16 | uint64(s.services[0].port)}
		r := request(s.claim(), s.claim(), to, 0, 0, 0, 0, nil)
		copy(m.Private[:], r.Private[:])
		s.cm(to, m)
	},
	"SIDR_REP": func(s *stranger, known ibcm.REP) {
		to, _ := s.target()
		s.cm(to, &ibcm.SIDRREP{RequestID: s.near(known.CommID), QPN: known.QPN, QKey: 0x01234567})
	},
	"no message": func(s *stranger, _ ibcm.REP) {
		to, _ := s.target()
		mad := make([]byte, ibcm.MADSize)
		for i := range mad {
			mad[i] = byte(s.rng.Uint32())
		}
		if s.rng.IntN(2) == 0 { // any message, with any content
			copy(mad, []byte{1, 7, 2, 3})
			mad[16], mad[17] = 0, byte(0x10+s.rng.IntN(10))
		}
		s.mad(to, mad)
	},
	"data": func(s *stranger, known ibcm.REP) {
		to, _ := s.target()
		forged := []byte("\x01\x00\x00\x00\x00\x00\x00\x06FORGED")
		reth := make([]byte, 16, 16+len(forged))
		binary.BigEndian.PutUint64(reth, s.rng.Uint64())
		binary.BigEndian.PutUint32(reth[8:], s.rng.Uint32())
		binary.BigEndian.PutUint32(reth[12:], uint32(len(forged)))
		qpn := known.QPN - 16 + uint32(s.rng.IntN(32))
		switch s.rng.IntN(5) {
		case 0:
			s.packet(to, rcSendOnly, qpn, s.rng.Uint32(), forged)
		case 1:
			s.packet(to, rcWriteOnly, qpn, s.rng.Uint32(), append(reth, forged...))
		case 2:
			s.packet(to, rcWriteImm, qpn, s.rng.Uint32(), append(append(reth, 0, 0, 0, 6), forged...))
		case 3:
			s.packet(to, rcReadRequest, qpn, s.rng.Uint32(), reth)
		case 4:
			s.packet(to, rcAck, qpn, s.rng.Uint32(), []byte{[]byte{0x1f, 0x60, 0x61, 0x63}[s.rng.IntN(4)], 0, 0, 1})
		}
	},
	"a connection of its own": func(s *stranger, known ibcm.REP) {
		s.cm(serverAddr, &ibcm.RTU{IDs: ibcm.IDs{CommID: known.RemoteCommID, RemoteCommID: known.CommID}})
		for i := range uint32(3) {
			s.packet(serverAddr, rcSendOnly, known.QPN, 0x1000+i, []byte("\x01\x00\x00\x00\x00\x00\x00\x06FORGED"))
		}
		if s.rng.IntN(2) == 0 {
			s.cm(serverAddr, &ibcm.DREQ{IDs: ibcm.IDs{CommID: known.RemoteCommID, RemoteCommID: known.CommID}, QPN: known.QPN})
		}
	},
}

// forgeries are the attacks that the stranger makes in the name of an honest host, too, and how many guesses it makes
// each time: what it learned is about its own connections, so it has to guess the numbers of others. It forges no
// request that the server would answer: that would take a place of the host whose address it has. A request with the
// QPN of a connection ends it, and has few guesses, since one of 2^24 is right.
var forgeries = map[string]int{
	"REP": 64, "RTU": 64, "REJ": 64, "MRA": 64, "DREQ": 64, "DREP": 64, "SIDR_REP": 64, "data": 64, "no message": 1,
	"a request to a host that does not listen": 1, "a connection of its own": 1,
}

// attack attacks until the time is over. It waits when the system has lost a datagram, since it does not try to do more
// harm by many packets than by what is in them.
func (s *stranger) attack(end time.Time) {
	const perTurn, turn, breather = 8, 8 * time.Millisecond, 100 * time.Millisecond
	names := slices.Sorted(maps.Keys(attacks))
	for time.Now().Before(end) {
		lost := overflows(s.devices)
		known, ok := s.lastReply(s.rng)
		for range perTurn {
			name := names[s.rng.IntN(len(names))]
			if !ok { // it has to learn first
				name = "a request"
			}
			guesses := forgeries[name]
			if guesses == 0 || s.rng.IntN(2) == 0 {
				attacks[name](s, known)
				s.counts[name]++
				continue
			}
			for range guesses {
				s.forged, _ = s.target()
				attacks[name](s, known)
			}
			s.forged = netip.Addr{}
			s.counts["forged: "+name]++
		}
		time.Sleep(turn)
		if overflows(s.devices) != lost {
			time.Sleep(breather)
		}
	}
}

// newDevices makes software devices at addresses.
func newDevices(t *testing.T, addrs ...netip.Addr) (all []*soft.Device) {
	t.Helper()
	for _, addr := range addrs {
		d, err := soft.New(soft.Options{Addr: addr, ViaSocket: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, d)
	}
	return all
}

// checkForging checks that packets arrive with the source address that a host forges.
func checkForging(t *testing.T, h *host) {
	t.Helper()
	to := newHost(t, forgedIP)
	h.forged = clientAddr
	defer func() { h.forged = netip.Addr{} }()
	h.packet(to.addr.Addr(), udSendOnly, 1, 0, nil)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		to.mu.Lock()
		from, data := to.latestFrom, to.data
		to.mu.Unlock()
		if want := netip.AddrPortFrom(clientAddr, roce); data > 0 && from == want {
			return
		} else if data > 0 || time.Now().After(deadline) {
			t.Fatalf("%d packets have arrived, the last one from %s, want one from %s", data, from, want)
		}
	}
}

// TestStrangers: a host that sends anything from its own address, and with guessed numbers from those of others, beside
// honest clients. No honest connection ends, fails, waits or receives what its peer has not sent, and no other host is
// sent anything. Bystanders, which nobody attacks, do the same in the same process at the same time: they show how
// long the machine takes.
func TestStrangers(t *testing.T) {
	testenv.Tags(t, testenv.Race) // which makes the attacked device slower than the attacks
	lasts := 4 * time.Second
	if s := os.Getenv(timeEnv); s != "" {
		var err error
		if lasts, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(seedEnv); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), lasts+2*time.Minute)
	defer cancel()
	over := make(chan struct{})
	honest := func(server, client netip.Addr) *clients {
		devices := newDevices(t, server, client)
		all := services(t, place{server: server, client: client})
		return &clients{t: t, services: all, devices: devices, taken: map[string][]time.Duration{}, losses: map[string]int{}}
	}
	attacked, bystanders := honest(serverAddr, clientAddr), honest(bystanderServer, bystanderClient)
	attacker, victim := newHost(t, strangerIP), newHost(t, victimIP)
	s := &stranger{host: attacker, devices: attacked.devices, rng: rand.New(rand.NewPCG(seed, 3)), services: attacked.services, victim: victim.addr.Addr(), counts: map[string]int{}}
	checkForging(t, s.host)
	for _, c := range []*clients{attacked, bystanders} {
		for i, x := range c.services {
			c.run(ctx, x, seed+uint64(i), over)
		}
	}
	s.attack(time.Now().Add(lasts))
	close(over)
	attacked.running.Wait()
	bystanders.running.Wait()

	for _, what := range slices.Sorted(maps.Keys(attacked.taken)) {
		near, far := attacked.taken[what], bystanders.taken[what]
		slowest, most := slices.Max(near), slices.Max(append(far, 0))
		t.Logf("%s: %d, the slowest took %s; bystanders: %d, %s; not counted, as a datagram was lost: %d and %d", what,
			len(near), slowest.Round(time.Microsecond), len(far), most.Round(time.Microsecond), attacked.losses[what], bystanders.losses[what])
		if slowest > 2*most+longest {
			t.Errorf("%s takes up to %s, that of bystanders up to %s", what, slowest, most)
		}
		if attacked.losses[what] > len(near) {
			t.Errorf("%s: of %d a datagram was lost, and %d others were measured", what, attacked.losses[what], len(near))
		}
	}
	for name := range attacks {
		if s.counts[name] == 0 {
			t.Errorf("the attack %q was not made", name)
		}
	}
	for name := range forgeries {
		if s.counts["forged: "+name] == 0 {
			t.Errorf("the attack %q was not forged", name)
		}
	}
	attacker.mu.Lock()
	t.Logf("attacks: %v; %d bytes sent, %d received, %d replies", s.counts, attacker.sent, attacker.received, len(attacker.replies))
	if len(attacker.replies) == 0 {
		t.Error("the stranger was sent no reply, from which it could learn")
	}
	attacker.mu.Unlock()
	victim.mu.Lock()
	defer victim.mu.Unlock()
	if victim.received != 0 {
		t.Errorf("a host that has sent nothing was sent %d bytes", victim.received)
	}
}

// TestReflection: a host in whose name others ask for connections, as if source addresses could be forged, is sent at
// most three times what was sent in its name, and nothing later. Nobody but it can complete such a connection.
func TestReflection(t *testing.T) {
	newDevices(t, serverAddr)
	all := services(t, place{server: serverAddr, client: clientAddr})
	attacker, victim := newHost(t, strangerIP), newHost(t, victimIP)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range uint32(60) {
		x := all[int(i)%len(all)]
		m := request(victim.addr.Addr(), victim.addr.Addr(), serverAddr, x.port, 100+i, 200+i, 7, x.hello)
		m.LocalTimeout, m.Primary.AckTimeout = uint8(i%12), 1
		for range 1 + i%3 {
			victim.cm(serverAddr, m)
		}
		// The attacker learns from connections of its own, and completes those of others by guessing.
		own := request(attacker.addr.Addr(), attacker.addr.Addr(), serverAddr, all[0].port, 1000+i, 2000+i, 8, all[0].hello)
		attacker.cm(serverAddr, own)
		if known, ok := attacker.lastReply(rng); ok {
			for k := range uint32(32) {
				attacker.cm(serverAddr, &ibcm.RTU{IDs: ibcm.IDs{CommID: 100 + i, RemoteCommID: known.CommID ^ k}})
				victim.cm(serverAddr, &ibcm.RTU{IDs: ibcm.IDs{CommID: 100 + i, RemoteCommID: known.CommID ^ (2*k + 1)}})
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	time.Sleep(3 * time.Second)
	victim.mu.Lock()
	sent, received, data, replies := victim.sent, victim.received, victim.data, len(victim.replies)
	victim.mu.Unlock()
	t.Logf("%d bytes were sent in the name of a host, which was sent %d bytes, %d replies", sent, received, replies)
	if replies == 0 {
		t.Error("it was sent no reply: the requests were no good")
	}
	if data != 0 {
		t.Errorf("it was sent %d packets of data", data)
	}
	// The RTUs do not count: they only make it less.
	if reqs := 60 * 2 * 280; received > 3*reqs {
		t.Errorf("it was sent more than three times the %d bytes of the requests", reqs)
	}
	time.Sleep(2 * time.Second)
	victim.mu.Lock()
	defer victim.mu.Unlock()
	if victim.received != received {
		t.Errorf("it was sent another %d bytes later", victim.received-received)
	}
}
