package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// streamBytes is the size of the writes of a stream between two processes.
const streamBytes = 64 << 10

// buildStream builds the program of such a process in a folder, and returns its name.
func buildStream(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "stream")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/goverbs/goverbs/test/bench/soft/stream")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w\n%s", build, err, out)
	}
	return program, nil
}

// streams sends a stream from one process to another for a time, over TCP and then over software devices. It
// returns lines like those of a benchmark, of the time of a write by the clock and of both processors.
func streams(ctx context.Context, program string, each time.Duration) (lines string, err error) {
	for _, kind := range []struct{ name, arg string }{{"TCPProcesses", "tcp"}, {"Processes", "soft"}} {
		clock, processor, err := stream(ctx, program, kind.arg, each)
		if err != nil {
			return "", fmt.Errorf("%s: %w", kind.name, err)
		}
		lines += fmt.Sprintf("Benchmark%s/clock 1 %g cpu-ns/op\nBenchmark%s/processor 1 %g cpu-ns/op\n", kind.name, clock, kind.name, processor)
	}
	return lines, nil
}

// stream runs both processes, and returns the nanoseconds of a write.
func stream(ctx context.Context, program, kind string, each time.Duration) (clock, processor float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	receiver := exec.CommandContext(ctx, program, "receive", kind)
	receiver.Stderr = os.Stderr
	out, err := receiver.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := receiver.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		if err != nil {
			cancel() // the receiver waits for more
		}
		err = errors.Join(err, receiver.Wait())
	}()
	var address string
	if _, err := fmt.Fscanln(out, &address); err != nil {
		return 0, 0, fmt.Errorf("the receiver has printed no address: %w", err)
	}
	sender := exec.CommandContext(ctx, program, "send", kind, address, fmt.Sprint(streamBytes), each.String())
	sender.Stderr = os.Stderr
	sent, err := sender.Output()
	if err != nil {
		return 0, 0, fmt.Errorf("%v: %w", sender, err)
	}
	received, err := io.ReadAll(out)
	if err != nil {
		return 0, 0, err
	}
	return writeTimes(string(sent), string(received))
}

// writeTimes reads what both processes print at the end.
func writeTimes(sent, received string) (clock, processor float64, err error) {
	var x, y, n, took float64
	if _, err := fmt.Sscan(sent, &x, &n, &took); err != nil {
		return 0, 0, fmt.Errorf("the sender has printed %q: %w", sent, err)
	}
	if _, err := fmt.Sscan(received, &y); err != nil {
		return 0, 0, fmt.Errorf("the receiver has printed %q: %w", strings.TrimSpace(received), err)
	}
	if n <= 0 {
		return 0, 0, fmt.Errorf("the sender has printed %q: it has sent nothing", sent)
	}
	return took * streamBytes / n, (x + y) * streamBytes / n, nil
}
