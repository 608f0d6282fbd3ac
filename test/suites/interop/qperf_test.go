package interop

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// qperf runs a test of qperf with its server at a port until it has measured the figure with a name, for longer and longer,
// since it measures none if no message arrives in time. Units are the basic ones: bytes, ns, and per second.
func qperf(t *testing.T, port, test, name string, options ...string) map[string]qperfFigure {
	t.Helper()
	for seconds := 1; ; seconds *= 2 {
		figures := qperfFor(t, seconds, port, test, options...)
		if figures[name].value > 0 {
			return figures
		}
	}
}

// qperfFor runs a test of qperf for so many seconds, and returns the figures that it prints with their units.
func qperfFor(t *testing.T, seconds int, port, test string, options ...string) map[string]qperfFigure {
	t.Helper()
	args := append([]string{ServerAddr, "-lp", port, "-cm", "1", "-uu", "-vvs", "-vvu", "-e", "9", "-t", strconv.Itoa(seconds)}, options...)
	out, err := exec.CommandContext(timed(t), "qperf", append(args, test)...).CombinedOutput()
	if err != nil {
		t.Fatalf("qperf %s: %v\n%s", args, err, out)
	}
	figures := map[string]qperfFigure{}
	for l := range strings.Lines(string(out)) { // name  =  value unit
		name, text, ok := strings.Cut(l, "=")
		if f := strings.Fields(strings.ReplaceAll(text, ",", "")); ok && len(f) > 0 {
			value, err := strconv.ParseFloat(f[0], 64)
			if err != nil {
				continue // a word, such as the name of a device
			}
			figures[strings.TrimSpace(name)] = qperfFigure{value, strings.Join(f[1:], " ")}
		}
	}
	t.Logf("qperf %s\n%s", args, out)
	return figures
}

// qperfFigure is a figure of qperf.
type qperfFigure struct {
	value float64
	unit  string
}

// near reports whether two figures are the same, but for rounding.
func near(a, b float64) bool { return math.Abs(a-b) <= 1e-3*math.Abs(b) }

// qperfTests are qperf's RDMA tests that its connection manager can connect, with the options of both, as in
// tools/verbs/README.md.
var qperfTests = []struct{ qperf, verbs string }{
	{"rc_lat", "send-lat"}, {"rc_bw", "send-bw"}, {"rc_bi_bw", "send-bw --both"},
	{"rc_rdma_write_poll_lat", "write-lat"}, {"rc_rdma_write_lat", "write-lat --imm"}, {"rc_rdma_write_bw", "write-bw --imm"},
	{"rc_rdma_read_lat", "read-lat"}, {"rc_rdma_read_bw", "read-bw"},
	{"rc_fetch_add_mr", "atomic-bw"}, {"ver_rc_fetch_add", "atomic-bw --verify"},
	{"rc_compare_swap_mr", "atomic-bw -A swap"}, {"ver_rc_compare_swap", "atomic-bw -A swap --verify"},
}

// TestQperf runs each test of qperf and the test of "verbs perf" that takes its place, and compares what kind of figure
// they print: latencies, or rates of messages of one size. Where qperf counts messages, so do ours.
func TestQperf(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	testenv.Boot(t, "GOVERBS_QPERF", "perf/perftest")
	const size, count = 4096, 100
	number, port := cmPort()
	server := program.Launch(t, "qperf", "-lp", port)
	server.Until(t, "listened", func() bool { return listens(t, int(number)) })
	server.KeepRunning()
	defer server.Signal(os.Kill)
	_, ourPort := perfServe(t)
	for _, test := range qperfTests {
		t.Run(test.qperf, func(t *testing.T) {
			ours := strings.Fields(test.verbs)
			atomic, latency := strings.HasPrefix(ours[0], "atomic"), strings.HasSuffix(ours[0], "-lat")
			var theirOptions []string
			ours = append(ours, "--cm", "-n", strconv.Itoa(count))
			if !atomic {
				theirOptions = []string{"-m", strconv.Itoa(size)}
				ours = append(ours, "-s", strconv.Itoa(size))
			}
			if test.qperf == "rc_bw" {
				theirOptions = append(theirOptions, "-n", strconv.Itoa(count))
			}
			name := map[bool]string{true: "latency", false: "msg_rate"}[latency]
			theirs := qperf(t, port, test.qperf, name, theirOptions...)
			report := perfJSON(t, ourPort, ours[0], ours[1:]...)
			r := report.Results[0]
			want := count
			if slices.Contains(ours, "--both") {
				want *= 2
			}
			if r.Iterations != want || !atomic && r.Size != size || slices.Contains(ours, "--verify") != r.Verified {
				t.Errorf("ours has %d messages of %d bytes, verified %v, want %d of %d", r.Iterations, r.Size, r.Verified, want, size)
			}
			moved := 0
			for name, messages := range theirs {
				if side, ok := strings.CutSuffix(name, "_msgs"); ok && side != "no" && !atomic {
					moved++
					if bytes := theirs[side+"_bytes"]; messages.value <= 0 || bytes.unit != "bytes" || bytes.value != messages.value*size {
						t.Errorf("qperf has %v %s for %v of %d bytes", bytes, side, messages, size)
					}
				}
			}
			if moved == 0 && !atomic {
				t.Error("qperf says of no messages how many there were")
			}
			if !latency {
				// qperf has a time for each of the two, so one does not follow from the other.
				rate, band := theirs["msg_rate"], theirs["bw"]
				if rate.value <= 0 || rate.unit != "/sec" || !atomic && (band.value <= 0 || band.unit != "bytes/sec") {
					t.Errorf("qperf has a rate of %v and a bandwidth of %v", rate, band)
				}
				if b := r.Bandwidth; b == nil || r.Latency != nil || b.Messages <= 0 || !near(b.MiB*(1<<20), b.Messages*float64(r.Size)) {
					t.Errorf("ours has %+v, want as many bytes as messages of %d bytes have", r, r.Size)
				}
			} else {
				if f := theirs[name]; f.value <= 0 || f.unit != "ns" {
					t.Errorf("qperf has a latency of %v", f)
				}
				if l := r.Latency; l == nil || r.Bandwidth != nil || l.Samples != count || l.Min <= 0 || l.Median < l.Min {
					t.Errorf("ours has %+v, want a latency with %d samples", r, count)
				}
			}
			if test.qperf == "rc_bw" && (theirs["send_msgs"].value != count || theirs["recv_msgs"].value != count) {
				t.Errorf("qperf has sent %v and received %v messages, want %d as ours", theirs["send_msgs"], theirs["recv_msgs"], count)
			}
		})
	}
}
