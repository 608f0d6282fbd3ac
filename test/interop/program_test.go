package interop

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// program is a program that runs.
type program struct {
	name  string
	cmd   *exec.Cmd
	out   output
	ended chan struct{}
	err   error // valid when ended is closed
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

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// launch starts a program, which does not outlive the test.
func launch(t *testing.T, line ...string) *program {
	t.Helper()
	p := &program{name: strings.Join(line, " "), ended: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), pairTime)
	p.cmd = exec.CommandContext(ctx, line[0], line[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-p.ended
		if t.Failed() {
			t.Logf("%s: %v\n%s", p.name, p.err, p.out.String())
		}
	})
	return p
}

// wait waits for the end of a program, which shall be a good one, and returns what it printed.
func (p *program) wait(t *testing.T) string {
	t.Helper()
	if <-p.ended; p.err != nil {
		t.Errorf("%s: %v", p.name, p.err)
	}
	return p.out.String()
}

// serving waits until somebody listens on a port of the connection manager, by the kernel's
// list of its IDs.
func (p *program) serving(t *testing.T, space netlinkrdma.PortSpace, port uint16) {
	t.Helper()
	for ; ; time.Sleep(5 * time.Millisecond) {
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
					return
				}
			}
		}
		select {
		case <-p.ended:
			t.Fatalf("%s has ended before it listened", p.name)
		default:
		}
	}
}
