package fault

import (
	"net/netip"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// openSocket opens a socket of the loopback interface.
func openSocket(t *testing.T) *udp.Socket {
	t.Helper()
	s, err := udp.Open(netip.MustParseAddrPort("127.0.0.1:0"), udp.Options{})
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestSockets: packets go through a Path on each side of two sockets, with the system's clock. The
// socket that receives finds every corrupt packet, and all others arrive.
func TestSockets(t *testing.T) {
	a, b := openSocket(t), openSocket(t)
	newPath := func(text string, s *udp.Socket) *Path {
		config, err := Parse(text)
		must(t, err)
		f, err := New(Options{Config: config})
		must(t, err)
		t.Cleanup(f.Close)
		return f.Path(PathOptions{Local: s.LocalAddr(), Send: s.Send})
	}
	sender := newPath("seed=1,loss=5%,duplicate=10%,corrupt=10%,reorder=10%,behind=2,hold=1us,delay=1us..100us,delayed=20%", a)
	got := make(chan string, 10_000) // the handler runs in goroutines of the clock too
	receiver := newPath("seed=2,duplicate=10%,reorder=10%,hold=1us", b)
	in := receiver.Handler(func(_ netip.AddrPort, pkt []byte, _ udp.Meta) { got <- name(pkt) })

	const batches, size = 50, 10
	for i := range uint32(batches) {
		batch := new(udp.Batch)
		for k := range uint32(size) {
			pkt := packetOf(wire.RC|wire.SendOnly, 17, i*size+k, 64)
			copy(batch.Reserve(b.LocalAddr(), len(pkt)), pkt)
		}
		must(t, sender.Send(batch))
	}
	sent, _ := sender.injector.Counters()
	arriving := batches*size - sent.Lost + sent.Duplicated - sent.Corrupted
	for {
		c := b.Counters()
		if c.Received >= arriving && c.BadICRC >= sent.Corrupted {
			break
		}
		must(t, b.Receive(in, nil))
	}
	_, received := receiver.injector.Counters()
	count := make(map[string]int)
	for range arriving + received.Duplicated {
		count[<-got]++
	}
	if c := b.Counters(); c.Received != arriving || c.BadICRC != sent.Corrupted {
		t.Errorf("%d packets received and %d with a wrong ICRC, want %d and %d", c.Received, c.BadICRC, arriving, sent.Corrupted)
	}
	if sent.Lost == 0 || sent.Corrupted == 0 || sent.Duplicated == 0 || sent.HeldBack == 0 || sent.Delayed == 0 || received.Duplicated == 0 {
		t.Errorf("sent %+v, received %+v", sent, received)
	}
	if n := uint64(len(count)); n > batches*size-sent.Lost || n < batches*size-sent.Lost-sent.Corrupted {
		t.Errorf("%d different packets arrived; %+v", n, sent)
	}
}
