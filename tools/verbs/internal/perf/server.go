package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/places"
)

// DefaultMaxClients is the default for the number of clients that a server accepts at once.
const DefaultMaxClients = 64

// maxTime is the longest duration and timeout of a test, and the largest Server.MaxTime.
const maxTime = 24 * time.Hour

// MaxMaxTime is the largest Server.MaxTime.
const MaxMaxTime = maxTime

// DefaultMaxTime is the default for the time that a client may measure.
const DefaultMaxTime = 10 * time.Minute

// idleTime bounds the time between the run of one size and that of the next, beside the timeout.
const idleTime = time.Minute

// Server serves clients. It trusts none of them: see proto.go.
type Server struct {
	Local      Local
	MaxMemory  int // MaxMemory is the most memory that the tests of all clients may take at once, in bytes; 0 is without a limit.
	MaxClients int // MaxClients is the most clients at once, including those that have not said what they want; 0 is DefaultMaxClients. See package places for the share of an address.
	// MaxTime is the longest that a client may measure, all sizes together, from 0 to MaxMaxTime; 0 is
	// DefaultMaxTime. A test that asks for longer is refused before a device is opened for it.
	// A client that goes silent during a size holds its queue pairs and memory 10 s longer than this at most.
	MaxTime time.Duration
	// AllowMCG lets clients have this host join multicast groups.
	AllowMCG bool
	// Secret guards the server, if it is not nil: only clients that know it are served, and they may
	// choose the device and have the server test others.
	Secret []byte
	// Log is called with what happens to clients, from several goroutines; it may be nil.
	Log func(format string, args ...any)

	tamper      func([]byte) // see End
	coordinator *Pipe        // nil unless it has started the server; see pipe.go

	mu      sync.Mutex
	taken   int       // guarded by mu; of MaxMemory
	refused int       // guarded by mu; clients refused since the last line about them
	told    time.Time // guarded by mu; when that was
}

// take reserves memory for a test.
func (s *Server) take(size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.MaxMemory > 0 && size > s.MaxMemory-s.taken {
		return refusef("the test needs %d bytes of memory, allowed by this server (--max-memory): %d, of which other clients have %d", size, s.MaxMemory, s.taken)
	}
	s.taken += size
	return nil
}

// give gives it back.
func (s *Server) give(size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken -= size
}

// logRefused logs how many clients were refused for lack of room, at most once in a second.
func (s *Server) logRefused(from netip.Addr, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused++
	if time.Since(s.told) > time.Second {
		s.log("%d clients refused, the last one from %s, %v (--max-clients)", s.refused, from, why)
		s.refused, s.told = 0, time.Now()
	}
}

// Serve serves the clients that a listener accepts, each in a goroutine, until the context
// ends. It logs the errors of clients.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return s.serveOn(ctx, l, &devices{server: s})
}

// serveOn is Serve with a choice of what tests run on.
func (s *Server) serveOn(ctx context.Context, l net.Listener, b backend) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
	turning := make(chan struct{}, turnedAway)
	room := &places.Places{Most: cmp.Or(s.MaxClients, DefaultMaxClients)}
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		if err != nil { // such as too many open files: better with time
			s.log("accept: %v", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		tidy()
		from := places.AddrOf(conn.RemoteAddr())
		if err := room.Take(from); err != nil {
			s.logRefused(from, err)
			select {
			case turning <- struct{}{}:
				all.Go(func() {
					s.turnAway(ctx, conn)
					<-turning
				})
			default:
				conn.Close()
			}
			continue
		}
		all.Go(func() {
			defer room.Leave(from)
			name := "client " + conn.RemoteAddr().String()
			what, err := s.serve(ctx, conn, name, b)
			if err != nil {
				s.log("%s: %v", name, err)
			} else {
				s.log("%s is done: %s", name, what)
			}
		})
	}
}

// turnedAway is how many clients at once get the answer that there are too many. The connections of
// others are closed without an answer.
const turnedAway = 16

// tooMany is the text of that answer.
const tooMany = "it has as many clients as it may have at once, of all hosts or of this one (--max-clients)"

// turnAway answers a client that there are too many.
func (s *Server) turnAway(ctx context.Context, conn net.Conn) {
	const timeout = time.Second
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if conn.SetDeadline(time.Now().Add(timeout)) != nil {
		return
	}
	if s.Secret != nil { // the client expects a challenge
		return
	}
	if _, err := conn.Write(preamble()); err != nil {
		return
	}
	c := &control{conn: conn}
	c.fail(refusef(tooMany))
	// To close with unread bytes would reset the connection, and the client might not get the text.
	if t, ok := conn.(*net.TCPConn); ok && t.CloseWrite() == nil {
		io.Copy(io.Discard, io.LimitReader(conn, maxFrame))
	}
}

// log writes a line to s.Log, if it is set.
func (s *Server) log(format string, args ...any) {
	if s.Log != nil {
		s.Log(format, args...)
	}
}

// serve serves one client, and says what was done.
func (s *Server) serve(ctx context.Context, conn net.Conn, name string, b backend) (what string, err error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	ready, err := answer(conn, s.Secret)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	se := &session{limited: s, backend: b}
	se.control = &control{conn: ready, name: name, server: true, inbox: make(chan received, inboxRoom), cancel: cancel, end: se.stop}
	defer se.start()()
	err = Pinned(s.Local.CPU, func() error { return se.play(ctx) })
	if err != nil && !errors.Is(err, errBye) {
		cause := because(ctx, err) // before the client hears of it, and hangs up
		var told *PeerError
		if !errors.As(context.Cause(ctx), &told) {
			se.fail(err)
		}
		return "", cause
	}
	return se.what, nil
}

// session is a client that is served.
type session struct {
	*control
	limited *Server // has the limits for all clients
	backend backend
	config  Config
	what    string
	room    int           // of the server's memory
	most    time.Duration // for a size

	mu  sync.Mutex
	end side          // guarded by mu
	fin chan struct{} // guarded by mu; closed when the client has sent all
}

// errBye says that a client has hung up where it may.
var errBye = errors.New("the client has hung up")

// stop gets what the client has sent.
func (se *session) stop(sent int64) error {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.end == nil || se.fin == nil {
		return se.outOfOrder(kindFinished, ", but nothing is under way")
	}
	se.end.Stop(sent)
	close(se.fin)
	se.fin = nil
	return nil
}

// play serves all that the client wants.
func (se *session) play(ctx context.Context) (err error) {
	kinds := []string{kindHello}
	if se.limited.trusts() {
		kinds = append(kinds, kindInventory, kindProbe)
	}
	hello, err := se.take(ctx, answerTime, kinds...)
	if err != nil {
		return err
	}
	if hello.Kind != kindHello {
		return se.coordinate(ctx, hello)
	}
	if hello.Device != "" && se.limited.trusts() {
		se.backend = &devices{server: se.limited, device: hello.Device}
	}
	to := places.AddrOf(se.conn.LocalAddr())
	mine, err := se.backend.limits(to)
	if err != nil {
		return err
	}
	if err := se.put(message{Kind: kindHello, Limits: &mine}); err != nil {
		return err
	}
	defer func() { se.limited.give(se.room) }()
	end, err := se.open(ctx, to, mine)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end.close()) }()
	ctx, cancel := se.deadline(ctx)
	defer cancel()
	if err := se.connect(ctx, end); err != nil {
		return err
	}
	se.mu.Lock()
	se.end = end
	se.mu.Unlock()
	se.limited.log("%s begins: %s over %s on %s", se.name, se.config.Name(), se.config.Type, end.name())
	for range se.config.Sizes {
		m, err := se.nextSize(ctx)
		if err != nil {
			return err
		}
		if err := se.measure(ctx, m.Size); err != nil {
			return atSize(m.Size, err)
		}
		se.what = fmt.Sprintf("%s over %s on %s, up to %d bytes", se.config.Name(), se.config.Type, end.name(), m.Size)
	}
	if _, err := se.nextSize(ctx); err != nil {
		return err
	}
	return refusef("%s has started more than the %d sizes of its test", se.name, len(se.config.Sizes))
}

// deadline returns a context for a test that is open. The time that open accepts does not include
// the handshake and the warm-up of each size. For each of these it adds answerTime.
func (se *session) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	grace := answerTime * time.Duration(1+len(se.config.Sizes))
	return context.WithTimeoutCause(ctx, se.most+grace, refusef("the client has not finished within %s, allowed by this server (--max-time)", se.most))
}

// nextSize waits until the client starts the next size, or has hung up.
func (se *session) nextSize(ctx context.Context) (message, error) {
	m, err := se.take(ctx, min(se.config.Timeout, idleTime)+answerTime, kindStart)
	var told *PeerError
	var wrong refusal
	if err != nil && se.what != "" && ctx.Err() != nil && !errors.As(err, &told) && !errors.As(err, &wrong) {
		return m, errBye
	}
	return m, err
}

// open makes this side as the client wants it: if that is valid, if the device can do it, and if
// there is memory for it.
func (se *session) open(ctx context.Context, to netip.Addr, mine Limits) (side, error) {
	m, err := se.take(ctx, answerTime, kindOpen)
	if err != nil {
		return nil, err
	}
	se.config = *m.Config
	if err := se.limited.Local.Validate(&se.config); err != nil {
		return nil, refuse(err)
	}
	if !se.config.MGID.IsZero() && !se.limited.AllowMCG {
		return nil, refusef("--mcg: this server has its host join no groups for clients; \"verbs perf serve --allow-mcg\" does")
	}
	if err := se.config.fit(mine); err != nil {
		return nil, refuse(err)
	}
	se.most = cmp.Or(se.limited.MaxTime, DefaultMaxTime)
	if n := time.Duration(len(se.config.Sizes)); se.config.Duration > se.most/max(n, 1) {
		return nil, refusef("--duration is %s for each of %d sizes, allowed by this server (--max-time): up to %s", se.config.Duration, n, se.most/max(n, 1))
	}
	se.config.settle(mine)
	room := footprint(&se.config, mine)
	if err := se.limited.take(room); err != nil {
		return nil, err
	}
	se.room = room
	se.agree(se.config, mine.IWARP)
	return se.backend.open(to, se.config)
}

// connect connects the queue pairs.
func (se *session) connect(ctx context.Context, end side) (err error) {
	opened := message{Kind: kindOpened}
	if se.config.Endless {
		opened.MaxTime = se.most
	}
	if opened.CMAddr, opened.CMToken, err = end.listen(); err != nil {
		return err
	}
	if err := se.put(opened); err != nil {
		return err
	}
	theirs, err := se.take(ctx, answerTime, kindPeers)
	if err != nil {
		return err
	}
	if err := end.accept(ctx); err != nil {
		return err
	}
	mine, inline, err := end.peers(theirs.Peers[0].GID)
	if err != nil {
		return err
	}
	path, err := end.path(ctx, theirs.Path)
	if err != nil {
		return err
	}
	if path != nil {
		for i := range mine { // a client checks it as the server does
			mine[i].GID, mine[i].LID = path.GID, path.LID
		}
	}
	if err := se.put(message{Kind: kindPeers, Peers: mine, Path: path, Inline: inline}); err != nil {
		return err
	}
	m, err := se.take(ctx, answerTime, kindConnected)
	if err != nil {
		return err
	}
	if err := end.greeted(ctx, m.Token); err != nil {
		return err
	}
	return end.Connect(ctx, theirs.Peers)
}

// measure does this side's part for a size.
func (se *session) measure(ctx context.Context, size int) error {
	c := &se.config
	if err := se.end.Prepare(size); err != nil {
		return err
	}
	fin := make(chan struct{})
	se.mu.Lock()
	se.fin = fin
	se.mu.Unlock()
	idle := newMeter() // of a side that does nothing: its device may, in software
	idle.mark()
	if err := se.put(message{Kind: kindReady}); err != nil {
		return err
	}
	run := &Run{}
	if c.sends(true) || c.receives(true) {
		var sent func(int64) error
		if c.Both {
			sent = func(n int64) error { return se.put(message{Kind: kindFinished, Sent: n}) }
		}
		var err error
		if run, err = se.end.Run(ctx, size, sent); err != nil {
			return err
		}
	}
	select {
	case <-fin:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !c.sends(true) && !c.receives(true) {
		idle.end(run)
	}
	if c.Verify {
		if err := se.end.verify(size, run); err != nil {
			return err
		}
	}
	return se.put(message{Kind: kindReport, Run: run})
}
