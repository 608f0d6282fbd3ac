package engine

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs/soft/internal/ring"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// TestCounters: the counters of rxe count packets and messages, and what went wrong.
func TestCounters(t *testing.T) {
	clock := newFakeClock()
	d := newDevice(t, Config{Clock: clock})
	a, b := newSide(t, d, sideOptions{}), newSide(t, d, sideOptions{})
	connect(a, b, connOptions{rnrRetry: 1})
	b.recv(1, b.sge(0, 3000))
	a.post(signaled(2, ring.OpSend, a.sge(0, 3000)), signaled(3, ring.OpRead, a.sge(0, 3000)).to(b, 0)) // 3 packets and an ACK; 1 and 3
	a.post(signaled(4, ring.OpSend))                                                                    // 1 and an RNR NAK, twice
	clock.advance(1e9)
	want := map[string]uint64{
		"sent_pkts": 12, "rcvd_pkts": 12, "rdma_sends": 2, "ack_deferred": 6, "rdma_recvs": 1, "send_rnr_err": 2, "rcvd_rnr_err": 2,
		"retry_rnr_exceeded_err": 1, "duplicate_request": 0, "out_of_seq_request": 0, "rx_unknown_qp": 0,
	}
	var sent, received uint64
	for _, c := range d.Counters() {
		if w, ok := want[c.Name]; ok && c.Value != w {
			t.Errorf("%s is %d, want %d", c.Name, c.Value, w)
		}
		switch delete(want, c.Name); c.Name {
		case "sent_bytes":
			sent = c.Value
		case "rcvd_bytes":
			received = c.Value
		}
	}
	if len(want) > 0 || sent == 0 || sent != received {
		t.Errorf("%v are missing; %d bytes sent, %d received", want, sent, received)
	}
}

// TestDropped: a packet that is dropped counts once, by the field that is wrong.
func TestDropped(t *testing.T) {
	p := newRawPeer(t, 1<<16) // RC
	d := p.d
	uc, ud, idle := newSide(t, d, sideOptions{typ: UC}), newSide(t, d, sideOptions{typ: UD}), newSide(t, d, sideOptions{})
	uc.connectTo(&QP{num: 0x78}, "10.0.0.2", connOptions{mtu: 1})
	denied := newSide(t, d, sideOptions{typ: UC})
	denied.connectTo(&QP{num: 0x79}, "10.0.0.2", connOptions{mtu: 1, access: 1})
	ud.activate()
	failed := newSide(t, d, sideOptions{})
	failed.connectTo(&QP{num: 0x7a}, "10.0.0.2", connOptions{})
	check(t, failed.qp.Modify(&QPAttr{State: Err}, AttrState))

	packet := func(to uint32, h wire.Header, payload int) []byte {
		h.DestQP = to
		if h.PKey == 0 {
			h.PKey = wire.DefaultPKey
		}
		b := make([]byte, wire.PacketSize(h.Opcode, payload))
		h.Put(b)
		return b
	}
	patched := func(b []byte, i int, v byte) []byte {
		b[i] = v
		return b
	}
	send := func(psn uint32) wire.Header { return wire.Header{Opcode: wire.SendOnly, PSN: psn} }
	ucSend := func(side *side, ahead uint32) []byte {
		return packet(side.qp.num, wire.Header{Opcode: wire.UC | wire.SendOnly, PSN: side.qp.resp.psn + ahead}, 0)
	}
	datagramTo := func(qpn, qkey uint32, payload int) []byte {
		return packet(qpn, wire.Header{Opcode: wire.UD | wire.SendOnly, QKey: qkey, SrcQP: 3}, payload)
	}
	answer := func(op wire.Opcode, syndrome uint8, ahead, payload int) func() []byte {
		return func() []byte {
			return packet(p.qp.num, wire.Header{Opcode: op, Syndrome: syndrome, PSN: wire.Add(p.qp.req.una, ahead)}, payload)
		}
	}
	const peer, own, group = "10.0.0.2", "10.0.0.1", "ff0e::17"
	for _, c := range []struct {
		field    string
		from, to string
		packet   func() []byte
		want     string
	}{
		{"length", peer, own, func() []byte { return make([]byte, 15) }, "rx_too_short"},
		{"no room for the RETH", peer, own, func() []byte { return packet(p.qp.num, wire.Header{Opcode: wire.ReadRequest}, 0)[:24] }, "rx_too_short"},
		{"length not a multiple of 4", peer, own, func() []byte { return packet(p.qp.num, send(0), 8)[:21] }, "rx_bad_length"},
		{"opcode", peer, own, func() []byte { return patched(packet(p.qp.num, send(0), 0), 0, 0x1f) }, "rx_unknown_opcode"},
		{"opcode of a CNP", peer, own, func() []byte { return patched(packet(p.qp.num, send(0), 16), 0, byte(wire.CNP)) }, "rx_cnp"},
		{"TVer", peer, own, func() []byte { return patched(packet(p.qp.num, send(0), 0), 1, 1) }, "rx_bad_tver"},
		{"QPN 0", peer, own, func() []byte { return packet(0, send(0), 0) }, "rx_zero_qpn"},
		{"QPN of nobody", peer, own, func() []byte { return packet(p.qp.num+1000, send(0), 0) }, "rx_unknown_qp"},
		{"group QPN at an address", peer, own, func() []byte { return datagramTo(wire.MulticastQP, 0, 0) }, "rx_wrong_group"},
		{"QPN at a group", peer, group, func() []byte { return datagramTo(ud.qp.num, 0, 0) }, "rx_wrong_group"},
		{"group that is not joined", peer, "ff0e::18", func() []byte { return datagramTo(wire.MulticastQP, 0, 0) }, "rx_not_joined"},
		{"source address", "10.0.0.3", own, func() []byte { return packet(p.qp.num, send(0), 0) }, "rx_wrong_address"},
		{"state RESET", peer, own, func() []byte { return packet(idle.qp.num, send(0), 0) }, "rx_wrong_state"},
		{"state ERR", peer, own, func() []byte { return packet(failed.qp.num, send(0), 0) }, "rx_wrong_state"},
		{"transport", peer, own, func() []byte { return packet(p.qp.num, wire.Header{Opcode: wire.UC | wire.SendOnly}, 0) }, "rx_wrong_state"},
		{"P_Key", peer, own, func() []byte { return packet(p.qp.num, wire.Header{Opcode: wire.SendOnly, PKey: 0x8001}, 0) }, "rx_bad_pkey"},
		{"P_Key of a MAD", peer, own, func() []byte {
			return packet(wire.GSIQP, wire.Header{Opcode: wire.UD | wire.SendOnly, QKey: wire.GSIQKey, PKey: 0x8001}, MADSize)
		}, "rx_bad_pkey"},
		{"Q_Key", peer, own, func() []byte { return datagramTo(ud.qp.num, ud.qp.attr.QKey+1, 0) }, "rx_bad_qkey"},
		{"Q_Key of a MAD", peer, own, func() []byte { return datagramTo(wire.GSIQP, 5, MADSize) }, "rx_bad_qkey"},
		{"length of a MAD", peer, own, func() []byte { return datagramTo(wire.GSIQP, wire.GSIQKey, MADSize-4) }, "rx_bad_mad"},
		{"opcode of a MAD", peer, own, func() []byte { return packet(wire.GSIQP, send(0), MADSize) }, "rx_bad_mad"},
		{"PSN", peer, own, func() []byte { return packet(p.qp.num, send(p.qp.resp.psn+5), 0) }, "rx_out_of_order"},
		{"PSN once more", peer, own, func() []byte { return packet(p.qp.num, send(p.qp.resp.psn+6), 0) }, "rx_out_of_order"},
		{"PSN of UC", peer, own, func() []byte {
			return packet(uc.qp.num, wire.Header{Opcode: wire.UC | wire.SendLast, PSN: uc.qp.resp.psn + 2}, 4)
		}, "rx_out_of_order"},
		{"no receive on UC", peer, own, func() []byte { return ucSend(uc, 0) }, "rx_no_receive"},
		{"no receive on UD", peer, own, func() []byte { return datagramTo(ud.qp.num, ud.qp.attr.QKey, 0) }, "rx_no_receive"},
		{"middle packet without a first", peer, own, func() []byte {
			denied.qp.resp.dropping = false
			return packet(denied.qp.num, wire.Header{Opcode: wire.UC | wire.SendMiddle, PSN: denied.qp.resp.psn}, 256)
		}, "rx_refused"},
		{"WRITE that the QP denies", peer, own, func() []byte {
			return packet(denied.qp.num, wire.Header{Opcode: wire.UC | wire.WriteOnly, PSN: denied.qp.resp.psn, Addr: denied.addr(0), RKey: denied.mr.RKey(), Length: 4}, 4)
		}, "rx_refused"},
		{"rkey", peer, own, func() []byte {
			return packet(uc.qp.num, wire.Header{Opcode: wire.UC | wire.WriteOnly, PSN: uc.qp.resp.psn, Addr: uc.addr(0), RKey: uc.mr.RKey() + 1, Length: 4}, 4)
		}, "rx_refused"},
		{"too many wait", peer, own, func() []byte {
			p.qp.resp.busy, p.qp.resp.waiting = true, make([]byte, maxWaiting)
			return packet(p.qp.num, send(p.qp.resp.psn), 0)
		}, "rx_waiting_overflow"},

		{"answer to nothing", peer, own, answer(wire.Acknowledge, wire.SyndromeACK, 0, 0), "rx_stale_response"},
		{"answer to the past", peer, own, answer(wire.Acknowledge, wire.SyndromeACK, -1, 0), "rx_stale_response"},
		{"reserved syndrome", peer, own, func() []byte {
			p.post(signaled(1, ring.OpSend))
			return answer(wire.Acknowledge, 0x40, 0, 0)()
		}, "rx_odd_response"},
		{"result of an atomic to a SEND", peer, own, answer(wire.AtomicAcknowledge, wire.SyndromeACK, 0, 0), "rx_odd_response"},
		{"data of another length than the MTU", peer, own, func() []byte {
			p.post(signaled(2, ring.OpRead, p.sge(0, 1000)).to(p.side, 0))
			return answer(wire.ReadResponseFirst, wire.SyndromeACK, 1, 512)()
		}, "rx_odd_response"},
		{"data of a later packet", peer, own, answer(wire.ReadResponseMiddle, 0, 1, 256), "rx_odd_response"},
	} {
		before := dropped(d)
		b := c.packet()
		r := d.NewReceiver()
		r.Packet(&Meta{From: netip.MustParseAddr(c.from), To: netip.MustParseAddr(c.to)}, b)
		r.Flush()
		for name, n := range dropped(d) {
			want := before[name]
			if name == c.want {
				want++
			}
			if n != want {
				t.Errorf("%s: %s is %d, want %d", c.field, name, n, want)
			}
		}
		p.qp.resp.busy, p.qp.resp.waiting = false, nil
	}
	for name, n := range dropped(d) {
		if n == 0 {
			t.Errorf("no packet has made %s count", name)
		}
	}
}

// dropped returns the counters of packets that the engine has dropped.
func dropped(d *Device) map[string]uint64 {
	all := map[string]uint64{}
	for _, c := range d.Counters() {
		if strings.HasPrefix(c.Name, "rx_") && c.Name != "rx_wrong_port" {
			all[c.Name] = c.Value
		}
	}
	return all
}
