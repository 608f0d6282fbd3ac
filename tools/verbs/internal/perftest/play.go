package perftest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Operations, as perftest's programs are named.
const (
	Send   = "send"
	Write  = "write"
	Read   = "read"
	Atomic = "atomic"
)

// Test says what is measured. perftest's programs do not exchange their options, so both sides must
// have the same.
type Test struct {
	Op         string // Op is the operation.
	Type       string // Type is the type of the queue pairs: RC, UC, UD, XRC, DC or SRD.
	Latency    bool   // Latency is measured, or else bandwidth.
	Both       bool   // Both directions, of a bandwidth test.
	Sizes      []int  // Sizes of messages, in bytes.
	Sweep      bool   // Sweep says that Sizes are the sizes of perftest's -a.
	Iterations int    // Iterations is the number of messages of each queue pair and size.
	QPs        int    // QPs is the number of queue pairs.
	Imm        bool   // Imm says that SENDs and WRITEs have immediate data.
	Endless    bool   // Endless says that the client alone knows when the test is over.
	Multicast  bool   // Multicast says that the client sends to a multicast group.
	Swap       bool   // Swap says that atomics are CMP_AND_SWAP, and not FETCH_AND_ADD.
}

// Program returns the name of perftest's program.
func (t Test) Program() string {
	if t.Latency {
		return "ib_" + t.Op + "_lat"
	}
	return "ib_" + t.Op + "_bw"
}

// Messages reports whether what is sent takes receives.
func (t Test) Messages() bool { return t.Op == Send || t.Imm }

// dc reports whether the queue pairs are of DC. Its targets get their numbers after records were exchanged
// for the first time.
func (t Test) dc() bool { return t.Type == "DC" }

// split reports whether a queue pair either sends or receives, by an SRQ.
func (t Test) split() bool { return t.dc() || t.Type == "XRC" }

// targetOf reports whether a side, the server or the client, has queue pairs that receive by an SRQ.
func (t Test) targetOf(server bool) bool { return t.split() && (server || t.Both || t.Latency) }

// command is what the peer must run, as far as this side knows.
func (t Test) command(cm bool) string {
	line := fmt.Sprintf("%s -c %s -n %d", t.Program(), t.Type, t.Iterations)
	if t.Endless {
		line = fmt.Sprintf("%s -c %s --run_infinitely", t.Program(), t.Type)
	}
	switch {
	case t.Sweep:
		line += " -a"
	case t.Op != Atomic && len(t.Sizes) > 0:
		line += fmt.Sprintf(" -s %d", t.Sizes[0])
	}
	if t.QPs > 1 {
		line += fmt.Sprintf(" -q %d", t.QPs)
	}
	if t.Both {
		line += " -b"
	}
	if t.Imm {
		line += " --" + t.Op + "_with_imm"
	}
	if t.Multicast {
		line += " -g"
	}
	if t.Type == "SRD" {
		line += " -x 0"
	}
	if t.Swap {
		line += " -A CMP_AND_SWAP"
	}
	if cm {
		line += " -R"
	}
	return line
}

// Engine does the traffic.
type Engine interface {
	// Open makes memory and queue pairs, and returns their addresses. In a session of the
	// connection manager it connects them too.
	Open(ctx context.Context) ([]Record, error)

	// Connect connects the queue pairs with those of the peer. Of a session of the connection
	// manager they are connected already.
	Connect(ctx context.Context, remote []Record) error

	// Prepare makes ready for messages of a size: receives are posted.
	Prepare(size int) error

	// Run runs with messages of a size.
	Run(ctx context.Context, size int) (Report, error)
}

// Play plays a whole test after Hello. It returns what the peer reports of each size; a client of
// a bandwidth test in one direction, and either side where nothing is reported, gets none.
func (s *Session) Play(ctx context.Context, e Engine) ([]Report, error) {
	if err := s.meet(ctx, e); err != nil {
		return nil, err
	}
	t := &s.Test
	active := !s.Server || t.Both || t.Messages() || t.Op == Write && t.Latency
	p := play{s: s, e: e, sync: t.Messages() || t.Both, share: t.Both}
	if active {
		for _, size := range t.Sizes {
			if err := p.size(ctx, size); err != nil {
				return p.theirs, err
			}
			if t.Messages() && s.Timeout != 0 {
				s.run = s.Timeout // both have run at once
			}
		}
	}
	if t.Endless && t.Messages() {
		return nil, nil // the server receives until it is ended
	}
	if t.Op == Write && t.Latency {
		return nil, nil // either side goes when it has what it waits for
	}
	if !t.Messages() && !t.Latency && !t.Both {
		if err := s.ended(ctx); err != nil {
			return nil, err
		}
		if err := p.report(ctx, t.Sizes[len(t.Sizes)-1]); err != nil {
			return nil, err
		}
	}
	return p.theirs, s.finish(ctx)
}

// meet exchanges records and connects.
func (s *Session) meet(ctx context.Context, e Engine) (err error) {
	if s.cm {
		if err := s.barrier(ctx, "records before the connections"); err != nil {
			return err
		}
	}
	if s.mine, err = e.Open(ctx); err != nil {
		return err
	}
	if s.cm {
		if err := s.barrier(ctx, "records after the connections"); err != nil {
			return err
		}
	}
	s.first = s.mine[0]
	if s.Test.Op != Send && s.Test.Latency {
		if err := s.barrier(ctx, "records"); err != nil {
			return err
		}
	}
	if err := s.all(ctx, "records"); err != nil {
		return err
	}
	if !s.Test.dc() {
		if err := e.Connect(ctx, s.remote); err != nil {
			return err
		}
	}
	if s.Test.Op == Send {
		if err := s.barrier(ctx, "records after connecting"); err != nil {
			return err
		}
	}
	if err := s.all(ctx, "records once more"); err != nil {
		return err
	}
	if s.Test.dc() { // targets have their numbers now
		if err := e.Connect(ctx, s.remote); err != nil {
			return err
		}
	}
	if s.Test.Op != Send {
		return s.barrier(ctx, "records before the run")
	}
	return nil
}

// play is a test that is under way.
type play struct {
	s      *Session
	e      Engine
	sync   bool // a barrier is before each size
	share  bool // reports are exchanged after each size
	begun  bool // a size has been run
	mine   Report
	theirs []Report
}

// size runs with messages of a size.
func (p *play) size(ctx context.Context, size int) (err error) {
	t := &p.s.Test
	if err := p.e.Prepare(size); err != nil {
		return err
	}
	if p.sync {
		d := p.s.step
		if p.begun {
			d = p.s.run // the peer may be running with the size before
		}
		if _, err := p.s.records(ctx, d, "records before the run", p.s.first); err != nil {
			return err
		}
	}
	p.begun = true
	if p.mine, err = p.run(ctx, size); err != nil {
		return fmt.Errorf("size %d: %w; the peer must run %s", size, err, p.s.Command())
	}
	after := t.Sweep && !t.Latency && (t.Messages() || t.Both)
	if after && t.Op != Send {
		if err := p.s.ended(ctx); err != nil {
			return err
		}
	}
	if p.share {
		if err := p.report(ctx, size); err != nil {
			return err
		}
	}
	if after && t.Op == Send {
		return p.s.ended(ctx)
	}
	return nil
}

// run runs with messages of a size, as long as the peer is there. A peer may be done, and go, a
// moment before this side sees all that it has done.
func (p *play) run(ctx context.Context, size int) (Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var late *time.Timer
	gone := make(chan struct{})
	stop := p.s.link.watch(func() {
		late = time.AfterFunc(lastWords, func() { cancel(errGone) })
		close(gone)
	})
	r, err := p.e.Run(ctx, size)
	stop()
	select {
	case <-gone:
		late.Stop()
		if err != nil && !errors.Is(err, errGone) {
			err = fmt.Errorf("%w (%w)", errGone, err)
		}
	default:
	}
	return r, err
}

// report exchanges reports, and finds out whether the peer had the same options as this side.
func (p *play) report(ctx context.Context, size int) error {
	r, err := p.s.report(ctx, p.mine)
	if err != nil {
		return err
	}
	if p.share || p.s.Server {
		if err := r.check(); err != nil {
			return err
		}
		n := p.s.Test.Iterations * len(p.s.mine)
		if p.s.Test.split() && p.s.Test.Both {
			n /= 2 // half of them receive
		}
		if r.Size != uint64(size) || r.Iterations != uint64(n) {
			return fmt.Errorf("the peer has run %d messages of %d bytes, and this side expected %d of %d: it must run %s", r.Iterations, r.Size, n, size, p.s.Command())
		}
		p.theirs = append(p.theirs, r)
	}
	return nil
}
