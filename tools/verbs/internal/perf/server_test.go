package perf

import (
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

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
			{kindOpened, message{Kind: kindPeers, Peers: honest(&c, false), Path: &Peer{}}},
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
		"connect":        {"connect", connected(&c), privateText},
		"no config":      {"", []any{kindHello, message{Kind: kindOpen}}, "open does not contain the config"},
		"too long":       {"", []any{make([]byte, maxFrame+1)}, "a message of 4097 bytes, allowed: 1 to 4096"},
		"too large":      {"", []any{kindHello, message{Kind: kindOpen, Config: &Config{}}}, "--operation is"},
		"early peers":    {"", []any{kindHello, message{Kind: kindPeers, Peers: honest(&c, false), Path: &Peer{}}}, "peers has more than 0 queue pairs"},
		"negative recvs": {"", []any{kindHello, message{Kind: kindOpen, Config: &c}, kindOpened, []byte(`{"kind":"peers","peers":[{"qpn":17,"own":1,"recvs":-1}]}`)}, "own is 1, allowed: 0 to 0"},
		"8 MiB of peers": {"", []any{kindHello, message{Kind: kindOpen, Config: &c}, kindOpened, make([]byte, 8<<20)}, fmt.Sprintf("a message of 8388608 bytes, allowed: 1 to %d", peersFrame(1))},
		"peers twice":    {"", []any{kindHello, message{Kind: kindOpen, Config: &c}, kindOpened, message{Kind: kindPeers, Peers: honest(&c, false), Path: &Peer{}}, message{Kind: kindPeers, Peers: honest(&c, false), Path: &Peer{}}}, "peers has more than 0 queue pairs"},
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
		kindHello, message{Kind: kindOpen, Config: c}, kindOpened, message{Kind: kindPeers, Peers: honest(c, false), Path: &Peer{}},
		kindPeers, message{Kind: kindConnected},
	}
}

// TestMaxTime: a client that starts a size and goes silent holds the side and its memory no longer than
// MaxTime, whether this side has messages to wait for or not.
func TestMaxTime(t *testing.T) {
	usual := answerTime
	answerTime = time.Second
	t.Cleanup(func() { answerTime = usual })
	const most = 10 * time.Millisecond
	for _, c := range []Config{
		Default(Send, Lat), // both sides send
		Default(Send, BW),  // this side receives
		Default(Write, BW), // this side sees nothing
		Default(Read, BW),  // nor here
	} {
		c.Timeout = maxTime
		s, p := newPretence(t, false, "")
		s.MaxTime = most
		h, end := attack(t, s, p)
		h.conn.Write(preamble())
		h.send(message{Kind: kindHello, Limits: &limits0})
		for _, step := range append(connected(&c), message{Kind: kindStart, Size: c.Sizes[0]}, kindReady) {
			if kind, ok := step.(string); !ok {
				h.send(step)
			} else if !h.wait(kind, 10*time.Second) {
				t.Fatalf("%s: the server does not say %s", c.Name(), kind)
			}
		}
		told := h.wait(kindError, time.Minute)
		left, closed := p.opened.Load(), p.closed.Load() // the server hangs up when it has closed the side
		const want = "the client has not finished within 10ms, allowed by this server (--max-time)"
		if err := end(); !told || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the client is told: %v; the log is told %v, want %q", c.Name(), told, err, want)
		}
		if left != 1 || closed != 1 {
			t.Errorf("%s: %d sides were opened and %d closed before the client has hung up", c.Name(), left, closed)
		}
		p.done()
	}
}

// TestMaxTimeDuration: no device is opened for a test that is to take longer than the server lets it.
func TestMaxTimeDuration(t *testing.T) {
	for _, f := range []struct {
		most, duration time.Duration
		refused        bool
	}{
		{0, DefaultMaxTime, false},
		{0, DefaultMaxTime + 1, true},
		{time.Hour, time.Hour, false},
		{time.Hour, maxTime, true},
		{time.Hour, 30 * time.Minute, false},
		{time.Hour, 30*time.Minute + 1, true},
	} {
		c := with(Write, BW, func(c *Config) { c.Duration = f.duration })
		if f.duration < time.Hour && f.most == time.Hour { // of each size
			c.Sizes = []int{2, 4}
		}
		s, p := newPretence(t, false, "")
		s.MaxTime = f.most
		h, end := attack(t, s, p)
		h.conn.Write(preamble())
		h.send(message{Kind: kindHello, Limits: &limits0})
		h.wait(kindHello, 10*time.Second)
		h.send(message{Kind: kindOpen, Config: &c})
		if opened := h.wait(kindOpened, time.Minute); opened == f.refused {
			t.Errorf("a duration of %s is accepted: %v, with a limit of %s", f.duration, opened, f.most)
		}
		if err := end(); f.refused && (err == nil || !strings.Contains(err.Error(), "allowed by this server (--max-time): up to ")) {
			t.Errorf("the log is told %v", err)
		}
		if n := p.opened.Load(); n != 0 && f.refused {
			t.Errorf("%d sides were opened", n)
		}
		p.done()
	}
}

// TestMaxClients: a client too many is told so, even if those that are there say nothing, and there
// is room again when one of them has left.
func TestMaxClients(t *testing.T) {
	const most, soon = 3, 200 * time.Millisecond
	sv := serve(t, &Server{Local: Local{GID: Auto, CPU: Auto}, MaxClients: 2*most - 1}) // of which an address has half
	dial := func(timeout time.Duration) (net.Conn, string) {                            // for an error, if one is expected
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
		conn.SetReadDeadline(time.Now().Add(timeout))
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
	sv.says(t, "1 clients refused, the last one from 127.0.0.1, as 3 from its address are being served, half of all (--max-clients)")
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

// fuzzNumbers and fuzzCalls are what FuzzServer chooses from: numbers in messages, and calls that fail.
var (
	fuzzNumbers = []int64{0, 1, -1, 2, 63, 64, 65, 4096, 1010, 1 << 20, 1<<20 + 1, 1<<24 - 1, 1 << 24, math.MaxInt32, 1 << 32, math.MaxInt64, math.MinInt64}
	fuzzCalls   = []string{"", "limits", "open", "listen", "accept", "peers", "path", "greeted", "connect", "prepare", "run", "verify"}
)

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
	f.Fuzz(func(t *testing.T, script string, kind uint8) {
		if len(script) > 64 {
			return
		}
		iwarp := kind&1 != 0
		s, p := newPretence(t, iwarp, fuzzCalls[int(kind>>1)%(4*len(fuzzCalls))%len(fuzzCalls)])
		if kind>>1 >= uint8(len(fuzzCalls)) {
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
			number := func() int64 { return fuzzNumbers[int(next())%len(fuzzNumbers)] }
			switch script[i] {
			case 'h':
				h.send(message{Kind: kindHello, Limits: &limits0})
			case 'o':
				h.send(message{Kind: kindOpen, Config: &c})
			case 'O': // a config with one number changed
				bad := changedConfig(c, int(next()), number)
				h.send(message{Kind: kindOpen, Config: &bad})
			case 'p':
				h.send(message{Kind: kindPeers, Peers: honest(&c, iwarp), Path: &Peer{}})
			case 'P': // peers with one number changed
				all := changedPeers(honest(&c, iwarp), next, number)
				h.send(message{Kind: kindPeers, Peers: all, Path: &Peer{}, Inline: int(number())})
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
				h.send(peersOf(rest))
			case 'w':
				select {
				case <-h.got:
				case <-time.After(2 * time.Millisecond):
				}
			case '{':
				h.send([]byte(script[i:]))
			case 'r': // not a frame
				h.conn.SetWriteDeadline(time.Now().Add(time.Second))
				io.WriteString(h.conn, script[i:])
			}
		}
		end()
		p.done()
	})
}

// peersOf returns a message with a peer that has the fields in a text such as "recvs=-1;".
func peersOf(text string) []byte {
	text = strings.NewReplacer("=", `":`, ";", `,"`).Replace(text)
	return []byte(`{"kind":"peers","peers":[{"` + strings.TrimSuffix(text, `,"`) + `}]}`)
}

// changedConfig returns a config with other numbers.
func changedConfig(c Config, n int, number func() int64) Config {
	fields := []*int{&c.QPs, &c.Depth, &c.RecvDepth, &c.List, &c.Moderate, &c.Inline, &c.MTU, &c.Retry, &c.Iterations, &c.Warmup, &c.RdAtomic, &c.AckTimeout}
	if n < len(fields) {
		*fields[n] = int(number())
	} else {
		c.Sizes = []int{int(number()), 64}
		c.Duration, c.Timeout = time.Duration(number()), time.Duration(number())
	}
	return c
}

// changedPeers returns another number of peers, each with another number in it.
func changedPeers(all []Peer, next func() byte, number func() int64) []Peer {
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
	return all
}
