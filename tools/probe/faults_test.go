package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// TestEchoNumbers: whatever numbers echoes have, and whatever they say about other pings, each ping
// counts once.
func TestEchoNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		s := &session{path: &path{counters: newCounters()}, queue: queue{dev: &device{}}, pings: make([]ping, 64), oldest: 1}
		now, answered := time.Now(), map[uint64]bool{}
		for range 200 {
			if now = now.Add(lostAfter / 40); s.seq+1-s.oldest < 60 {
				s.seq++
				*s.of(s.seq) = ping{sent: now, at: 1, cause: Silent}
			}
			seq := s.oldest + uint64(r.IntN(70)) - 4 // of some that are lost, and some that were not sent
			switch r.IntN(10) {
			case 0:
				seq = r.Uint64()
			case 1:
				seq = s.seq + uint64(len(s.pings)) // of the same place
			case 2:
				seq = s.seq - uint64(len(s.pings))
			}
			if s.oldest <= seq && seq <= s.seq {
				answered[seq] = true
			}
			s.echo(&datagram{seq: seq, arrived: r.Uint64() & r.Uint64(), dwell: r.Uint64() >> r.IntN(64)}, &uverbs.WC{})
			s.expire(now)
		}
		s.expire(now.Add(lostAfter))
		ud := s.results(Result{})[1]
		if n := ud.Latency.answers(); n == 0 || n != uint64(len(answered)) || n+ud.total() != s.seq || ud.Latency.Sum < 0 {
			t.Fatalf("of %d pings %d were answered, want %d, and %d lost", s.seq, n, len(answered), ud.total())
		}
	}
}

// TestHostileEchoes: echoes with wrong numbers, tokens, kinds and lengths, and echoes of a host
// that does not know the Q_Key, answer no ping. The session goes on.
func TestHostileEchoes(t *testing.T) {
	h := hosts(t, 2)
	peer, _ := answer(t, h[1], Options{})
	s, err := connected(t, h[0], h[1], 10)
	must(t, err)
	must(t, s.send(time.Now()))
	until(t, "the ping is echoed", func() bool { return peer.Answers().Echoes == 1 })
	peer.answers.mu.Lock()
	g := peer.answers.sessions[s.token]
	peer.answers.mu.Unlock()
	wcs := make([]uverbs.WC, 8)
	received := 0
	take := func() {
		n, err := s.cq.Poll(wcs)
		must(t, err)
		for i := range wcs[:n] {
			if wcs[i].ID < pingID {
				received++
			}
			must(t, s.completed(&wcs[i]))
		}
	}
	answers := func() uint64 { return s.results(Result{})[1].Latency.answers() }
	until(t, "the echo is counted", func() bool { take(); return answers() == 1 })
	must(t, s.send(time.Now())) // a ping whose echo is not taken from the CQ before the others
	until(t, "the ping is echoed", func() bool { return peer.Answers().Echoes == 2 })
	until(t, "the echo has come", func() bool { take(); return answers() == 2 })

	s.seq++ // a ping that is on its way for ever
	*s.of(s.seq) = ping{sent: time.Now(), at: s.dev.now(), cause: Silent}
	right := datagram{kind: kindEcho, token: s.token, seq: s.seq}
	send := func(d datagram, size int, qkey uint32) {
		t.Helper()
		b := make([]byte, max(size, datagramSize))
		d.put(b)
		must(t, g.a.ud.PostSend(uverbs.SendWR{ID: pingID, Opcode: uverbs.WRSend, Inline: b[:size], AH: g.ah, RemoteQPN: s.ud.QPN(), RemoteQKey: qkey}))
	}
	wrong := []datagram{{kindEcho, s.token, s.seq + 1, 0, 0}, {kindEcho, s.token, 0, 0, 0}, {kindEcho, s.token, 1<<64 - 1, 1<<64 - 1, 1<<64 - 1}, {kindEcho, s.token, 1, 0, 0},
		{kindEcho, s.token + 1, s.seq, 0, 0}, {kindPing, s.token, s.seq, 0, 0}}
	before := received
	for _, d := range wrong {
		send(d, datagramSize, s.qkey)
	}
	send(right, datagramSize-1, s.qkey)
	for range 2 * len(s.pings) {
		send(right, datagramSize, qkey)
	}
	until(t, "the wrong echoes have come", func() bool { take(); return received-before >= len(wrong)+1 })
	if answers() != 2 {
		t.Error("a wrong echo answers a ping")
	}
	send(right, datagramSize, s.qkey) // behind those of the stranger
	until(t, "the right echo is counted", func() bool { take(); return answers() > 2 })
	if n := received - before; n != len(wrong)+2 || answers() != 3 {
		t.Errorf("%d datagrams were received, want %d, and %d pings are answered", n, len(wrong)+2, answers())
	}
}

// TestMissed: nothing of the time in which a peer is not reached is left out, however short its
// parts are.
func TestMissed(t *testing.T) {
	p := &path{p: &Prober{o: Options{Rate: 25}}, counters: newCounters()}
	begun := time.Now()
	from := begun
	for to := begun; to.Sub(begun) < 10*time.Second; to = to.Add(70 * time.Millisecond) {
		from = p.missed(from, to, Refused)
	}
	p.missed(from, begun.Add(10*time.Second), Silent)
	for _, r := range p.results(Result{}) {
		if want := map[Transport]uint64{UD: 250, RC: 125}[r.Transport]; r.total() != want || r.Sent != want || r.lost(Silent) > 4 {
			t.Errorf("%+v, want %d", r, want)
		}
	}
}

// TestPause: after a pause of this process, probes whose echoes have come are not lost.
func TestPause(t *testing.T) {
	h := hosts(t, 2)
	answer(t, h[1], Options{})
	p, _ := start(t, Options{Source: h[0].addr, Peers: []string{h[1].addr.String()}, Rate: 1000, Paths: 1})
	ud := func() Result { return of(p, h[1].addr, 0, UD) }
	until(t, "it probes", func() bool { return ud().Sent > 300 })
	p.mu.Lock()
	c := p.peers[0].paths[0].counters
	p.mu.Unlock()
	before := ud()
	c.mu.Lock()
	time.Sleep(2 * lostAfter)
	c.mu.Unlock()
	until(t, "it goes on", func() bool { return ud().Sent > before.Sent+1500 })
	if n := ud().lost(Silent) - before.lost(Silent); n != 0 {
		t.Errorf("%d probes are lost", n)
	}
}

// TestWarn: there is one warning about a thing, until it works again.
func TestWarn(t *testing.T) {
	var got []string
	p, err := New(Options{Peers: []string{"10.0.0.1"}, Warn: func(err error) { got = append(got, err.Error()) }})
	must(t, err)
	for i := range 100 {
		p.warn("requests", fmt.Errorf("10.0.0.%d", i))
		p.warn("a", errors.New("timeout"))
		if i == 50 {
			p.works("a")
		}
	}
	if want := []string{"10.0.0.0", "timeout", "timeout"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	p.warned["a"] = time.Now().Add(-2 * time.Hour)
	p.warn("a", errors.New("later"))
	if got[len(got)-1] != "later" {
		t.Errorf("%v", got)
	}
}

// TestFiles: a file that is emptied, removed or too long, or is a pipe, leaves the peers, and the
// other entries are followed. A comment alone stands for no peers.
func TestFiles(t *testing.T) {
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	write := func(name, text string) { must(t, os.WriteFile(name, []byte(text), 0o600)) }
	write(one, "a\nb")
	write(two, strings.Repeat("#", 100_000)+"\nc\na")
	var warnings []string
	p, err := New(Options{Peers: []string{"@" + one, "@" + two}, Warn: func(err error) { warnings = append(warnings, err.Error()) }})
	must(t, err)
	files := map[string][]string{}
	check := func(warning string, want ...string) {
		t.Helper()
		if got := p.names(files); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
		if got := strings.Join(warnings, "; "); !strings.Contains(got, warning) || warning == "" && got != "" {
			t.Errorf("warnings: %q, want %q", got, warning)
		}
		p.works("@" + one)
		warnings = nil
	}
	check("", "a", "b", "c")
	write(one, "")
	write(two, "d")
	check("one has 0 bytes, allowed: 1 to 1048576", "a", "b", "d")
	write(one, strings.Repeat("x", mostFile+1))
	check("one has 1048577 bytes", "a", "b", "d")
	must(t, os.Remove(one))
	check("no such file", "a", "b", "d")
	must(t, syscall.Mkfifo(one, 0o600))
	check("one is no regular file", "a", "b", "d")
	must(t, os.Remove(one))
	write(one, "# none")
	check("", "d")
	write(one, strings.Repeat("e\n", 10)+"f@g\n")
	check(`Peers is "f@g"`, "d")
	many := ""
	for i := range 3 * mostPeers {
		many += fmt.Sprintf("n%d\n", i)
	}
	write(one, many)
	if got := p.names(files); len(got) != mostPeers {
		t.Errorf("%d names", len(got))
	}
}

// TestEnd: nothing is left of a Prober that has ended, or whose device was removed.
func TestEnd(t *testing.T) {
	count := func() (goroutines, descriptors int) {
		files, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return runtime.NumGoroutine(), len(files)
	}
	round := func(remove bool) {
		h := hosts(t, 2)
		peer, stopPeer := answer(t, h[1], Options{})
		p, stop := start(t, Options{Source: h[0].addr, Peers: []string{h[1].addr.String(), "127.9.9.9"}, Rate: 100, Paths: 4})
		until(t, "it is answered", func() bool { return of(p, h[1].addr, 3, RC).Up && of(p, h[1].addr, 3, UD).Up })
		if remove {
			h[1].dev.Close()
			until(t, "the peer is down", func() bool { return !of(p, h[1].addr, 3, RC).Up })
			h[0].dev.Close()
		}
		stop()
		stopPeer()
		for _, p := range []*Prober{p, peer} {
			if len(p.devices.open) != 0 || len(p.answers.sessions) != 0 || len(p.answers.rcs) != 0 || len(p.answers.on) != 0 || p.answers.rate != 0 {
				t.Errorf("left: %v %v %v", p.devices.open, p.answers.sessions, p.answers.on)
			}
		}
		h[0].dev.Close()
		h[1].dev.Close()
	}
	round(false)
	goroutines, descriptors := count()
	for i := range 4 {
		round(i%2 == 1)
	}
	until(t, "goroutines and descriptors are gone", func() bool {
		g, d := count()
		return g <= goroutines && d <= descriptors
	})
}

// TestListenLater: a Prober that listens on an address waits for its device.
func TestListenLater(t *testing.T) {
	resolveEach = 50 * time.Millisecond
	defer func() { resolveEach = 10 * time.Second }()
	h := hosts(t, 2)
	must(t, h[1].dev.Close())
	warned := make(chan error, 1)
	listener, err := New(Options{Listen: netip.AddrPortFrom(h[1].addr, Port).String(), Warn: func(err error) { warned <- err }})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- listener.Run(ctx) }()
	defer func() { cancel(); must(t, <-done) }()
	t.Log(<-warned)
	if again := hosts(t, 1)[0]; again.addr != h[1].addr {
		t.Fatalf("the device has %v", again.addr)
	}
	p, stop := start(t, Options{Source: h[0].addr, Peers: []string{h[1].addr.String()}, Rate: 100, Paths: 1})
	defer stop() // before resolveEach is what it was
	until(t, "it answers", func() bool { return of(p, h[1].addr, 0, UD).Up && of(p, h[1].addr, 0, RC).Up })
}
