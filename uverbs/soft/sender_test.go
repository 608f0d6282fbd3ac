package soft_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// counter returns a counter of a device.
func (s *side) counter(name string) uint64 {
	s.t.Helper()
	all, err := s.ctx.PortCounters(1)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range all {
		if c.Name == name {
			return c.Value
		}
	}
	s.t.Fatalf("there is no counter %s", name)
	return 0
}

// TestStrangerOnThisHost: a process of this host that sends from the address of a device, but not from its port, is
// not taken for the device, whatever it knows of the connection. The connection goes on.
func TestStrangerOnThisHost(t *testing.T) {
	for name, addrs := range map[string][2]string{"IPv4": {"127.61.0.1", "127.61.0.2"}, "IPv6": {"::1", "::1"}} {
		t.Run(name, func(t *testing.T) {
			if name == "IPv6" {
				testenv.IPv6(t)
			}
			var sides [2]*side
			for i, addr := range addrs {
				if i == 1 && addrs[0] == addr {
					sides[1] = newSide(t, soft.ByName(sides[0].ctx.Name()), uverbs.QPOptions{})
					break
				}
				d, err := soft.New(soft.Options{Addr: netip.MustParseAddr(addr), ViaSocket: true})
				ok(t, err)
				t.Cleanup(func() { d.Close() })
				sides[i] = newSide(t, d, uverbs.QPOptions{})
			}
			a, b := sides[0], sides[1]
			connect(t, a, b)
			ok(t, b.qp.PostRecv(1, b.mr.SGE(0, 64)))
			attr, err := b.qp.Query()
			ok(t, err)
			stranger, err := udp.Open(netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 0), udp.Options{})
			ok(t, err)
			defer stranger.Close()

			const message = "forged!!"
			var batch udp.Batch
			forge := func(h wire.Header, size int) {
				h.PKey = wire.DefaultPKey
				to := netip.AddrPortFrom(netip.MustParseAddr(addrs[1]), wire.Port)
				p := batch.Reserve(to, wire.PacketSize(h.Opcode, size))
				copy(p[h.Put(p):], message)
			}
			forge(wire.Header{Opcode: wire.SendOnly, DestQP: b.qp.QPN(), PSN: attr.RQPSN, AckReq: true}, len(message))
			forge(wire.Header{Opcode: wire.UD | wire.SendOnly, DestQP: wire.GSIQP, QKey: wire.GSIQKey, SrcQP: wire.GSIQP}, 256)
			before := b.counter("rx_wrong_port")
			ok(t, stranger.Send(&batch))
			for end := time.Now().Add(10 * time.Second); b.counter("rx_wrong_port") < before+2; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("rx_wrong_port is %d, want %d", b.counter("rx_wrong_port"), before+2)
				}
			}
			copy(a.buf.Bytes(), "honest!!")
			ok(t, a.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, len(message))}}))
			for _, s := range sides {
				var wcs [1]uverbs.WC
				_, err := s.cq.Wait(t.Context(), wcs[:])
				ok(t, err, s.qp.Err(&wcs[0]))
			}
			if got := string(b.buf.Bytes()[:len(message)]); got != "honest!!" {
				t.Errorf("the message is %q", got)
			}
		})
	}
}
