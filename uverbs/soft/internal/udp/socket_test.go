package udp

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// must fails a test on an error.
var must = testenv.Must

// modes are the ways in which sockets send and receive.
var modes = []struct {
	name string
	o    Options
}{
	{"default", Options{}},
	{"no GSO", Options{NoGSO: true}},
	{"no GRO", Options{NoGRO: true}},
	{"neither", Options{NoGSO: true, NoGRO: true}},
	{"plain", Options{Plain: true}},
}

// forFamilies runs a test with the loopback address of both families.
func forFamilies(t *testing.T, f func(t *testing.T, local netip.AddrPort)) {
	t.Run("IPv4", func(t *testing.T) { f(t, netip.MustParseAddrPort("127.0.0.1:0")) })
	t.Run("IPv6", func(t *testing.T) {
		testenv.IPv6(t)
		f(t, netip.MustParseAddrPort("[::1]:0"))
	})
}

// open opens a socket that is closed at the end of the test.
func open(t testing.TB, local netip.AddrPort, o Options) *Socket {
	t.Helper()
	s, err := Open(local, o)
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// fill reserves a packet and fills it with bytes that depend on a seed.
func fill(t testing.TB, b *Batch, to netip.AddrPort, size int, seed uint64) {
	t.Helper()
	data := b.Reserve(to, size)
	if data == nil {
		t.Fatalf("no room for a packet of %d bytes", size)
	}
	r := rand.New(rand.NewPCG(seed, uint64(size)))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	if size > 4 {
		data[4] &^= allBits // which belong to the sockets
	}
}

// received is a packet that a test has received.
type received struct {
	From, To string
	Data     string // without the ICRC
}

// collect receives n packets.
func collect(t testing.TB, s *Socket, n int) (all []received, metas []Meta) {
	t.Helper()
	for len(all) < n {
		if err := s.Receive(func(from netip.AddrPort, packet []byte, meta Meta) {
			all = append(all, received{from.String(), meta.To.String(), string(packet[:len(packet)-wire.ICRCSize])})
			metas = append(metas, meta)
		}, nil); err != nil {
			t.Fatal(err)
		}
	}
	return all, metas
}

// sent returns what a receiver should get of a batch.
func sent(from *Socket, b *Batch) (all []received) {
	src := netip.AddrPortFrom(from.LocalAddr().Addr().WithZone(""), from.LocalAddr().Port())
	for i := range b.Len() {
		to, data := b.Packet(i)
		data = slices.Clone(data[:len(data)-wire.ICRCSize])
		data[4] &^= allBits
		all = append(all, received{src.String(), to.String(), string(data)})
	}
	return all
}

// repeat returns n times size.
func repeat(size, n int) []int { return slices.Repeat([]int{size}, n) }

// shapes are the sizes of the packets of batches. They fit the receive buffer that a process without
// rights has by default, 416 KiB with the kernel's overhead.
var shapes = []struct {
	name  string
	sizes []int
}{
	{"one ACK", []int{20}},
	{"smallest and largest", []int{16, maxPacket}},
	{"two of one size", []int{24, 24}},
	{"SEND of 16 KiB, MTU 1024", append(repeat(1024+16, 15), 1024+16)},
	{"SEND with a short last packet", append(repeat(1024+16, 7), 20)},
	{"WRITE with a longer first packet", append([]int{1024 + 32}, repeat(1024+16, 9)...)},
	{"READ responses", append(append([]int{1024 + 20}, repeat(1024+16, 6)...), 1024+20)},
	{"MTU 4096", repeat(4096+16, 20)},
	{"more than 64 of one size", repeat(64, 100)},
	{"full", repeat(256, BatchPackets)},
	{"ascending", []int{16, 20, 24, 28, 32}},
	{"descending", []int{32, 28, 24, 20, 16}},
	{"pairs", []int{64, 64, 32, 32, 64, 64, 128, 64, 64}},
}

func TestExchange(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, from := range modes {
			for _, to := range modes {
				t.Run(from.name+" to "+to.name, func(t *testing.T) {
					a, b := open(t, local, from.o), open(t, local, to.o)
					var batch Batch
					total, bytes := 0, 0
					for i, shape := range shapes {
						batch.Reset()
						for k, size := range shape.sizes {
							fill(t, &batch, b.LocalAddr(), size, uint64(1000*i+k))
							bytes += size
						}
						if err := a.Send(&batch); err != nil {
							t.Fatalf("%s: %v", shape.name, err)
						}
						got, _ := collect(t, b, len(shape.sizes))
						if diff := cmp.Diff(sent(a, &batch), got); diff != "" {
							t.Errorf("%s (-sent +received):\n%s", shape.name, diff)
						}
						total += len(shape.sizes)
					}
					checkCounters(t, a.Counters(), b.Counters(), total, bytes)
				})
			}
		}
	})
}

// checkCounters checks the counters of sender and receiver if all has gone well.
func checkCounters(t *testing.T, a, b Counters, packets, bytes int) {
	t.Helper()
	if a.SendCalls == 0 || b.ReceiveCalls == 0 {
		t.Errorf("calls are not counted: %+v, %+v", a, b)
	}
	a.SendCalls, b.ReceiveCalls = 0, 0
	if diff := cmp.Diff(Counters{Sent: uint64(packets), SentBytes: uint64(bytes)}, a); diff != "" {
		t.Errorf("counters of the sender (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Counters{Received: uint64(packets), ReceivedBytes: uint64(bytes)}, b); diff != "" {
		t.Errorf("counters of the receiver (-want +got):\n%s", diff)
	}
}

// TestSeveralDestinations: packets of one batch reach several sockets.
func TestSeveralDestinations(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, m := range modes {
			t.Run(m.name, func(t *testing.T) {
				a, b, c := open(t, local, m.o), open(t, local, m.o), open(t, local, m.o)
				to := []netip.AddrPort{b.LocalAddr(), c.LocalAddr()}
				var batch Batch
				for i, d := range []int{0, 0, 1, 0, 1, 1, 1, 0} {
					fill(t, &batch, to[d], 64, uint64(i))
				}
				must(t, a.Send(&batch))
				for _, s := range []*Socket{b, c} {
					got, _ := collect(t, s, 4)
					want := slices.DeleteFunc(sent(a, &batch), func(r received) bool { return r.To != s.LocalAddr().String() })
					if diff := cmp.Diff(want, got); diff != "" {
						t.Errorf("%v (-sent +received):\n%s", s.LocalAddr(), diff)
					}
				}
			})
		}
	})
}

// TestMappedDestination: an IPv4-mapped IPv6 address, as in a GID, will do as the destination.
func TestMappedDestination(t *testing.T) {
	for _, m := range modes {
		a, b := open(t, netip.MustParseAddrPort("127.0.0.1:0"), m.o), open(t, netip.MustParseAddrPort("[::ffff:127.0.0.2]:0"), m.o)
		var batch Batch
		to := netip.AddrPortFrom(netip.AddrFrom16(b.LocalAddr().Addr().As16()), b.LocalAddr().Port())
		fill(t, &batch, to, 32, 1)
		fill(t, &batch, to, 32, 2)
		must(t, a.Send(&batch))
		if got, _ := collect(t, b, 2); got[1].From != a.LocalAddr().String() || got[1].To != b.LocalAddr().String() {
			t.Errorf("%s: received from %v to %v", m.name, got[1].From, got[1].To)
		}
	}
}

// TestBadPackets: datagrams that are no packets, and damaged packets, are counted and dropped.
func TestBadPackets(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, m := range modes {
			t.Run(m.name, func(t *testing.T) {
				s := open(t, local, m.o)
				c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(s.LocalAddr()))
				must(t, err)
				defer c.Close()
				from := c.LocalAddr().(*net.UDPAddr).AddrPort()
				send := func(size int, damage bool) {
					t.Helper()
					b := make([]byte, size)
					if size >= minPacket {
						wire.SealICRC(from, s.LocalAddr(), 0xabcd, b)
					}
					if damage {
						b[size-1] ^= 1
					}
					if _, err := c.Write(b); err != nil {
						t.Fatal(err)
					}
				}
				send(0, false)
				send(minPacket-1, false)
				send(64, true)
				send(maxPacket+1, false)
				send(8000, false)
				send(24, false) // the only good one
				got, metas := collect(t, s, 1)
				if len(got) != 1 || len(got[0].Data) != 20 {
					t.Errorf("received %d packets", len(got))
				}
				if want := uint16(0xabcd); local.Addr().Is4() && metas[0].ID != want {
					t.Errorf("ID is %#x, want %#x", metas[0].ID, want)
				}
				counters := s.Counters()
				counters.ReceiveCalls = 0
				if diff := cmp.Diff(Counters{Received: 1, ReceivedBytes: 24, Short: 2, BadICRC: 1, Truncated: 2}, counters); diff != "" {
					t.Errorf("counters (-want +got):\n%s", diff)
				}
			})
		}
	})
}

// TestRefusedPackets: the other packets of a batch are sent if the system refuses some.
func TestRefusedPackets(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, m := range modes {
			t.Run(m.name, func(t *testing.T) {
				a, b := open(t, local, m.o), open(t, local, m.o)
				other := netip.MustParseAddrPort("[fd00::99]:4791")
				if local.Addr().Is6() {
					other = netip.MustParseAddrPort("192.0.2.99:4791")
				}
				var batch Batch
				fill(t, &batch, b.LocalAddr(), 64, 1)
				fill(t, &batch, b.LocalAddr(), 64, 2)
				fill(t, &batch, b.LocalAddr(), 70000, 3)
				fill(t, &batch, b.LocalAddr(), 64, 4)
				fill(t, &batch, other, 64, 5)
				fill(t, &batch, b.LocalAddr(), 64, 6)
				err := a.Send(&batch)
				var refused *SendError
				if !errors.As(err, &refused) || refused.Size != 70000 || refused.To != b.LocalAddr() || !errors.Is(err, errMsgSize) {
					t.Errorf("Send returned %v, want EMSGSIZE of the packet of 70000 bytes", err)
				}
				want := sent(a, &batch)
				want = []received{want[0], want[1], want[3], want[5]}
				got, _ := collect(t, b, len(want))
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-sent +received):\n%s", diff)
				}
				counters := a.Counters()
				counters.SendCalls = 0
				if diff := cmp.Diff(Counters{Sent: 4, SentBytes: 4 * 64, TooLong: 1, SendFailures: 1}, counters); diff != "" {
					t.Errorf("counters (-want +got):\n%s", diff)
				}
			})
		}
	})
}

func TestClose(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, m := range modes {
			t.Run(m.name, func(t *testing.T) {
				s, err := Open(local, m.o)
				must(t, err)
				var batch Batch
				fill(t, &batch, s.LocalAddr(), 64, 1)
				first, ended := make(chan struct{}), make(chan error)
				go func() {
					for {
						if err := s.Receive(func(netip.AddrPort, []byte, Meta) { close(first) }, nil); err != nil {
							ended <- err
							return
						}
					}
				}()
				must(t, s.Send(&batch))
				<-first
				for range 2 {
					if err := s.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				}
				if err := <-ended; err != net.ErrClosed {
					t.Errorf("Receive returned %v, want net.ErrClosed", err)
				}
				if err := s.Send(&batch); err != net.ErrClosed {
					t.Errorf("Send returned %v, want net.ErrClosed", err)
				}
				if err := s.Receive(nil, nil); err != net.ErrClosed {
					t.Errorf("Receive returned %v, want net.ErrClosed", err)
				}
				if err := s.JoinGroup(netip.MustParseAddr("239.1.1.1"), nil); local.Addr().Is4() && err != net.ErrClosed {
					t.Errorf("JoinGroup returned %v, want net.ErrClosed", err)
				}
				again := open(t, s.LocalAddr(), m.o) // the port is free
				if again.LocalAddr() != s.LocalAddr() {
					t.Errorf("LocalAddr is %v, want %v", again.LocalAddr(), s.LocalAddr())
				}
			})
		}
	})
}

// TestConcurrentSend: several goroutines send through one socket while another receives.
func TestConcurrentSend(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, m := range modes {
			t.Run(m.name, func(t *testing.T) {
				const senders, rounds = 4, 20
				a, b := open(t, local, m.o), open(t, local, m.o)
				var wg sync.WaitGroup
				credits := make(chan struct{}, 4) // packets under way, so that none is lost
				for i := range senders {
					wg.Go(func() {
						var batch Batch
						for k := range rounds {
							credits <- struct{}{}
							batch.Reset()
							fill(t, &batch, b.LocalAddr(), 64, uint64(i*rounds+k))
							if err := a.Send(&batch); err != nil {
								t.Error(err)
							}
						}
					})
				}
				got := map[string]bool{}
				for len(got) < senders*rounds {
					if err := b.Receive(func(_ netip.AddrPort, packet []byte, _ Meta) {
						got[string(packet)] = true
						<-credits
					}, nil); err != nil {
						t.Fatal(err)
					}
				}
				wg.Wait()
			})
		}
	})
}

// TestSocketAllocations: sending and receiving a batch does not allocate.
func TestSocketAllocations(t *testing.T) {
	forFamilies(t, func(t *testing.T, local netip.AddrPort) {
		for _, m := range modes {
			t.Run(m.name, func(t *testing.T) {
				a, b := open(t, local, m.o), open(t, local, m.o)
				var batch Batch
				for i, size := range []int{64, 64, 64, 20, 32, 64, 64} {
					fill(t, &batch, b.LocalAddr(), size, uint64(i))
					batch.SetIP(IP{TrafficClass: 8, HopLimit: uint8(60 + i/3)})
				}
				got := 0
				handle := func(netip.AddrPort, []byte, Meta) { got++ }
				if n := testing.AllocsPerRun(100, func() {
					if err := a.Send(&batch); err != nil {
						t.Fatal(err)
					}
					for got = 0; got < batch.Len(); {
						if err := b.Receive(handle, nil); err != nil {
							t.Fatal(err)
						}
					}
				}); n != 0 {
					t.Errorf("a batch allocates %v times", n)
				}
			})
		}
	})
}

// TestParkedAllocations: waiting for packets in the netpoller does not allocate.
func TestParkedAllocations(t *testing.T) {
	for _, m := range modes {
		a, b := open(t, netip.MustParseAddrPort("127.0.0.1:0"), m.o), open(t, netip.MustParseAddrPort("127.0.0.1:0"), m.o)
		var there, back Batch
		fill(t, &there, b.LocalAddr(), 64, 1)
		fill(t, &back, a.LocalAddr(), 64, 1)
		nothing := func(netip.AddrPort, []byte, Meta) {}
		ended := make(chan error)
		go func() {
			for {
				if err := b.Receive(nothing, nil); err != nil {
					ended <- err
					return
				}
				if err := b.Send(&back); err != nil {
					ended <- err
					return
				}
			}
		}()
		if n := testing.AllocsPerRun(100, func() {
			if err := a.Send(&there); err != nil {
				t.Fatal(err)
			}
			if err := a.Receive(nothing, nil); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: there and back allocates %v times", m.name, n)
		}
		b.Close()
		if err := <-ended; err != net.ErrClosed {
			t.Errorf("%s: the peer ended with %v", m.name, err)
		}
	}
}

func TestEmptyBatch(t *testing.T) {
	s := open(t, netip.MustParseAddrPort("127.0.0.1:0"), Options{})
	if err := s.Send(new(Batch)); err != nil {
		t.Error(err)
	}
	if n := s.Counters().SendCalls; n != 0 {
		t.Errorf("%d calls", n)
	}
}
