// Soft measures software devices (package uverbs/soft) beside UDP and TCP on the same machine
// through package net. It runs the Go benchmarks of uverbs/soft for that, both ends in one process on one
// processor, and counts the processor time of program and kernel together: other programs that run
// meanwhile make little difference then. The rows of many Conns, and of a stream between two processes, are of
// all processors.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes the command line and returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	f := flag.NewFlagSet("soft", flag.ContinueOnError)
	f.SetOutput(stderr)
	rounds := f.Int("rounds", 5, "measure everything `n` times, in turn")
	each := f.Duration("time", 200*time.Millisecond, "`time` for each figure of a round")
	file := f.String("json", "", "write the figures of all rounds to this `file`")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case f.NArg() > 0 || *rounds < 1 || *each <= 0:
		fmt.Fprintln(stderr, "soft: no arguments are allowed, and -rounds and -time must be positive")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	r, err := measure(ctx, *rounds, *each)
	if err == nil {
		r.print(stdout)
		if *file != "" {
			err = r.write(*file)
		}
	}
	if err != nil {
		fmt.Fprintf(stderr, "soft: %v\n", err)
		return 1
	}
	return 0
}

// measure builds the benchmarks and runs them.
func measure(ctx context.Context, rounds int, each time.Duration) (*report, error) {
	dir, err := os.MkdirTemp("", "benchsoft")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "soft.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, "github.com/goverbs/goverbs/uverbs/soft")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", build, err, out)
	}
	r, err := newReport(rounds)
	if err != nil {
		return nil, err
	}
	streamProgram, err := buildStream(ctx, dir)
	if err != nil {
		return nil, err
	}
	all := make([]string, rounds)
	for i := range all { // on all processors
		many, err := conns(ctx, 5*each)
		if err != nil {
			return nil, err
		}
		if all[i], err = streams(ctx, streamProgram, 5*each); err != nil {
			return nil, err
		}
		all[i] += many
	}
	runtime.LockOSThread() // which the benchmarks inherit the processor from
	if err := useOneProcessor(); err != nil {
		return nil, err
	}
	for i := range rounds {
		cmd := exec.CommandContext(ctx, program, "-test.run", "^$", "-test.bench", benchmarks, "-test.benchtime", each.String())
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%v: %w\n%s", cmd, err, out)
		}
		if err := r.add(string(out) + all[i]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// useOneProcessor binds this thread to the first of the processors that it may use.
func useOneProcessor() error {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	for i := range 8 * len(all) * 8 {
		if all.IsSet(i) {
			one.Set(i)
			return os.NewSyscallError("sched_setaffinity", unix.SchedSetaffinity(0, &one))
		}
	}
	return errors.New("sched_getaffinity: this process may not run on any processor")
}

// write writes the report as JSON.
func (r *report) write(file string) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o666)
}
