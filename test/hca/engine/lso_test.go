package engine

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// lsoSegs is the Ethernet segment of a large send.
func lsoSegs(mss int, header []byte) []byte {
	b := ethSegs(0xc0, header)
	binary.BigEndian.PutUint16(b[6:], uint16(mss))
	return b
}

// TestLSO: a large send arrives in frames that make up the whole.
func TestLSO(t *testing.T) {
	for _, c := range []struct {
		v6    bool
		proto byte
		n     int
		mss   int
	}{{false, 6, 4000, 1000}, {false, 6, 2001, 1000}, {true, 6, 5000, 1440}, {false, 17, 1500, 700}, {true, 17, 10, 700}} {
		f := newFabric(t, FabricConfig{})
		ha, hb := newHost(t, f, Ethernet), newHost(t, f, Ethernet)
		sq := ha.newSQ(ha.newCQ(5, 64), 5)
		rq := hb.newRQ(hb.newCQ(5, 64), 4)
		hb.d.cfg.Receive = func([]byte) []Delivery { return []Delivery{{RQ: rq.n}} }
		ma, mb := ha.newMR(8192, LocalRead), hb.newMR(16384, LocalWrite)
		for i := range ma.data {
			ma.data[i] = byte(i * 7)
		}
		whole := frame(hb.d.Port().MAC, ha.d.Port().MAC, c.v6, c.proto, ma.data[:c.n])
		header := bytes.Clone(whole[:len(whole)-c.n])
		l4 := len(header) - map[byte]int{6: 20, 17: 8}[c.proto]
		if c.proto == 6 {
			header[l4+12] = 5 << 4
			header[l4+13] = tcpFIN | tcpPSH | tcpCWR
		}
		frames := (c.n + c.mss - 1) / c.mss
		for i := range frames {
			rq.recv(mb.sge(2048*i, 2048))
		}
		sq.post(opLSO, sig, 0, lsoSegs(c.mss, header), dataSeg(ma.sge(0, c.n)))
		ha.run()
		sq.scq.good(1)
		var got []byte
		for i, r := range rq.rcq.good(frames) {
			b := mb.data[2048*i:][:r.bytes]
			if !sumOK(b) {
				t.Errorf("%+v: sums of frame %d: %x", c, i, b)
			}
			if want := min(c.mss, c.n-i*c.mss) + len(header); len(b) != want {
				t.Fatalf("%+v: frame %d has %d bytes, want %d", c, i, len(b), want)
			}
			if c.proto == 6 {
				seq := binary.BigEndian.Uint32(b[l4+4:]) - binary.BigEndian.Uint32(header[l4+4:])
				flags := b[l4+13]
				if int(seq) != i*c.mss || flags&tcpFIN != 0 != (i == frames-1) || flags&tcpPSH != 0 != (i == frames-1) || flags&tcpCWR != 0 != (i == 0) {
					t.Errorf("%+v: frame %d has sequence %d and flags %#x", c, i, seq, flags)
				}
			}
			if id := binary.BigEndian.Uint16(b[18:]); !c.v6 && int(id-binary.BigEndian.Uint16(header[18:])) != i {
				t.Errorf("%+v: frame %d has number %d", c, i, id)
			}
			got = append(got, b[len(header):]...)
		}
		if !bytes.Equal(got, ma.data[:c.n]) {
			t.Errorf("%+v: other data than was sent", c)
		}
		ha.clean()
		hb.clean()
	}
}

// TestLSOErrors: what can't be cut.
func TestLSOErrors(t *testing.T) {
	tcp := frame([6]byte{2}, [6]byte{2}, false, 6, nil)
	icmp := bytes.Clone(tcp)
	icmp[23] = 1
	for name, segs := range map[string][]byte{
		"no mss": lsoSegs(0, tcp), "no headers": lsoSegs(100, nil), "short headers": lsoSegs(100, tcp[:30]), "not TCP": lsoSegs(100, icmp), "half of TCP": lsoSegs(100, tcp[:50]),
	} {
		f := newFabric(t, FabricConfig{})
		h := newHost(t, f, Ethernet)
		sq := h.newSQ(h.newCQ(5, 64), 4)
		m := h.newMR(4096, LocalRead)
		sq.post(opLSO, sig, 0, segs, dataSeg(m.sge(0, 1000)))
		h.run()
		if w := sq.scq.one(); w.syndrome != LocalQPOp {
			t.Errorf("%s: %v", name, w)
		}
		h.broke("wqe-lso")
	}
}
