package engine

import (
	"bytes"
	hexadecimal "encoding/hex"
	"reflect"
	"slices"
	"testing"
)

// framePackets are packets of each kind, without their route.
func framePackets() (all []packet) {
	for op, w := range wireOps {
		for service, bits := range wireServices {
			p := packet{kind: w.kind, service: service, first: w.first, last: w.last, hasImm: w.imm, invalidate: w.inv, dest: 0x123456, psn: 0xfffffe, pkey: 0xffff}
			if bits == wireUC && (w.kind != pktSend && w.kind != pktWrite || w.inv) {
				continue
			}
			if bits == wireUD {
				if op != 0x04 && op != 0x05 {
					continue
				}
				p.qkey, p.src = 0x11223344, 0x77
			}
			p.ackReq, p.solicited = w.last, w.imm
			if w.imm || w.inv {
				p.imm = 0x01020304
			}
			if w.reth {
				p.va, p.rkey, p.length = 0x0102030405060708, 0x99887766, 5000
			}
			if w.aeth {
				p.syndrome, p.msn = ackOK, 0xabcdef
			}
			switch w.kind {
			case pktAtomicReq:
				p.va, p.rkey, p.length, p.op, p.args = 0x0102030405060708, 0x99887766, 8, opFAA, [4]uint64{7}
				if op == wireCAS {
					p.op, p.args = opCAS, [4]uint64{7, 8, ^uint64(0), ^uint64(0)}
				}
			case pktAtomicResp:
				p.data = []byte("original")
			case pktSend, pktWrite, pktReadResp:
				p.data = []byte("hello")
			}
			all = append(all, p)
		}
	}
	return all
}

// frameRoutes are a route of each family.
var frameRoutes = []route{
	{v2: true, grh: true, sgid: mappedGID([]byte{10, 1, 0, 1}), dgid: mappedGID([]byte{10, 1, 0, 2}), tclass: 0x20, hops: 63, smac: [6]byte{2, 1}, dmac: [6]byte{2, 2}, sport: 0xc123},
	{v2: true, grh: true, sgid: [16]byte{0xfd, 15: 1}, dgid: [16]byte{0xfd, 15: 2}, tclass: 0x20, hops: 63, flow: 0x12345, smac: [6]byte{2, 1}, dmac: [6]byte{2, 2}, sport: 0xc123},
}

// TestFrame: what a packet becomes as a frame is what the frame is read as, and every bit behind the IP header is
// part of that.
func TestFrame(t *testing.T) {
	for _, r := range frameRoutes {
		for _, p := range framePackets() {
			p.route = r
			frame := p.frame()
			got, err := parseFrame(frame)
			if p.data == nil {
				p.data = []byte{}
			}
			if err != nil || !reflect.DeepEqual(got, &p) {
				t.Fatalf("%s: %x is read as\n%+v, %v, want\n%+v", &p, frame, got, err, p)
			}
			frame[len(frame)-6] ^= 1
			if got, err := parseFrame(frame); err == nil {
				t.Errorf("%s: a damaged frame is read as %+v", &p, got)
			}
		}
	}
	for _, p := range []packet{{service: XRC, route: frameRoutes[0]}, {kind: pktAtomicReq, op: opMaskedFAA, route: frameRoutes[0]}, {first: true, last: true}} {
		if b := p.frame(); b != nil {
			t.Errorf("%+v has a frame: %x", p, b)
		}
	}
}

// rxeAcks are acknowledgements that rxe has sent, from the IP header to the ICRC.
var rxeAcks = []string{
	"45000030d7f9400040114ebf0a0100010a010002faa112b7001c00001100ffff0000b59c009f682e1f000001a97d601e",
	"60000000001c1140fd000001000000000000000000000001fd000001000000000000000000000002dbd912b7001c00001100ffff00004c3600ede9971f00000162fe8f5a",
}

// TestFrameOfRxe reads packets that others have made.
func TestFrameOfRxe(t *testing.T) {
	for i, text := range rxeAcks {
		ip, err := hexadecimal.DecodeString(text)
		must(t, err)
		frame := append(make([]byte, 12), []byte{etherIPv4 >> 8, 0}...)
		if i == 1 {
			frame = append(frame[:12], etherIPv6>>8, etherIPv6&0xff)
		}
		p, err := parseFrame(append(frame, ip...))
		must(t, err)
		if p.kind != pktAck || p.syndrome != ackOK || p.msn != 1 || p.psn != []uint32{0x9f682e, 0xede997}[i] || p.dest != []uint32{0xb59c, 0x4c36}[i] {
			t.Errorf("%+v", p)
		}
	}
}

// TestPortWithoutRoCE sends to a port without an address of RoCE v2, whose Ethernet driver gets the frame; and the
// same frame to a port that has the address, where a queue pair gets it.
func TestPortWithoutRoCE(t *testing.T) {
	p := newUD(t, Ethernet, false, qpOptions{}, qpOptions{})
	d := p.b.h.d
	av := p.a.avSeg(p.b, 0x11111111)
	port := d.Port()
	off := port
	off.GIDs = nil
	d.SetPort(off)
	var frames [][]byte
	d.cfg.Receive = func(b []byte) []Delivery {
		frames = append(frames, bytes.Clone(b))
		return nil
	}
	p.a.post(opSendImm, sig, 77, av, inlineSeg([]byte("hello")))
	p.a.h.run()
	p.a.scq.good(1)
	if len(frames) != 1 || !bytes.Equal(frames[0][:6], port.MAC[:]) {
		t.Fatalf("the Ethernet driver got %x", frames)
	}
	d.SetPort(port)
	p.b.recv(p.mb.sge(0, 100))
	d.receive(&packet{kind: pktEth, data: frames[0]})
	p.b.h.run()
	if r := p.b.rcq.good(1)[0]; r.op != cqeRespSendImm || r.imm != 77 || string(p.mb.data[40:45]) != "hello" {
		t.Errorf("%+v, %q", r, p.mb.data[40:45])
	}
	if len(frames) != 1 {
		t.Errorf("the Ethernet driver got %x", frames[1:])
	}
	damaged := bytes.Clone(frames[0])
	damaged[len(damaged)-6] ^= 1
	d.receive(&packet{kind: pktEth, data: damaged})
	if len(frames) != 1 || d.rep.packets["dropped: no such QP"] != 0 || len(p.b.rcq.poll()) != 0 {
		t.Error("a frame with a wrong ICRC has arrived")
	}
	p.clean()
}

// TestSourcePort: the frames of a connection have the source port that it has been given last. A
// queue pair of datagrams does not have one of its own.
func TestSourcePort(t *testing.T) {
	p := newPair(t, Ethernet, UC, false, qpOptions{})
	d := p.b.h.d
	off := d.Port()
	off.GIDs = nil
	d.SetPort(off)
	var ports []uint16
	d.cfg.Receive = func(b []byte) []Delivery {
		if got, err := parseFrame(b); err == nil {
			ports = append(ports, got.sport)
		}
		return nil
	}
	for _, port := range []uint16{0, 0xd903, 0xffff} {
		if port != 0 {
			a := QPAttr{}
			a.Primary.UDPSport = port
			p.a.modify(RTS2RTS, OptUDPSport, a)
		}
		p.a.post(opSend, sig, 0, inlineSeg([]byte("hello")))
		p.a.h.run()
	}
	if want := []uint16{0xc000, 0xd903, 0xffff}; !slices.Equal(ports, want) {
		t.Errorf("the frames have the source ports %#x, want %#x", ports, want)
	}
	u := newUD(t, Ethernet, false, qpOptions{}, qpOptions{})
	if err := u.a.h.d.ModifyQP(u.a.n, RTS2RTS, OptUDPSport, QPAttr{}); err == nil {
		t.Error("a QP for datagrams has a source port")
	}
}

// FuzzFrame reads frames of any bytes.
func FuzzFrame(f *testing.F) {
	for _, r := range frameRoutes {
		for _, p := range framePackets() {
			p.route = r
			f.Add(p.frame())
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < ethHeader {
			return
		}
		p, err := parseFrame(b)
		if p == nil || err != nil {
			return
		}
		q, err := parseFrame(p.frame())
		p.sport, p.hops = max(p.sport, q.sport), max(p.hops, q.hops) // 0 is given a value
		if p.kind == pktReadResp || p.kind == pktAtomicResp {
			p.syndrome = q.syndrome
		}
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Errorf("%x is %+v, and then %+v, %v", b, p, q, err)
		}
	})
}
