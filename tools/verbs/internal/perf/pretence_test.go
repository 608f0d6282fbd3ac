package perf

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// secret is in all errors of the pretended device, and no client may see it.
const secret = "REG_MR at 0x7f12"

// pretence stands for the devices of a machine. It checks that what reaches it has been checked.
type pretence struct {
	t      testing.TB
	server *Server
	device Limits
	fails  string // the call that fails, with a secret in the error

	opened, closed atomic.Int32
	open_          func() // called in open, if it is not nil
}

// fail returns an error if a call is to fail.
func (p *pretence) fail(call string) error {
	if p.fails == call {
		return errors.New(secret)
	}
	return nil
}

// limits implements backend.
func (p *pretence) limits(netip.Addr) (Limits, error) { return p.device, p.fail("limits") }

// open implements backend.
func (p *pretence) open(_ netip.Addr, c Config) (side, error) {
	if p.open_ != nil {
		p.open_()
	}
	if err := p.fail("open"); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		p.t.Errorf("the device is opened for a config that is not valid: %v", err)
	}
	fits := c
	if err := fits.fit(p.device); err != nil {
		p.t.Errorf("the device is opened for what it cannot do: %v", err)
	}
	p.server.mu.Lock()
	taken := p.server.taken
	p.server.mu.Unlock()
	if need := footprint(&c, p.device); taken < need || taken > p.server.MaxMemory {
		p.t.Errorf("the device is opened with %d bytes of memory accounted for, need %d, allowed %d", taken, need, p.server.MaxMemory)
	}
	p.opened.Add(1)
	return &pretendedSide{p: p, c: c, at: "open", left: len(c.Sizes), ended: make(chan struct{}, 1)}, nil
}

// pretendedSide is a side without a device.
type pretendedSide struct {
	p     *pretence
	c     Config
	left  int // sizes
	ended chan struct{}

	mu sync.Mutex
	at string // guarded by mu; the last call
}

// step checks the order of calls.
func (s *pretendedSide) step(call string, after ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(after, s.at) {
		s.p.t.Errorf("%s is called after %s, want after one of %v", call, s.at, after)
	}
	s.at = call
	return s.p.fail(call)
}

// listen implements side.
func (s *pretendedSide) listen() (string, []byte, error) { return "", nil, s.step("listen", "open") }

// accept implements side.
func (s *pretendedSide) accept(context.Context) error { return s.step("accept", "listen") }

// peers implements side.
func (s *pretendedSide) peers(ib.GID) ([]Peer, int, error) {
	return make([]Peer, s.c.QPs), 0, s.step("peers", "accept")
}

// Connect implements side.
func (s *pretendedSide) Connect(_ context.Context, peers []Peer) error {
	if len(peers) != s.c.QPs {
		s.p.t.Errorf("%d queue pairs are connected, want %d", len(peers), s.c.QPs)
	}
	for _, p := range peers {
		counts := p.Own > 0 && p.Own < math.MaxUint64-ownSize+1 && p.Recvs > 0 && p.Recvs <= maxDepth
		if p.QPN > 0xffffff || p.PSN > 0xffffff || p.Addr+cycle < p.Addr || s.p.device.IWARP != counts || !counts && (p.Own != 0 || p.Recvs != 0) {
			s.p.t.Errorf("a queue pair is connected to %+v", p)
		}
	}
	return s.step("connect", "greeted")
}

// path implements side.
func (s *pretendedSide) path(_ context.Context, client *Peer) (*Peer, error) {
	if s.p.device.IWARP {
		return nil, s.step("path", "peers")
	}
	if client.QPN > 0xffffff || client.PSN > 0xffffff {
		s.p.t.Errorf("the path is connected to %+v", client)
	}
	return &Peer{}, s.step("path", "peers")
}

// greeted implements side.
func (s *pretendedSide) greeted(context.Context, []byte) error { return s.step("greeted", "path") }

// Prepare implements side.
func (s *pretendedSide) Prepare(size int) error {
	if s.left--; s.left < 0 || !slices.Contains(s.c.Sizes, size) {
		s.p.t.Errorf("size %d is prepared, the sizes are %v, of which %d are left", size, s.c.Sizes, s.left+1)
	}
	select { // of the last size
	case <-s.ended:
	default:
	}
	return s.step("prepare", "connect", "prepare", "run", "verify")
}

// Run implements side.
func (s *pretendedSide) Run(ctx context.Context, _ int, sent func(int64) error) (*Run, error) {
	if err := s.step("run", "prepare"); err != nil {
		return nil, err
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if sent != nil {
		if err := sent(1); err != nil {
			return nil, err
		}
	}
	return &Run{Sent: 1}, nil
}

// Stop implements side.
func (s *pretendedSide) Stop(sent int64) {
	if most := int64(maxQPs) << sendShift; sent < 0 || sent > most || s.c.total() > 0 && sent > int64(s.c.total()*s.c.QPs) {
		s.p.t.Errorf("the client has sent %d messages, of %d on each of %d queue pairs", sent, s.c.total(), s.c.QPs)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at != "prepare" && s.at != "run" {
		s.p.t.Errorf("the client has sent all, after %s", s.at)
	}
	s.ended <- struct{}{} // or the test hangs: it is told twice
}

// verify implements side.
func (s *pretendedSide) verify(int, *Run) error { return s.step("verify", "prepare", "run") }

// name implements side.
func (s *pretendedSide) name() string { return "pretended" }

// close implements side.
func (s *pretendedSide) close() error {
	s.p.closed.Add(1)
	return nil
}

// hostile is a client that sends whatever it likes.
type hostile struct {
	conn net.Conn
	got  chan message // what the server says; closed at the end
}

// attack connects to a session of a server, without a network. The function that it returns waits
// for the session's end.
func attack(t testing.TB, s *Server, p *pretence) (*hostile, func() error) {
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := s.serve(context.Background(), theirs, "client", p)
		ended <- err
	}()
	h := &hostile{conn: ours, got: make(chan message, 256)}
	go func() {
		defer close(h.got)
		if _, err := io.ReadFull(ours, make([]byte, preambleLen)); err != nil {
			return
		}
		for {
			b, err := readFrame(ours, func() int { return peersFrame(maxQPs) })
			if err != nil {
				return
			}
			m, err := decodeMessage(b, maxQPs)
			if err != nil {
				t.Errorf("the server sends %q: %v", b, err)
				return
			}
			if strings.Contains(string(b), secret) {
				t.Errorf("the client is told %q", b)
			}
			h.got <- m
		}
	}()
	return h, func() error {
		ours.Close()
		for range h.got {
		}
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			t.Fatal("the session does not end when the client has hung up")
			return nil
		}
	}
}

// send sends a message, or what has a text in it that is none. The server may have hung up.
func (h *hostile) send(v any) {
	b, ok := v.([]byte)
	if !ok {
		b, _ = json.Marshal(v)
	}
	h.conn.SetWriteDeadline(time.Now().Add(time.Second))
	h.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
}

// wait waits for the server's next message of a kind.
func (h *hostile) wait(kind string, timeout time.Duration) bool {
	late := time.After(timeout)
	for {
		select {
		case m, ok := <-h.got:
			if !ok || m.Kind == kind {
				return ok
			}
		case <-late:
			return false
		}
	}
}

// honest returns the queue pairs that a config wants.
func honest(c *Config, iwarp bool) (all []Peer) {
	for i := range c.QPs {
		p := Peer{QPN: uint32(17 + i), PSN: 5, Addr: 4096, RKey: 1}
		if iwarp {
			p.Own, p.Recvs = 8192, 512
		}
		all = append(all, p)
	}
	return all
}

// newPretence returns a server that has memory for one test, and what it runs on.
func newPretence(t testing.TB, iwarp bool, fails string) (*Server, *pretence) {
	s := &Server{Local: Local{GID: Auto, CPU: Auto}, MaxMemory: 1 << 30}
	l := limits0
	l.IWARP = iwarp
	return s, &pretence{t: t, server: s, device: l, fails: fails}
}

// done checks that nothing is left of a session.
func (p *pretence) done() {
	if n, m := p.opened.Load(), p.closed.Load(); n != m {
		p.t.Errorf("%d sides were opened and %d closed", n, m)
	}
	if p.server.taken != 0 {
		p.t.Errorf("%d bytes are accounted for when the client is gone", p.server.taken)
	}
}
