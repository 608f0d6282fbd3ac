package engine

import (
	"encoding/binary"
	"slices"
	"testing"
)

// TestOpcodes tries every opcode on every service: it is executed, or refused as hardware
// does and called a violation.
func TestOpcodes(t *testing.T) {
	connected := []uint8{opNOP, opSend, opSendImm, opSendInv, opWrite, opWriteImm, opUMR, opLocalInv}
	reliable := append(slices.Clone(connected), opRead, opCAS, opFAA, opMaskedCAS, opMaskedFAA)
	datagram := []uint8{opNOP, opSend, opSendImm}
	for _, c := range []struct {
		typ     QPType
		allowed []uint8
	}{
		{RC, reliable}, {XRC, reliable}, {DCI, reliable}, {UC, connected}, {UD, datagram}, {QP0, datagram}, {QP1, datagram},
		{RegUMR, []uint8{opNOP, opUMR, opLocalInv}}, {RawEth, []uint8{opNOP, opSend, opLSO}},
	} {
		for op := range uint8(0x40) {
			f := newFabric(t, FabricConfig{})
			h := newHost(t, f, InfiniBand)
			m := h.newMR(page, allAccess)
			var q *testQP
			var head []byte // what the service has before everything else
			switch c.typ {
			case RawEth:
				q = h.newSQ(h.newCQ(4, 64), 4)
			case RegUMR:
				q = h.newQP(qpOptions{typ: c.typ})
				q.connect(QPAttr{Primary: Path{Port: 1}})
			case XRC:
				xrcd, err := h.d.AllocXRCD()
				must(t, err)
				srq := h.newSRQ(3, xrcd, h.newCQ(4, 64).n, 5)
				srq.post(m.sge(0, 100))
				q = h.newQP(qpOptions{typ: XRC})
				to := h.newQP(qpOptions{typ: XRC, noSQ: true, xrcd: xrcd})
				connect(q, to)
				head = make([]byte, 16)
				binary.BigEndian.PutUint32(head, srq.n)
			case DCI:
				q = h.newDCI(0, 0)
				dct := h.newDCT(5)
				dct.srq.post(m.sge(0, 100))
				head = q.dcSeg(dct, dcKey)
			default:
				q = h.newQP(qpOptions{typ: c.typ})
				q.connect(q.attr(q)) // with itself
				q.recv(m.sge(0, 100))
				if c.typ != RC && c.typ != UC {
					head = q.avSeg(q, 0x11111111)
				}
			}
			segs, key := opcodeSegs(h, q, op, m)
			if len(head) > 0 && op != opUMR && op != opLocalInv {
				segs = append([][]byte{head}, segs...)
			}
			q.post(op, sig, key, segs...)
			h.run()
			all := q.scq.poll()
			if len(all) != 1 {
				t.Errorf("%s %s: completions %v", c.typ, opName(op), all)
				continue
			}
			broken := h.d.Report().Broken
			if slices.Contains(c.allowed, op) {
				if all[0].op != cqeReq || all[0].sendOp != op || len(broken) != 0 {
					t.Errorf("%s %s: %v, broken %v", c.typ, opName(op), all[0], broken)
				}
				continue
			}
			rule := "wqe-opcode"
			if op == opSetPSV || op == opLSO && c.typ != RawEth {
				rule = "wqe-not-modelled"
			}
			if all[0].syndrome != LocalQPOp || len(broken) != 1 || broken[rule] != 1 {
				t.Errorf("%s %s: %v, broken %v, want %s", c.typ, opName(op), all[0], broken, rule)
			}
		}
	}
}

// opcodeSegs are good segments for an opcode, without those of the service, and the word
// that the control segment has for it.
func opcodeSegs(h *host, q *testQP, op uint8, m *testMR) ([][]byte, uint32) {
	remote := raddrSeg(m.va+1024, m.key)
	result := dataSeg(m.sge(2048, 8))
	switch op {
	case opSend, opSendImm:
		if q.rcq == nil { // an SQ
			return [][]byte{ethSegs(0, frame([6]byte{2}, [6]byte{2}, false, 17, nil))}, 0
		}
		return [][]byte{inlineSeg([]byte("hello"))}, 0
	case opSendInv:
		// The key is one that may be invalidated: a bound window of the QP's own.
		mw, err := h.d.CreateMKey(MKeySpec{PD: h.pd, QPN: NoUserIndex, Mode: ModeKLM, Length: 10, KLMs: []KLM{{10, m.key, m.va}}, RemoteInval: true})
		if err != nil {
			h.t.Fatal(err)
		}
		return [][]byte{inlineSeg([]byte("away"))}, mw << 8
	case opWrite, opWriteImm:
		return [][]byte{remote, inlineSeg([]byte("hello"))}, 0
	case opRead:
		return [][]byte{remote, result}, 0
	case opCAS, opFAA, opMaskedFAA:
		return [][]byte{remote, words64(1, 2), result}, 0
	case opMaskedCAS:
		return [][]byte{remote, words64(1, 2, 3, 4), result}, 0
	case opUMR, opLocalInv:
		return [][]byte{umrSegs(0x80, 0, 1<<29, 0x40, 0, 0, 0, 0)}, h.newMW(false)
	case opLSO:
		tcp := frame([6]byte{2}, [6]byte{2}, false, 6, nil)
		tcp[14+20+12] = 5 << 4
		return [][]byte{lsoSegs(100, tcp), dataSeg(m.sge(0, 250))}, 0
	}
	return nil, 0
}
