package engine

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// TestChecksumFlags: the completion tells which sums of a frame are right, and what it is.
func TestChecksumFlags(t *testing.T) {
	good := func(v6 bool, proto byte) []byte {
		b := frame([6]byte{2}, [6]byte{4}, v6, proto, []byte("data"))
		checksums(b, true, true)
		return b
	}
	bad := func(b []byte, at int) []byte { b[at] ^= 1; return b }
	part := good(false, 17)
	part[20] = 0x20 // more fragments
	checksums(part, true, false)
	noSum := good(false, 17)
	noSum[40], noSum[41] = 0, 0
	for name, tt := range map[string]struct {
		frame        []byte
		checks, kind uint8
	}{
		"UDP":              {good(false, 17), 7, cqeIPv4 | cqeUDP},
		"TCP":              {good(false, 6), 7, cqeIPv4 | cqeTCP},
		"UDP, IPv6":        {good(true, 17), 7, cqeIPv6 | cqeUDP},
		"TCP, IPv6":        {good(true, 6), 7, cqeIPv6 | cqeTCP},
		"padded":           {append(good(false, 17), 1, 2, 3), 7, cqeIPv4 | cqeUDP},
		"data":             {bad(good(false, 17), 43), 3, cqeIPv4 | cqeUDP},
		"header":           {bad(good(false, 6), 22), 5, cqeIPv4 | cqeTCP}, // the time to live
		"fragment":         {part, 3, cqeIPv4},
		"no sum":           {noSum, 7, cqeIPv4 | cqeUDP},
		"no IP":            {make([]byte, 60), 1, 0},
		"no protocol":      {good(false, 17)[:34], 3, cqeIPv4},
		"cut":              {good(false, 17)[:30], 1, 0},
		"a tag and no end": {append(make([]byte, 12), 0x81, 0, 0x20), 1, 0},
	} {
		if checks, kind := checkSums(tt.frame); checks != tt.checks || kind != tt.kind {
			t.Errorf("%s: %#x, %#x, want %#x, %#x", name, checks, kind, tt.checks, tt.kind)
		}
	}
}

// striding makes a striding queue of WQEs with 8 strides of 64 bytes, which takes what h receives.
func (h *host) striding(cq *testCQ, log uint) *testQP {
	h.t.Helper()
	q := &testQP{h: h, rcq: cq, dbr: h.mem.alloc(8), addr: h.mem.alloc(64 << log)}
	q.spec.LogRQ = log
	var err error
	s := RQSpec{CQN: cq.n, PD: h.pd, UserIndex: 0x66, DBR: q.dbr, Buf: Buffer{Pages: pages(q.addr, 64<<log), PageSize: page}, Log: log, LogStride: 6, LogStrides: 3, LogStrideBytes: 6}
	if q.n, err = h.d.CreateRQ(s); err != nil {
		h.t.Fatal(err)
	}
	must(h.t, h.d.ModifyRQ(q.n, WQReset, WQReady, RQChange{}))
	h.d.cfg.Receive = func([]byte) []Delivery { return []Delivery{{q.n, 7}} }
	return q
}

// postStriding posts a WQE, which begins with a next segment.
func (q *testQP) postStriding(s sge) {
	b := q.h.mem.at(q.addr+uint64(q.rc&(1<<q.spec.LogRQ-1))<<6, 64)
	clear(b)
	putSGEs(b[nextSegBytes:], []sge{s})
	q.rc++
	storeBE32(q.h.mem.at(q.dbr, 4), uint32(q.rc))
}

// TestStriding: frames lie one behind the other in a WQE's memory, each from the start of a stride. One that does not
// fit goes into the next WQE, and a completion says that the rest is not used.
func TestStriding(t *testing.T) {
	f := newFabric(t, FabricConfig{})
	h := newHost(t, f, Ethernet)
	q := h.striding(h.newCQ(6, 64), 2)
	m := h.newMR(page, LocalWrite)
	q.postStriding(m.sge(0, 512))
	q.postStriding(m.sge(1024, 512))
	put := func(n int) {
		h.d.f.mu.Lock()
		h.d.receiveEthernet(&packet{kind: pktEth, data: bytes.Repeat([]byte{byte(n)}, n)})
		h.d.f.mu.Unlock()
		h.run()
	}
	for _, n := range []int{64, 65, 200, 100, 513, 400, 20} {
		put(n)
	}
	type got struct{ wqe, stride, strides, n uint16 }
	var all []got
	for _, w := range q.rcq.poll() {
		all = append(all, got{binary.BigEndian.Uint16(w.raw[2:]), w.index, uint16(w.bytes >> 16), uint16(w.bytes)})
	}
	const filler = 1 << 15
	want := []got{{0, 0, 1, 64}, {0, 1, 2, 65}, {0, 3, 4, 200}, {0, 7, filler | 1, 0}, {1, 0, 2, 100}, {1, 2, 1, 20}}
	if !slices.Equal(all, want) {
		t.Errorf("completions %v, want %v", all, want)
	}
	for at, n := range map[int]int{0: 64, 64: 65, 192: 200, 1024: 100, 1152: 20} {
		if !bytes.Equal(m.data[at:at+n], bytes.Repeat([]byte{byte(n)}, n)) {
			t.Errorf("at %d are %x, want %d bytes %#x", at, m.data[at:at+n], n, n)
		}
	}
	if n := h.d.Report().Packets["dropped: no receive WQE"]; n != 2 { // of 513 and 400 bytes
		t.Errorf("%d frames were dropped", n)
	}
	must(t, h.d.ModifyRQ(q.n, WQReady, WQReset, RQChange{}))
	h.clean()
}

// TestCompressed: completions that follow one another are compressed, and others end that.
func TestCompressed(t *testing.T) {
	for mini, want := range map[MiniFormat][2]uint16{MiniHash: {0, 0}, MiniCsum: {0xe2e2, 0}, MiniStride: {0xe2e2, 1}} {
		f := newFabric(t, FabricConfig{})
		h := newHost(t, f, Ethernet)
		cq := &testCQ{h: h, log: 6, size: 64, dbr: h.mem.alloc(8), uar: h.uar()}
		cq.addr = h.cqBuffer(6, 64)
		s := cq.spec()
		s.Mini = mini
		var err error
		cq.n, err = h.d.CreateCQ(s)
		must(t, err)
		q := h.striding(cq, 3)
		m := h.newMR(page, LocalWrite)
		for range 4 {
			q.postStriding(m.sge(0, 512))
		}
		frames := func(n, size int) {
			h.d.f.mu.Lock()
			for range n {
				h.d.receiveEthernet(&packet{kind: pktEth, data: append(make([]byte, 14), bytes.Repeat([]byte{0xf1}, size-14)...)})
			}
			h.d.f.mu.Unlock()
		}
		entry := func(i int) []byte { return h.mem.at(cq.addr+uint64(64*i), 64) }
		frames(1, 60)
		if h.run(); entry(0)[63] != cqeRespSend<<4 {
			t.Errorf("format %d: one completion is %x", mini, entry(0))
		}
		frames(7+8+8, 16) // the rest of one WQE, and two others
		h.run()
		title, array := entry(1), entry(2)
		if title[63] != cqeRespSend<<4|cqeMini || binary.BigEndian.Uint32(title[44:]) != 7 || binary.BigEndian.Uint16(title[60:]) != 1 {
			t.Errorf("format %d: title %x", mini, title)
		}
		if n := binary.BigEndian.Uint32(array[4:]); n != 1<<16|16 {
			t.Errorf("format %d: the first small entry has the byte count %#x", mini, n)
		}
		if got := [2]uint16{binary.BigEndian.Uint16(array), binary.BigEndian.Uint16(array[2:])}; mini != MiniHash && got != [2]uint16{onesSum(m.data[64+14 : 64+16]), want[1]} {
			t.Errorf("format %d: the first small entry has %x", mini, got)
		}
		for i := 3; i < 8; i++ {
			if !bytes.Equal(entry(i)[:63], make([]byte, 63)) || entry(i)[63] != 0xf0 {
				t.Errorf("format %d: entry %d was written", mini, i)
			}
		}
		for _, i := range []int{8, 16} {
			if e := entry(i); e[63] != cqeRespSend<<4|cqeMini || binary.BigEndian.Uint32(e[44:]) != 8 {
				t.Errorf("format %d: title %x", mini, e)
			}
		}
		if got, err := h.d.QueryCQ(cq.n); err != nil || got.Producer != 24 || h.d.Report().CQEs["compressed"] != 3 {
			t.Errorf("format %d: producer %d, %v, %v", mini, got.Producer, h.d.Report().CQEs, err)
		}
		cq.ci = 24
		cq.record()
		// None goes around the end of the ring. The first WQE has one completion less than the others.
		for range 6 {
			q.postStriding(m.sge(0, 512))
		}
		frames(1, 100)
		for _, n := range []int{6, 8, 8, 8, 7, 5} {
			frames(n, 16)
			h.run()
		}
		if e := entry(63); e[63] != cqeRespSend<<4 {
			t.Errorf("format %d: the last entry is %x", mini, e)
		}
		if e := entry(0); e[63] != cqeRespSend<<4|cqeMini|1 || binary.BigEndian.Uint32(e[44:]) != 3 {
			t.Errorf("format %d: the first entry is %x", mini, e)
		}
		cq.ci = 67
		cq.record()
		h.clean()
	}
}
