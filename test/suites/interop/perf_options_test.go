package interop

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// typeOf finds the type of QP among options.
func typeOf(options string) string {
	f := strings.Fields(options)
	if i := slices.Index(f, "-t"); i >= 0 {
		return f[i+1]
	}
	return "rc"
}

// older is what rxe of a kernel before Linux 6.1 cannot do.
type older struct {
	error
	what string
}

// Unsupported tells testenv.
func (o older) Unsupported() (feature string, since [2]int) { return o.what, [2]int{6, 1} }

// needsNewer skips what hangs in rxe before Linux 6.1, or has the whole machine hang.
func needsNewer(t *testing.T, what string) {
	t.Helper()
	if k := testenv.Kernel(t); rig.Driver == "rxe" && slices.Compare(k[:], []int{6, 1}) < 0 {
		testenv.Skip(t, older{fmt.Errorf("%s hang on Linux %d.%d", what, k[0], k[1]), what})
	}
}

// perfOption is a test of "verbs perf" with options.
type perfOption struct {
	test, options string
	messages      int // 0 if it is not known
}

// perfOptions are the tests of TestPerfOptions.
var perfOptions = []perfOption{
	{"send-bw", "-n 100 -b -q 4 -V -s 500", 800},
	{"write-bw", "-n 101 -b -q 2 -l 8 -s 100", 404},
	{"read-bw", "-n 50 -b -V -s 5000", 100},
	{"atomic-bw", "-n 50 -b -q 2 -l 3 -V", 200},
	{"send-bw", "-n 100 -b -q 4 -V -s 500 --cm", 800},
	{"write-bw", "-n 101 -b -q 2 -l 8 -s 100 --cm", 404},
	{"read-bw", "-n 50 -b -q 3 -V -s 5000 --cm", 300},
	{"atomic-bw", "-n 50 -q 3 -V --cm", 150},
	{"send-bw", "-n 100 -q 3 -e -t ud -s 64 --cm", 300},
	{"send-bw", "-n 99 -l 10 -Q 20 --depth 20 -r 30 -s 1", 99},
	{"send-bw", "-n 100 -I 64 -Q 1 -s 64 -t ud", 100},
	{"send-bw", "-n 100 -e -s 100", 100},
	{"send-lat", "-n 50 -e", 50},
	{"send-lat", "-n 50 -e -t ud", 50},
	{"read-lat", "-n 50 -e", 50},
	{"write-bw", "-n 100 -e -b -s 100", 200},
	{"send-lat", "-n 1 --warmup 0", 1},
	{"write-lat", "-n 10 --warmup 1 -I 0", 10},
	{"send-bw", "-D 200ms -s 100", 0},
	{"send-bw", "-D 200ms -s 100 -b -e", 0},
	{"send-bw", "-D 200ms -s 100 -t ud -q 2 -l 4", 0},
	{"write-bw", "-D 200ms -s 100 -b -Q 128", 0},
	{"send-lat", "-D 200ms -e", 0},
	{"write-lat", "-D 100ms -s 2,100,1 -V", 0},
	{"write-bw", "-n 100 -m 256 --outs 3 -s 100", -1},
	{"read-bw", "-n 100 -m 256 --outs 3 -s 1000 -V", 100},
	{"send-lat", "-n 20 --cpu 0 -d DEVICE", 20},
	{"send-bw", "-n 300 -r 4 --depth 100 -s 64", 300},
	{"send-bw", "-n 200 -r 3 -b -l 5 -q 2 -V -s 64", 800},
	{"send-bw", "-n 100 -r 1 -e -s 64", 100},
}

// TestPerfOptions runs tests with options that TestPerf does not use.
func TestPerfOptions(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.Guest(t)
	_, port := perfServe(t)
	for _, c := range perfOptions {
		t.Run(c.test+" "+c.options, func(t *testing.T) { runPerfOption(t, port, c) })
	}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, port string)
	}{{"rate limit", perfRate}, {"all sizes", perfAllSizes}, {"plot", perfPlot}, {"text output", perfText}, {"CPU usage", perfProcessor}} {
		t.Run(c.name, func(t *testing.T) { c.run(t, port) })
	}
}

// runPerfOption runs a test and checks how many messages it counts.
func runPerfOption(t *testing.T, port string, c perfOption) {
	needsPerf(t, c.test, typeOf(c.options))
	if strings.Contains(c.options, "-b") && c.test == "send-bw" && !strings.Contains(c.options, "-n 100 ") {
		needsNewer(t, "sends both ways for which there are no receives")
	}
	if strings.Contains(c.options, "-m ") && c.messages > 0 {
		testenv.NeedsIB(t, "path MTUs")
	}
	// Subtests have the same name on each device.
	options := strings.Fields(strings.ReplaceAll(c.options, "DEVICE", dev0))
	if c.messages < 0 {
		if out, err := perf(t, port, c.test, options...); err == nil || !strings.Contains(out, "unknown flag") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for _, r := range perfJSON(t, port, c.test, options...).Results {
		if c.messages != 0 && r.Iterations != c.messages || c.messages == 0 && (r.Iterations < 1 || r.Seconds < 0.09 || r.Seconds > 10) {
			t.Errorf("%d messages in %.2f s, want %d", r.Iterations, r.Seconds, c.messages)
		}
	}
}

// perfRate checks that --rate limits the rate of messages.
func perfRate(t *testing.T, port string) {
	r := perfJSON(t, port, "write-bw", "-n", "100", "-s", "100", "--rate", "500").Results[0]
	if r.Bandwidth.Messages > 520 || r.Seconds < 0.19 {
		t.Errorf("%.0f messages per second where 500 are allowed", r.Bandwidth.Messages)
	}
}

// TestPerfHardwareRate: a device of InfiniBand has the rate that it is to keep to, or the error says so.
func TestPerfHardwareRate(t *testing.T) {
	testenv.Guest(t)
	_, port := perfServe(t)
	for rate, missing := range map[string]string{"10Gb": "", "14Gb": "--rate is 14062 Mbit/s, allowed: a rate that " + dev0 + " has; it has set 120000 Mbit/s"} {
		if !rig.InfiniBand() {
			missing = "--rate-type is hw, allowed: sw"
		}
		out, err := perf(t, port, "write-bw", "--rate", rate, "--rate-type", "hw", "-n", "100", "-V")
		if (err != nil) != (missing != "") || !strings.Contains(out, missing) {
			t.Errorf("%s: %v, want an error with %q: %s", rate, err, missing, out)
		}
	}
}

// perfAllSizes checks that --all tests sizes that double.
func perfAllSizes(t *testing.T, port string) {
	needsPerf(t, "send-lat", "ud")
	results := perfJSON(t, port, "send-lat", "-a", "-n", "5", "-t", "ud", "-V").Results
	for i, r := range results {
		if r.Size != 2<<i {
			t.Errorf("size %d comes as number %d", r.Size, i)
		}
	}
	if len(results) < 9 { // to 512 at least
		t.Errorf("%d sizes", len(results))
	}
}

// perfPlot checks that --plot draws the results beside older ones.
func perfPlot(t *testing.T, port string) {
	dir := t.TempDir()
	out, err := perf(t, port, "write-bw", "-n", "5", "-s", "2,64", "--json")
	if err == nil {
		err = os.WriteFile(dir+"/before.json", []byte(out), 0o644)
	}
	must(t, err)
	if out, err := perf(t, port, "send-bw", "-n", "5", "-s", "64,2", "--plot", dir+"/now.svg", "--overlay", dir+"/before.json"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	svg, err := os.ReadFile(dir + "/now.svg")
	if err != nil || !strings.Contains(string(svg), "write-bw rc MiB/s (before.json)") || !strings.Contains(string(svg), "send-bw rc MiB/s") {
		t.Errorf("the picture has not both: %v\n%s", err, svg)
	}
}

// perfText checks the table that is printed without --json.
func perfText(t *testing.T, port string) {
	out, err := perf(t, port, "send-lat", "-D", "300ms", "-s", "2,64")
	rows := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(rows) != 3 || !strings.Contains(rows[0], "median") || strings.Fields(rows[2])[0] != "64" {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, side := range strings.Fields(rows[2])[9:] { // of the processor, here and there
		if percent, err := strconv.Atoi(strings.TrimSuffix(side, "%")); err != nil || percent < 1 || !strings.Contains(rows[0], "CPU here") {
			t.Errorf("use of a processor is %q\n%s", side, out)
		}
	}
}

// perfProcessor checks the use of a processor on both sides.
func perfProcessor(t *testing.T, port string) {
	for _, test := range []string{"send-lat", "write-lat", "read-lat", "send-bw"} {
		r := perfJSON(t, port, test, "-D", "300ms", "-s", "64").Results[0]
		least, most := 0.001, 3.0
		if test == "read-lat" { // the server's program does nothing
			least, most = 0, 0.5
		}
		if r.ClientCPU <= 0 || r.ClientCPU > 3 || r.ServerCPU < least || r.ServerCPU > most {
			t.Errorf("%s: %.2f of a processor here, %.2f there", test, r.ClientCPU, r.ServerCPU)
		}
	}
}

// TestPerfFlowLabel: --flow-label is the flow label of the path that the kernel gets: of the QP, or of the address
// handle of datagrams.
func TestPerfFlowLabel(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.Guest(t)
	testenv.NeedsIB(t, "flow labels")
	_, port := perfServe(t)
	for typ, verb := range map[string]string{"rc": "modify QP", "ud": "create AH"} {
		t.Run(typ, func(t *testing.T) {
			for _, label := range []string{"74565", "0"} {
				run := trace(t, perfLine(port, "send-bw", "-n", "10", "-s", "100", "-t", typ, "--flow-label", label)...)
				if out, err := exec.CommandContext(timed(t), run.line[0], run.line[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				var labels []string
				for _, c := range run.show(t) {
					for _, p := range c.Payloads {
						for name, v := range p.Fields {
							if c.Verb == verb && strings.HasSuffix(name, ".flow_label") {
								labels = append(labels, fmt.Sprint(v))
							}
						}
					}
				}
				if slices.Sort(labels); len(labels) == 0 || labels[len(labels)-1] != label {
					t.Errorf("the flow labels of %q are %q, want %s", verb, labels, label)
				}
			}
		})
	}
}
