// Demo runs two processes, each with an RDMA software device, which talk to each other by RDMA on any
// machine: a ping-pong and RDMA WRITE with the verbs, messages and a stream with package cm. It prints a
// table.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"text/tabwriter"
	"time"
)

// timeLimit bounds a demo that hangs.
const timeLimit = time.Minute

func main() {
	role := flag.String("role", "", "what a process of the demo does: serve or ask")
	addr := flag.String("addr", "", "address of the device of that process")
	per := flag.Duration("time", 200*time.Millisecond, "time for each row of the table")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	var err error
	if *role == "" {
		err = demo(ctx, os.Stdout, *per)
	} else {
		err = play(ctx, *role, *addr, *per)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %s\n", strings.TrimSpace(*role+" "+err.Error()))
		os.Exit(1)
	}
}

// A row is a line of the table.
type row struct {
	What  string // the operation
	Size  int    // bytes of a message
	Count int    // messages, or exchanges of two
	Time  time.Duration
	Pairs bool // Count counts exchanges
}

// demo starts both processes and prints their measurements.
func demo(ctx context.Context, out io.Writer, per time.Duration) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	at := [2]netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 2}), port),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 3}), port),
	}
	fmt.Fprintf(out, "Two processes, each with a software device: GOVERBS_SOFT=%s and GOVERBS_SOFT=%s.\n", at[0], at[1])
	rows, err := start(ctx, at, per)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tbytes\tmessages\tµs each\tMB/s\t")
	for _, r := range rows {
		n := r.Count
		if r.Pairs {
			n *= 2
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f\t%.0f\t\n", r.What, r.Size, n, r.Time.Seconds()*1e6/float64(n), float64(n*r.Size)/r.Time.Seconds()/1e6)
	}
	return t.Flush()
}

// freePort returns a UDP port that no process uses on any address.
func freePort() (uint16, error) {
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port(), nil
}

// process is one of the two processes, and the ends of pipes that it gets.
type process struct {
	*exec.Cmd
	ends []*os.File
}

// newProcess prepares a process whose device has an address.
func newProcess(ctx context.Context, role string, at netip.AddrPort, per time.Duration) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-role", role, "-addr", at.Addr().String(), "-time", per.String())
	cmd.Env = append(os.Environ(), "GOVERBS_SOFT="+at.String())
	cmd.Stderr = os.Stderr
	return &process{Cmd: cmd}, nil
}

// gets gives the process an end of a pipe.
func (p *process) gets(f *os.File) *os.File {
	p.ends = append(p.ends, f)
	return f
}

// run starts the process and has done called with its end, or with the error of starting it.
func (p *process) run(done chan<- error) {
	err := p.Start()
	for _, f := range p.ends {
		f.Close() // the process has its own
	}
	if err != nil {
		done <- err
		return
	}
	go func() { done <- p.Wait() }()
}

// start runs the server and the client, whose standard input and output are joined, and returns the rows
// of the client.
func start(ctx context.Context, at [2]netip.AddrPort, per time.Duration) ([]row, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, err := newProcess(ctx, "serve", at[0], per)
	if err != nil {
		return nil, err
	}
	client, err := newProcess(ctx, "ask", at[1], per)
	if err != nil {
		return nil, err
	}
	var pipes [3][2]*os.File // their ends to read and to write
	for i := range pipes {
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	server.Stdin, client.Stdout = server.gets(pipes[0][0]), client.gets(pipes[0][1])
	client.Stdin, server.Stdout = client.gets(pipes[1][0]), server.gets(pipes[1][1])
	client.ExtraFiles = []*os.File{client.gets(pipes[2][1])}
	done := make(chan error, 2)
	server.run(done)
	client.run(done)
	text, err := io.ReadAll(pipes[2][0]) // until the client ends
	pipes[2][0].Close()
	for range 2 {
		if e := <-done; e != nil {
			err = errors.Join(err, e)
			cancel() // the other one waits for this one
		}
	}
	if err != nil {
		return nil, err
	}
	var rows []row
	err = json.Unmarshal(text, &rows)
	return rows, err
}
