package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// Server serves clients.
type Server struct {
	Local     Local
	MaxMemory int // MaxMemory is the most memory that the tests of all clients may take at once, in bytes; 0 is without a limit.
	// Log is told what happens to clients; it is called from several goroutines and may be nil.
	Log func(format string, args ...any)

	tamper func([]byte) // see End

	mu    sync.Mutex
	taken int // guarded by mu; of MaxMemory
}

// take reserves memory for a test.
func (s *Server) take(size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.MaxMemory > 0 && size > s.MaxMemory-s.taken {
		return fmt.Errorf("the test needs %d bytes of memory, allowed by this server (--max-memory): %d, of which other clients have %d", size, s.MaxMemory, s.taken)
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

// Serve serves the clients that a listener accepts, each in a goroutine, until the context
// ends. What goes wrong with one is logged.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
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
		all.Go(func() {
			name := "client " + conn.RemoteAddr().String()
			what, err := s.serve(ctx, conn, name)
			if err != nil {
				s.log("%s: %v", name, err)
			} else {
				s.log("%s is done: %s", name, what)
			}
		})
	}
}

// log tells of something.
func (s *Server) log(format string, args ...any) {
	if s.Log != nil {
		s.Log(format, args...)
	}
}

// serve serves one client, and says what was done.
func (s *Server) serve(ctx context.Context, conn net.Conn, name string) (what string, err error) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return "", err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	version, err := checkPreamble(conn)
	if err != nil {
		return "", err
	}
	if _, err := conn.Write(preamble()); err != nil {
		return "", err
	}
	if version != ProtocolVersion {
		return "", versionError(version)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	se := &session{server: s}
	se.control = &control{conn: conn, name: name, inbox: make(chan message, inboxRoom), cancel: cancel, end: se.stop}
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
	server *Server
	config Config
	what   string
	room   int // of the server's memory

	mu  sync.Mutex
	end *End          // guarded by mu
	fin chan struct{} // guarded by mu; closed when the client has sent all
}

// errBye says that a client has hung up where it may.
var errBye = errors.New("the client has hung up")

// stop gets what the client has sent.
func (se *session) stop(sent int64) {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.end == nil || se.fin == nil {
		return
	}
	se.end.Stop(sent)
	close(se.fin)
	se.fin = nil
}

// play serves all that the client wants.
func (se *session) play(ctx context.Context) (err error) {
	hello, err := se.take(ctx, kindHello, answerTime)
	if err != nil {
		return err
	}
	if hello.Limits == nil {
		return errors.New("the client does not tell its limits")
	}
	dev, port, err := OpenDevice(se.server.Local, addrOf(se.conn.LocalAddr()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	attr, err := dev.QueryPort(port)
	if err != nil {
		return err
	}
	mine := limits(dev, attr)
	if err := se.put(message{Kind: kindHello, Limits: &mine}); err != nil {
		return err
	}
	defer func() { se.server.give(se.room) }()
	end, err := se.open(ctx, dev, port, mine)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end.Close()) }()
	if err := se.connect(ctx, end); err != nil {
		return err
	}
	se.mu.Lock()
	se.end = end
	se.mu.Unlock()
	se.server.log("%s begins: %s over %s on %s", se.name, se.config.Name(), se.config.Type, dev.Name())
	for {
		m, err := se.take(ctx, kindStart, se.config.Patience+answerTime)
		if err != nil {
			var told *PeerError
			if se.what != "" && ctx.Err() != nil && !errors.As(err, &told) {
				return errBye
			}
			return err
		}
		if err := se.measure(ctx, m.Size); err != nil {
			return fmt.Errorf("size %d: %w", m.Size, err)
		}
		se.what = fmt.Sprintf("%s over %s on %s, up to %d bytes", se.config.Name(), se.config.Type, dev.Name(), m.Size)
	}
}

// open makes this side as the client wants it.
func (se *session) open(ctx context.Context, dev *uverbs.Device, port uint8, mine Limits) (*End, error) {
	m, err := se.take(ctx, kindOpen, answerTime)
	if err != nil {
		return nil, err
	}
	if m.Config == nil {
		return nil, errors.New("the client does not tell what it wants")
	}
	se.config = *m.Config
	if err := se.config.Validate(); err != nil {
		return nil, err
	}
	if err := se.server.Local.Validate(&se.config); err != nil {
		return nil, err
	}
	if err := se.config.fit(mine); err != nil {
		return nil, err
	}
	se.config.settle(mine)
	const request = 256 // a work request, with what belongs to it
	room := newLayout(&se.config).size + request*se.config.QPs*(se.config.list()+cycle/cacheLine)
	if err := se.server.take(room); err != nil {
		return nil, err
	}
	se.room = room
	end, err := NewEnd(dev, port, se.config, se.server.Local, true)
	if err == nil {
		end.tamper = se.server.tamper
	}
	return end, err
}

// connect connects the queue pairs.
func (se *session) connect(ctx context.Context, end *End) (err error) {
	opened := message{Kind: kindOpened}
	var ids *connections
	if se.config.CM {
		if ids, err = listenIDs(end, addrOf(se.conn.LocalAddr())); err != nil {
			return err
		}
		opened.CMAddr = ids.addr.String()
	}
	if err := se.put(opened); err != nil {
		return err
	}
	theirs, err := se.take(ctx, kindPeers, answerTime)
	if err != nil {
		return err
	}
	if len(theirs.Peers) != se.config.QPs {
		return fmt.Errorf("the client has %d queue pairs, and wants %d", len(theirs.Peers), se.config.QPs)
	}
	if ids != nil {
		if err := ids.accept(ctx); err != nil {
			return err
		}
	}
	mine, err := end.Peers(theirs.Peers[0].GID)
	if err != nil {
		return err
	}
	if err := end.Connect(ctx, theirs.Peers); err != nil {
		return err
	}
	if err := se.put(message{Kind: kindPeers, Peers: mine, Inline: end.Inline}); err != nil {
		return err
	}
	if _, err = se.take(ctx, kindConnected, answerTime); err != nil {
		return err
	}
	return end.greeted(ctx)
}

// measure does this side's part for a size.
func (se *session) measure(ctx context.Context, size int) error {
	c := &se.config
	if size < 1 || size > c.maxSize() {
		return fmt.Errorf("the client has announced sizes up to %d", c.maxSize())
	}
	if err := se.end.Prepare(size); err != nil {
		return err
	}
	fin := make(chan struct{})
	se.mu.Lock()
	se.fin = fin
	se.mu.Unlock()
	if err := se.put(message{Kind: kindReady}); err != nil {
		return err
	}
	var run *Run
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
	if c.Verify {
		done := (se.end.peerHas.Load() - 1) / int64(c.QPs)
		if err := se.end.VerifyMemory(size, done); err != nil {
			return err
		}
		if c.Both && c.Op == Read {
			if err := se.end.verifyRead(size, run.AllSent/int64(c.QPs)); err != nil {
				return err
			}
		}
	}
	return se.put(message{Kind: kindReport, Run: run})
}
