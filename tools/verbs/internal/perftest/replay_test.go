package perftest

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// message is one that a side has sent.
type message struct {
	client bool
	data   []byte
}

// recording is what two programs of perftest said to each other, as it was seen on the wire.
type recording struct {
	command string
	all     []message
}

// load reads a recording.
func load(t testing.TB, file string) (r recording) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		kind, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if kind == "#" {
			r.command = text
			continue
		}
		data, err := hex.DecodeString(text)
		if err != nil || kind != ">" && kind != "<" {
			t.Fatalf("%s: %q", file, line)
		}
		r.all = append(r.all, message{kind == ">", data})
	}
	return r
}

// recordings are all of them.
func recordings(t testing.TB) map[string]recording {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	all := map[string]recording{}
	for _, f := range files {
		all[strings.TrimSuffix(filepath.Base(f), ".txt")] = load(t, f)
	}
	return all
}

// test reads the command line.
func (r recording) test(t testing.TB) (test Test, cm bool) {
	t.Helper()
	words := strings.Fields(r.command)
	name := strings.Split(words[0], "_")
	test = Test{Op: name[1], Latency: name[2] == "lat", Iterations: 5, Sizes: []int{2}}
	if test.Op == Atomic {
		test.Sizes = []int{8}
	}
	datagrams := slices.Contains(words, "UD")
	for i, w := range words {
		switch w {
		case "-s":
			test.Sizes = []int{64}
			if words[i+1] != "64" {
				t.Fatal(r.command)
			}
		case "-b":
			test.Both = true
		case "-R":
			cm = true
		case "-a":
			test.Sweep, test.Sizes = true, nil
			for size := 2; size <= 1<<23 && (size <= 1024 || !datagrams); size *= 2 {
				test.Sizes = append(test.Sizes, size)
			}
		}
	}
	return test, cm
}

// records are the records of a side's queue pairs.
func (r recording) records(t testing.TB, client bool) (all []Record) {
	t.Helper()
	for _, m := range r.all {
		if m.client != client {
			continue
		}
		var rec Record
		var err error
		switch len(m.data) {
		case textLen, textGIDLen:
			rec, err = parseText(m.data)
		case binaryLen:
			rec, err = parseBinary(m.data)
		}
		if err != nil {
			t.Fatal(err)
		}
		if rec.QPN != 0 && !slices.Contains(all, rec) {
			all = append(all, rec)
		}
	}
	return all
}

// reports are the reports of a side.
func (r recording) reports(client bool) (all []Report) {
	var f [][reportFieldLen]byte
	for _, m := range r.all {
		if m.client == client && len(m.data) == reportFieldLen {
			f = append(f, [reportFieldLen]byte(m.data))
		}
	}
	for ; len(f) >= 5; f = f[5:] {
		all = append(all, parseReport([5][reportFieldLen]byte(f[:5])))
	}
	return all
}

// fakeEngine does no traffic.
type fakeEngine struct {
	mine, remote []Record
	reports      []Report // what it measures, of the last of the sizes
	sizes        int
	log          []string
}

func (e *fakeEngine) Open(context.Context) ([]Record, error) {
	e.log = append(e.log, "open")
	return e.mine, nil
}

func (e *fakeEngine) Connect(_ context.Context, remote []Record) error {
	e.remote = remote
	e.log = append(e.log, "connect")
	return nil
}

func (e *fakeEngine) Prepare(size int) error {
	e.log = append(e.log, fmt.Sprintf("prepare %d", size))
	return nil
}

func (e *fakeEngine) Run(_ context.Context, size int) (Report, error) {
	e.log = append(e.log, fmt.Sprintf("run %d", size))
	e.sizes++
	if len(e.reports) == 0 {
		return Report{}, nil
	}
	return e.reports[min(e.sizes, len(e.reports))-1], nil
}

// replay plays one side of a recording on a connection, and compares what comes with what the
// other has said then.
type replay struct {
	r      recording
	server bool // it is the server that is played
	loose  bool // reports that come are not compared: they were never measured
	next   int
}

var errReplay = errors.New("not as recorded")

// heard compares a message that has come.
func (p *replay) heard(b []byte) error {
	if p.next == len(p.r.all) {
		return fmt.Errorf("%w: %q comes after the end", errReplay, b)
	}
	m := p.r.all[p.next]
	if m.client != p.server {
		return fmt.Errorf("%w: message %d must be sent, and %q comes", errReplay, p.next, b)
	}
	want := bytes.Clone(m.data)
	if len(want) == binaryLen {
		clear(want[20:24]) // padding
	}
	if p.loose && len(want) == reportFieldLen {
		want = b[:min(len(b), len(want))]
	}
	if !bytes.Equal(b, want) {
		return fmt.Errorf("%w: message %d is %q, expected %q", errReplay, p.next, b, want)
	}
	p.next++
	return nil
}

// said returns the next message to send.
func (p *replay) said() ([]byte, error) {
	if p.next == len(p.r.all) || p.r.all[p.next].client == p.server {
		return nil, fmt.Errorf("%w: a message is waited for in place of message %d", errReplay, p.next)
	}
	p.next++
	return p.r.all[p.next-1].data, nil
}

// serve plays on a connection.
func (p *replay) serve(c net.Conn) error {
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	for p.next < len(p.r.all) {
		m := p.r.all[p.next]
		if m.client == p.server {
			b := make([]byte, len(m.data))
			if n, err := io.ReadFull(c, b); err != nil {
				return fmt.Errorf("%w: message %d, got %q: %w", errReplay, p.next, b[:n], err)
			}
			if err := p.heard(b); err != nil {
				return err
			}
			continue
		}
		b, err := p.said()
		if err != nil {
			return err
		}
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	if b, err := io.ReadAll(c); len(b) > 0 {
		return fmt.Errorf("%w: %q comes after the end (%v)", errReplay, b, err)
	}
	return nil
}

// fakeLink has a replay as the peer, message by message as with -R.
type fakeLink struct{ p *replay }

func (l fakeLink) write(_ context.Context, b []byte) error { return l.p.heard(b) }
func (l fakeLink) read(_ context.Context, n int) ([]byte, error) {
	b, err := l.p.said()
	if err == nil && len(b) != n {
		err = errReplay
	}
	return b, err
}
func (l fakeLink) writeRecord(_ context.Context, r Record) error { return l.p.heard(r.binary()) }
func (l fakeLink) readRecord(context.Context) (Record, error) {
	b, err := l.p.said()
	if err != nil {
		return Record{}, err
	}
	return parseBinary(b)
}
func (l fakeLink) watch(func()) (stop func())   { return func() {} }
func (l fakeLink) finish(context.Context) error { return nil }
func (l fakeLink) close() error                 { return nil }

// pipe returns the ends of a TCP connection.
func pipe(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// TestRecorded plays each side of what perftest's programs said to each other: every byte that
// this package sends must be what the program has sent there.
func TestRecorded(t *testing.T) {
	for name, r := range recordings(t) {
		for _, server := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/server=%v", name, server), func(t *testing.T) {
				test, cm := r.test(t)
				e := &fakeEngine{mine: r.records(t, !server), reports: r.reports(!server)}
				oneWay := !test.Both && !test.Latency && test.Op != Send
				peer := &replay{r: r, server: !server, loose: server && oneWay}
				played := make(chan error, 1)
				s := &Session{Server: server, link: fakeLink{peer}, cm: cm, step: time.Minute, run: time.Minute}
				if cm {
					played <- nil
				} else {
					ours, theirs := pipe(t)
					s = NewSession(ours, server, true)
					go func() { played <- peer.serve(theirs) }()
				}
				s.Test = test
				err := s.Hello(t.Context(), DefaultParams(ib.MTU1024))
				var reports []Report
				if err == nil {
					reports, err = s.Play(t.Context(), e)
				}
				s.Close()
				if err := errors.Join(err, <-played); err != nil {
					t.Fatal(err)
				}
				if peer.next != len(r.all) {
					t.Errorf("%d of %d messages were exchanged", peer.next, len(r.all))
				}
				if want := r.records(t, server); !slices.Equal(e.remote, want) {
					t.Errorf("records of the peer: %+v, expected %+v", e.remote, want)
				}
				if want := r.reports(server); (server || !oneWay) && !slices.Equal(reports, want) {
					t.Errorf("reports of the peer: %+v, expected %+v", reports, want)
				}
				active := !server || test.Both || test.Op == Send || test.Op == Write && test.Latency
				want := []string{"open", "connect"}
				for _, size := range test.Sizes {
					if active {
						want = append(want, fmt.Sprintf("prepare %d", size), fmt.Sprintf("run %d", size))
					}
				}
				if !slices.Equal(e.log, want) {
					t.Errorf("the engine got %q, expected %q", e.log, want)
				}
				if s.Version != "6.06" || s.Agreed != DefaultParams(ib.MTU1024) {
					t.Errorf("agreed on %+v with version %s", s.Agreed, s.Version)
				}
			})
		}
	}
}
