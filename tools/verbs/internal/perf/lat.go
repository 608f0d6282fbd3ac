package perf

import (
	"cmp"
	"encoding/binary"
	"runtime"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// The loops below do all work that can wait, such as reposting a receive, while the next message is
// in flight. A latency is measured from before one doorbell to before the next: the answer may be
// there when a doorbell returns, and another thread may have had the processor meanwhile.

// sendLat plays ping-pong with messages. The client begins with SENDs, and the server with WRITEs.
func (e *End) sendLat(size int, m *meter, r *Run) error {
	f := &e.flows[0]
	f.goal = e.Config.total()
	total, warmup := f.goal, e.Config.Warmup
	moderate := e.Config.moderation(size)
	spare := e.memory.slots > 1 // the peer's next message finds a receive in any case
	begins := e.Server == (e.Config.Op == Write)
	var last time.Time
	var used *uverbs.WC // of a receive that must be posted again
	wc := e.wcs[:1]
	if !e.Server && warmup == 0 {
		e.begin(m)
	}
	quiet := 0 // messages since the last that has a completion
	for sent, got := 0, 0; ; {
		if err := e.turn(); err != nil {
			return err
		}
		if !begins || sent > 0 {
			if over, err := e.await(wc, got, &last); over || err != nil {
				r.Received, r.AllSent = int64(got), int64(sent)
				return err
			}
			if err := e.arrived(&wc[0], size); err != nil {
				return err
			}
			if used = &wc[0]; !spare {
				if err := e.recvAgain(used); err != nil {
					return err
				}
				used = nil
			}
			if got++; e.Server && got == warmup+1 {
				m.mark()
			}
		}
		if !e.Server && sent == warmup && !m.running {
			e.begin(m)
		}
		over := sent == total && total > 0 || !e.Server && e.expired.Load()
		if !over {
			sent++
			if quiet++; sent == total {
				quiet = moderate
			}
			if !e.Server && sent >= warmup {
				m.stamp()
			}
			if err := f.postOne(quiet == moderate); err != nil {
				return err
			}
		}
		e.done = int64(got)
		if used != nil {
			if err := e.recvAgain(used); err != nil {
				return err
			}
			used = nil
		}
		if over {
			if !e.Server {
				m.end(r)
			}
			r.Sent, r.Received, r.AllSent = int64(sent-warmup), int64(got), int64(sent)
			return nil
		}
		if quiet == moderate {
			if err := e.sendDone(f); err != nil {
				return err
			}
			quiet = 0
		}
		if !begins && sent == total && total > 0 {
			if !e.Server {
				m.end(r)
			}
			r.Sent, r.Received, r.AllSent = int64(sent-warmup), int64(got), int64(sent)
			return nil
		}
	}
}

// await waits for the completion of a receive after got messages, or for the end of the test.
func (e *End) await(wc []uverbs.WC, got int, last *time.Time) (over bool, err error) {
	for {
		n, err := e.RecvCQ.Poll(wc)
		if n == 1 || err != nil {
			return false, err
		}
		if e.over(int64(got), last) {
			return true, nil
		}
		if err := e.idle(e.RecvCQ, nil); err != nil {
			return false, err
		}
	}
}

// begin starts the messages that count, and sets when they end if there is a duration.
func (e *End) begin(m *meter) {
	m.begin()
	if d := cmp.Or(e.Config.Duration, e.limit); d != 0 { // of what counts, however long it takes to get here
		over, limited := e.expired, e.limited
		e.timer = time.AfterFunc(d, func() { limited.Store(!over.Swap(true)) })
	}
}

// sendDone waits for a completion of what was sent.
func (e *End) sendDone(f *flow) error {
	wc := e.wcs[:1]
	for {
		n, err := e.SendCQ.Poll(wc)
		if err != nil {
			return err
		}
		if n == 1 {
			if wc[0].Status != uverbs.WCSuccess {
				return f.qp.Err(&wc[0])
			}
			return nil
		}
		if err := e.idle(e.SendCQ, nil); err != nil {
			return err
		}
	}
}

// placeTime is how long the rest of a message may take once its last byte is there.
const placeTime = time.Second

// placed compares a message whose last byte was seen. An RDMA WRITE has no completion on the side of
// the memory, and devices may place its packets out of order, so the bytes before the last one may
// be there later. A message that is still wrong after placeTime is reported.
func (e *End) placed(got []byte) error {
	for end := time.Now().Add(placeTime); ; {
		err := e.mismatch("a message", 0, got)
		if err == nil || time.Now().After(end) {
			return err
		}
		runtime.Gosched()
	}
}

// writeLat plays ping-pong with memory: the server begins.
func (e *End) writeLat(size int, m *meter, r *Run) error {
	f := &e.flows[0]
	f.goal = e.Config.total()
	total, warmup := f.goal, e.Config.Warmup
	mem := e.MR.Bytes()
	at := e.memory.base + size - 1
	got := mem[at-size+1 : at+1]
	mark, here := &mem[size-1], watch(mem, at)
	verify := e.Config.Verify && size > 1
	var last time.Time
	for sent, seen := 0, 0; ; {
		if err := e.turn(); err != nil {
			return err
		}
		if !e.Server || sent > 0 {
			seen++
			for here.load() != byte(seen) {
				if e.empty++; e.empty%spins == 0 {
					if err := e.breathe(); err != nil {
						return err
					}
					if e.over(int64(seen-1), &last) && here.load() != byte(seen) {
						r.Received, r.AllSent = int64(seen-1), int64(sent)
						return nil
					}
				}
			}
			if verify {
				if err := e.placed(got[:size-1]); err != nil {
					return err
				}
				clear(got[:size-1])
			}
			if e.Server && seen == warmup+1 {
				m.mark()
			}
		}
		if sent == total && total > 0 { // of a server
			r.Sent, r.Received, r.AllSent = int64(sent-warmup), int64(seen), int64(sent)
			return nil
		}
		// A latency is half the time from one message to the next; the first message has no time
		// before it.
		if !e.Server && !m.running && sent >= warmup-1 {
			e.begin(m)
		}
		sent++
		*mark = byte(sent)
		if m.running {
			m.stamp()
		}
		if err := f.postOne(true); err != nil {
			return err
		}
		e.done = int64(seen)
		if err := e.sendDone(f); err != nil {
			return err
		}
		if !e.Server && (sent == total && total > 0 || e.expired.Load()) {
			m.end(r)
			r.Sent, r.Received, r.AllSent = int64(sent-warmup), int64(seen), int64(sent)
			return nil
		}
	}
}

// readLat does one READ or atomic after the other.
func (e *End) readLat(size int, m *meter, r *Run) error {
	f := &e.flows[0]
	f.goal = e.Config.total()
	f.wrs[0].Flags = uverbs.SendSignaled
	total, warmup := f.goal, e.Config.Warmup
	for {
		if f.posted == warmup && !m.running {
			m.times = append(m.times[:0], m.times[max(0, len(m.times)-1):]...) // when the last of the warm-up was posted
			e.begin(m)
		}
		if f.posted == total && total > 0 || e.expired.Load() {
			m.end(r)
			r.Sent, r.AllSent = int64(f.posted-warmup), int64(f.posted)
			return nil
		}
		n := max(e.pace.left, 1) // and then look at the time
		if f.posted < warmup {
			n = min(n, warmup-f.posted)
		} else if total > 0 {
			n = min(n, total-f.posted)
		}
		if err := e.fetch(f, n, size, m); err != nil {
			return err
		}
		e.done = int64(f.posted)
	}
}

// fetch does n READs or atomics. The loop does as little as possible for each, because it cannot do
// anything while the peer works.
func (e *End) fetch(f *flow, n, size int, m *meter) error {
	cq, wc := e.SendCQ, &e.wcs[0]
	for range n {
		f.posted++
		f.wrs[0].ID = uint64(f.posted)
		m.stamp()
		if err := f.qp.PostSend(f.wrs...); err != nil {
			return err
		}
		if err := e.turn(); err != nil {
			return err
		}
		for {
			n, err := cq.Poll(e.wcs[:1])
			if n == 1 {
				break
			}
			if err == nil {
				err = e.idle(cq, nil)
			}
			if err != nil {
				return err
			}
		}
		if wc.Status != uverbs.WCSuccess {
			return f.qp.Err(wc)
		}
		if e.Config.Verify {
			if err := e.verifyFetched(size, f.posted-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// verifyFetched looks at what a READ or an atomic has fetched, after n others.
func (e *End) verifyFetched(size, n int) error {
	got := e.MR.Bytes()[:size]
	if e.Config.Op == Atomic {
		if was, want := binary.NativeEndian.Uint64(got), e.Config.counterAfter(n); was != want {
			return refusef("wrong data: the counter was %d after %d atomics, expected %d", was, n, want)
		}
		return nil
	}
	err := e.mismatch("what was read", 0, got)
	clear(got)
	return err
}
