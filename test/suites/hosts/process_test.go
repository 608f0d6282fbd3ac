package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// processes are the programs of this host that tests have started, by the names that they gave
// them.
type processes struct {
	mu  sync.Mutex
	all map[string]*process // guarded by mu
}

// running are this host's.
var running = processes{all: map[string]*process{}}

// process is one of them.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // valid when ended is closed

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu
}

// Write takes what it prints.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// output returns what it has printed, or the end of that.
func (p *process) output() string {
	const most = 4 << 10
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.out.Bytes()
	return string(b[max(0, len(b)-most):])
}

// Words that processes.do understands.
const (
	startWord = "start" // NAME READY PROGRAM ARGUMENT…: see ready; the program is "role" for this one
	waitWord  = "wait"  // NAME: until it has ended well; the answer is what it has printed
	killWord  = "kill"  // NAME: with SIGKILL
)

// do does what is said.
func (p *processes) do(words []string) (answer string, err error) {
	if words[0] == startWord {
		return "", p.start(words[1], words[2], words[3:])
	}
	p.mu.Lock()
	one := p.all[words[1]]
	p.mu.Unlock()
	if one == nil {
		return "", fmt.Errorf("%q: there is no such process", words)
	}
	if words[0] == killWord {
		one.cmd.Process.Kill()
		<-one.ended
		return one.output(), nil
	}
	<-one.ended
	if one.err != nil {
		return "", fmt.Errorf("%q: %w: %s", one.cmd.Args, one.err, one.output())
	}
	return one.output(), nil
}

// start starts a program, and returns when it is ready. It does not outlive the limit.
func (p *processes) start(name, when string, line []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	one := &process{ended: make(chan struct{})}
	if line[0] == "role" {
		one.cmd = exec.CommandContext(ctx, "/proc/self/exe", line[1:]...)
		one.cmd.Env = append(os.Environ(), roleEnv+"=1")
	} else {
		one.cmd = exec.CommandContext(ctx, line[0], line[1:]...)
	}
	one.cmd.Stdout, one.cmd.Stderr = one, one
	one.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := one.cmd.Start(); err != nil {
		cancel()
		return err
	}
	go func() {
		one.err = program.End(one.cmd.Wait(), one.out.String())
		cancel()
		close(one.ended)
	}()
	p.mu.Lock()
	p.all[name] = one
	p.mu.Unlock()
	for {
		is, err := ready(when, one)
		if err != nil {
			return err
		}
		if is {
			return nil
		}
		select {
		case <-one.ended:
			return fmt.Errorf("%q has ended before it was ready: %v: %s", line, one.err, one.output())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// ready reports whether a program is: "at-once" is when it runs, "TCP:PORT" and "UDP:PORT" are
// when somebody listens there, by the kernel's list of IDs, "says:TEXT" is when it has printed that, and
// "group:MAC" when a network interface takes what is sent to a multicast address.
func ready(when string, p *process) (bool, error) {
	kind, what, _ := strings.Cut(when, ":")
	switch kind {
	case "says":
		return strings.Contains(p.output(), what), nil
	case "group":
		table, err := os.ReadFile("/proc/net/dev_mcast")
		return bytes.Contains(table, []byte(what)), err
	case "TCP", "UDP":
		port, err := strconv.Atoi(what)
		if err != nil {
			return false, err
		}
		return listening(map[string]netlinkrdma.PortSpace{"TCP": netlinkrdma.PortSpaceTCP, "UDP": netlinkrdma.PortSpaceUDP}[kind], uint16(port))
	}
	return true, nil
}

// listening reports whether somebody listens on a port of the connection manager.
func listening(space netlinkrdma.PortSpace, port uint16) (bool, error) {
	devices, err := netlinkrdma.Devices()
	if err != nil {
		return false, err
	}
	for _, d := range devices {
		ids, err := netlinkrdma.CMIDs(d)
		if err != nil {
			return false, err
		}
		for _, id := range ids {
			if id.State == netlinkrdma.CMListen && id.PortSpace == space && id.Src.Port() == port {
				return true, nil
			}
		}
	}
	return false, nil
}

// address is where each host is.
var address = map[int]string{1: "10.2.0.1", 2: "10.2.0.2"}

// failure stands before an answer that is an error.
const failure = "error: "

// on has a host do something, as processes.do and control understand it, and returns the answer.
func on(t *testing.T, ctx context.Context, host int, words ...string) string {
	t.Helper()
	answer, err := try(t, ctx, host, words...)
	if err != nil {
		t.Fatalf("host %d: %v", host, err)
	}
	return answer
}

// try is on for what may fail.
func try(t *testing.T, ctx context.Context, host int, words ...string) (string, error) {
	t.Helper()
	if mine, _ := testenv.Hosts(t); host == mine {
		return running.do(words)
	}
	answer := ask(t, ctx, address[host], strings.Join(words, " "))
	if text, ok := strings.CutPrefix(answer, failure); ok {
		return "", errors.New(text)
	}
	return answer, nil
}

// number makes names and ports different.
var number = 21000

// next returns a name for a process, and a port.
func next() string {
	number++
	return strconv.Itoa(number)
}
