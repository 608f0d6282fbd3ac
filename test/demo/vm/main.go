// Demo plays ping-pong with our command and with rdma-core's, in turn, and prints both
// times and their ratio. It runs in the VM that tools/vmrun boots.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/interop"
)

// guestGID is where the guest's devices have the GID of their IPv4 address.
const guestGID = 1

func main() {
	rounds := flag.Int("rounds", 15, "number of runs of each program")
	iters := flag.Int("iters", 1000, "number of exchanges in a run")
	size := flag.Int("size", 4096, "message size in bytes")
	pin := flag.Int("exec-on", -1, "run the command line that follows on this processor")
	flag.Parse()
	if *pin >= 0 {
		fmt.Fprintf(os.Stderr, "demo: %s\n", execOn(*pin, flag.Args()))
		os.Exit(1)
	}
	if err := run(*rounds, *iters, *size); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %s\n", err)
		os.Exit(1)
	}
}

// execOn becomes another program, on one processor. It returns only if it fails.
func execOn(cpu int, args []string) error {
	if len(args) == 0 {
		return errors.New("-exec-on: no command line")
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("run on processor %d: %w", cpu, err)
	}
	return unix.Exec(path, args, os.Environ())
}

// row is a line of the table: the times of the runs, in µs per iteration.
type row struct {
	name         string
	ours, theirs []float64
}

// run measures and prints.
func run(rounds, iters, size int) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	fmt.Printf("Linux %s, rxe, RC ping-pong of %d bytes, %d runs of %d exchanges each, in turn, each end on its own processor\n",
		unix.ByteSliceToString(u.Release[:]), size, rounds, iters)
	rows := []*row{{name: "polling"}, {name: "events"}}
	options := [][]string{nil, {"-e"}}
	for round := range rounds {
		for i, r := range rows {
			opts := append([]string{"-n", strconv.Itoa(iters), "-s", strconv.Itoa(size)}, options[i]...)
			var ours, theirs float64
			var errs [2]error
			first := func() { ours, errs[0] = once(interop.Verbs(), opts) }
			second := func() { theirs, errs[1] = once(interop.RdmaCore(guestGID), opts) }
			if round%2 == 1 { // neither has the advantage of being first
				first, second = second, first
			}
			first()
			second()
			if err := errors.Join(errs[:]...); err != nil {
				return err
			}
			r.ours, r.theirs = append(r.ours, ours), append(r.theirs, theirs)
			fmt.Fprintf(os.Stderr, "demo: run %d of %d, %s: %.1f and %.1f µs\n", round+1, rounds, r.name, ours, theirs)
		}
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "mode\tverbs pingpong\tibv_rc_pingpong\tratio\tspread of the ratio\t")
	for _, r := range rows {
		ratios := make([]float64, len(r.ours))
		for i := range ratios {
			ratios[i] = r.ours[i] / r.theirs[i]
		}
		fmt.Fprintf(t, "%s\t%.1f µs\t%.1f µs\t%.2f\t%.2f to %.2f\t\n",
			r.name, median(r.ours), median(r.theirs), median(ratios), slices.Min(ratios), slices.Max(ratios))
	}
	fmt.Fprintln(t, "(median time per exchange; the ratio is that of neighbouring runs, below 1 is faster)")
	return t.Flush()
}

// once runs a program against itself, each end on a processor of its own, and returns the
// client's time per iteration.
func once(program, options []string) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	on := func(cpu string) []string { return append([]string{self, "-exec-on", cpu, "--"}, program...) }
	r, err := interop.Play(ctx, on("0"), on("1"), options...)
	return r.ClientTime, err
}

// median returns the middle value.
func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
