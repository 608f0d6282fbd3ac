package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestRealTime: a fabric that runs by itself, two drivers in goroutines of their own that
// wait for interrupts, and packets that are lost. Under the race detector this is the test
// of the locking.
func TestRealTime(t *testing.T) {
	f := NewFabric(FabricConfig{Seed: 3, Loss: 0.02, Duplicate: 0.02})
	defer f.Close()
	ha, hb := newHost(t, f, Ethernet), newHost(t, f, Ethernet)
	a, b := ha.newQP(qpOptions{typ: RC}), hb.newQP(qpOptions{typ: RC})
	ma, mb := ha.newMR(16<<10, allAccess), hb.newMR(16<<10, allAccess)
	ma.fill(1)
	mb.fill(2)
	wake := map[*host]chan struct{}{ha: make(chan struct{}, 1), hb: make(chan struct{}, 1)}
	for h, c := range wake {
		h.d.f.mu.Lock()
		h.d.cfg.Interrupt = func(int) {
			select {
			case c <- struct{}{}:
			default:
			}
		}
		h.d.cfg.Trace = nil
		h.d.f.mu.Unlock()
	}
	connect(a, b)
	const rounds = 200
	var wg sync.WaitGroup
	// next waits for one completion of a CQ, by polling or by an event.
	next := func(h *host, c *testCQ, events bool, stash *[]wc) (wc, error) {
		deadline := time.Now().Add(time.Minute)
		for len(*stash) == 0 {
			if *stash = c.poll(); len(*stash) > 0 {
				break
			}
			if time.Now().After(deadline) {
				return wc{}, fmt.Errorf("no completion")
			}
			if !events {
				time.Sleep(10 * time.Microsecond)
				continue
			}
			c.arm(false)
			h.eq.arm()
			if *stash = c.poll(); len(*stash) > 0 {
				break
			}
			select {
			case <-wake[h]:
			case <-time.After(time.Minute):
				return wc{}, fmt.Errorf("no interrupt")
			}
			for _, e := range h.eq.poll() {
				if e.typ == EventComp && e.object() == c.n {
					c.sn = (c.sn + 1) & 3
				}
			}
		}
		w := (*stash)[0]
		*stash = (*stash)[1:]
		if w.syndrome != 0 {
			return w, fmt.Errorf("completion %v", w)
		}
		return w, nil
	}
	side := func(q *testQP, m *testMR, first bool) {
		defer wg.Done()
		var sends, recvs []wc
		sent := 0
		for i := range rounds {
			n := i*29%1500 + 1
			if first {
				q.poster(i)(opSend, sig, 0, inlineSeg([]byte{1, 2, 3, byte(i)}))
			}
			if w, err := next(q.h, q.rcq, true, &recvs); err != nil {
				t.Errorf("round %d: receive: %v", i, err)
				return
			} else if first && int(w.bytes) != n {
				t.Errorf("round %d: %d bytes, want %d", i, w.bytes, n)
			}
			q.recv(m.sge(8192, 4096))
			if !first {
				q.post(opSend, sig, 0, dataSeg(m.sge(0, n)))
			}
			if _, err := next(q.h, q.scq, false, &sends); err != nil {
				t.Errorf("round %d: send: %v", i, err)
				return
			}
			sent++
		}
	}
	a.recv(ma.sge(8192, 4096))
	b.recv(mb.sge(8192, 4096))
	wg.Add(2)
	go side(a, ma, true)
	go side(b, mb, false)
	wg.Wait()
	if !bytes.Equal(ma.data[8192:8192+100], mb.data[:100]) {
		t.Error("the data is another")
	}
	b.modify(To2Err, 0, QPAttr{})
	var flushed []wc
	b.rcq.poll()
	for deadline := time.Now().Add(time.Minute); len(flushed) == 0 && time.Now().Before(deadline); {
		b.recv(mb.sge(0, 1)) // no doorbell says so: the device looks from time to time
		time.Sleep(time.Millisecond)
		flushed = b.rcq.poll()
	}
	if len(flushed) == 0 || flushed[0].syndrome != Flushed {
		t.Errorf("%v", flushed)
	}
	ha.clean()
	hb.clean()
}

// TestCloseBusy: a fabric and its devices can be closed at any time.
func TestCloseBusy(t *testing.T) {
	f := NewFabric(FabricConfig{})
	h := newHost(t, f, InfiniBand)
	h.d.f.mu.Lock()
	h.d.cfg.Trace = nil
	h.d.f.mu.Unlock()
	q := h.newQP(qpOptions{typ: RC})
	m := h.newMR(16<<10, allAccess)
	q.connect(q.attr(q))
	for range 30 {
		q.post(opWrite, nothing, 0, raddrSeg(m.va, m.key), dataSeg(m.sge(0, 16<<10)))
	}
	h.d.Close()
	var b [8]byte
	binary.BigEndian.PutUint32(b[4:], q.n<<8|1)
	h.d.UARWrite(q.spec.UAR, 0x800, b[:])
	f.Close()
	f.Close()
}
