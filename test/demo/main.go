// Demo runs two processes, each with an RDMA device in software, which talk to each other by RDMA on any
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
	per := flag.Duration("time", 400*time.Millisecond, "time for each row of the table")
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
	What  string // what was done
	Size  int    // bytes of a message
	Count int    // messages, or exchanges of two
	Time  time.Duration
	Pairs bool // Count counts exchanges
}

// demo starts both processes and prints what they measured.
func demo(ctx context.Context, out io.Writer, per time.Duration) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	at := [2]netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 2}), port),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 3}), port),
	}
	fmt.Fprintf(out, "Two processes, each with a device in software: GOVERBS_SOFT=%s and GOVERBS_SOFT=%s.\n", at[0], at[1])
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

// start runs the server and the client, whose standard input and output are joined, and returns the rows
// of the client.
func start(ctx context.Context, at [2]netip.AddrPort, per time.Duration) ([]row, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var cmds [2]*exec.Cmd
	for i, role := range []string{"serve", "ask"} {
		cmds[i] = exec.CommandContext(ctx, self, "-role", role, "-addr", at[i].Addr().String(), "-time", per.String())
		cmds[i].Env = append(os.Environ(), "GOVERBS_SOFT="+at[i].String())
		cmds[i].Stderr = os.Stderr
	}
	var files []*os.File
	pipe := func() (r, w *os.File) {
		var perr error
		r, w, perr = os.Pipe()
		err = errors.Join(err, perr)
		files = append(files, r, w)
		return r, w
	}
	closeAll := func() {
		for _, f := range files {
			f.Close()
		}
	}
	var result *os.File
	var told *os.File
	cmds[0].Stdin, cmds[1].Stdout = pipe()
	cmds[1].Stdin, cmds[0].Stdout = pipe()
	result, told = pipe()
	files = files[:4] // result is read until its end
	cmds[1].ExtraFiles = []*os.File{told}
	if err != nil {
		closeAll()
		return nil, err
	}
	ended := make(chan error, len(cmds))
	started := 0
	for _, cmd := range cmds {
		if err = cmd.Start(); err != nil {
			break
		}
		started++
		go func() { ended <- cmd.Wait() }()
	}
	closeAll()
	told.Close()
	if err != nil {
		cancel()
	}
	var rows []row
	text, _ := io.ReadAll(result)
	result.Close()
	for range started {
		if e := <-ended; e != nil {
			err = errors.Join(err, e)
			cancel() // the other one waits for it
		}
	}
	if err != nil {
		return nil, err
	}
	return rows, json.Unmarshal(text, &rows)
}
