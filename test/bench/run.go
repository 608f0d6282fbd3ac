package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// serverIP is where servers are, an address of the device.
var serverIP = netip.MustParseAddr("10.1.0.1")

// serverAny is any port there.
const serverAny = "10.1.0.1:0"

// patience bounds a run, on a machine that emulates and is busy.
const patience = 2 * time.Minute

// server is a program that runs beside.
type server struct {
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	ended  chan struct{}
	err    error // valid when ended is closed
}

// start starts a program. It does not outlive this one.
func start(line []string, stdout io.Writer) (*server, error) {
	s := &server{cmd: exec.Command(line[0], line[1:]...), stderr: &bytes.Buffer{}, ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = stdout, s.stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	return s, nil
}

// stop ends it, if it has not ended.
func (s *server) stop() {
	s.cmd.Process.Kill()
	<-s.ended
}

// failed says how it has ended.
func (s *server) failed() error {
	err := s.err
	if err == nil {
		err = errors.New("it has ended")
	}
	return fmt.Errorf("%s: %w: %s", strings.Join(s.cmd.Args, " "), err, bytes.TrimSpace(s.stderr.Bytes()))
}

// listening waits until somebody listens on a TCP port.
func (s *server) listening(ctx context.Context, port int) error {
	for {
		for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			if b, err := os.ReadFile(file); err == nil && listens(string(b), port) {
				return nil
			}
		}
		select {
		case <-s.ended:
			return s.failed()
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen on port %d: %w", strings.Join(s.cmd.Args, " "), port, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// listeningCM waits until somebody listens on a port of the connection manager.
func (s *server) listeningCM(ctx context.Context, port int) error {
	for {
		devices, err := netlinkrdma.Devices()
		if err != nil {
			return err
		}
		for _, d := range devices {
			ids, err := netlinkrdma.CMIDs(d)
			if err != nil {
				return err
			}
			for _, id := range ids {
				if id.State == netlinkrdma.CMListen && id.PortSpace == netlinkrdma.PortSpaceTCP && int(id.Src.Port()) == port {
					return nil
				}
			}
		}
		select {
		case <-s.ended:
			return s.failed()
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen on port %d: %w", strings.Join(s.cmd.Args, " "), port, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// listens reports whether a port is listened on, by a table of the kernel's.
func listens(table string, port int) bool {
	const stateListen = "0A"
	for l := range strings.Lines(table) {
		f := strings.Fields(l)
		if len(f) > 3 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) && f[3] == stateListen {
			return true
		}
	}
	return false
}

// output runs a program and returns what it prints.
func output(ctx context.Context, line []string) ([]byte, error) {
	out, _, err := finish(ctx, line)
	return out, err
}

// finish runs a program and returns what it prints, and its state, which has the processor time.
func finish(ctx context.Context, line []string) ([]byte, *os.ProcessState, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Stderr = &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, cmd.ProcessState, nil
}

// medians runs a program which prints lines of n figures, and returns the median of each.
func medians(ctx context.Context, line []string, n int) ([]float64, error) {
	out, err := output(ctx, line)
	if err != nil {
		return nil, err
	}
	columns := make([][]float64, n)
	for text := range strings.Lines(string(out)) {
		f := strings.Fields(text)
		if len(f) != n {
			return nil, fmt.Errorf("%s says %q, want %d figures", line[0], text, n)
		}
		for i := range f {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil || !(v > 0) {
				return nil, fmt.Errorf("%s says %q, want figures above 0", line[0], text)
			}
			columns[i] = append(columns[i], v)
		}
	}
	v := make([]float64, n)
	for i := range v {
		if len(columns[i]) == 0 {
			return nil, fmt.Errorf("%s says nothing", line[0])
		}
		v[i] = median(columns[i])
	}
	return v, nil
}

// starts is how often a program is started in a round.
const starts = 15

// perf runs a client of verbs perf. The server is started with the first, and serves all.
func (b *bench) perf(ctx context.Context, line []string, unit string) ([]float64, error) {
	if b.serving == nil {
		port := b.nextPort()
		s, err := start([]string{b.verbs, "perf", "serve", "--quiet", "--port", strconv.Itoa(port)}, nil)
		if err != nil {
			return nil, err
		}
		b.serving, b.servingPort = s, port
		if err := s.listening(ctx, port); err != nil {
			return nil, err
		}
	}
	out, err := output(ctx, append(line[:len(line):len(line)], "--port", strconv.Itoa(b.servingPort), serverIP.String()))
	if err != nil {
		return nil, err
	}
	v, err := perfFigure(out, unit)
	return []float64{v}, err
}

// perfFigure finds the figure in the JSON of verbs perf.
func perfFigure(out []byte, unit string) (float64, error) {
	var r struct {
		Results []struct {
			Latency *struct {
				Median float64 `json:"median_us"`
			}
			Bandwidth *struct {
				MiB  float64 `json:"mib_per_s"`
				Rate float64 `json:"messages_per_s"`
			}
		}
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return 0, fmt.Errorf("verbs perf: %w: %q", err, out)
	}
	if len(r.Results) == 1 {
		s := r.Results[0]
		switch {
		case unit == microseconds && s.Latency != nil:
			return s.Latency.Median, nil
		case unit == rate && s.Bandwidth != nil:
			return s.Bandwidth.Rate, nil
		case unit == bandwidth && s.Bandwidth != nil:
			return s.Bandwidth.MiB, nil
		}
	}
	return 0, fmt.Errorf("verbs perf prints no %s: %q", unit, out)
}

// nextPort returns a TCP port that no run before had.
func (b *bench) nextPort() int {
	b.port++
	return b.port
}

// perftest runs a server and a client of a program of perftest.
func (b *bench) perftest(ctx context.Context, line []string, size int, unit string) ([]float64, error) {
	return b.again(ctx, patience, func(ctx context.Context) ([]float64, error) { return b.perftestOnce(ctx, line, size, unit) })
}

// again runs perftest for so long at most in all, and again if it prints no figure, if it hangs, as with events
// it may (Linux 7.2), or if the client comes to the server before that listens for its second connection, as
// with -R it may.
func (b *bench) again(ctx context.Context, long time.Duration, once func(context.Context) ([]float64, error)) ([]float64, error) {
	const tries = 4
	for try := 1; ; try++ {
		one, cancel := context.WithTimeout(ctx, long/tries)
		v, err := once(one)
		hung := err != nil && one.Err() != nil && ctx.Err() == nil
		cancel()
		again := hung || errors.Is(err, errNoFigure) || b.cm && err != nil && strings.Contains(err.Error(), "Connection refused")
		if !again || try == tries {
			return v, err
		}
		if hung {
			b.hung++
		}
	}
}

// perftestOnce runs them once.
func (b *bench) perftestOnce(ctx context.Context, line []string, size int, unit string) ([]float64, error) {
	port := b.nextPort()
	line = append(line[:len(line):len(line)], "-p", strconv.Itoa(port))
	s, err := start(line, nil)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	listening := s.listening
	if b.cm {
		listening = s.listeningCM
	}
	if err := listening(ctx, port); err != nil {
		return nil, err
	}
	out, err := output(ctx, append(line[:len(line):len(line)], serverIP.String()))
	if err != nil {
		return nil, err
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		return nil, fmt.Errorf("the server does not end: %s", strings.Join(line, " "))
	}
	v, err := perftestFigure(string(out), size, unit)
	return []float64{v}, err
}

// perftestFigure finds the figure in a table of perftest's. Its rate is in millions with six
// digits, its bandwidth in MiB/s with two.
func perftestFigure(out string, size int, unit string) (float64, error) {
	column, each, columns := 4, 1.0, 9 // the typical latency, which is the median
	switch unit {
	case rate:
		column, each, columns = 4, 1e6, 5
	case bandwidth:
		column, columns = 3, 5
	}
	for l := range strings.Lines(out) {
		f := strings.Fields(l)
		if len(f) < columns || f[0] != strconv.Itoa(size) {
			continue
		}
		v, err := strconv.ParseFloat(f[column], 64)
		if err != nil {
			return 0, fmt.Errorf("perftest prints %q, want a figure", f[column])
		}
		if !(v > 0) {
			return 0, fmt.Errorf("perftest prints %q: %w", f[column], errNoFigure)
		}
		return v * each, nil
	}
	return 0, fmt.Errorf("perftest prints no row of %d bytes: %q", size, out)
}

// errNoFigure is about a run of perftest that prints 0.00, as one in a few hundred does.
var errNoFigure = errors.New("want a figure above 0")

// connect runs two children that connect to each other: one that says where it listens, and another that
// prints lines of n figures in nanoseconds. It returns the medians in microseconds.
func (b *bench) connect(ctx context.Context, server, client string, n int) ([]float64, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	s, err := start([]string{b.self, "child", server, b.device}, w)
	w.Close()
	if err != nil {
		return nil, err
	}
	defer s.stop()
	to, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		<-s.ended
		return nil, s.failed()
	}
	v, err := medians(ctx, []string{b.self, "child", client, b.device, strings.TrimSpace(to)}, n)
	for i := range v {
		v[i] /= 1e3
	}
	return v, err
}

// cmtime makes connections with rdma-core's program. As its server does not say when it listens,
// there is a while to wait.
func (b *bench) cmtime(ctx context.Context) ([]float64, error) {
	n := strconv.Itoa(atOnce)
	s, err := start([]string{"cmtime", "-b", serverIP.String(), "-c", n}, nil)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	time.Sleep(time.Second)
	out, err := output(ctx, []string{"cmtime", "-s", serverIP.String(), "-c", n})
	if err != nil {
		return nil, err
	}
	v, err := cmtimeFigure(string(out))
	return []float64{v}, err
}

// cmtimeFigure returns the microseconds per connection until all are there, from cmtime's table of
// milliseconds.
func cmtimeFigure(out string) (float64, error) {
	total := 0.0
	for _, phase := range []string{"create id", "resolve addr", "resolve route", "create qp", "connect"} {
		m := regexp.MustCompile(`(?m)^` + phase + ` *: *([0-9.]+) `).FindStringSubmatch(out)
		if m == nil {
			return 0, fmt.Errorf("cmtime says nothing of %s: %q", phase, out)
		}
		ms, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, fmt.Errorf("cmtime says %s of %s", m[1], phase)
		}
		total += ms
	}
	return total * 1e3 / atOnce, nil
}
