// Package interop plays against rdma-core's own programs, in both roles. Its tests run
// in the VM that tools/vmrun boots, with the packages ibverbs-utils, ibverbs-providers
// and rdmacm-utils in it and our command at the path that VERBS names.
package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// VerbsEnv names the environment variable with the path of our command.
const VerbsEnv = "VERBS"

// Verbs returns the command line of our ping-pong.
func Verbs() []string { return []string{os.Getenv(VerbsEnv), "pingpong"} }

// RdmaCore returns the command line of rdma-core's ping-pong, whose GID has to be chosen by
// hand: the index of that of an IPv4 address.
func RdmaCore(gid int) []string { return []string{"ibv_rc_pingpong", "-g", strconv.Itoa(gid)} }

// ServerAddr is where the server's exchange is found in the VM.
const ServerAddr = "10.1.0.1"

// nextPort gives each pair a TCP port of its own, so that none waits for an old one.
var nextPort atomic.Int32

// Result is what the two ends of a ping-pong print.
type Result struct {
	Server, Client string  // all of the output
	ServerTime     float64 // µs per iteration
	ClientTime     float64 // the same of the client
}

// Play runs a server and, when it listens, a client, with the same options, and returns
// what they measured. Neither outlives the context.
func Play(ctx context.Context, server, client []string, options ...string) (Result, error) {
	r, err := runPair(ctx, server, client, options...)
	if err == nil && (r.ServerTime <= 0 || r.ClientTime <= 0) {
		err = fmt.Errorf("no time per iteration in the output\nserver:\n%s\nclient:\n%s", r.Server, r.Client)
	}
	return r, err
}

// runPair is Play for programs that need not measure anything.
func runPair(ctx context.Context, server, client []string, options ...string) (Result, error) {
	port := 20000 + int(nextPort.Add(1))
	options = append([]string{"-p", strconv.Itoa(port)}, options...)
	var out [2]bytes.Buffer
	start := func(i int, line []string, extra ...string) (*exec.Cmd, error) {
		args := append(append(append([]string{}, line[1:]...), options...), extra...)
		cmd := exec.CommandContext(ctx, line[0], args...)
		cmd.Stdout, cmd.Stderr = &out[i], &out[i]
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		return cmd, cmd.Start()
	}
	s, err := start(0, server)
	if err != nil {
		return Result{}, err
	}
	serverDone := make(chan error, 1)
	go func() { serverDone <- s.Wait() }()
	var clientErr, serverErr error
	if listenErr := waitListen(ctx, port, serverDone); listenErr != nil {
		s.Process.Kill()
		return Result{}, fmt.Errorf("%s: %w\n%s", strings.Join(server, " "), listenErr, out[0].String())
	}
	c, err := start(1, client, ServerAddr)
	if err == nil {
		clientErr = c.Wait()
	} else {
		clientErr = err
	}
	if clientErr != nil {
		// The server would wait for a client that is gone.
		time.AfterFunc(2*time.Second, func() { s.Process.Kill() })
	}
	serverErr = <-serverDone
	r := Result{Server: out[0].String(), Client: out[1].String()}
	r.ServerTime, r.ClientTime = perIteration(r.Server), perIteration(r.Client)
	if err := errors.Join(clientErr, serverErr); err != nil {
		return r, fmt.Errorf("%w\nserver %s:\n%s\nclient %s:\n%s", err, strings.Join(server, " "), r.Server, strings.Join(client, " "), r.Client)
	}
	return r, nil
}

var timeForm = regexp.MustCompile(`iters in [0-9.]+ seconds = ([0-9.]+) usec/iter`)

// perIteration finds the time per iteration in a program's output; 0 if there is none.
func perIteration(out string) float64 {
	m := timeForm.FindStringSubmatch(out)
	if m == nil {
		return 0
	}
	t, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0
	}
	return t
}

// errEnded says that a program ended by itself, whatever its status.
var errEnded = errors.New("the program has ended")

// waitListen waits until a TCP port is listened on. It looks into /proc: a connection
// would be taken for the client.
func waitListen(ctx context.Context, port int, ended <-chan error) error {
	for ; ; time.Sleep(5 * time.Millisecond) {
		for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			b, err := os.ReadFile(file)
			if err == nil && listening(string(b), port) {
				return nil
			}
		}
		select {
		case err := <-ended:
			return fmt.Errorf("ended before it listened: %w", errors.Join(err, errEnded))
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
	}
}

// listening reports whether a table of /proc/net has a listening socket on a port.
func listening(table string, port int) bool {
	const stateListen = "0A"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == stateListen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}
