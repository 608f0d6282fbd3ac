package perf

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/goverbs/goverbs/uverbs"
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
func (s *pretendedSide) peers(uverbs.GID) ([]Peer, int, error) {
	return make([]Peer, s.c.QPs), 0, s.step("peers", "accept")
}

// connect implements side.
func (s *pretendedSide) connect(_ context.Context, peers []Peer) error {
	if len(peers) != s.c.QPs {
		s.p.t.Errorf("%d queue pairs are connected, want %d", len(peers), s.c.QPs)
	}
	for _, p := range peers {
		counts := p.Own > 0 && p.Own < math.MaxUint64-ownSize+1 && p.Recvs > 0 && p.Recvs <= maxDepth
		if p.QPN > 0xffffff || p.PSN > 0xffffff || p.Addr+cycle < p.Addr || s.p.device.IWARP != counts || !counts && (p.Own != 0 || p.Recvs != 0) {
			s.p.t.Errorf("a queue pair is connected to %+v", p)
		}
	}
	return s.step("connect", "peers")
}

// greeted implements side.
func (s *pretendedSide) greeted(context.Context) error { return s.step("greeted", "connect") }

// prepare implements side.
func (s *pretendedSide) prepare(size int) error {
	if s.left--; s.left < 0 || !slices.Contains(s.c.Sizes, size) {
		s.p.t.Errorf("size %d is prepared, the sizes are %v, of which %d are left", size, s.c.Sizes, s.left+1)
	}
	select { // of the last size
	case <-s.ended:
	default:
	}
	return s.step("prepare", "greeted", "prepare", "run", "verify")
}

// run implements side.
func (s *pretendedSide) run(ctx context.Context, _ int, sent func(int64) error) (*Run, error) {
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

// stop implements side.
func (s *pretendedSide) stop(sent int64) {
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
func (h *hostile) wait(kind string, patience time.Duration) bool {
	late := time.After(patience)
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

// TestHonest: a client that keeps to the protocol is served on the pretended device, so that what
// the tests below find out is about the hostile ones.
func TestHonest(t *testing.T) {
	for _, c := range []Config{
		with(Send, BW, func(c *Config) { c.Both, c.Sizes = true, []int{1, 64} }),
		with(Send, BW, func(c *Config) { c.QPs, c.Verify, c.Duration = 3, true, time.Second }),
		with(Read, BW, func(*Config) {}),
		Default(Write, Lat),
	} {
		s, p := newPretence(t, false, "")
		h, end := attack(t, s, p)
		h.conn.Write(preamble())
		h.send(message{Kind: kindHello, Limits: &limits0})
		for _, step := range []struct {
			after string
			m     message
		}{
			{kindHello, message{Kind: kindOpen, Config: &c}},
			{kindOpened, message{Kind: kindPeers, Peers: honest(&c, false)}},
			{kindPeers, message{Kind: kindConnected}},
		} {
			if !h.wait(step.after, 10*time.Second) {
				t.Fatalf("%s: no %s: %v", c.Name(), step.after, end())
			}
			h.send(step.m)
		}
		for _, size := range c.Sizes {
			h.send(message{Kind: kindStart, Size: size})
			if !h.wait(kindReady, 10*time.Second) {
				t.Fatalf("%s is not ready for %d bytes", c.Name(), size)
			}
			h.send(message{Kind: kindFinished, Sent: 1})
			if !h.wait(kindReport, 10*time.Second) {
				t.Fatalf("%s: no report on %d bytes", c.Name(), size)
			}
		}
		if err := end(); err != nil {
			t.Errorf("%s: %v", c.Name(), err)
		}
		if p.done(); p.opened.Load() != 1 {
			t.Errorf("%d sides were opened", p.opened.Load())
		}
	}
}

// TestRefusals: a client is told what is wrong with what it has said, and nothing of this machine.
func TestRefusals(t *testing.T) {
	c := with(Send, BW, func(c *Config) { c.Sizes = []int{64} })
	start := []any{message{Kind: kindStart, Size: 64}, kindReady}
	for name, f := range map[string]struct {
		fails  string
		script []any // messages to send, and kinds to wait for
		want   string
	}{
		"limits":         {"limits", nil, privateText},
		"open":           {"open", []any{kindHello, message{Kind: kindOpen, Config: &c}}, privateText},
		"listen":         {"listen", []any{kindHello, message{Kind: kindOpen, Config: &c}}, privateText},
		"connect":        {"connect", []any{kindHello, message{Kind: kindOpen, Config: &c}, kindOpened, message{Kind: kindPeers, Peers: honest(&c, false)}}, privateText},
		"no config":      {"", []any{kindHello, message{Kind: kindOpen}}, "open does not tell the config"},
		"too long":       {"", []any{make([]byte, maxFrame+1)}, "a message of 4097 bytes, allowed: 1 to 4096"},
		"too large":      {"", []any{kindHello, message{Kind: kindOpen, Config: &Config{}}}, "--operation is"},
		"early peers":    {"", []any{kindHello, message{Kind: kindPeers, Peers: honest(&c, false)}}, "peers has more than 0 queue pairs"},
		"negative recvs": {"", []any{kindHello, message{Kind: kindOpen, Config: &c}, kindOpened, []byte(`{"kind":"peers","peers":[{"qpn":17,"own":1,"recvs":-1}]}`)}, "own is 1, allowed: 0 to 0"},
		"8 MiB of peers": {"", []any{kindHello, message{Kind: kindOpen, Config: &c}, kindOpened, make([]byte, 8<<20)}, fmt.Sprintf("a message of 8388608 bytes, allowed: 1 to %d", peersFrame(1))},
		"peers twice":    {"", []any{kindHello, message{Kind: kindOpen, Config: &c}, kindOpened, message{Kind: kindPeers, Peers: honest(&c, false)}, message{Kind: kindPeers, Peers: honest(&c, false)}}, "peers has more than 0 queue pairs"},
		"a third size":   {"", slices.Concat(connected(&c), start, []any{message{Kind: kindFinished}, kindReport, message{Kind: kindStart, Size: 64}}), "has started more than the 1 sizes"},
		"finished twice": {"", slices.Concat(connected(&c), start, []any{message{Kind: kindFinished}, message{Kind: kindFinished}}), "but nothing is under way"},
		"sent too much":  {"", slices.Concat(connected(&c), start, []any{message{Kind: kindFinished, Sent: 1 << 62}}), "sent is 4611686018427387904, allowed: 0 to 1010"},
		"verify":         {"run", slices.Concat(connected(&c), start), privateText},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := newPretence(t, false, f.fails)
			h, end := attack(t, s, p)
			h.conn.Write(preamble())
			h.send(message{Kind: kindHello, Limits: &limits0})
			for _, step := range f.script {
				if kind, ok := step.(string); !ok {
					h.send(step)
				} else if !h.wait(kind, 10*time.Second) {
					t.Fatalf("the server does not say %s", kind)
				}
			}
			said := ""
			for m := range h.got {
				if m.Kind == kindError {
					said = m.Error
				}
			}
			if !strings.Contains(said, f.want) {
				t.Errorf("the client is told %q, want %q", said, f.want)
			}
			if err := end(); err == nil || f.want == privateText && !strings.Contains(err.Error(), secret) {
				t.Errorf("the log is told %v", err)
			}
			p.done()
		})
	}
}

// connected are the steps up to where a size may start.
func connected(c *Config) []any {
	return []any{
		kindHello, message{Kind: kindOpen, Config: c}, kindOpened, message{Kind: kindPeers, Peers: honest(c, false)},
		kindPeers, message{Kind: kindConnected},
	}
}

// TestMaxClients: a client too many is told so, even if those that are there say nothing, and there
// is room again when one of them has left.
func TestMaxClients(t *testing.T) {
	const most, soon = 3, 200 * time.Millisecond
	sv := serve(t, &Server{Local: Local{GID: Auto, CPU: Auto}, MaxClients: most})
	dial := func(patience time.Duration) (net.Conn, string) { // for an error, if one is expected
		conn, err := net.Dial("tcp", sv.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.Write(preamble())
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.ReadFull(conn, make([]byte, preambleLen)); err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(patience))
		b, err := readFrame(conn, func() int { return maxFrame })
		if err != nil {
			return conn, ""
		}
		m, err := decodeMessage(b, 0)
		if err != nil {
			t.Fatal(err)
		}
		return conn, m.Error
	}
	var first net.Conn
	for i := range most {
		conn, said := dial(soon)
		if said != "" {
			t.Fatalf("client %d of %d is told %q", i, most, said)
		}
		first = conn
	}
	for range 3 {
		if _, said := dial(time.Minute); said != tooMany {
			t.Errorf("a client too many is told %q, want %q", said, tooMany)
		}
	}
	sv.says(t, "1 clients refused, as 3 are being served (--max-clients)")
	first.Close()
	sv.says(t, "client "+first.LocalAddr().String())
	for range 100 {
		if _, said := dial(soon); said == "" {
			return
		}
	}
	t.Error("there is no room when a client has left")
}

// TestMemoryFirst: no device is opened for a client whose test is too large for the memory that is
// left.
func TestMemoryFirst(t *testing.T) {
	c := with(Write, BW, func(c *Config) { c.QPs = 100 })
	s, p := newPretence(t, false, "")
	s.MaxMemory = footprint(&c, p.device)
	s.taken = 1
	h, end := attack(t, s, p)
	h.conn.Write(preamble())
	h.send(message{Kind: kindHello, Limits: &limits0})
	h.wait(kindHello, 10*time.Second)
	h.send(message{Kind: kindOpen, Config: &c})
	if h.wait(kindOpened, 10*time.Second) {
		t.Error("a test is opened that needs more memory than there is")
	}
	if err := end(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("the test needs %d bytes of memory, allowed by this server (--max-memory): %[1]d, of which other clients have 1", s.MaxMemory)) {
		t.Errorf("the log is told %v", err)
	}
	if p.opened.Load() != 0 || s.taken != 1 {
		t.Errorf("%d sides were opened, %d bytes are taken", p.opened.Load(), s.taken)
	}
}

// FuzzServer plays clients that send any sequence of messages, with any numbers in them. Whatever
// comes, the session ends with the client, what reaches the device has been checked, the memory is
// given back, and no client sees an error of the device.
func FuzzServer(f *testing.F) {
	const steps = "hOwocSwf"
	for _, script := range []string{
		"hwowpwcswfw", "hwowpwcswfwswfwx", "hwowp1", "hwowp2", "hwowp9wc", "hwowpwcswF3", "hw{}", "hhhhh", "hwowpwcsss", "hwowpwcswffff", "P", "hO4", "hw" + steps,
		"hwowjown=1;recvs=-1;", "hwowpwcwswjsent=-1;",
	} {
		f.Add(script, uint8(0))
		f.Add(script, uint8(0xff))
	}
	usual := answerTime
	answerTime = 5 * time.Second
	f.Cleanup(func() { answerTime = usual })
	numbers := []int64{0, 1, -1, 2, 63, 64, 65, 4096, 1010, 1 << 20, 1<<20 + 1, 1<<24 - 1, 1 << 24, math.MaxInt32, 1 << 32, math.MaxInt64, math.MinInt64}
	calls := []string{"", "limits", "open", "listen", "accept", "peers", "connect", "greeted", "prepare", "run", "verify"}
	f.Fuzz(func(t *testing.T, script string, kind uint8) {
		if len(script) > 64 {
			return
		}
		iwarp := kind&1 != 0
		s, p := newPretence(t, iwarp, calls[int(kind>>1)%(4*len(calls))%len(calls)])
		if kind>>1 >= uint8(len(calls)) {
			p.fails = ""
		}
		h, end := attack(t, s, p)
		h.conn.Write(preamble())
		c := with(Send, BW, func(c *Config) {
			c.Both, c.Verify, c.CM, c.Sizes, c.QPs = kind&2 != 0, kind&4 != 0, iwarp, []int{64, 4096}, 1+int(kind>>6)
		})
		for i := 0; i < len(script); i++ {
			next := func() (b byte) { // the byte behind a letter, if there is one
				if i+1 < len(script) {
					i++
					b = script[i]
				}
				return b
			}
			number := func() int64 { return numbers[int(next())%len(numbers)] }
			switch script[i] {
			case 'h':
				h.send(message{Kind: kindHello, Limits: &limits0})
			case 'o':
				h.send(message{Kind: kindOpen, Config: &c})
			case 'O': // a config with one number changed
				bad := c
				fields := []*int{&bad.QPs, &bad.Depth, &bad.RecvDepth, &bad.List, &bad.Moderate, &bad.Inline, &bad.MTU, &bad.Retry, &bad.Iterations, &bad.Warmup, &bad.RdAtomic, &bad.Timeout}
				if n := int(next()); n < len(fields) {
					*fields[n] = int(number())
				} else {
					bad.Sizes = []int{int(number()), 64}
					bad.Duration, bad.Patience = time.Duration(number()), time.Duration(number())
				}
				h.send(message{Kind: kindOpen, Config: &bad})
			case 'p':
				h.send(message{Kind: kindPeers, Peers: honest(&c, iwarp)})
			case 'P': // peers with one number changed
				all := honest(&c, iwarp)
				if n := int(number()); n >= 0 && n < 1000 {
					all = slices.Repeat(all, n)
				}
				for j := range all {
					switch next() % 6 {
					case 0:
						all[j].QPN = uint32(number())
					case 1:
						all[j].PSN = uint32(number())
					case 2:
						all[j].Addr = uint64(number())
					case 3:
						all[j].Own = uint64(number())
					case 4:
						all[j].Recvs = int(number())
					}
				}
				h.send(message{Kind: kindPeers, Peers: all, Inline: int(number())})
			case 'c':
				h.send(message{Kind: kindConnected})
			case 's':
				h.send(message{Kind: kindStart, Size: 64})
			case 'S':
				h.send(message{Kind: kindStart, Size: int(number())})
			case 'f':
				h.send(message{Kind: kindFinished, Sent: 10})
			case 'F':
				h.send(message{Kind: kindFinished, Sent: number()})
			case 'e':
				h.send(message{Kind: kindError, Error: script[i:]})
			case 'j': // fields as text, such as "recvs=-1;"
				rest, _, _ := strings.Cut(script[i+1:], " ")
				i += len(rest)
				rest = strings.NewReplacer("=", `":`, ";", `,"`).Replace(rest)
				h.send([]byte(`{"kind":"peers","peers":[{"` + strings.TrimSuffix(rest, `,"`) + `}]}`))
			case 'w':
				select {
				case <-h.got:
				case <-time.After(2 * time.Millisecond):
				}
			case '{':
				h.send([]byte(script[i:]))
			case 'r': // no frame
				h.conn.SetWriteDeadline(time.Now().Add(time.Second))
				io.WriteString(h.conn, script[i:])
			}
		}
		end()
		p.done()
	})
}
