package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/tools/vmrun/internal/frame"
	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
)

const (
	warning = "4,1,1000000,-;WARNING: CPU: 0 PID: 1 at x.c:1 f+0x1/0x2"
	known   = "4,1,1000000,-;WARNING: CPU: 0 PID: 1 at drivers/infiniband/sw/rxe/rxe_comp.c:742 rxe_completer+0xa89/0xc20 [rdma_rxe]"
)

// played gives a session in which a guest has sent the messages.
func played(t *testing.T, messages ...any) *session {
	t.Helper()
	s := newSession(imageHost{nprogs: 2}, t.Logf, false)
	for _, v := range messages {
		m := frame.Message{}
		switch v := v.(type) {
		case guest.HelloMsg:
			m.Kind = frame.Hello
		case guest.StartedMsg:
			m.Kind = frame.Started
		case guest.ExitedMsg:
			m.Kind = frame.Exited
		case string:
			m.Kind, m.Payload = frame.Kmsg, []byte(v)
		}
		if m.Payload == nil {
			b, err := json.Marshal(v)
			must(t, err)
			m.Payload = b
		}
		must(t, s.handle(m))
	}
	return s
}

func TestVerdict(t *testing.T) {
	hello510, hello := guest.HelloMsg{Release: "5.10.0-46-amd64"}, guest.HelloMsg{Release: "6.1.0-50-amd64"}
	ok, three, killed := guest.ExitedMsg{}, guest.ExitedMsg{Status: 3}, guest.ExitedMsg{Signal: 11}
	for _, tt := range []struct {
		name     string
		end      ending
		messages []any
		console  string
		status   int
		says     []string
		err      string
	}{
		{"all well", ended, []any{hello, ok}, "", 0, nil, ""},
		{"the program's status", ended, []any{hello, three}, "", 3, nil, ""},
		{"the first that is not 0", ended, []any{hello, ok, three, killed}, "", 3, nil, ""},
		{"killed by a signal", ended, []any{hello, killed}, "", 139, nil, ""},
		{"not started", ended, []any{hello, guest.ExitedMsg{Error: "start /x: no"}}, "", 125, []string{"start /x: no"}, ""},
		{"a warning", ended, []any{hello, ok, warning}, "", 126, []string{"the kernel complained", "x.c:1 f+0x1"}, ""},
		{"a warning and a bad program", ended, []any{hello, three, warning}, "", 3, []string{"x.c:1 f+0x1"}, ""},
		{"a known bug", ended, []any{hello510, ok, known}, "", 0, []string{"known kernel bug", "cause: rxe completes"}, ""},
		{"a bug of another kernel", ended, []any{hello, ok, known}, "", 126, []string{"the kernel complained"}, ""},
		{"a panic on the console", machineGone, []any{hello, guest.StartedMsg{}}, "[    5.000000] Kernel panic - not syncing: x\n",
			126, []string{"Kernel panic - not syncing: x", "the kernel gave up, while program 1 of 2 ran"}, ""},
		{"a panic at boot", machineGone, nil, "[    0.500000] Kernel panic - not syncing: VFS\n", 126, []string{"before the guest's init was heard of"}, ""},
		{"switched off", machineGone, []any{hello, guest.StartedMsg{}, "6,1,1,-;reboot: Power down"}, "bye\n",
			0, []string{"reboot: Power down", "bye"}, "switched off from inside, while program 1 of 2 ran"},
		{"files that do not fit", machineGone, nil, "[    4.697774] Initramfs unpacking failed: write error\n",
			0, []string{"the guest's memory of 1G is too small", "try a larger -mem"}, "switched off from inside"},
		{"out of memory", ended, []any{hello, "6,1,1,-;Out of memory: Killed process 99 (prog)", killed}, "", 139, []string{"the guest's memory of 1G is too small"}, ""},
		{"hangs", timedOut, []any{hello, guest.StartedMsg{}, "6,1,1,-;last words"}, "", 124, []string{"last words", "timeout: while program 1 of 2 ran after 1m0s"}, ""},
		{"hangs at boot", timedOut, nil, "[    0.100000] stuck\n", 124, []string{"stuck", "before the guest's init was heard of"}, ""},
		{"hangs after an oops", oopsed, []any{hello, guest.StartedMsg{}, "1,1,1,-;BUG: kernel NULL pointer dereference, address: 0"}, "",
			126, []string{"BUG: kernel NULL pointer dereference"}, ""},
		{"init gives up", initFailed, []any{hello}, "", 0, nil, "guest: add rxe device"},
		{"mute", mute, nil, "", 0, nil, "said nothing under KVM for 15s: try -accel tcg"},
		{"interrupted", interrupted, []any{hello}, "", 143, nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			a := &app{options: defaults(), stderr: &stderr}
			a.timeout = time.Minute
			s := played(t, tt.messages...)
			s.end, s.fatal = tt.end, "add rxe device rxe0"
			fmt.Fprint(s.console, tt.console)
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(signalled{syscall.SIGTERM})
			status, err := a.verdict(ctx, s)
			if status != tt.status || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("status %d, error %v; want %d, %q", status, err, tt.status, tt.err)
			}
			for _, want := range tt.says {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("no %q in\n%s", want, stderr.String())
				}
			}
			if tt.says == nil && tt.err == "" && stderr.Len() > 0 {
				t.Errorf("said %q", stderr.String())
			}
		})
	}
}

// A guest is not trusted with the host's files.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	s := played(t)
	s.fetch = map[string]string{"/tmp/a": filepath.Join(dir, "a"), "/tmp/b": filepath.Join(dir, "no/dir")}
	for _, m := range []guest.FileMsg{
		{Path: "/tmp/a", Mode: 0o600, Data: []byte("one ")}, {Path: "/etc/evil", Data: []byte("x"), Last: true},
		{Path: "/tmp/a", Data: []byte("two"), Last: true}, {Path: "/tmp/b", Last: true},
	} {
		b, err := json.Marshal(m)
		must(t, err)
		must(t, s.handle(frame.Message{Kind: frame.File, Payload: b}))
	}
	if b, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(b) != "one two" {
		t.Errorf("%q, %v", b, err)
	}
	if err := s.fetchErr; err == nil || !strings.Contains(err.Error(), `"/etc/evil"`) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("fetchErr: %v", err)
	}
}

func TestHandleGarbage(t *testing.T) {
	for _, k := range []frame.Kind{frame.Hello, frame.Started, frame.Exited, frame.File, frame.Credit, frame.Stdin, frame.Dump} {
		s := played(t)
		if err := s.handle(frame.Message{Kind: k, Payload: []byte("garbage")}); err == nil {
			t.Errorf("%q: garbage was taken", byte(k))
		}
	}
	s := played(t)
	s.receive(strings.NewReader("[    0.000000] this is a console"))
	select {
	case <-s.broken.ch:
	default:
		t.Error("bytes that are no messages were taken")
	}
}

func TestLastLines(t *testing.T) {
	var l lastLines
	for i := range 5 * keptLines {
		fmt.Fprintf(&l, "line %d\r\n", i)
	}
	fmt.Fprint(&l, "the ")
	fmt.Fprint(&l, "rest")
	l.flush()
	got := l.last(2)
	if len(got) != 2 || got[0] != fmt.Sprintf("line %d", 5*keptLines-1) || got[1] != "the rest" {
		t.Errorf("%q", got)
	}
	if n := len(l.last(1 << 20)); n < keptLines || n > 2*keptLines {
		t.Errorf("%d lines are kept", n)
	}
	fmt.Fprint(&l, strings.Repeat("x", 1<<18))
	if len(l.part) > 1<<16 {
		t.Errorf("%d bytes without a line end are kept", len(l.part))
	}
}

// Each way to say something wrong gives vmrun's own status and a message.
func TestExecuteErrors(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", "")
	for _, args := range []string{"", "-nosuch", "-kernel 2.4 ./x", "-cpus x ./x", "get", "get -suite x -arch y pkg", "./x ---", "-hosts 3 ./x", "./x +++ ./y", "-hosts 2 ./x +++"} {
		if got := execute(strings.Fields(args)); got != statusFailure {
			t.Errorf("%q: status %d, want %d", args, got, statusFailure)
		}
	}
}
