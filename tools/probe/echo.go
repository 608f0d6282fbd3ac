package probe

import (
	"cmp"
	"context"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// answererKey is what an answerer is for.
type answererKey struct {
	device string
	port   uint8
	pkey   uint16
}

// answerer has the QP that answers datagrams on a port.
type answerer struct {
	answererKey
	queue
	idle   *uverbs.CQ // of RC QPs, which have no completions
	target *uverbs.MR // the 8 bytes that others read
	posted uint       // echoes
}

// Of the QP that answers. A receive takes the longest datagram that there is: on some devices a
// stranger's datagram that is longer than its receive breaks the QP.
const (
	answerSlot     = uverbs.GRHSize + 4096
	answerReceives = 1024
	answerSends    = 1024
	signalEach     = 32
)

// make makes the queues. The caller closes them, also after an error.
func (a *answerer) make() (err error) {
	if a.target, err = a.dev.pd.RegSlice(make([]byte, readSize), uverbs.AccessLocalWrite|uverbs.AccessRemoteRead); err != nil {
		return err
	}
	if a.idle, err = a.dev.CreateCQ(uverbs.CQOptions{Size: 16}); err != nil {
		return err
	}
	return a.queue.make(a.port, a.pkey, answerSends, qkey)
}

// close closes what there is.
func (a *answerer) close() {
	a.queue.close()
	closeIf(a.idle)
	closeIf(a.target)
}

// serve answers datagrams until the context ends, or the device fails.
func (s *answers) serve(ctx context.Context, a *answerer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(a.dev.removed, func() { cancel(uverbs.ErrDeviceRemoved) })()
	wcs := make([]uverbs.WC, 64)
	for {
		n, err := a.cq.Wait(ctx, wcs)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			switch {
			case wc.Status != uverbs.WCSuccess:
				return wc.Err()
			case wc.ID == pingID: // echoes were sent
				continue
			}
			b, err := a.received(wc)
			if err != nil {
				return err
			}
			if s.echo(a, wc, b) {
				s.echoes.Add(1)
			} else {
				s.dropped.Add(1)
			}
			if err := a.post(wc.ID); err != nil {
				return err
			}
		}
	}
}

// echo answers a datagram, and returns false if it drops it.
func (s *answers) echo(a *answerer, wc *uverbs.WC, b []byte) bool {
	if len(b) < uverbs.GRHSize {
		return false
	}
	d, ok := parseDatagram(b[uverbs.GRHSize:], kindPing)
	if !ok {
		return false
	}
	var sgid ib.GID
	if wc.Flags&uverbs.WCWithGRH != 0 {
		grh, err := uverbs.ParseGRH(b)
		if err != nil {
			return false
		}
		sgid = grh.SGID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.sessions[d.token]
	if g == nil || g.a != a {
		return false
	}
	if wc.SLID == 0 && sgid.Addr() != g.from { // on Ethernet the packet has the address that the request has claimed
		return false
	}
	if g.ah == nil {
		s.mu.Unlock()
		ah, err := a.answerTo(wc, b, g.Label)
		s.mu.Lock()
		if err != nil {
			return false
		}
		if s.sessions[d.token] != g { // dropped meanwhile
			ah.Close()
			return false
		}
		g.ah, g.qpn, g.sgid = ah, wc.SrcQP, sgid
	}
	now := time.Now()
	g.room = min(g.room+now.Sub(g.filled).Seconds()*float64(g.Rate)*rateMargin, float64(g.Rate)+roomMargin)
	g.filled = now
	if wc.SrcQP != g.qpn || sgid != g.sgid || g.room < 1 {
		return false
	}
	g.room--
	g.last = now
	e := datagram{kind: kindEcho, token: d.token, seq: d.seq, arrived: g.window.add(d.seq)}
	if a.dev.khz != 0 {
		e.dwell = uint64(max(0, a.dev.between(a.dev.at(wc), a.dev.now())))
	}
	var out [datagramSize]byte
	e.put(out[:])
	wr := uverbs.SendWR{ID: pingID, Opcode: uverbs.WRSend, Inline: out[:], AH: g.ah, RemoteQPN: wc.SrcQP, RemoteQKey: g.QKey}
	if a.posted%signalEach == 0 {
		wr.Flags = uverbs.SendSignaled
	}
	if a.ud.PostSend(wr) != nil {
		return false
	}
	a.posted++
	return true
}

// A prober may be a little faster than it has said, since clocks differ and its bursts are late at
// times.
const (
	rateMargin = 1.25
	roomMargin = 100
)

// answerTo returns the address of a sender, with a flow label.
func (a *answerer) answerTo(wc *uverbs.WC, grh []byte, label uint32) (*uverbs.AH, error) {
	attr, err := a.dev.AHAttrFor(a.port, wc, grh)
	if err != nil {
		return nil, err
	}
	attr.GRH.FlowLabel = label
	return a.dev.pd.CreateAH(attr)
}

// Answers returns what other hosts' probes have met here.
func (p *Prober) Answers() Answers {
	s := &p.answers
	s.mu.Lock()
	defer s.mu.Unlock()
	a := Answers{Echoes: s.echoes.Load(), Refused: s.refused.Load(), Dropped: s.dropped.Load()}
	for _, g := range s.sessions {
		if time.Since(g.last) < idleAfter {
			a.Sessions++
		}
	}
	return a
}
