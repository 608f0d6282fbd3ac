package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Limits of what other hosts may hold and cause.
const (
	addressSessions = 64               // of one address
	idleAfter       = 10 * time.Second // a session without a ping may give way to a new one
	againAfter      = 5 * time.Second  // a port that could not be made to answer is tried again
	totalRate       = 50000            // pings per second that are promised, of all sessions together
	qkey            = 0x01234567       // of the port space for datagrams
)

// Answers counts what the other hosts' probes have met here. It is a plain value.
type Answers struct {
	Sessions int    // Sessions is how many paths of other hosts are answered now.
	Echoes   uint64 // Echoes counts pings that were answered.
	Refused  uint64 // Refused counts requests of other hosts that were refused: not allowed, too many, or malformed.
	Dropped  uint64 // Dropped counts datagrams without a valid session, or faster than their session may be.
}

// answers answers probes.
type answers struct {
	p       *Prober
	channel *rdmacm.Channel
	listens []*rdmacm.ID

	mu       sync.Mutex
	sessions map[uint64]*grant     // by token
	rcs      map[*rdmacm.ID]*grant // by the ID of their connection
	on       map[answererKey]*answerer
	failed   map[answererKey]failure
	rate     int            // that is promised
	all      sync.WaitGroup // the goroutines of answerers

	echoes, refused, dropped atomic.Uint64
}

// failure is why there is no answerer.
type failure struct {
	err error
	at  time.Time
}

// grant is a path of another host that is answered.
type grant struct {
	request
	from netip.Addr
	a    *answerer
	last time.Time // of the last ping

	qpn    uint32 // of the sender, from the first ping on
	sgid   ib.GID // of the sender
	ah     *uverbs.AH
	window window
	room   float64   // pings that may come at once
	filled time.Time // when room was reckoned
	rcID   *rdmacm.ID
	rc     *uverbs.QP
}

// start listens.
func (s *answers) start() error {
	listen, err := s.p.o.listen()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listens = nil // not those of an attempt that has failed
	s.sessions, s.rcs, s.on, s.failed = map[uint64]*grant{}, map[*rdmacm.ID]*grant{}, map[answererKey]*answerer{}, map[answererKey]failure{}
	local := listen.Addr()
	if local.IsUnspecified() {
		local = netip.Addr{}
	}
	if s.channel, err = rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: local}); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	for _, space := range []rdmacm.PortSpace{rdmacm.UDP, rdmacm.TCP} {
		id, err := s.channel.NewID(space)
		if err == nil {
			s.listens = append(s.listens, id)
			if err = id.Bind(rdmacm.AddrOf(listen)); err == nil {
				err = id.Listen(128)
			}
		}
		if err != nil {
			return errors.Join(fmt.Errorf("probe: listen on %s: %w", listen, err), s.close())
		}
	}
	return nil
}

// close closes the listeners and the channel.
func (s *answers) close() error {
	for _, id := range s.listens {
		id.Close()
	}
	return s.channel.Close()
}

// run answers until the context ends.
func (s *answers) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	for err == nil {
		var e *rdmacm.Event
		if e, err = s.channel.Next(ctx); err == nil {
			s.event(ctx, e)
		}
	}
	if ctx.Err() != nil {
		err = nil
	}
	cancel()
	s.all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for token := range s.sessions {
		s.drop(token)
	}
	return errors.Join(err, s.close())
}

// event handles an event of the connection manager.
func (s *answers) event(ctx context.Context, e *rdmacm.Event) {
	switch e.Type {
	case rdmacm.EventConnectRequest:
		err := s.request(ctx, e)
		if err == nil {
			return
		}
		s.p.warn("requests", fmt.Errorf("probe: a request is refused: %w", err))
		s.refused.Add(1)
		e.ID.Reject(nil, rdmacm.ReasonConsumer)
		e.ID.Close()
	case rdmacm.EventDisconnected, rdmacm.EventDeviceRemoval, rdmacm.EventConnectError, rdmacm.EventUnreachable, rdmacm.EventRejected:
		s.mu.Lock()
		defer s.mu.Unlock()
		if g := s.rcs[e.ID]; g != nil { // a prober begins anew with another session
			s.drop(g.Token)
		}
	}
}

// request answers a request. After an error the caller rejects it.
func (s *answers) request(ctx context.Context, e *rdmacm.Event) error {
	addrs, err := e.ID.Addrs()
	if err != nil {
		return err
	}
	from := addrs.Remote.IP.Unmap().WithZone("")
	if len(s.p.o.Allow) > 0 && !slices.ContainsFunc(s.p.o.Allow, func(n netip.Prefix) bool { return n.Contains(from) }) {
		return fmt.Errorf("%s is in none of the networks of Allow", from)
	}
	r, err := parseRequest(e.Param.PrivateData)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Listen == s.listens[1] {
		return s.connect(e, r, from, addrs.Device)
	}
	a, err := s.answerer(ctx, answererKey{addrs.Device, addrs.Port, addrs.PKey})
	if err != nil {
		return err
	}
	if err := s.makeRoom(from, int(r.Rate)); err != nil {
		return err
	}
	var b [8]byte
	rand.Read(b[:])
	r.Token = binary.BigEndian.Uint64(b[:])
	s.sessions[r.Token] = &grant{request: r, from: from, a: a, last: time.Now(), filled: time.Now(), room: float64(r.Rate)}
	s.rate += int(r.Rate)
	if err := e.ID.Accept(rdmacm.ConnParam{PrivateData: marshal(r.Token), QPN: a.ud.QPN(), QKey: qkey}); err != nil {
		s.drop(r.Token)
		return err
	}
	e.ID.Close() // the answer is under way
	return nil
}

// makeRoom makes room for a session of an address, instead of one that is idle if need be.
func (s *answers) makeRoom(from netip.Addr, rate int) error {
	for {
		own, ownIdle := s.idle(func(g *grant) bool { return g.from == from })
		all, idle := s.idle(func(*grant) bool { return true })
		switch {
		case own >= addressSessions && ownIdle != nil:
			s.drop(ownIdle.Token)
		case own >= addressSessions:
			return fmt.Errorf("%s has %d sessions, which is the most of an address", from, own)
		case all < s.p.o.Sessions && s.rate+rate <= totalRate:
			return nil
		case idle != nil:
			s.drop(idle.Token)
		default:
			return fmt.Errorf("there are %d sessions with %d pings/s, allowed: %d with %d", all, s.rate, s.p.o.Sessions, totalRate)
		}
	}
}

// idle counts some sessions, and returns the one that is idle for the longest time.
func (s *answers) idle(some func(*grant) bool) (n int, longest *grant) {
	for _, g := range s.sessions {
		if !some(g) {
			continue
		}
		n++
		if time.Since(g.last) >= idleAfter && (longest == nil || g.last.Before(longest.last)) {
			longest = g
		}
	}
	return n, longest
}

// connect makes the RC QP of a session.
func (s *answers) connect(e *rdmacm.Event, r request, from netip.Addr, device string) (err error) {
	g := s.sessions[r.Token]
	if g == nil || g.from != from || g.a.device != device || g.rcID != nil {
		return errors.New("the request for a connection has no session, or not the first one of it")
	}
	g.rc, err = g.a.dev.pd.CreateQP(uverbs.QPOptions{Type: ib.RC, SendCQ: g.a.idle, RecvCQ: g.a.idle, MaxSendWR: 1, MaxRecvWR: 1})
	if err != nil {
		return err
	}
	for _, state := range []ib.QPState{ib.QPInit, ib.QPRTR, ib.QPRTS} {
		if err = modify(e.ID, g.rc, state, g.Label, uverbs.AccessRemoteRead); err != nil {
			break
		}
	}
	if err == nil {
		t := target{g.a.target.SGE(0, readSize).Addr, g.a.target.RKey()}
		err = e.ID.Accept(rdmacm.ConnParam{PrivateData: marshal(t), QPN: g.rc.QPN(), ResponderResources: 1})
	}
	if err != nil {
		g.rc.Close()
		g.rc = nil
		return err
	}
	g.rcID, s.rcs[e.ID] = e.ID, g
	return nil
}

// drop ends a session.
func (s *answers) drop(token uint64) {
	g := s.sessions[token]
	if g.rcID != nil {
		delete(s.rcs, g.rcID)
		g.rcID.RequestDisconnect()
		g.rc.Close()
		g.rcID.Close()
	}
	closeIf(g.ah)
	s.rate -= int(g.Rate)
	delete(s.sessions, token)
}

// answerer returns the answerer of a port, which it makes if there is none. If that fails, requests
// fail with the same error for a while.
func (s *answers) answerer(ctx context.Context, key answererKey) (a *answerer, err error) {
	if a := s.on[key]; a != nil {
		return a, nil
	}
	if f, ok := s.failed[key]; ok && time.Since(f.at) < againAfter {
		return nil, f.err
	}
	delete(s.failed, key)
	defer func() {
		if err != nil {
			s.failed[key] = failure{err, time.Now()}
		}
	}()
	dev, err := s.p.devices.use(key.device)
	if err != nil {
		return nil, err
	}
	a = &answerer{answererKey: key, queue: queue{dev: dev, receives: answerReceives, slot: answerSlot}}
	if err := a.make(); err != nil {
		a.close()
		s.p.devices.release(dev)
		return nil, err
	}
	s.on[key] = a
	s.all.Go(func() {
		err := s.serve(ctx, a)
		s.mu.Lock()
		for token, g := range s.sessions {
			if g.a == a {
				s.drop(token)
			}
		}
		delete(s.on, key)
		s.failed[key] = failure{err, time.Now()}
		a.close()
		s.p.devices.release(dev)
		s.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			s.p.warn("answers "+key.device, fmt.Errorf("probe: no answers on %s: %w", key.device, err))
		}
	})
	return a, nil
}
