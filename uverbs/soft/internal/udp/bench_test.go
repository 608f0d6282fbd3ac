package udp

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// benchPackets is the number of packets in a batch of the benchmarks, as many as a socket's receive
// buffer holds by default.
const benchPackets = 32

// reportPackets reports packets in a second; bytes are what SetBytes is for.
func reportPackets(b *testing.B, each int) {
	b.ReportMetric(float64(b.N*each)/b.Elapsed().Seconds(), "packets/s")
}

// BenchmarkBatch sends a batch and receives it, in one goroutine, in every mode. "net" does the same with
// a socket of package net and without ICRCs.
func BenchmarkBatch(b *testing.B) {
	local := netip.MustParseAddrPort("127.0.0.1:0")
	for _, size := range []int{64, 1024, 4096} {
		for _, m := range modes {
			b.Run(fmt.Sprintf("%s/%d", m.name, size), func(b *testing.B) {
				from, to := open(b, local, m.o), open(b, local, m.o)
				var batch Batch
				for i := range benchPackets {
					fill(b, &batch, to.LocalAddr(), size+minPacket, uint64(i))
				}
				got := 0
				handle := func(netip.AddrPort, []byte, Meta) { got++ }
				b.SetBytes(int64(benchPackets * size))
				for b.Loop() {
					if err := from.Send(&batch); err != nil {
						b.Fatal(err)
					}
					for got = 0; got < benchPackets; {
						if err := to.Receive(handle, nil); err != nil {
							b.Fatal(err)
						}
					}
				}
				reportPackets(b, benchPackets)
			})
		}
		b.Run(fmt.Sprintf("net/%d", size), func(b *testing.B) {
			from, to := listen(b, local), listen(b, local)
			dst := to.LocalAddr().(*net.UDPAddr).AddrPort()
			data := make([]byte, size+minPacket)
			b.SetBytes(int64(benchPackets * size))
			for b.Loop() {
				for range benchPackets {
					if _, err := from.WriteToUDPAddrPort(data, dst); err != nil {
						b.Fatal(err)
					}
				}
				for range benchPackets {
					if _, _, err := to.ReadFromUDPAddrPort(data); err != nil {
						b.Fatal(err)
					}
				}
			}
			reportPackets(b, benchPackets)
		})
	}
}

// listen opens a socket of package net that is closed at the end of the test.
func listen(tb testing.TB, local netip.AddrPort) *net.UDPConn {
	tb.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(local))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close() })
	if err := c.SetReadBuffer(DefaultReceiveBuffer); err != nil { // the default holds 26 packets of 4 KiB
		tb.Fatal(err)
	}
	return c
}

// BenchmarkEcho sends one packet and waits for the answer of another goroutine, which the netpoller of
// the Go runtime wakes.
func BenchmarkEcho(b *testing.B) {
	local := netip.MustParseAddrPort("127.0.0.1:0")
	const size = 64
	for _, m := range modes {
		b.Run(fmt.Sprintf("%s/%d", m.name, size), func(b *testing.B) {
			here, there := open(b, local, m.o), open(b, local, m.o)
			go echo(there)
			var batch Batch
			fill(b, &batch, there.LocalAddr(), size+minPacket, 1)
			nothing := func(netip.AddrPort, []byte, Meta) {}
			for b.Loop() {
				if err := here.Send(&batch); err != nil {
					b.Fatal(err)
				}
				if err := here.Receive(nothing, nil); err != nil {
					b.Fatal(err)
				}
			}
			reportPackets(b, 2)
		})
	}
	b.Run(fmt.Sprintf("net/%d", size), func(b *testing.B) {
		here, there := listen(b, local), listen(b, local)
		go echoPlain(there)
		dst := there.LocalAddr().(*net.UDPAddr).AddrPort()
		data := make([]byte, size+wire.BTHSize+wire.ICRCSize)
		for b.Loop() {
			if _, err := here.WriteToUDPAddrPort(data, dst); err != nil {
				b.Fatal(err)
			}
			if _, _, err := here.ReadFromUDPAddrPort(data); err != nil {
				b.Fatal(err)
			}
		}
		reportPackets(b, 2)
	})
}

// echo sends every packet back until the socket is closed.
func echo(s *Socket) {
	var batch Batch
	handle := func(from netip.AddrPort, packet []byte, _ Meta) { copy(batch.Reserve(from, len(packet)), packet) }
	for s.Receive(handle, nil) == nil && s.Send(&batch) == nil {
		batch.Reset()
	}
}

// echoPlain is echo with package net.
func echoPlain(c *net.UDPConn) {
	b := make([]byte, maxPacket)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		if _, err := c.WriteToUDPAddrPort(b[:n], from); err != nil {
			return
		}
	}
}
