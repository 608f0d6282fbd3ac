package guest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/tools/vmrun/internal/frame"
)

// wire is where init's messages go in a test.
type wire struct {
	mu sync.Mutex
	bytes.Buffer
}

func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Buffer.Write(p)
}

// messages gives what was sent so far.
func (w *wire) messages(t *testing.T) []frame.Message {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []frame.Message
	for w.Len() > 0 {
		m, err := frame.Read(&w.Buffer)
		must(t, err)
		all = append(all, m)
	}
	return all
}

func newInit(t *testing.T) (*initProc, *wire) {
	t.Helper()
	w := &wire{}
	p := &initProc{out: frame.NewWriter(w), procs: procs}
	p.cfg.Dir = t.TempDir()
	must(t, p.openStreams())
	t.Cleanup(p.stdin.Stop)
	return p, w
}

// summary puts what a stream brought together, and lists the other messages.
func summary(t *testing.T, all []frame.Message) (stdout, stderr string, exits []ExitedMsg) {
	t.Helper()
	for _, m := range all {
		switch m.Kind {
		case frame.Stdout:
			stdout += string(m.Payload)
		case frame.Stderr:
			stderr += string(m.Payload)
		case frame.Exited:
			var e ExitedMsg
			must(t, json.Unmarshal(m.Payload, &e))
			exits = append(exits, e)
		}
	}
	return stdout, stderr, exits
}

func sh(script string) Program { return Program{Path: "/bin/sh", Args: []string{"sh", "-c", script}} }

func TestRunProgram(t *testing.T) {
	p, w := newInit(t)
	must(t, p.handle(frame.Message{Kind: frame.Stdin, Payload: []byte("first\nsecond\n")}))
	for i, prog := range []Program{
		sh("read a; echo got $a; echo problem >&2; exit 3"),
		sh("cat; kill -KILL $$"),
		sh("sleep 3 & echo left a child behind"),
		{Path: "/nonexistent", Args: []string{"x"}},
	} {
		if i == 1 {
			// The end of the input comes after the first has read its line.
			must(t, p.handle(frame.Message{Kind: frame.Stdin}))
		}
		must(t, p.runProgram(i, prog))
	}
	stdout, stderr, exits := summary(t, w.messages(t))
	if stdout != "got first\nsecond\nleft a child behind\n" || stderr != "problem\n" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	want := []ExitedMsg{{Index: 0, Status: 3}, {Index: 1, Signal: 9}, {Index: 2}, {Index: 3, Error: "start /nonexistent: no such file or directory"}}
	if d := cmp.Diff(want, exits); d != "" {
		t.Error(d)
	}
}

// A host that takes no more ends a program that writes without end.
func TestHangup(t *testing.T) {
	p, w := newInit(t)
	done := make(chan error)
	go func() { done <- p.runProgram(0, sh("while echo y; do :; done 2>/dev/null; exit 4")) }()
	for len(w.messages(t)) < 2 {
		continue
	}
	must(t, p.handle(frame.Message{Kind: frame.Closed, Payload: []byte{byte(frame.Stdout)}}))
	must(t, <-done)
	_, _, exits := summary(t, w.messages(t))
	if len(exits) != 1 || exits[0].Signal == 0 && exits[0].Status == 0 {
		t.Errorf("it ended with %+v", exits)
	}
	// The next program writes as if nothing had been.
	p.streams[frame.Stdout].out.Grant(frame.Window)
	must(t, p.runProgram(1, sh("echo next")))
	if stdout, _, _ := summary(t, w.messages(t)); stdout != "next\n" {
		t.Errorf("the next one's output: %q", stdout)
	}
}

func TestHandleErrors(t *testing.T) {
	p, _ := newInit(t)
	for _, m := range []frame.Message{
		{Kind: frame.Hello}, {Kind: frame.Credit}, {Kind: frame.Credit, Payload: []byte("o\xff\xff\xff\xff")},
		{Kind: frame.Stdin, Payload: make([]byte, frame.Window+1)},
	} {
		if err := p.handle(m); err == nil {
			t.Errorf("message %q was taken", byte(m.Kind))
		}
	}
	for _, m := range []frame.Message{
		{Kind: frame.Closed}, {Kind: frame.Closed, Payload: []byte("?")}, {Kind: frame.Signal}, {Kind: frame.Credit, Payload: []byte("?\x01\x00\x00\x00")},
	} {
		if err := p.handle(m); err != nil {
			t.Errorf("message %q: %v", byte(m.Kind), err)
		}
	}
}

// At a barrier, a host waits until it is told to go on. Alone, it does not.
func TestBarrier(t *testing.T) {
	p, w := newInit(t)
	if err := p.barrier(); err != nil || w.Len() != 0 {
		t.Errorf("alone: %v, %d bytes sent", err, w.Len())
	}
	p.host, p.goOn = 1, make(chan struct{}, 1)
	must(t, p.handle(frame.Message{Kind: frame.Go}))
	must(t, p.barrier())
	if all := w.messages(t); len(all) != 1 || all[0].Kind != frame.Barrier {
		t.Errorf("sent %v", all)
	}
}

func TestSendFile(t *testing.T) {
	p, w := newInit(t)
	path := filepath.Join(t.TempDir(), "f")
	for _, size := range []int{0, 1, frame.MaxPayload / 2, 100_000} {
		want := strings.Repeat("z", size)
		must(t, os.WriteFile(path, []byte(want), 0o600))
		must(t, p.sendFile(path))
		var got []byte
		last := 0
		for _, m := range w.messages(t) {
			var f FileMsg
			if err := json.Unmarshal(m.Payload, &f); err != nil || m.Kind != frame.File || f.Path != path || f.Mode != 0o600 {
				t.Fatalf("%q: %+v, %v", byte(m.Kind), f, err)
			}
			got = append(got, f.Data...)
			if f.Last {
				last++
			}
		}
		if string(got) != want || last != 1 {
			t.Errorf("%d bytes of %d came, with %d last pieces", len(got), size, last)
		}
	}
	if err := p.sendFile(path + ".none"); err != nil || w.Len() != 0 {
		t.Errorf("a file that is not there: %v, %d bytes sent", err, w.Len())
	}
	if err := p.sendFile(t.TempDir()); err == nil {
		t.Error("a directory was sent")
	}
}

// must fails a test on an error.
func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}
