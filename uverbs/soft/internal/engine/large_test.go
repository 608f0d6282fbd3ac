package engine

import (
	"net/netip"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// TestLarge: where both devices take large packets, a message of up to udp.LargePayload bytes is one of them, with as
// many PSNs as it would have packets, and its acknowledgement names the last PSN.
func TestLarge(t *testing.T) {
	for _, c := range []struct {
		size    int
		packets []int // their payloads
	}{
		{256, []int{256}},
		{257, []int{257}},
		{udp.LargePayload, []int{udp.LargePayload}},
		{udp.LargePayload + 1, []int{udp.LargePayload, 1}},
	} {
		net := &fakeNetwork{clock: newFakeClock(), large: func() bool { return true }}
		a, b := networkPair(t, net, sideOptions{bufSize: 1 << 17}, connOptions{mtu: 1})
		var h wire.Header
		var packets []int
		acknowledged := uint32(0)
		net.tap = func(from, _ netip.Addr, data []byte) bool {
			payload, err := wire.Parse(data, &h)
			switch {
			case err != nil:
				t.Error(err)
			case h.Opcode.IsResponse():
				acknowledged = h.PSN
			default:
				packets = append(packets, len(payload))
			}
			return true
		}
		psn := b.qp.resp.psn
		for _, op := range []uint32{ring.OpSend, ring.OpWrite} {
			packets = nil
			sent := a.fill(0, c.size, byte(op))
			if op == ring.OpSend {
				b.recv(7, b.sge(1, c.size))
			}
			a.post(signaled(9, op, a.sge(0, c.size)).to(b, 1))
			net.deliver()
			b.holds(1, sent)
			want := wire.Add(psn, (c.size+255)/256-1)
			if len(packets) != len(c.packets) || packets[0] != c.packets[0] || acknowledged != want {
				t.Errorf("%d bytes are packets of %v bytes, acknowledged by %#x, want %v and %#x", c.size, packets, acknowledged, c.packets, want)
			}
			psn = wire.Add(want, 1)
		}
		a.want(9, ring.WCSend)
		b.want(7, ring.WCRecv)
		a.want(9, ring.WCWrite)
	}
}

// TestLargeRefused: a device refuses a large packet that is not from the loopback interface, is too large, or is not
// of whole packets where more of its message follow. Nothing is stored.
func TestLargeRefused(t *testing.T) {
	for _, c := range []struct {
		name     string
		loopback bool
		op       wire.Opcode
		size     int
		refused  bool
	}{
		{"whole", true, wire.SendOnly, 1000, false},
		{"first", true, wire.SendFirst, 1024, false},
		{"elsewhere", false, wire.SendOnly, 1000, true},
		{"elsewhere, first", false, wire.SendFirst, 1024, true},
		{"too large", true, wire.SendOnly, udp.LargePayload + 4, true},
		{"too large, first", true, wire.SendFirst, udp.LargePayload + 256, true},
		{"part of a packet", true, wire.SendFirst, 1000, true},
		{"empty", true, wire.SendFirst, 0, true},
		{"longer than the receive", true, wire.SendOnly, 2000, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			net := &fakeNetwork{clock: newFakeClock()}
			from, to := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
			if c.loopback {
				net.large = func() bool { return true }
				from, to = netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
			}
			_, b := networkPair(t, net, sideOptions{bufSize: 1 << 17}, connOptions{mtu: 1})
			psn, size := b.qp.resp.psn, 1<<16
			if c.name == "longer than the receive" {
				size = c.size - 4
			}
			before := b.fill(0, size, 1)
			b.recv(7, b.sge(0, size))
			h := wire.Header{Opcode: wire.RC | c.op, MigReq: true, PKey: wire.DefaultPKey, DestQP: b.qp.num, PSN: psn, AckReq: true}
			data := make([]byte, wire.PacketSize(h.Opcode, c.size))
			n := h.Put(data)
			for i := range c.size {
				data[n+i] = 0xee
			}
			r := b.d.NewReceiver()
			r.Packet(&Meta{From: from, To: to}, data)
			r.Flush()
			if refused := b.qp.state == Err; refused != c.refused {
				t.Errorf("refused: %v", refused)
			}
			if c.refused {
				b.holds(0, before)
			} else if b.buf[c.size-1] != 0xee || b.qp.resp.psn != psn+4 {
				t.Errorf("the last byte is %#x and the next PSN %d, want 0xee and %d", b.buf[c.size-1], b.qp.resp.psn, psn+4)
			}
		})
	}
}

// TestLargeWriteBounds: a large packet of a WRITE stays within the length that its message has named.
func TestLargeWriteBounds(t *testing.T) {
	for _, c := range []struct {
		op     wire.Opcode
		length uint32 // that the packet names
		size   int
		ok     bool
	}{
		{wire.WriteOnly, 1000, 1000, true},
		{wire.WriteFirst, 2000, 1024, true},
		{wire.WriteOnly, 1000, 1024, false},
		{wire.WriteOnly, 1024, 1000, false},
		{wire.WriteFirst, 1024, 1024, false},
		{wire.WriteFirst, 1000, 1024, false},
	} {
		net := &fakeNetwork{clock: newFakeClock(), large: func() bool { return true }}
		_, b := networkPair(t, net, sideOptions{}, connOptions{mtu: 1})
		psn, before := b.qp.resp.psn, b.fill(0, 4096, 1)
		h := wire.Header{
			Opcode: wire.RC | c.op, MigReq: true, PKey: wire.DefaultPKey, DestQP: b.qp.num, PSN: psn,
			Addr: b.addr(0), RKey: b.mr.LKey(), Length: c.length,
		}
		data := make([]byte, wire.PacketSize(h.Opcode, c.size))
		h.Put(data)
		r := b.d.NewReceiver()
		r.Packet(&Meta{From: netip.MustParseAddr("127.0.0.2"), To: netip.MustParseAddr("127.0.0.3")}, data)
		r.Flush()
		if ok := b.qp.state != Err; ok != c.ok {
			t.Errorf("%v of %d bytes with %d: accepted: %v", h.Opcode, c.length, c.size, ok)
		}
		if c.ok {
			before = make([]byte, c.size)
		}
		b.holds(0, before)
	}
}
