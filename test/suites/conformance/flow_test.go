package conformance

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// headers are the headers of a frame.
type headers struct {
	dst, src     [6]byte
	tag          uint16 // of a VLAN, 0 for none
	v6           bool
	from, to     byte // last bytes of the addresses, which are 10.9.0.x or fd00:9::x
	proto, class byte
	sport, dport uint16
}

// frame makes a frame of 100 bytes, whose sums are not there.
func (h headers) frame() []byte {
	b := append(append([]byte{}, h.dst[:]...), h.src[:]...)
	if h.tag != 0 {
		b = binary.BigEndian.AppendUint16(append(b, 0x81, 0), h.tag)
	}
	if h.v6 {
		b = append(b, 0x86, 0xdd, 0x60|h.class>>4, h.class<<4, 0, 0, 0, 40, h.proto, 64,
			0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, h.from, 0xfd, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, h.to)
	} else {
		b = append(b, 8, 0, 0x45, h.class, 0, 60, 0, 0, 0, 0, 64, h.proto, 0, 0, 10, 9, 0, h.from, 10, 9, 0, h.to)
	}
	b = binary.BigEndian.AppendUint16(b, h.sport)
	b = binary.BigEndian.AppendUint16(b, h.dport)
	return append(b, make([]byte, 100-len(b))...)
}

const (
	protoTCP = 6
	protoUDP = 17
)

// sendFrame sends a frame from the beginning of a side's buffer.
func sendFrame(t *testing.T, s *side, frame []byte) {
	t.Helper()
	n := copy(s.buf.Bytes(), frame)
	must(t, s.qp.PostSend(send(1, s.mr.SGE(0, n))))
	s.want(t, 1, uverbs.WCSend)
}

// TestFlowTag: a receive has the tag of the flow that took the frame, and 0 where the flow is without one; also receives of
// a work queue.
func TestFlowTag(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "raw packets", "mlx5")
		testenv.NeedsRoCE(t, "Ethernet")
		a, b := rawPair(t)
		wq, err := b.pd.CreateWQ(uverbs.WQOptions{CQ: b.cq, MaxWR: 4})
		must(t, err)
		closeLater(t, wq)
		must(t, wq.Modify(uverbs.WQReady), wq.PostRecv(1, b.mr.SGE(0, 2048)))
		table, err := b.dev.CreateRWQIndTable([]*uverbs.WQ{wq})
		must(t, err)
		closeLater(t, table)
		spread, err := b.pd.CreateQP(uverbs.QPOptions{Type: ib.RawPacket, IndTable: table, RXHash: uverbs.RXHash{Fields: uverbs.RXHashSrcIPv4}})
		must(t, err)
		closeLater(t, spread)
		to := macOf(t, rig.Netdevs[1])
		for _, c := range []struct {
			sport uint16
			qp    *uverbs.QP
			qpn   uint32
			tag   uint32
		}{{1, b.qp.QP, b.qp.QPN(), 0xfedcba}, {2, b.qp.QP, b.qp.QPN(), 0}, {3, b.qp.QP, b.qp.QPN(), 1}, {4, spread, 0, 0x123456}} {
			specs := []flow.Spec{
				flow.Eth{Val: flow.EthFilter{DstMAC: to, EtherType: 0x0800}, Mask: flow.EthFilter{DstMAC: anyMAC, EtherType: 0xffff}},
				flow.IPv4{}, flow.UDP{Val: flow.Ports{Src: c.sport}, Mask: flow.Ports{Src: 0xffff}},
			}
			if c.tag != 0 {
				specs = append(specs, flow.Tag{ID: c.tag})
			}
			f, err := c.qp.CreateFlow(uverbs.FlowOptions{Specs: specs})
			must(t, err)
			closeLater(t, f)
			if c.qp == b.qp.QP {
				must(t, b.qp.PostRecv(1, b.mr.SGE(0, 2048)))
			}
			sendFrame(t, a, headers{dst: to, src: [6]byte{2, 0x60, 0x0d, 9, 9, 9}, from: 1, to: 2, proto: protoUDP, sport: c.sport, dport: 9}.frame())
			if wc := b.next(t); wc.Err() != nil || wc.Opcode != uverbs.WCRecv || wc.FlowTag != c.tag || wc.QPN != c.qpn {
				t.Errorf("completion %+v, want tag %#x of QP %#x", wc, c.tag, c.qpn)
			}
		}
	})
}

// flowCase is what a flow matches: specs, a frame that they take, and frames that they do not take.
type flowCase struct {
	name  string
	specs []flow.Spec
	takes headers
	not   []headers
}

// flowCases are flows for frames to a MAC address.
func flowCases(to [6]byte) []flowCase {
	udp := headers{dst: to, src: [6]byte{2, 0x60, 0x0d, 9, 9, 9}, from: 1, to: 2, proto: protoUDP, sport: 1000, dport: 2000}
	with := func(h headers, change func(*headers)) headers {
		change(&h)
		return h
	}
	tcp, six := with(udp, func(h *headers) { h.proto = protoTCP }), with(udp, func(h *headers) { h.v6 = true })
	six6 := with(six, func(h *headers) { h.proto = protoTCP })
	eth := flow.Eth{Val: flow.EthFilter{DstMAC: to}, Mask: flow.EthFilter{DstMAC: anyMAC}}
	all4 := [4]byte{0xff, 0xff, 0xff, 0xff}
	all6 := [16]byte(bytes.Repeat([]byte{0xff}, 16))
	ip6 := func(last byte) [16]byte { return [16]byte{0: 0xfd, 3: 9, 15: last} }
	tag := func(h *headers) { h.tag = 0x2005 }
	from := func(h *headers) { h.from = 9 }
	dest := func(h *headers) { h.to = 9 }
	sport, dport := func(h *headers) { h.sport = 9 }, func(h *headers) { h.dport = 9 }
	class := func(h *headers) { h.class = 0x44 }
	return []flowCase{
		{"source MAC and EtherType", []flow.Spec{flow.Eth{
			Val:  flow.EthFilter{DstMAC: to, SrcMAC: udp.src, EtherType: 0x0800},
			Mask: flow.EthFilter{DstMAC: anyMAC, SrcMAC: anyMAC, EtherType: 0xffff},
		}}, udp, []headers{six, with(udp, func(h *headers) { h.src[5]++ })}},
		{"VLAN", []flow.Spec{flow.Eth{
			Val:  flow.EthFilter{DstMAC: to, VLANTag: 0x2005},
			Mask: flow.EthFilter{DstMAC: anyMAC, VLANTag: 0xefff},
		}}, with(udp, tag), []headers{udp, with(udp, func(h *headers) { h.tag = 0x2006 }), with(udp, func(h *headers) { h.tag = 0x4005 })}},
		{"IPv4 addresses", []flow.Spec{eth, flow.IPv4{
			Val: flow.IPv4Filter{Src: [4]byte{10, 9, 0, 1}, Dst: [4]byte{10, 9, 0, 2}}, Mask: flow.IPv4Filter{Src: all4, Dst: all4},
		}}, tcp, []headers{with(tcp, from), with(tcp, dest), six6}},
		{"IPv4 network", []flow.Spec{eth, flow.IPv4{
			Val: flow.IPv4Filter{Src: [4]byte{10, 9, 0, 8}}, Mask: flow.IPv4Filter{Src: [4]byte{0xff, 0xff, 0xff, 0xf8}},
		}}, with(udp, from), []headers{udp, six}},
		{"IPv4 protocol and TOS", []flow.Spec{eth, flow.IPv4{
			Val: flow.IPv4Filter{Proto: protoTCP, TOS: 0x44}, Mask: flow.IPv4Filter{Proto: 0xff, TOS: 0xff},
		}}, with(tcp, class), []headers{with(udp, class), tcp, with(tcp, func(h *headers) { h.class = 0x46 })}},
		{"IPv6 addresses", []flow.Spec{eth, flow.IPv6{
			Val: flow.IPv6Filter{Src: ip6(1), Dst: ip6(2)}, Mask: flow.IPv6Filter{Src: all6, Dst: all6},
		}}, six, []headers{with(six, from), with(six, dest), udp}},
		{"IPv6 protocol and class", []flow.Spec{eth, flow.IPv6{
			Val: flow.IPv6Filter{NextHeader: protoTCP, TrafficClass: 0x44}, Mask: flow.IPv6Filter{NextHeader: 0xff, TrafficClass: 0xff},
		}}, with(six6, class), []headers{with(six, class), six6}},
		{"UDP ports", []flow.Spec{eth, flow.IPv4{}, flow.UDP{
			Val: flow.Ports{Src: 1000, Dst: 2000}, Mask: flow.Ports{Src: 0xffff, Dst: 0xffff},
		}}, udp, []headers{with(udp, sport), with(udp, dport), tcp, six}},
		{"TCP port over IPv6", []flow.Spec{eth, flow.IPv6{}, flow.TCP{
			Val: flow.Ports{Dst: 2000}, Mask: flow.Ports{Dst: 0xffff},
		}}, with(six6, sport), []headers{with(six6, dport), six, tcp}},
	}
}

// TestFlowMatches checks that a flow takes the frames whose headers are as each of its specs says, on
// every layer, and does not take those that differ in one field.
func TestFlowMatches(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "raw packets", "mlx5")
		testenv.NeedsRoCE(t, "Ethernet")
		a, b := rawPair(t)
		for _, c := range flowCases(macOf(t, rig.Netdevs[1])) {
			t.Run(c.name, func(t *testing.T) {
				rule, err := b.qp.CreateFlow(uverbs.FlowOptions{Specs: c.specs})
				must(t, err)
				must(t, b.qp.PostRecv(7, b.mr.SGE(0, 2048)), b.qp.PostRecv(8, b.mr.SGE(4096, 2048)))
				for _, h := range c.not { // of which one would come first
					sendFrame(t, a, h.frame())
				}
				for i, id := range []uint64{7, 8} {
					want := c.takes.frame()
					want[99] = byte(i) + 1
					sendFrame(t, a, want)
					if wc := b.want(t, id, uverbs.WCRecv); wc.ByteLen != 100 {
						t.Errorf("a frame has %d bytes, want 100", wc.ByteLen)
					}
					b.holds(t, 4096*i, want)
				}
				must(t, rule.Close())
			})
		}
	})
}

// TestFlowCounters checks that the packets and bytes of a flow are counted, those of two flows
// together, without frames that the flows do not take, and again when other flows use the counters.
func TestFlowCounters(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "raw packets", "mlx5")
		// Whether a command makes counters does not depend on the link.
		probe, err := openDevice(t, rig.Devices[1]).CreateCounters()
		testenv.Skip(t, err)
		must(t, err, probe.Close())
		testenv.NeedsRoCE(t, "Ethernet")
		a, b := rawPair(t)
		counters, err := b.dev.CreateCounters()
		must(t, err)
		closeLater(t, counters)
		h := headers{dst: macOf(t, rig.Netdevs[1]), src: [6]byte{2, 0x60, 0x0d, 9, 9, 9}, from: 1, to: 2, proto: protoUDP, sport: 1000, dport: 2000}
		counting := func(port uint16) *uverbs.Flow {
			t.Helper()
			rule, err := b.qp.CreateFlow(uverbs.FlowOptions{Specs: []flow.Spec{
				flow.Eth{Val: flow.EthFilter{DstMAC: h.dst}, Mask: flow.EthFilter{DstMAC: anyMAC}}, flow.IPv4{},
				flow.UDP{Val: flow.Ports{Dst: port}, Mask: flow.Ports{Dst: 0xffff}},
			}, Counters: counters})
			must(t, err)
			return rule
		}
		arrive := func(port uint16, n int) {
			t.Helper()
			h.dport = port
			for range n {
				must(t, b.qp.PostRecv(7, b.mr.SGE(0, 2048)))
				sendFrame(t, a, h.frame())
				b.want(t, 7, uverbs.WCRecv)
			}
		}
		var base [2]uint64
		counted := func(packets uint64) {
			t.Helper()
			var v [2]uint64
			must(t, counters.Read(v[:], false))
			if v[0]-base[0] != packets || v[1]-base[1] != 100*packets {
				t.Errorf("%d packets and %d bytes more are counted, want %d and %d", v[0]-base[0], v[1]-base[1], packets, 100*packets)
			}
			base = v
		}
		first := counting(2000)
		counted(0)
		arrive(2000, 3)
		counted(3)
		second := counting(3000)
		arrive(2000, 1)
		arrive(3000, 2)
		h.dport = 4000 // for nobody
		sendFrame(t, a, h.frame())
		counted(3)
		if err := counters.Read(make([]uint64, 1), false); err == nil {
			t.Error("both values fit into one")
		}
		must(t, first.Close())
		arrive(3000, 1)
		counted(1)
		must(t, second.Close())
		third := counting(2000)
		arrive(2000, 2)
		counted(2)
		if err := counters.Close(); err == nil {
			t.Error("the counters were closed while a flow uses them")
		}
		must(t, third.Close())
	})
}
