package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// benchmarks selects those of the rows.
const benchmarks = "^Benchmark(Stream|PingPong|InTurn|UDP|TCP)$"

// A report has the figures of a run.
type report struct {
	Kernel string `json:"kernel"`
	Arch   string `json:"arch"`
	Go     string `json:"go"`
	Rounds int    `json:"rounds"`
	Rows   []row  `json:"rows"`
}

// A row compares a benchmark with UDP or TCP.
type row struct {
	Name   string `json:"name"`
	Unit   string `json:"unit"`
	Beside string `json:"beside"`

	Goverbs []float64 `json:"goverbs"` // Goverbs has a figure for each round.
	Plain   []float64 `json:"plain"`   // Plain has those of UDP or TCP.
	Speed   []float64 `json:"speed"`   // Speed is above 1 where goverbs is faster.

	ours, theirs string // names of the benchmarks, without "Benchmark"
	size         int    // bytes of a message
}

// Units of figures.
const (
	microseconds = "µs"
	rate         = "1000/s"
	bandwidth    = "GB/s"
)

func newReport(rounds int) (*report, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	r := &report{Kernel: unix.ByteSliceToString(u.Release[:]), Arch: runtime.GOARCH, Go: runtime.Version(), Rounds: rounds}
	for _, way := range []struct{ bench, text string }{{"sockets", "by sockets"}, {"process", "in the process"}} {
		stream := func(text, op, unit, beside, theirs string, size int) {
			r.Rows = append(r.Rows, row{
				Name: text + ", " + way.text, Unit: unit, Beside: beside,
				ours: fmt.Sprintf("Stream/%s/%s/%d", way.bench, op, size), theirs: theirs, size: size,
			})
		}
		r.Rows = append(r.Rows,
			row{Name: "2 B one way, polling, " + way.text, Unit: microseconds, Beside: "UDP", ours: "PingPong/" + way.bench + "/poll", theirs: "UDP/pingpong"},
			row{Name: "2 B one way, events, " + way.text, Unit: microseconds, Beside: "UDP", ours: "PingPong/" + way.bench + "/events", theirs: "UDP/pingpong"})
		stream("SEND of 2 B", "send", rate, "UDP", "UDP/stream", 2)
		stream("SEND of 4 KiB", "send", bandwidth, "TCP", "TCP/4096", 4096)
		stream("SEND of 64 KiB", "send", bandwidth, "TCP", "TCP/65536", 65536)
		stream("WRITE of 64 KiB", "write", bandwidth, "TCP", "TCP/65536", 65536)
		stream("READ of 64 KiB", "read", bandwidth, "TCP", "TCP/65536", 65536)
	}
	conns := fmt.Sprintf("%d B there and back, %d Conns in the process, ", connBytes, manyConns)
	for _, of := range []string{"clock", "processor"} {
		r.Rows = append(r.Rows, row{
			Name: "cm.Stream, writes of 64 KiB to another process, " + of, Unit: bandwidth, Beside: "TCP",
			ours: "Processes/" + of, theirs: "TCPProcesses/" + of, size: streamBytes,
		})
	}
	r.Rows = append(r.Rows,
		row{Name: "SEND of 64 B on 10000 QPs in turn, in the process", Unit: microseconds, Beside: "one QP", ours: "InTurn/process/10000", theirs: "InTurn/process/1"},
		row{Name: conns + "processor", Unit: microseconds, Beside: "TCP", ours: "Conns/processor", theirs: "TCPConns/processor"},
		row{Name: conns + "clock", Unit: microseconds, Beside: "TCP", ours: "Conns/clock", theirs: "TCPConns/clock"})
	return r, nil
}

// add adds the figures of a round from the output of the benchmarks.
func (r *report) add(out string) error {
	times := map[string]float64{} // ns of processor time
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		i := slices.Index(f, "cpu-ns/op")
		if i < 1 {
			continue
		}
		ns, err := strconv.ParseFloat(f[i-1], 64)
		if err != nil || ns <= 0 {
			return fmt.Errorf("%q has no time", line)
		}
		times[strings.TrimPrefix(f[0], "Benchmark")] = ns
	}
	for i := range r.Rows {
		w := &r.Rows[i]
		ours, theirs := times[w.ours], times[w.theirs]
		if ours == 0 || theirs == 0 {
			return fmt.Errorf("the benchmarks have printed no times of %s and %s:\n%s", w.ours, w.theirs, out)
		}
		w.Goverbs, w.Plain = append(w.Goverbs, w.figure(ours)), append(w.Plain, w.figure(theirs))
		w.Speed = append(w.Speed, theirs/ours)
	}
	return nil
}

// figure converts the time of an operation to the unit of the row.
func (w *row) figure(ns float64) float64 {
	switch w.Unit {
	case rate:
		return 1e6 / ns
	case bandwidth:
		return float64(w.size) / ns
	}
	return ns / 1e3
}

// median returns the median of some figures.
func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	n := len(s)
	return (s[(n-1)/2] + s[n/2]) / 2
}

// print writes the table.
func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "Linux %s, %s, %s, one processor, %d rounds; seconds are processor time.\n", r.Kernel, r.Arch, r.Go, r.Rounds)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "row\tgoverbs\tbeside\t\tunit\tspeed\tleast\tmost\t")
	for i := range r.Rows {
		w := &r.Rows[i]
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%s\t%s\t%.2f\t%.2f\t%.2f\t\n", w.Name, median(w.Goverbs), median(w.Plain), w.Beside, w.Unit,
			median(w.Speed), slices.Min(w.Speed), slices.Max(w.Speed))
	}
	t.Flush()
	fmt.Fprintln(out, "speed is the median of the ratios of all rounds, and above 1 where goverbs is faster.")
}
