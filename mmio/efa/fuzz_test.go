//go:build amd64 || arm64

package efa

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// script hands out the bytes of a fuzzed sequence of operations, then zeros.
type script []byte

func (s *script) next() int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b)
}

// FuzzQueues runs a script of a program and of a device that completes anything, or writes anything into the
// CQ. The queues accept completions of posted requests, each once, and never lose or gain room.
func FuzzQueues(f *testing.F) {
	around := make([]byte, 0, 512)
	for i := range 128 {
		around = append(around, byte(i%8), byte(i*5), byte(i*11), byte(i%7))
	}
	f.Add(around, uint8(3))
	f.Add(around[3:], uint8(0))
	f.Add([]byte{0, 4, 2, 0, 2, 0, 2, 1, 7, 2, 0}, uint8(1))
	f.Fuzz(func(t *testing.T, ops []byte, log uint8) {
		n := 1 << (log % 5)
		r := newRig(t, SendSize{Depth: n, Width: 64, MaxSGE: 2, MaxInline: 32, Batch: 3}, RecvSize{MaxWR: n, MaxSGE: 2, Descriptors: 2 * n}, 2, 4)
		sends, recvs := map[uint16]uint64{}, map[uint16]uint64{} // posted, by request ID
		var id uint64
		gen := uint16(1)
		complete := func(reqID uint16, send bool) {
			posted, got, ok := recvs, uint64(0), false
			if send {
				posted = sends
				got, _, _, ok = r.sq.Complete(reqID)
			} else {
				got, ok = r.rq.Complete(reqID)
			}
			if want, in := posted[reqID]; in != ok || ok && got != want {
				t.Fatalf("completion of %#x (send: %v): %d, %v; want %d, %v", reqID, send, got, ok, want, in)
			}
			delete(posted, reqID)
		}
		for s := script(ops); len(s) > 0; {
			id++
			if a, b := r.sq.Posted(), r.rq.Posted(); a != len(sends) || b != len(recvs) {
				t.Fatalf("%d sends and %d receives are posted, want %d and %d", a, b, len(sends), len(recvs))
			}
			switch what := s.next() % 8; what {
			case 0, 1: // sends, of which the last one may be left out
				k := s.next()%n + 1
				if room := r.sq.Room(k); room != (len(sends)+k <= n) {
					t.Fatalf("Room(%d) = %v with %d of %d", k, room, len(sends), n)
				} else if !room {
					continue
				}
				for i := range k {
					testenv.Must(t, r.sq.put(i, id+uint64(i)<<32, Send, 0, Peer{}, 0, 0, 1, 1, 1))
				}
				if k > 1 && what == 1 {
					k--
				}
				r.sq.Publish(k)
				all := r.requests()
				if len(all) != k {
					t.Fatalf("the device sees %d requests, want %d", len(all), k)
				}
				for i, w := range all {
					sends[idOf(w)] = id + uint64(i)<<32
				}
			case 2: // a receive
				if !r.rq.Room(1) {
					continue
				}
				r.rq.Begin()
				slot := r.rq.Slot(0, id)
				testenv.Must(t, slot.AddSGE(1, 2, 3))
				if id%2 == 0 {
					testenv.Must(t, slot.AddSGE(1, 2, 3))
				}
				testenv.Must(t, slot.Finish())
				r.rq.Publish(1)
				recvs[idOf(r.descriptors()[0])] = id
			case 3: // a completion of anything
				complete(uint16(s.next()<<8|s.next()), id%2 == 0)
			case 4, 5: // a completion of what was posted
				posted := sends
				if what == 5 {
					posted = recvs
				}
				for reqID := range posted {
					complete(reqID, what == 4)
					break
				}
			case 6:
				gen++
				r.sq = r.sq.Renewed(gen)
				r.rq.Reset(gen)
				clear(sends)
				clear(recvs)
				clear(r.sendBell)
				clear(r.recvBell)
				r.sent, r.received = 0, 0
			case 7: // into the CQ
				r.peer.cq[(s.next()<<8|s.next())%len(r.peer.cq)] = byte(s.next())
				for range 20 { // a device that has written its phase everywhere never ends
					c, ok := next(r.cq)
					if !ok {
						break
					}
					c.Source()
					switch c.Kind() {
					case KindSend:
						complete(c.ReqID(), true)
					case KindRecv:
						complete(c.ReqID(), false)
					}
				}
				r.cq.Release()
				r.cq.Arm()
			}
		}
	})
}

// FuzzResponses decodes anything. Accepted responses can be mapped and used.
func FuzzResponses(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(make([]byte, 64))
	f.Add(contextResp)
	f.Add(cqResp)
	f.Add(qpResp)
	f.Add(deviceResp)
	f.Fuzz(func(t *testing.T, b []byte) {
		const page = 4096
		send, recv := SendSize{Depth: 8, Width: 64, MaxSGE: 1}, RecvSize{MaxWR: 8, MaxSGE: 1, Descriptors: 8}
		bell := func(m Mapping, offset uint32) {
			if mem, err := Doorbell(alloc(m.Size), offset); err != nil || len(mem) < 4 {
				t.Errorf("doorbell %d of %+v: %v", offset, m, err)
			}
		}
		if r, err := DecodeCQ(b, 2, 4, page); err == nil {
			if r.Ring.Size < 2*4*EntrySize {
				t.Errorf("CQ: %+v", r)
			}
			if r.Doorbell.Size != 0 {
				bell(r.Doorbell, r.Offset)
			}
		}
		if r, err := DecodeQP(b, send, recv, page); err == nil {
			if r.Send.Size%page != 0 || r.Send.Size < int(r.SendOffset)+send.Bytes() || r.SendOffset%64 != 0 || r.Recv.Size < recv.Bytes() {
				t.Errorf("QP: %+v", r)
			}
			bell(r.SendDoorbell, r.SendBell)
			bell(r.RecvDoorbell, r.RecvBell)
		}
		c, err := DecodeContext(b)
		d, err2 := DecodeDevice(b)
		if err != nil || err2 != nil {
			return
		}
		for _, maxWR := range []int{0, 1, 100, 1 << 20} {
			for _, inline := range []int{0, 32, 33, 80, 81} {
				for _, write := range []bool{false, true} {
					s, err := c.SendSize(&d, maxWR, 2, inline, write)
					if err == nil && (s.Depth < maxWR || s.Bytes() > int(c.MaxLLQ) || s.MaxInline > s.inlineRoom()) {
						t.Errorf("%d sends with %d bytes inline of %+v, %+v: %+v", maxWR, inline, c, d, s)
					}
					if err == nil {
						_, err = NewSendQueue(alloc(s.Bytes()), alloc(4), s, 0)
						testenv.Must(t, err)
					}
					if err != nil && !errors.Is(err, ErrSize) {
						t.Error(err)
					}
				}
			}
			s, err := d.RecvSize(maxWR, 2)
			if err == nil && maxWR > 0 {
				_, err = NewRecvQueue(alloc(s.Bytes()), alloc(4), s, 0)
				testenv.Must(t, err)
			}
		}
	})
}
