//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// request is a work request with data in one piece.
type request struct {
	op           Op
	flags        uint8
	imm          uint32
	raddr        uint64
	rkey         uint32
	inline       []byte
	addr         uint64
	length, lkey uint32
}

// peer is where a work request goes that names its peer itself.
type peer struct {
	av     *AV
	qpn    uint32
	key    uint64
	stream uint16
}

// put writes a request by PutInline or PutSGE.
func (r *request) put(q *SendQueue, id uint64, to *peer) bool {
	m := NewMeta(r.op, r.flags, r.imm)
	switch q.transport {
	case Datagram:
		q.ToQP(to.qpn, uint32(to.key), to.av)
	case DC:
		q.ToDCT(to.qpn, to.key, to.av)
		m = m.WithStream(to.stream)
	}
	if len(r.inline) > 0 {
		return q.PutInline(id, m, r.raddr, r.rkey, r.inline)
	}
	return q.PutSGE(id, m, r.raddr, r.rkey, r.addr, r.length, r.lkey)
}

// fill writes a request by the methods of a slot.
func (r *request) fill(t *testing.T, s *SendSlot, to *peer) {
	switch s.q.transport {
	case Datagram:
		s.SetUD(to.qpn, uint32(to.key), to.av)
	case DC:
		s.SetDC(to.qpn, to.key, to.stream, to.av)
	}
	if shapes[r.op].rdma {
		s.SetRDMA(r.raddr, r.rkey)
	}
	if shapes[r.op].imm != 0 {
		s.SetImm(r.imm)
	}
	if len(r.inline) > 0 {
		ok(t, s.AddInline(r.inline))
	} else {
		ok(t, s.AddSGE(r.addr, r.length, r.lkey))
	}
}

// TestPut: a work request that PutInline or PutSGE writes is the one that the slot's methods write, byte by
// byte and at any place of the ring, and completes the same way. They leave out only a request at the end of
// the ring.
func TestPut(t *testing.T) {
	av := NewAV(&AVAttr{LID: 0x123, SL: 3, Global: true, GID: [16]byte{0xfe, 15: 1}, HopLimit: 9, FlowLabel: 0x54321})
	for name, c := range map[string]struct {
		transport Transport
		to        *peer
	}{
		"connected": {Connected, nil},
		"datagram":  {Datagram, &peer{av: &av, qpn: 0x123456, key: 0x80010000}},
		"DC":        {DC, &peer{av: &av, qpn: 0x123456, key: 0x123456789abcdef0, stream: 0x0203}},
	} {
		t.Run(name, func(t *testing.T) { testPut(t, c.transport, c.to) })
	}
}

// testPut is TestPut for a transport.
func testPut(t *testing.T, transport Transport, to *peer) {
	const mostInline = 200
	random := rand.New(rand.NewPCG(1, uint64(transport)))
	put, slot := newCard(t, transport, 16, 3, mostInline), newCard(t, transport, 16, 3, mostInline)
	wraps, written := 0, 0
	for id := range uint64(5000) {
		r := request{
			op: []Op{Send, SendImm, Write, WriteImm, Read}[random.IntN(5)], flags: uint8(random.IntN(numFlags)), imm: random.Uint32(),
			raddr: random.Uint64(), rkey: random.Uint32(), addr: random.Uint64(), length: random.Uint32N(maxLength + 1), lkey: random.Uint32(),
		}
		if random.IntN(5) == 0 {
			r.length = []uint32{0, maxLength}[random.IntN(2)]
		}
		if r.op != Read && random.IntN(2) == 0 {
			r.inline = pattern(1 + random.IntN(mostInline))
		}
		if random.IntN(5) == 0 && transport != Datagram { // the next one has a fence, unless it has its own
			for _, k := range []*card{put, slot} {
				k.post(1, LocalInv, 0, func(s *SendSlot) { s.SetLocalInv(7) })
				k.take()
			}
		}
		put.sq.Begin()
		if !put.sq.Room(1) {
			t.Fatalf("%d: no room", id)
		}
		left := int(put.sq.mask+1-put.sq.next&put.sq.mask) * blockSize
		fits := true
		if r.put(put.sq, id, to) {
			written++
			put.sq.Publish()
		} else {
			fits = false
			put.post(id, r.op, r.flags, func(s *SendSlot) { r.fill(t, s, to) })
		}
		slot.post(id, r.op, r.flags, func(s *SendSlot) { r.fill(t, s, to) })
		at := put.taken
		got, want := put.take(), slot.take()
		if !fits {
			if wraps++; len(want) <= left && (to == nil && len(r.inline) == 0 || len(r.inline) > 0 || left > blockSize) {
				t.Fatalf("%d: %+v was not written, although it has %d bytes and there are %d before the end of the ring", id, r, len(want), left)
			}
		}
		if pad := -len(r.inline) - 4; len(r.inline) > 0 { // what is behind the data is left as it was
			pad = (pad%16 + 16) % 16
			clear(got[len(got)-pad:])
			clear(want[len(want)-pad:])
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d: %+v is\n%x, want\n%x", id, r, got, want)
		}
		for _, k := range []*card{put, slot} {
			if done, op, ok := k.sq.Complete(at); done != id || op != r.op || !ok {
				t.Fatalf("%d: completion of %d, %d, %v", id, done, op, ok)
			}
		}
	}
	if wraps == 0 || written < 4000 {
		t.Errorf("%d requests were written, %d were at the end of the ring", written, wraps)
	}
}

// TestPutRefuses: of what is wrong nothing is written.
func TestPutRefuses(t *testing.T) {
	k := newCard(t, Connected, 4, 1, 64)
	none := newCard(t, Connected, 4, 0, 64)
	for _, c := range []struct {
		card *card
		request
	}{
		{k, request{op: Send, inline: make([]byte, k.sq.maxInline+1)}},
		{k, request{op: Send, addr: 1, length: maxLength + 1, lkey: 1}},
		{none, request{op: Send, addr: 1, length: 1, lkey: 1}},
	} {
		q := c.card.sq
		q.fence = flagSmallFence
		if !q.Room(1) || c.put(q, 1, nil) || q.filled != 0 || q.next != 0 || q.fence == 0 {
			t.Errorf("a request with %d bytes inline or %d at %#x was written", len(c.inline), c.length, c.addr)
		}
	}
	q := k.sq
	if q.fence = 0; q.PutInline(1, NewMeta(Send, 0, 0), 0, 0, nil) || q.filled != 0 {
		t.Error("a request without inline data was written")
	}
}
