// Package program runs programs beside a test: the servers and clients that it is about.
package program

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// Patience bounds a program from its start, on a machine that emulates and is busy.
const Patience = time.Minute

// Program is a program that runs.
type Program struct {
	Name  string        // Name is its command line.
	Ended chan struct{} // Ended is closed when it has ended.
	Err   error         // Err is what it ended with; valid when Ended is closed.

	cmd   *exec.Cmd
	out   output
	limit *time.Timer // ends it
}

// output is what a program prints; it can be read while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

// Launch starts a program, which does not outlive the test. If the test fails, its log has the
// program's output.
func Launch(t *testing.T, line ...string) *Program {
	t.Helper()
	return LaunchBy(t, (*exec.Cmd).Start, line...)
}

// LaunchBy is Launch for a program that start starts, for instance in another network namespace. It may
// change the command before.
func LaunchBy(t *testing.T, start func(*exec.Cmd) error, line ...string) *Program {
	t.Helper()
	p := &Program{Name: strings.Join(line, " "), Ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	p.limit = time.AfterFunc(Patience, cancel)
	p.cmd = exec.CommandContext(ctx, line[0], line[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := start(p.cmd); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		p.Err = End(p.cmd.Wait(), p.Output())
		close(p.Ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-p.Ended
		if t.Failed() {
			t.Logf("%s: %v\n%s", p.Name, p.Err, p.Output())
		}
	})
	return p
}

// Server starts a program that prints a line as soon as it serves, and returns what follows prefix in that line, without
// suffix. The program is killed at the end of the test.
func Server(t *testing.T, server *exec.Cmd, prefix, suffix string) string {
	t.Helper()
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	rest, begins := strings.CutPrefix(line, prefix)
	where, ends := strings.CutSuffix(rest, suffix+"\n")
	if !begins || !ends {
		t.Fatalf("%s prints %q (%v), want %q, an address, and %q", strings.Join(server.Args, " "), line, err, prefix, suffix)
	}
	return where
}

// End returns what a program ended with, given what [exec.Cmd.Wait] returned and what it printed, without one
// defect of rdma-core's rping: it closes its event channel while a thread of its may still read that, and the
// thread ends the program as if something had failed. Later versions of it wait for the thread.
func End(err error, out string) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 255 &&
		strings.Contains(out, "DISCONNECT EVENT...\n") && strings.Contains(out, "rdma_get_cm_event: Bad file descriptor\n") {
		return nil
	}
	return err
}

// KeepRunning lets it run until the test ends or waits for it, and not just for [Patience]: a server has many
// clients, each of which has a limit of its own.
func (p *Program) KeepRunning() { p.limit.Stop() }

// Output returns what it has printed so far.
func (p *Program) Output() string {
	p.out.mu.Lock()
	defer p.out.mu.Unlock()
	return p.out.b.String()
}

// PID returns the number of its process.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Signal sends it a signal, if it still runs.
func (p *Program) Signal(s os.Signal) { p.cmd.Process.Signal(s) }

// Wait waits for its end, which shall be a good one, and returns what it printed. A program that still runs
// after [Patience] is killed.
func (p *Program) Wait(t *testing.T) string {
	t.Helper()
	p.limit.Reset(Patience)
	if <-p.Ended; p.Err != nil {
		t.Errorf("%s: %v", p.Name, p.Err)
	}
	return p.Output()
}

// Until waits for what it will do while it runs, for [Patience] at most.
func (p *Program) Until(t *testing.T, what string, done func() bool) {
	t.Helper()
	late := time.After(Patience)
	for !done() {
		select {
		case <-late:
			t.Fatalf("%s has not %s within %s", p.Name, what, Patience)
		case <-p.Ended:
			t.Fatalf("%s has ended before it %s: %v", p.Name, what, p.Err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Serving waits until somebody listens on a port of the connection manager, by the kernel's
// list of its IDs.
func (p *Program) Serving(t *testing.T, space netlinkrdma.PortSpace, port uint16) {
	t.Helper()
	p.Until(t, "listened", func() bool {
		devices, err := netlinkrdma.Devices()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range devices {
			ids, err := netlinkrdma.CMIDs(d)
			if err != nil {
				t.Fatal(err)
			}
			for _, id := range ids {
				if id.State == netlinkrdma.CMListen && id.PortSpace == space && id.Src.Port() == port {
					return true
				}
			}
		}
		return false
	})
}
