package engine

import (
	"encoding/binary"
	"fmt"
	"time"
)

// flood are frames that an RQ gets from nowhere.
type flood struct {
	d     *Device
	r     *rq
	tag   uint32
	frame []byte
	next  uint64 // number of the next frame
	count uint64
}

// The frames of a flood are of UDP, and have their number, 8 bytes, behind the headers.
const (
	floodData  = ethHeader + ipv4Bytes + 8
	floodBurst = 64
	floodWait  = 20 * time.Microsecond
)

// Flood has the RQ to which the flow tables lead receive so many frames of n bytes to the port's address: not more than it
// has room for, so that none is lost.
func (d *Device) Flood(count uint64, n int) error {
	d.f.mu.Lock()
	defer d.f.mu.Unlock()
	if n < floodData+8 || n > 9000 || d.cfg.Receive == nil {
		return fmt.Errorf("frames of %d bytes: want %d to 9000, on Ethernet", n, floodData+8)
	}
	b := make([]byte, n)
	copy(b, d.port.MAC[:])
	copy(b[6:], []byte{2, 0, 0, 0, 0, 9, 8, 0, 0x45})
	binary.BigEndian.PutUint16(b[ethHeader+2:], uint16(n-ethHeader))
	copy(b[ethHeader+8:], []byte{64, protoUDP, 0, 0, 10, 9, 0, 1, 10, 9, 0, 2, 0, 7, 0, 9})
	binary.BigEndian.PutUint16(b[ethHeader+ipv4Bytes+4:], uint16(n-ethHeader-ipv4Bytes))
	to := d.cfg.Receive(b)
	if len(to) != 1 || d.rqs[to[0].RQ] == nil {
		return fmt.Errorf("the flow tables lead such frames to %d queues, want 1", len(to))
	}
	f := &flood{d: d, r: d.rqs[to[0].RQ], tag: to[0].Tag, frame: b, count: count}
	d.f.soon(f.run)
	return nil
}

// run delivers a burst.
func (f *flood) run() {
	for range floodBurst {
		if f.next == f.count || f.d.rqs[f.r.n] != f.r || f.r.state != WQReady {
			return
		}
		if !f.r.room(len(f.frame)) {
			f.d.f.after(floodWait, f.run)
			return
		}
		binary.BigEndian.PutUint64(f.frame[floodData:], f.next)
		checksums(f.frame, true, true)
		f.r.deliver(f.d, &packet{kind: pktEth, data: f.frame}, f.tag)
		f.next++
	}
	f.d.f.soon(f.run)
}

// room reports whether a frame has room in the queue and its completions have room in the CQ.
func (r *rq) room(n int) bool {
	size := uint32(1) << r.cq.spec.Log
	ci, ok := r.cq.consumer()
	if !ok || (r.cq.pi-ci)&maxNumber+uint32(len(r.cq.zip))+2 > size {
		return false
	}
	if r.open != nil && r.used+uint32(n+1<<r.spec.LogStrideBytes-1)>>r.spec.LogStrideBytes <= 1<<r.spec.LogStrides {
		return true
	}
	left, ok := r.w.posted()
	return ok && left > 0
}
