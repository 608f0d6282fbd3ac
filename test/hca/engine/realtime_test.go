package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"
)

// realTimeSide is one of the two drivers of TestRealTime.
type realTimeSide struct {
	q            *testQP
	m            *testMR
	wake         chan struct{} // receives after an interrupt
	sends, recvs []wc          // completions that were polled and not used yet
}

// newRealTimeSide makes a host with a QP, memory with its own data, and interrupts.
func newRealTimeSide(t *testing.T, f *Fabric, seed byte) *realTimeSide {
	t.Helper()
	h := newHost(t, f, Ethernet)
	s := &realTimeSide{q: h.newQP(qpOptions{typ: RC}), m: h.newMR(16<<10, allAccess), wake: make(chan struct{}, 1)}
	s.m.fill(seed)
	h.d.f.mu.Lock()
	h.d.cfg.Interrupt = func(int) {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	h.d.cfg.Trace = nil
	h.d.f.mu.Unlock()
	return s
}

// nextSend polls until a send completes.
func (s *realTimeSide) nextSend() error {
	deadline := time.Now().Add(time.Minute)
	for len(s.sends) == 0 {
		if s.sends = s.q.scq.poll(); len(s.sends) > 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no completion")
		}
		time.Sleep(10 * time.Microsecond)
	}
	_, err := takeFirst(&s.sends)
	return err
}

// nextRecv waits for events until a receive completes.
func (s *realTimeSide) nextRecv() (wc, error) {
	c, eq := s.q.rcq, s.q.h.eq
	deadline := time.Now().Add(time.Minute)
	for len(s.recvs) == 0 {
		if s.recvs = c.poll(); len(s.recvs) > 0 {
			break
		}
		if time.Now().After(deadline) {
			return wc{}, fmt.Errorf("no completion")
		}
		c.arm(false)
		eq.arm()
		if s.recvs = c.poll(); len(s.recvs) > 0 {
			break
		}
		select {
		case <-s.wake:
		case <-time.After(time.Minute):
			return wc{}, fmt.Errorf("no interrupt")
		}
		for _, e := range eq.poll() {
			if e.typ == EventComp && e.object() == c.n {
				c.sn = (c.sn + 1) & 3
			}
		}
	}
	return takeFirst(&s.recvs)
}

// takeFirst removes the first completion from a list. It fails if that is not a success.
func takeFirst(list *[]wc) (wc, error) {
	w := (*list)[0]
	*list = (*list)[1:]
	if w.syndrome != 0 {
		return w, fmt.Errorf("completion %v", w)
	}
	return w, nil
}

// pingPong exchanges messages of many sizes with the peer, which sends the larger ones; first is
// the side that begins.
func (s *realTimeSide) pingPong(t *testing.T, first bool) {
	for i := range 200 {
		n := i*29%1500 + 1
		if first {
			s.q.poster(i)(opSend, sig, 0, inlineSeg([]byte{1, 2, 3, byte(i)}))
		}
		if w, err := s.nextRecv(); err != nil {
			t.Errorf("round %d: receive: %v", i, err)
			return
		} else if first && int(w.bytes) != n {
			t.Errorf("round %d: %d bytes, want %d", i, w.bytes, n)
		}
		s.q.recv(s.m.sge(8192, 4096))
		if !first {
			s.q.post(opSend, sig, 0, dataSeg(s.m.sge(0, n)))
		}
		if err := s.nextSend(); err != nil {
			t.Errorf("round %d: send: %v", i, err)
			return
		}
	}
}

// TestRealTime: a fabric that runs by itself, two drivers in goroutines of their own that
// wait for interrupts, and packets that are lost. Under the race detector this is the test
// of the locking.
func TestRealTime(t *testing.T) {
	f := NewFabric(FabricConfig{Seed: 3, Loss: 0.02, Duplicate: 0.02})
	defer f.Close()
	a, b := newRealTimeSide(t, f, 1), newRealTimeSide(t, f, 2)
	connect(a.q, b.q)
	a.q.recv(a.m.sge(8192, 4096))
	b.q.recv(b.m.sge(8192, 4096))
	var wg sync.WaitGroup
	wg.Go(func() { a.pingPong(t, true) })
	wg.Go(func() { b.pingPong(t, false) })
	wg.Wait()
	if !bytes.Equal(a.m.data[8192:8192+100], b.m.data[:100]) {
		t.Error("the data is another")
	}
	b.q.modify(To2Err, 0, QPAttr{})
	var flushed []wc
	b.q.rcq.poll()
	for deadline := time.Now().Add(time.Minute); len(flushed) == 0 && time.Now().Before(deadline); {
		b.q.recv(b.m.sge(0, 1)) // no doorbell says so: the device looks from time to time
		time.Sleep(time.Millisecond)
		flushed = b.q.rcq.poll()
	}
	if len(flushed) == 0 || flushed[0].syndrome != Flushed {
		t.Errorf("%v", flushed)
	}
	a.q.h.clean()
	b.q.h.clean()
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
