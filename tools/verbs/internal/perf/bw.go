package perf

import (
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// bandwidth keeps the queues full: the send queues of who sends, the receive queues of who
// receives.
func (e *End) bandwidth(size int, m *meter, r *Run, sent func(int64) error) error {
	c := &e.Config
	b := &blast{
		End: e, size: size, meter: m, run: r, sent: sent,
		sending: c.sends(e.Server), receiving: c.receives(e.Server),
		most: c.listOf(size, e.Limits.IWARP), moderate: c.moderation(size), gap: c.Rate.gap(c.list(), size),
	}
	b.begun = !(e.Server && b.receiving) // a server waits for the first message
	b.expect = int64(c.total() * c.QPs)
	if c.messages() && !e.Server && !c.Both {
		b.expect = 0
	}
	for i := range e.flows {
		e.flows[i].goal = c.Warmup
	}
	return b.loop()
}

// blast is a bandwidth test under way.
type blast struct {
	*End
	size               int
	meter              *meter
	run                *Run
	sent               func(int64) error
	sending, receiving bool // what is left to do
	begun              bool // a server that sends may do so
	warm               bool // the warm-up is over
	ending             bool // the last message of each queue pair is posted, as the time is over
	most               int  // messages of a doorbell
	moderate           int
	expect             int64         // messages to receive; 0 if that is not known
	got                int64         // messages received
	gap                time.Duration // between two doorbells of a queue pair, if there is a limit
	due                time.Duration // of the next
	short              bool          // the peer has no receive for the next message, of some queue pair
	last               time.Time
	failed             error // of sent
}

// loop sends and receives until all is done.
func (b *blast) loop() error {
	sendCQ, recvCQ := b.SendCQ, b.RecvCQ
	if !b.receiving {
		recvCQ = nil
	}
	b.warmed()
	for b.sending || b.receiving {
		if b.failed != nil {
			return b.failed
		}
		if b.sending && b.begun {
			if err := b.postAll(); err != nil {
				return err
			}
		}
		if err := b.turn(); err != nil {
			return err
		}
		n := 0
		if b.receiving {
			k, err := b.takeReceives()
			if err != nil {
				return err
			}
			n += k
		}
		if b.sending && b.begun || b.counted {
			k, err := b.takeSends()
			if err != nil {
				return err
			}
			n += k
		}
		if b.counted && b.receiving {
			if err := b.tell(); err != nil {
				return err
			}
		}
		if n > 0 {
			continue
		}
		if b.receiving && b.over(b.got, &b.last) {
			b.doneReceiving()
			continue
		}
		var err error
		switch {
		case b.sending && (b.gap != 0 || b.short) && b.Channel != nil:
			time.Sleep(b.nap()) // no completion may come
			err = b.breathe()
		case b.sending:
			err = b.idle(sendCQ, recvCQ)
		case b.counted: // the WRITEs of credits complete, too
			err = b.idle(recvCQ, sendCQ)
		default:
			err = b.idle(recvCQ, nil)
		}
		if err != nil {
			return err
		}
	}
	b.run.Received = b.got
	return b.failed
}

// postAll posts what there is room for.
func (b *blast) postAll() error {
	c := &b.Config
	b.short = false
	for i := range b.flows {
		f := &b.flows[i]
		if b.counted && b.Server && f.taken == 0 {
			continue // on iWARP the client's queue pair sends first
		}
		for (f.goal == 0 && b.warm || f.posted < f.goal) && !b.late() {
			n := f.together(c, b.most, b.moderate)
			if n <= 0 {
				break
			}
			if b.counted {
				if n = min(n, b.room(i)); n <= 0 {
					b.short = true
					break
				}
			}
			if b.gap != 0 && b.warm {
				now := time.Since(b.meter.base)
				if now < b.due {
					return nil
				}
				b.due = max(b.due+b.gap, now-time.Millisecond)
			}
			if err := f.post(i, n, b.moderate, false); err != nil {
				return err
			}
			if c.List != Auto && f.next%c.List != 0 { // a list that was cut at the end
				f.next = 0
			}
		}
	}
	return nil
}

// together returns how many messages the next doorbell posts, of so many at most, or 0 if it must wait for completions.
func (f *flow) together(c *Config, n, moderate int) int {
	if f.goal != 0 {
		n = min(n, f.goal-f.posted)
	}
	left := c.Depth - (f.posted - f.completed)
	if c.List == Auto {
		return min(n, left, len(f.wrs)-f.next)
	}
	if n > left && f.posted/moderate == f.completed/moderate {
		n = left // as a list was cut: none of those under way has a completion, and one more will
	}
	if n > left || f.next+n > len(f.wrs) {
		return 0
	}
	return n
}

// nap is how long there is nothing to do where no event says when there is.
func (b *blast) nap() time.Duration {
	const soon = 100 * time.Microsecond
	if b.short {
		return soon
	}
	return min(b.gap, time.Millisecond)
}

// late reports whether the time for sending is over.
func (b *blast) late() bool { return b.warm && b.expired.Load() }

// takeSends takes completions of what was sent.
func (b *blast) takeSends() (int, error) {
	wcs := b.wcs[:]
	n, err := b.SendCQ.Poll(wcs)
	if err != nil {
		return 0, err
	}
	for i := range wcs[:n] {
		f := &b.flows[wcs[i].ID&^creditID>>sendShift]
		if wcs[i].Status != uverbs.WCSuccess {
			return 0, f.qp.Err(&wcs[i])
		}
		if wcs[i].ID&creditID != 0 {
			f.telling = false
			continue
		}
		if b.moderate == 1 { // completions of SRD come in no order
			f.completed++
		} else {
			f.completed = int(wcs[i].ID & sendMask)
		}
	}
	b.done += int64(n)
	if !b.sending {
		return n, nil
	}
	if b.late() && !b.ending {
		return n, b.finish()
	}
	if n > 0 && b.complete() {
		b.warmed()
	}
	return n, nil
}

// complete reports whether all messages have been posted and completed.
func (b *blast) complete() bool {
	for i := range b.flows {
		if f := &b.flows[i]; f.goal == 0 || f.completed < f.goal {
			return false
		}
	}
	return true
}

// finish posts a last message of each queue pair. When it completes, so have all before it.
func (b *blast) finish() error {
	for i := range b.flows {
		if f := &b.flows[i]; f.posted-f.completed >= b.Config.Depth {
			return nil // no room yet
		}
		if b.counted && b.room(i) <= 0 {
			return nil
		}
	}
	b.ending = true
	for i := range b.flows {
		f := &b.flows[i]
		if f.posted != f.completed || f.posted == 0 {
			if err := f.post(i, 1, 1, true); err != nil {
				return err
			}
			f.next = 0
		}
		f.goal = f.posted
	}
	if b.complete() {
		b.warmed()
	}
	return nil
}

// warmed begins what counts if the warm-up is done, and ends it if that is done, too.
func (b *blast) warmed() {
	if !b.sending || !b.complete() && b.Config.Warmup > 0 && !b.warm {
		return
	}
	if !b.warm {
		b.warm = true
		for i := range b.flows {
			b.flows[i].goal = b.Config.total()
		}
		if b.begun {
			b.End.begin(b.meter)
		}
		return
	}
	b.meter.end(b.run)
	b.sending = false
	for i := range b.flows {
		b.run.AllSent += int64(b.flows[i].posted)
	}
	b.run.Sent = b.run.AllSent - int64(b.Config.Warmup*b.Config.QPs)
	if b.Config.Op == Write && b.Limits.IWARP {
		b.failed = b.settled()
	}
	if b.sent != nil && b.failed == nil {
		b.failed = b.sent(b.run.AllSent)
	}
}

// takeReceives takes what has come.
func (b *blast) takeReceives() (int, error) {
	wcs := b.wcs[:]
	n, err := b.RecvCQ.Poll(wcs)
	if n == 0 || err != nil {
		return 0, err
	}
	warmup := int64(b.Config.Warmup * b.Config.QPs)
	for i := range wcs[:n] {
		if err := b.arrived(&wcs[i], b.size); err != nil {
			return 0, err
		}
		if err := b.recvAgain(&wcs[i]); err != nil {
			return 0, err
		}
	}
	before := b.got
	b.got += int64(n)
	b.done += int64(n)
	b.last = time.Time{}
	if b.Server && !b.begun {
		b.begun = true
		if b.warm {
			b.End.begin(b.meter)
		}
	}
	if b.Server && !b.Config.Both && !b.meter.running && before <= warmup && b.got > warmup {
		b.meter.begin()
	}
	if b.expect > 0 && b.got >= b.expect {
		b.doneReceiving()
	}
	return n, nil
}

// doneReceiving ends the receiving side.
func (b *blast) doneReceiving() {
	b.receiving = false
	if b.Server && !b.Config.Both && b.meter.running {
		b.meter.end(b.run)
	}
}
