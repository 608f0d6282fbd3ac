package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Times of a prober.
const (
	tick        = 100 * time.Millisecond // between bursts, about
	lostAfter   = time.Second            // after which a probe without an answer is lost
	silence     = 5 * time.Second        // after which a session without an answer ends
	connectTime = 5 * time.Second        // for a step of asking a peer
	backoffMin  = time.Second            // between attempts to reach a peer
	backoffMax  = 15 * time.Second
	wellAfter   = time.Minute // after which a session has been a good one, and attempts begin anew
)

// Of an RC probe: it fails after 4 attempts of half a second each.
const (
	ackTimeout = ib.AckTimeout(17)
	retryCount = 3
)

// IDs of work requests.
const (
	pingID = 1 << 32
	readID = 2 << 32
)

// path probes a peer over one path, until its context ends.
type path struct {
	p      *Prober
	addr   netip.AddrPort
	number int
	*counters
}

// label returns the flow label, which switches choose among equal routes by, and cards the UDP
// source port.
func (p *path) label() uint32 {
	if p.number == 0 {
		return 1 // 0 would leave the choice to the driver
	}
	return uint32(p.number) * 0x9e3b1 & maxLabel // far apart
}

// burst and interval divide the rate into bursts of equal size, which cost fewer wake-ups than
// single pings.
func (p *path) burst() int { return max(1, p.p.o.Rate/int(time.Second/tick)) }
func (p *path) interval() time.Duration {
	return time.Second * time.Duration(p.burst()) / time.Duration(p.p.o.Rate)
}

// run keeps probing. Probes that are due while the peer cannot be reached count as lost.
func (p *path) run(ctx context.Context) {
	backoff, missed := backoffMin, time.Now() // since when no probes have been sent
	for why := Cause(""); ; {
		s, err := p.connect(ctx)
		if err == nil {
			begun := time.Now()
			if why != "" {
				p.missed(missed, begun, why)
			}
			err = s.probe(ctx)
			if missed = time.Now(); missed.Sub(begun) > wellAfter {
				backoff = backoffMin
				p.p.works(p.addr.String())
			}
		}
		s.close()
		if ctx.Err() != nil {
			return
		}
		why = causeOf(err)
		p.p.warn(p.addr.String(), fmt.Errorf("probe: %s path %d: %w", p.addr, p.number, err))
		pause(ctx, backoff/2+rand.N(backoff/2))
		backoff = min(2*backoff, backoffMax)
		missed = p.missed(missed, time.Now(), why)
	}
}

// missed counts the probes that were due between two times as lost. It returns when the last one
// was.
func (p *path) missed(from, to time.Time, cause Cause) time.Time {
	ticks := to.Sub(from) / p.interval()
	for t, n := range map[Transport]uint64{RC: uint64(ticks), UD: uint64(ticks) * uint64(p.burst())} {
		p.sent(t, n)
		p.lost(t, n, cause)
	}
	return from.Add(ticks * p.interval())
}

// errSilent is the error of a peer from which nothing comes.
var errSilent = fmt.Errorf("no answer for %v: %w", silence, syscall.ETIMEDOUT)

// causeOf returns why probes are lost after an error.
func causeOf(err error) Cause {
	switch {
	case errors.Is(err, errSilent), errors.Is(err, uverbs.WCRetryExcErr):
		return Silent
	case errors.Is(err, errWire), errors.Is(err, uverbs.WCRemAccessErr), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
		return Refused
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOMEM), errors.Is(err, uverbs.ErrDeviceRemoved),
		errors.Is(err, syscall.ENODEV), errors.Is(err, uverbs.ErrQueueFull), errors.Is(err, fs.ErrNotExist):
		return Local
	}
	return Unreachable
}

// session is a grant of a peer, and the queue pairs of both sides.
type session struct {
	*path
	queue
	ids    []*rdmacm.ID // for datagrams, and of the connection
	rc     *uverbs.QP
	ah     *uverbs.AH
	to     rdmacm.UDParam
	token  uint64
	qkey   uint32 // of this side: echoes come with it
	target target

	pings    []ping // by the sequence number; more than are sent in lostAfter and a few bursts
	seq      uint64 // of the last ping
	oldest   uint64 // of those that may be outstanding
	unacked  int    // bursts whose last ping is in the send queue
	reading  bool   // a READ is outstanding
	readAt   uint64 // when it was posted
	lastEcho time.Time
}

// of returns what is known of a ping.
func (s *session) of(seq uint64) *ping { return &s.pings[seq%uint64(len(s.pings))] }

// ping is what is known of a ping.
type ping struct {
	sent  time.Time
	at    uint64 // by the device's clock; 0 unless its latency counts
	cause Cause  // why it is lost unless an echo comes; empty if it does not count any more
}

// slot is the size of a receive.
const slot = uverbs.GRHSize + datagramSize

// connect asks the peer for a session. The caller closes it, also after an error.
func (p *path) connect(ctx context.Context) (s *session, err error) {
	s = &session{path: p, oldest: 1}
	ctx, cancel := context.WithTimeout(ctx, 2*connectTime)
	defer cancel()
	ud, err := s.resolve(ctx, rdmacm.UDP)
	if err != nil {
		return s, err
	}
	if err = s.make(ud); err != nil {
		return s, err
	}
	e, err := ud.ConnectWait(ctx, rdmacm.ConnParam{PrivateData: marshal(s.request())})
	if err != nil {
		return s, err
	}
	if s.token, err = parse[uint64](e.Param.PrivateData); err != nil {
		return s, err
	}
	s.to = e.UD
	s.to.AH.GRH.FlowLabel = p.label()
	if s.ah, err = s.dev.pd.CreateAH(s.to.AH); err != nil {
		return s, err
	}
	return s, s.connectRC(ctx)
}

// request is what the session asks the peer for.
func (s *session) request() request { return request{uint32(s.p.o.Rate), s.label(), s.token, s.qkey} }

// resolve returns an ID whose route to the peer is resolved.
func (s *session) resolve(ctx context.Context, space rdmacm.PortSpace) (*rdmacm.ID, error) {
	ch, err := s.p.channel(s.addr.Addr())
	if err != nil {
		return nil, err
	}
	id, err := ch.NewID(space)
	if err != nil {
		return nil, err
	}
	s.ids = append(s.ids, id)
	return id, id.ResolveWait(ctx, rdmacm.Addr{IP: s.p.o.Source}, rdmacm.AddrOf(s.addr))
}

// make makes the queues.
func (s *session) make(ud *rdmacm.ID) error {
	addrs, err := ud.Addrs()
	if err == nil {
		err = addrs.CheckReachable()
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.device = addrs.Device
	s.mu.Unlock()
	if s.dev, err = s.p.devices.use(addrs.Device); err != nil {
		return err
	}
	s.pings, s.qkey = make([]ping, max(64, 2*s.p.o.Rate)), rand.Uint32()&maxQKey
	s.receives, s.slot = len(s.pings), slot
	if err = s.queue.make(addrs.Port, addrs.PKey, 4*s.burst(), s.qkey); err != nil {
		return err
	}
	s.rc, err = s.dev.pd.CreateQP(uverbs.QPOptions{Type: ib.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 4, MaxRecvWR: 1})
	return err
}

// connectRC connects the RC QP.
func (s *session) connectRC(ctx context.Context) error {
	id, err := s.resolve(ctx, rdmacm.TCP)
	if err != nil {
		return err
	}
	if err := modify(id, s.rc, ib.QPInit, s.label(), 0); err != nil {
		return err
	}
	e, err := id.ConnectWait(ctx, rdmacm.ConnParam{
		PrivateData: marshal(s.request()), InitiatorDepth: 1, RetryCount: retryCount, QPN: s.rc.QPN(),
	})
	if err != nil {
		return err
	}
	if s.target, err = parse[target](e.Param.PrivateData); err != nil {
		return err
	}
	for _, state := range []ib.QPState{ib.QPRTR, ib.QPRTS} {
		if err := modify(id, s.rc, state, s.label(), 0); err != nil {
			return err
		}
	}
	return id.Establish()
}

// modify moves the QP of a connection to a state, with a flow label and the rights of the peer.
func modify(id *rdmacm.ID, qp *uverbs.QP, state ib.QPState, label uint32, access uverbs.Access) error {
	attr, mask, err := id.QPAttr(state)
	if err != nil {
		return err
	}
	attr.AH.GRH.FlowLabel, attr.Access = label, access
	if mask&uverbs.AttrTimeout != 0 {
		attr.Timeout, attr.RetryCount = ackTimeout, retryCount
	}
	return qp.Modify(attr, mask)
}

// close closes everything. The peer learns of it by the end of the connection.
func (s *session) close() {
	if len(s.ids) > 1 {
		s.ids[1].RequestDisconnect()
	}
	closeIf(s.rc)
	s.queue.close()
	closeIf(s.ah)
	for _, id := range s.ids {
		id.Close()
	}
	if s.dev != nil {
		s.p.devices.release(s.dev)
	}
}

// probe probes until something fails, and counts what is outstanding then as lost.
func (s *session) probe(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(s.dev.removed, func() { cancel(uverbs.ErrDeviceRemoved) })()
	watched := make(chan struct{})
	defer func() { cancel(nil); <-watched }()
	go func() { // the connection ends
		defer close(watched)
		for {
			e, err := s.ids[1].Next(ctx)
			if err == nil && e.Type != rdmacm.EventDisconnected && e.Type != rdmacm.EventDeviceRemoval {
				continue
			}
			cancel(cmp.Or(err, error(fmt.Errorf("the peer has ended the connection: %w", syscall.ECONNRESET))))
			return
		}
	}()
	s.lastEcho = time.Now()
	next := time.Now().Add(rand.N(s.interval())) // so that paths take turns
	wcs := make([]uverbs.WC, 32)
	for late := false; ; {
		until, stop := context.WithDeadline(ctx, next)
		n, werr := s.cq.Wait(until, wcs)
		stop()
		for i := range wcs[:n] {
			if err := s.completed(&wcs[i]); err != nil {
				return s.lastWords(err)
			}
		}
		now := time.Now()
		switch {
		case ctx.Err() != nil:
			return s.lastWords(context.Cause(ctx))
		case werr != nil && until.Err() == nil:
			return s.lastWords(werr)
		case !late && now.Sub(next) > s.interval(): // this process did not run: echoes may have come meanwhile
			late, next = true, now.Add(s.interval())
			continue
		case now.Sub(s.lastEcho) > silence:
			return s.lastWords(errSilent)
		case now.Before(next):
			continue
		}
		s.expire(now)
		if err := s.send(now); err != nil {
			return s.lastWords(err)
		}
		if next = next.Add(s.interval()); next.Before(now) {
			next = now.Add(s.interval())
		}
		late = false
	}
}

// lastWords counts what is outstanding as lost, and returns err.
func (s *session) lastWords(err error) error {
	cause := causeOf(err)
	for ; s.oldest <= s.seq; s.oldest++ {
		if s.of(s.oldest).cause != "" {
			s.lost(UD, 1, cause)
		}
	}
	if s.reading {
		s.lost(RC, 1, cause)
	}
	return err
}

// send posts a READ, unless one is outstanding, and a burst of pings. The latency of the first ping
// counts: the others wait for those before them.
func (s *session) send(now time.Time) error {
	if !s.reading {
		s.readAt = s.dev.now()
		if err := s.rc.PostSend(uverbs.SendWR{
			ID: readID, Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled,
			SGL: []uverbs.SGE{s.mr.SGE(0, readSize)}, RemoteAddr: s.target.Addr, RKey: s.target.RKey,
		}); err != nil {
			return err
		}
		s.reading = true
		s.path.sent(RC, 1)
	}
	if s.unacked >= 3 {
		return nil // the device is behind; silence ends the session if it stays so
	}
	var b [datagramSize]byte
	for i := range s.burst() {
		seq := s.seq + 1
		wr := uverbs.SendWR{ID: pingID, Opcode: uverbs.WRSend, Inline: b[:], AH: s.ah, RemoteQPN: s.to.QPN, RemoteQKey: s.to.QKey}
		p := ping{sent: now, cause: Silent}
		if i == 0 {
			p.at = s.dev.now()
		}
		if i == s.burst()-1 {
			wr.Flags = uverbs.SendSignaled
			s.unacked++
		}
		d := datagram{kind: kindPing, token: s.token, seq: seq}
		d.put(b[:])
		if err := s.ud.PostSend(wr); err != nil {
			return err
		}
		s.seq = seq
		*s.of(seq) = p
	}
	s.path.sent(UD, uint64(s.burst()))
	return nil
}

// expire counts pings that were not answered in time.
func (s *session) expire(now time.Time) {
	for ; s.oldest <= s.seq; s.oldest++ {
		p := s.of(s.oldest)
		if p.cause == "" {
			continue
		}
		if now.Sub(p.sent) < lostAfter {
			return
		}
		s.lost(UD, 1, p.cause)
		p.cause = ""
	}
}

// completed handles a completion.
func (s *session) completed(wc *uverbs.WC) error {
	switch {
	case wc.Status == uverbs.WCSuccess:
	case wc.ID < pingID && wc.Status != uverbs.WCWRFlushErr: // a stranger's datagram that is too long
		return s.post(wc.ID)
	default:
		return wc.Err() // that of the CQ is a page with counters, and new each time
	}
	switch wc.ID {
	case pingID:
		s.unacked--
	case readID:
		if s.reading {
			s.reading = false
			s.answered(RC, s.dev.between(s.readAt, s.dev.at(wc)))
		}
	default:
		b, err := s.received(wc)
		if err != nil {
			return err
		}
		if d, ok := parseDatagram(b[min(uverbs.GRHSize, len(b)):], kindEcho); ok && d.token == s.token && wc.SrcQP == s.to.QPN {
			s.echo(&d, wc)
		}
		return s.post(wc.ID)
	}
	return nil
}

// echo handles an echo, which also reports other pings. A later echo may report that one has
// arrived after all.
func (s *session) echo(d *datagram, wc *uverbs.WC) {
	if d.seq < s.oldest || d.seq > s.seq {
		return
	}
	for i := range uint64(64) {
		if d.seq < s.oldest+1+i {
			break
		}
		switch p := s.of(d.seq - 1 - i); {
		case p.cause == "":
		case d.arrived>>i&1 != 0:
			p.cause = Return
		case p.cause == Silent:
			p.cause = Forward
		}
	}
	p := s.of(d.seq)
	if p.cause == "" {
		return
	}
	p.cause = ""
	s.lastEcho = time.Now()
	latency := s.dev.between(p.at, s.dev.at(wc))
	if dwell := time.Duration(min(d.dwell, uint64(time.Hour))); dwell < latency {
		latency -= dwell
	}
	s.answered(UD, latency)
}
