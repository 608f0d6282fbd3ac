package health

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// probe is what the library knows about an open device.
type probe struct {
	ports      []portFacts
	registered []registration
	efa        *uverbs.EFAAttr // nil unless it is an EFA device
}

// registration is an attempt to register memory.
type registration struct {
	size uint64
	err  error
}

// probeDevice opens a device and queries it.
func probeDevice(name string) (p probe, err error) {
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if a, ok := dev.EFA(); ok {
		p.efa = &a
	}
	for _, size := range []int{smallMR, bigMR} {
		p.registered = append(p.registered, registration{uint64(size), register(dev, size)})
	}
	for num := 1; num <= int(dev.Attr().PhysPortCount); num++ {
		facts := portFacts{Port: netlinkrdma.Port{Num: uint32(num)}}
		if facts.attr, err = dev.Port(uint8(num)); err != nil {
			return p, fmt.Errorf("query port %d: %w", num, err)
		}
		facts.state = facts.attr.State
		facts.phys = facts.attr.PhysState.Words()
		facts.LinkLayer = facts.attr.LinkLayer
		facts.gids, facts.gidErr = dev.GIDTable(uint8(num))
		p.ports = append(p.ports, facts)
	}
	return p, nil
}

// register registers size bytes and gives them back.
func register(dev *uverbs.Device, size int) error {
	var opened objects.Stack
	opened.MR(opened.PD(dev), size, uverbs.AccessLocalWrite)
	return errors.Join(opened.Err(), opened.Close())
}

// IDs of work requests.
const (
	recvID = 1
	sendID = 2
)

// loopback plays ping-pong between two QPs of a device, and returns what was exchanged.
func loopback(ctx context.Context, name string) (string, error) {
	return within(ctx, loopbackTime, time.Second, func(ctx context.Context) (string, error) { return playLoopback(ctx, name) })
}

// within bounds the time of play. A kernel that holds a command back, so that play does
// not see its context end, is waited for no longer than grace: the process is about to end.
func within(ctx context.Context, limit, grace time.Duration, play func(context.Context) (string, error)) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it took longer than %s", limit))
	defer cancel()
	type end struct {
		told string
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		told, err := play(ctx)
		ended <- end{told, err}
	}()
	select {
	case e := <-ended:
		return e.told, e.err
	case <-ctx.Done():
	}
	select {
	case e := <-ended:
		return e.told, e.err
	case <-time.After(grace):
		return "", fmt.Errorf("a command to the kernel does not return: %w", context.Cause(ctx))
	}
}

// What a loopback exchanges. A message is longer than the largest path MTU.
const (
	loopbackSize   = 5000
	loopbackRounds = 8 // of each kind
)

// loopSide is one of the two QPs. Its memory is two messages long: what it sends, then what
// it receives.
type loopSide struct {
	name string
	qp   *uverbs.QP
	off  int // of its memory in the MR
}

// loop is a loopback in progress.
type loop struct {
	pd     *uverbs.PD
	cq     *uverbs.CQ
	mr     *uverbs.MR
	ah     *uverbs.AH // of the device itself; nil if the QPs are connected
	events bool       // the CQ has events
	sides  [2]loopSide
}

// playLoopback connects two QPs and exchanges messages.
func playLoopback(ctx context.Context, name string) (told string, err error) {
	var opened objects.Stack
	defer func() { err = errors.Join(err, opened.Close()) }()
	dev := opened.Device(name)
	l := newLoop(dev, &opened)
	if err := opened.Err(); err != nil {
		return "", err
	}
	switch info := dev.Info(); {
	case onEFA(info):
		told, err = l.readySRD(dev, &opened)
	case info.IWARP():
		err = rdmacm.RetryPort(func() (err error) {
			told, err = l.connectIWARP(ctx, dev, &opened)
			return err
		})
	default:
		told, err = l.connect(ctx)
	}
	if err != nil {
		return told, err
	}
	for _, events := range []bool{false, true}[:choose(l.events, 2, 1)] {
		for round := range loopbackRounds {
			from, to := &l.sides[round%2], &l.sides[1-round%2]
			if err := l.exchange(ctx, from, to, byte(round), events); err != nil {
				return told, fmt.Errorf("message %d from %s to %s, %s: %w", round, from.name, to.name, choose(events, "with events", "polled"), err)
			}
		}
	}
	return fmt.Sprintf("%s: %d messages of %d bytes %s, data verified", told, loopbackRounds, loopbackSize, choose(l.events, "polled and as many with events", "polled")), nil
}

// connect connects the two QPs.
func (l *loop) connect(ctx context.Context) (told string, err error) {
	var ends [2]uverbs.Endpoint
	for i := range l.sides {
		if ends[i], err = l.sides[i].qp.Endpoint(); err != nil {
			return "", err
		}
	}
	told = fmt.Sprintf("%s to %s", ends[0], ends[1])
	for i := range l.sides {
		if err := l.sides[i].qp.Connect(ctx, ends[1-i]); err != nil {
			return told, err
		}
	}
	return told, nil
}

// newLoop creates the objects.
func newLoop(dev *uverbs.Device, opened *objects.Stack) *loop {
	l := &loop{events: netlinkrdma.Sandbox() == "" || dev != nil && dev.Info().InProcess} // gVisor does not offer them
	if dev != nil {
		a, efa := dev.EFA()
		l.events = l.events && (!efa || a.Notify)
	}
	l.pd = opened.PD(dev)
	l.mr = opened.MR(l.pd, 4*loopbackSize, uverbs.AccessLocalWrite)
	l.cq = opened.CQ(dev, uverbs.CQOptions{Size: 16, Events: l.events})
	typ := choose(dev != nil && onEFA(dev.Info()), ib.SRD, ib.RC)
	for i, name := range []string{"the first QP", "the second QP"} {
		qp := opened.QP(l.pd, uverbs.QPOptions{Type: typ, SendCQ: l.cq, RecvCQ: l.cq, MaxSendWR: 4, MaxRecvWR: 4})
		l.sides[i] = loopSide{name, qp, i * 2 * loopbackSize}
	}
	return l
}

// exchange sends a message and waits for both completions.
func (l *loop) exchange(ctx context.Context, from, to *loopSide, seed byte, events bool) error {
	sent := l.mr.Bytes()[from.off:][:loopbackSize]
	got := l.mr.Bytes()[to.off+loopbackSize:][:loopbackSize]
	for i := range sent {
		sent[i] = byte(i*7+i>>8) ^ seed
		got[i] = ^sent[i]
	}
	if err := to.qp.PostRecv(recvID, l.mr.SGE(to.off+loopbackSize, loopbackSize)); err != nil {
		return err
	}
	wr := uverbs.SendWR{ID: sendID, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{l.mr.SGE(from.off, loopbackSize)}}
	if l.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = l.ah, to.qp.QPN(), loopbackQKey
	}
	if err := from.qp.PostSend(wr); err != nil {
		return err
	}
	for pending := recvID | sendID; pending != 0; {
		var wcs [2]uverbs.WC
		n, err := l.poll(ctx, wcs[:], events)
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			side := choose(wcs[i].ID == sendID, from.name, to.name)
			qp := to.qp
			if wcs[i].ID == sendID {
				qp = from.qp
			}
			if err := qp.Err(&wcs[i]); err != nil {
				return fmt.Errorf("%s: %w", side, err)
			}
			if wcs[i].ID == recvID && wcs[i].ByteLen != loopbackSize {
				return fmt.Errorf("%d bytes came instead of %d", wcs[i].ByteLen, loopbackSize)
			}
			pending &^= int(wcs[i].ID)
		}
	}
	if !bytes.Equal(sent, got) {
		return errors.New("the data that came is not what was sent")
	}
	return nil
}

// poll returns the next completions. It waits for them by an event, or lets others run if there is none.
func (l *loop) poll(ctx context.Context, wcs []uverbs.WC, events bool) (int, error) {
	next := l.cq.Poll
	if events {
		next = func(wcs []uverbs.WC) (int, error) { return l.cq.Wait(ctx, wcs) }
	}
	n, err := next(wcs)
	if n == 0 {
		err = cmp.Or(yield(ctx), err)
	}
	return n, err
}

// yield lets others run. It returns why the context has ended, if it has.
func yield(ctx context.Context) error {
	runtime.Gosched()
	return context.Cause(ctx)
}
