package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// output returns the output of benchmarks that take the given number of nanoseconds each.
func output(r *report, ours, theirs float64) string {
	var b strings.Builder
	b.WriteString("goos: linux\n")
	for _, w := range r.Rows {
		fmt.Fprintf(&b, "Benchmark%s \t 257743\t 457.9 ns/op\t 4.37 MB/s\t %g cpu-ns/op\t 0 B/op\t 0 allocs/op\n", w.ours, ours)
		fmt.Fprintf(&b, "Benchmark%s \t 257743\t 457.9 ns/op\t %g cpu-ns/op\t 0 B/op\t 0 allocs/op\n", w.theirs, theirs)
	}
	return b.String() + "PASS\n"
}

func TestReport(t *testing.T) {
	r, err := newReport(2)
	if err != nil {
		t.Fatal(err)
	}
	for _, ours := range []float64{4096, 2048} {
		if err := r.add(output(r, ours, 1024)); err != nil {
			t.Fatal(err)
		}
	}
	if want := [][]float64{{4.096, 2.048}, {1.024, 1.024}, {0.25, 0.5}}; !cmp.Equal(want, [][]float64{r.Rows[0].Goverbs, r.Rows[0].Plain, r.Rows[0].Speed}) {
		t.Errorf("latency: %+v", r.Rows[0])
	}
	if want := []float64{1e6 / 4096, 1e6 / 2048}; r.Rows[2].Unit != rate || !cmp.Equal(want, r.Rows[2].Goverbs) {
		t.Errorf("rate: %+v", r.Rows[2])
	}
	if want := []float64{1, 2}; r.Rows[3].Unit != bandwidth || !cmp.Equal(want, r.Rows[3].Goverbs) {
		t.Errorf("bandwidth: %+v", r.Rows[3])
	}
	var b strings.Builder
	r.print(&b)
	lines := strings.Split(b.String(), "\n")
	want := "2 B one way, polling, by sockets 3.07 1.02 UDP µs 0.38 0.25 0.50"
	if got := strings.Join(strings.Fields(lines[2]), " "); got != want {
		t.Errorf("the table has %q, want %q", got, want)
	}
	if got, want := len(lines), 2+len(r.Rows)+2; got != want {
		t.Errorf("%d lines, want %d:\n%s", got, want, b.String())
	}
}

// TestBadOutput: a benchmark that has failed is no figure.
func TestBadOutput(t *testing.T) {
	r, err := newReport(1)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{"", strings.Replace(output(r, 1, 1), "1 cpu-ns/op", "x cpu-ns/op", 1), strings.Replace(output(r, 1, 1), "BenchmarkUDP/stream", "BenchmarkOther", 8)} {
		if err := r.add(out); err == nil {
			t.Errorf("accepted:\n%s", out)
		}
	}
}

// TestWriteTimes: the times of a write come from what both processes print, and nothing else passes for a figure.
func TestWriteTimes(t *testing.T) {
	clock, processor, err := writeTimes("600 131072 1000\n", "200\n")
	if err != nil || clock != 500 || processor != 400 {
		t.Errorf("%g ns by the clock, %g of the processors, %v; want 500 and 400", clock, processor, err)
	}
	for _, out := range [][2]string{{"", "200"}, {"600 131072", "200"}, {"600 131072 1000", ""}, {"600 0 1000", "200"}, {"x 131072 1000", "200"}} {
		if _, _, err := writeTimes(out[0], out[1]); err == nil {
			t.Errorf("accepted %q and %q", out[0], out[1])
		}
	}
}
