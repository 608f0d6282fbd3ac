package probe

import (
	"cmp"
	"context"
	"fmt"
	"syscall"
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
	dev    *device
	cq     *uverbs.CQ
	idle   *uverbs.CQ // of RC QPs, which have no completions
	target *uverbs.MR // the 8 bytes that others read
	mr     *uverbs.MR
	memory []byte // of the receives
	ud     *uverbs.QP
	posted uint // echoes
}

// Of the QP that answers. A receive takes the longest datagram that there is: on some devices a
// stranger's datagram that is longer than its receive breaks the QP.
const (
	answerSlot     = uverbs.GRHSize + 4096
	answerReceives = 1024
	answerSends    = 1024
	signalEach     = 32
)

// make makes the queues.
func (a *answerer) make() (err error) {
	if a.target, err = a.dev.pd.RegSlice(make([]byte, 8), uverbs.AccessLocalWrite|uverbs.AccessRemoteRead); err != nil {
		return err
	}
	a.memory = make([]byte, answerReceives*answerSlot)
	if a.mr, err = a.dev.pd.RegSlice(a.memory, uverbs.AccessLocalWrite); err != nil {
		return err
	}
	if a.cq, err = a.dev.createCQ(answerReceives + answerSends); err != nil {
		return err
	}
	if a.idle, err = a.dev.CreateCQ(uverbs.CQOptions{Size: 16}); err != nil {
		return err
	}
	a.ud, err = a.dev.createUD(a.cq, a.port, a.pkey, answerSends, answerReceives, qkey)
	for i := 0; err == nil && i < answerReceives; i++ {
		err = a.post(i)
	}
	return err
}

// post posts a receive.
func (a *answerer) post(i int) error {
	return a.ud.PostRecv(uint64(i), a.mr.SGE(i*answerSlot, answerSlot))
}

// close closes what there is.
func (a *answerer) close() {
	if a.ud != nil {
		a.ud.Close()
	}
	for _, cq := range []*uverbs.CQ{a.cq, a.idle} {
		if cq != nil {
			cq.Close()
		}
	}
	for _, mr := range []*uverbs.MR{a.mr, a.target} {
		if mr != nil {
			mr.Close()
		}
	}
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
			case wc.ID >= answerReceives || wc.ByteLen > answerSlot:
				return fmt.Errorf("the device has completed receive %d of %d with %d bytes: %w", wc.ID, answerReceives, wc.ByteLen, syscall.EIO)
			}
			ok := s.echo(a, wc, a.memory[wc.ID*answerSlot:][:wc.ByteLen])
			s.mu.Lock()
			if ok {
				s.counts.Echoes++
			} else {
				s.counts.Dropped++
			}
			s.mu.Unlock()
			if err := a.post(int(wc.ID)); err != nil {
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
		ah, err := a.answerTo(wc, b, g.label)
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
	g.room = min(g.room+now.Sub(g.filled).Seconds()*float64(g.rate)*rateMargin, float64(g.rate)+roomMargin)
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
	wr := uverbs.SendWR{ID: pingID, Opcode: uverbs.WRSend, Inline: out[:], AH: g.ah, RemoteQPN: wc.SrcQP, RemoteQKey: g.qkey}
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
	a := s.counts
	for _, g := range s.sessions {
		if time.Since(g.last) < idleAfter {
			a.Sessions++
		}
	}
	return a
}
