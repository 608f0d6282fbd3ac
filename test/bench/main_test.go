package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestCommandLine: what makes no sense is refused, by its name, with status 2.
func TestCommandLine(t *testing.T) {
	for line, want := range map[string]string{
		"-rounds 0":            "-rounds is 0, allowed: 1 to 1000",
		"-iterations -1":       "-iterations is -1",
		"-iterations 4":        "-iterations is 4, allowed: 0 for what suits the size, or 5 and more",
		"-sizes 2,x":           `-sizes is "2,x", allowed: different numbers from 1`,
		"-sizes 64,64":         `-sizes is "64,64"`,
		"-sizes 0":             `-sizes is "0"`,
		"-mr 0":                `-mr is "0"`,
		"-qps 1,,2":            `-qps is "1,,2"`,
		"-rows (":              "-rows: error parsing regexp",
		"-rows ^nothing$":      `-rows is "^nothing$", which is no row's name`,
		"-commit ../x":         `-commit is "../x", allowed: letters`,
		"-wrong":               "flag provided but not defined: -wrong",
		"-rows ^mr/ more":      `["more"]: no arguments are wanted`,
		"measure":              `"measure" is no command, allowed: compare, keep, render, readme`,
		"compare one":          "compare has 1 arguments, want the JSON of two runs",
		"keep":                 "keep has 0 arguments, want the JSON of a run",
		"render a b":           "render has 2 arguments",
		"child calls":          "not what this program tells itself",
		"child mr rxe0 -1 1":   "not what this program tells itself",
		"child qps rxe0 1 2":   "not what this program tells itself",
		"child connect rxe0":   "not what this program tells itself",
		"child nothing rxe0 1": "not what this program tells itself",
	} {
		var out, log bytes.Buffer
		if status := run(strings.Fields(line), &out, &log); status != 2 || !strings.Contains(log.String(), want) {
			t.Errorf("%s: status %d, %q, want 2 and %q", line, status, log.String(), want)
		}
	}
	var out, log bytes.Buffer
	if status := run([]string{"--help"}, &out, &log); status != 0 || log.Len() != 0 {
		t.Errorf("--help: status %d, %q", status, log.String())
	}
	for _, want := range []string{"bench compare A B", "-rounds", "-progress", "goverbs_median", "benchstat -col /by"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("--help does not tell of %s", want)
		}
	}
}

// TestRowsCM: by the connection manager there is what iWARP has, and no more.
func TestRowsCM(t *testing.T) {
	b, err := options([]string{"-cm", "-sizes", "2"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, w := range b.selected() {
		for _, r := range w.rows {
			test, _, _ := strings.Cut(r.Name, "/")
			tests[test] = true
		}
	}
	got := slices.Sorted(maps.Keys(tests))
	if want := []string{"connect", "mr", "open", "read-bw", "read-lat", "send-bw", "send-lat", "write-bw", "write-lat"}; !slices.Equal(got, want) {
		t.Errorf("rows are of %v, want %v", got, want)
	}
}

// TestRows: there is a row for everything that is to be measured, each with a name of its own.
func TestRows(t *testing.T) {
	b, err := options([]string{"-mr", "4096", "-qps", "10", "-sizes", "2,65536"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, w := range b.all() {
		for _, r := range w.rows {
			if slices.Contains(names, r.Name) {
				t.Errorf("%s is there twice", r.Name)
			}
			names = append(names, r.Name)
		}
	}
	for _, want := range []string{
		"send-lat/size=2/wait=poll", "send-lat/size=65536/wait=events", "send-bw/size=2/wait=poll", "write-lat/size=2/wait=poll",
		"write-bw/size=2/wait=poll", "read-lat/size=2/wait=events", "read-bw/size=65536/wait=poll", "atomic-lat/size=8/wait=poll",
		"atomic-bw/size=8/wait=events", "send-bw/size=2/wait=poll/list=16", "send-bw/size=2/wait=poll/list=1", "open/program", "open/device", "connect/n=50", "call/post", "call/poll",
		"mr/size=4096/reg", "mr/size=4096/dereg", "qps/n=10/create", "qps/n=10/message",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no %s", want)
		}
	}
	for _, never := range []string{"write-lat/size=2/wait=events", "write-bw/size=2/wait=events", "send-bw/size=65536/wait=poll/list=16"} {
		if slices.Contains(names, never) {
			t.Errorf("there is %s", never)
		}
	}
	if w := b.traffic("send", "bw", 2, false, 1); w.rows[0].Wanted != 0 {
		t.Errorf("of posting one by one a ratio is wanted: %v", w.rows[0].Wanted)
	}
	if b, err = options([]string{"-rows", "poll$"}, nil); err != nil {
		t.Fatal(err)
	}
	for _, w := range b.selected() {
		if !slices.ContainsFunc(w.rows, func(r Row) bool { return strings.HasSuffix(r.Name, "poll") }) {
			t.Errorf("%s was not asked for", w.rows[0].Name)
		}
	}
}

// TestTurns: both take turns, and neither always is the first; an error ends a row.
func TestTurns(t *testing.T) {
	b := &bench{rounds: 4}
	order := ""
	side := func(name string, v float64) func(context.Context) ([]float64, error) {
		return func(context.Context) ([]float64, error) {
			order += name
			return []float64{v, 2 * v}, nil
		}
	}
	rows := b.turns(t.Context(), work{[]Row{row("a", nanoseconds, 1), row("b", rate, 1)}, side("o", 3), side("t", 2)}, nil)
	if order != "ottootto" {
		t.Errorf("the order is %s", order)
	}
	if r := rows[1]; len(r.Ours) != 4 || r.OursMedian != 6 || r.RdmaCoreMedian != 4 || r.Ratio.Median != 1.5 || r.Better != more || rows[0].Better != less {
		t.Errorf("%+v", r)
	}
	failing := func(context.Context) ([]float64, error) { return nil, errors.New("no way") }
	rows = b.turns(t.Context(), work{[]Row{row("a", nanoseconds, 1)}, side("o", 3), failing}, nil)
	if r := rows[0]; r.Error != "no way" || r.measured() || r.missed() {
		t.Errorf("%+v", r)
	}
}

// TestAgain: a run of perftest's that hangs is done again, a few times, and counted; one that fails is not.
func TestAgain(t *testing.T) {
	hang := func(ctx context.Context) ([]float64, error) { <-ctx.Done(); return nil, errors.New("killed") }
	for _, c := range []struct {
		name       string
		once       func(ctx context.Context, try int) ([]float64, error)
		runs, hung int
		err        string
	}{
		{"one that hangs", func(ctx context.Context, try int) ([]float64, error) {
			if try == 1 {
				return hang(ctx)
			}
			return []float64{7}, nil
		}, 2, 1, ""},
		{"all hang", func(ctx context.Context, try int) ([]float64, error) { return hang(ctx) }, 4, 3, "killed"},
		{"no figure", func(ctx context.Context, try int) ([]float64, error) {
			if try < 3 {
				return nil, fmt.Errorf("0.00: %w", errNoFigure)
			}
			return []float64{7}, nil
		}, 3, 0, ""},
		{"a failure", func(context.Context, int) ([]float64, error) { return nil, errors.New("no device") }, 1, 0, "no device"},
	} {
		b, runs := &bench{}, 0
		v, err := b.again(t.Context(), 40*time.Millisecond, func(ctx context.Context) ([]float64, error) { runs++; return c.once(ctx, runs) })
		if runs != c.runs || b.hung != c.hung || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err || err == nil && v[0] != 7 {
			t.Errorf("%s: %d runs, of which %d hung, %v, %v", c.name, runs, b.hung, v, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	b, runs := &bench{}, 0
	if _, err := b.again(ctx, time.Minute, func(ctx context.Context) ([]float64, error) { runs++; cancel(); return hang(ctx) }); err == nil || runs != 1 || b.hung != 0 {
		t.Errorf("interrupted: %d runs, of which %d hung, %v", runs, b.hung, err)
	}
}

// TestPrograms: what programs print is understood, or refused with the program's name.
func TestPrograms(t *testing.T) {
	got, err := medians(t.Context(), []string{"echo", "-e", "30 1\\n10 2\\n20 6"}, 2)
	if err != nil || !slices.Equal(got, []float64{20, 2}) {
		t.Errorf("the medians are %v, want 20 and 2: %v", got, err)
	}
	for _, line := range [][]string{{"echo", "fast 1"}, {"echo", "1"}, {"echo", "0 1"}, {"true"}, {"false"}, {"no-such-program"}} {
		if _, err := medians(t.Context(), line, 2); err == nil || !strings.Contains(err.Error(), line[0]) {
			t.Errorf("%q: %v", line, err)
		}
	}
	s, err := start([]string{"sh", "-c", "echo gone >&2; exit 3"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.listening(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "exit status 3: gone") {
		t.Errorf("a server that ends: %v", err)
	}
}

// TestFigures: the figures are found in what perf, perftest and cmtime print.
func TestFigures(t *testing.T) {
	lat := "#bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n" +
		" 64      2000          12.96          651.67       16.51    \t       20.97       \t30.79  \t\t169.30  \t\t640.93\n"
	bw := " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 64         5000             0.00               1.73   \t\t   0.028273\n"
	for _, c := range []struct {
		out  string
		unit string
		want float64
	}{{lat, microseconds, 16.51}, {bw, rate, 28273}, {bw, bandwidth, 1.73}} {
		if v, err := perftestFigure(c.out, 64, c.unit); err != nil || v < c.want*0.999999 || v > c.want*1.000001 {
			t.Errorf("perftest's %s is %g, want %g: %v", c.unit, v, c.want, err)
		}
	}
	none := strings.ReplaceAll(bw, "1.73", "0.00")
	for _, out := range []string{"", lat[:100], none, strings.ReplaceAll(bw, "1.73", "x")} {
		v, err := perftestFigure(out, 64, bandwidth)
		if err == nil {
			t.Errorf("perftest's %q is %g", out, v)
		}
		if again := errors.Is(err, errNoFigure); again != (out == none) {
			t.Errorf("perftest's %q: %v, runs again: %t", out, err, again)
		}
	}
	ours := `{"results":[{"latency":{"median_us":18.5}}]}`
	if v, err := perfFigure([]byte(ours), microseconds); err != nil || v != 18.5 {
		t.Errorf("perf: %g, %v", v, err)
	}
	ours = `{"results":[{"bandwidth":{"mib_per_s":3,"messages_per_s":4}}]}`
	if v, err := perfFigure([]byte(ours), rate); err != nil || v != 4 {
		t.Errorf("perf: %g, %v", v, err)
	}
	if v, err := perfFigure([]byte(ours), bandwidth); err != nil || v != 3 {
		t.Errorf("perf: %g, %v", v, err)
	}
	for _, out := range []string{"", "{}", ours + "x", `{"results":[{},{}]}`} {
		if v, err := perfFigure([]byte(out), rate); err == nil {
			t.Errorf("perf's %q is %g", out, v)
		}
	}
	table := "step              us/conn    total ms\ncreate id    :       5.00     1.00\nresolve addr : 2.00 \nresolve route: 3.00 \ncreate qp    : 4.00 \nconnect      : 40.00 \ndisconnect   : 9.00 \n"
	table = strings.ReplaceAll(table, "       5.00     1.00", " 1.00 5.00")
	if v, err := cmtimeFigure(table); err != nil || v != 1000 {
		t.Errorf("cmtime: %g, %v", v, err)
	}
	if _, err := cmtimeFigure("create id : 1.00 "); err == nil || !strings.Contains(err.Error(), "resolve addr") {
		t.Errorf("cmtime without a row: %v", err)
	}
	procs := "  sl  local_address rem_address   st\n   0: 0100000A:48A8 00000000:0000 0A 0\n   1: 0100000A:48A9 00000000:0000 01 0\n"
	if !listens(procs, 0x48A8) || listens(procs, 0x48A9) || listens(procs, 0x48) {
		t.Error("the port that is listened on is not the one")
	}
}

// testReport makes a report of figures of ours, where rdma-core's are 100.
func testReport(commit string, rows map[string][]float64) *Report {
	r := &Report{Version: 1, Commit: commit, Date: "2026-01-02 03:04", Kernel: "6.1.0", Arch: "amd64", CPUs: 2, CPU: "QEMU", Device: "rxe0", Rounds: 3}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range rows {
			if !yield(name) {
				return
			}
		}
	}) {
		unit := microseconds
		if strings.Contains(name, "-bw") {
			unit = rate
		}
		one := row(name, unit, 1)
		for _, v := range rows[name] {
			one.Ours, one.RdmaCore = append(one.Ours, v), append(one.RdmaCore, 100)
		}
		one.sum()
		r.Rows = append(r.Rows, one)
	}
	return r
}

// TestSpread: the median and the quartiles are what they should be.
func TestSpread(t *testing.T) {
	if got, want := spread([]float64{5, 1, 3, 2, 4}), (Spread{1, 2, 3, 4, 5}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := spread([]float64{4, 1, 2, 3}), (Spread{1, 1.75, 2.5, 3.25, 4}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if got, want := spread([]float64{7}), (Spread{7, 7, 7, 7, 7}); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	if spread(nil) != (Spread{}) || median(nil) != 0 {
		t.Error("nothing has a spread")
	}
	for _, c := range []struct {
		unit   string
		wanted float64
		ours   float64
		missed bool
	}{{microseconds, 1, 101, true}, {microseconds, 1, 100, false}, {rate, 1, 99, true}, {rate, 1.2, 119, true}, {rate, 1.2, 120, false}, {microseconds, 0, 900, false}} {
		r := row("x", c.unit, c.wanted)
		r.Ours, r.RdmaCore = []float64{c.ours}, []float64{100}
		if r.sum(); r.missed() != c.missed {
			t.Errorf("%+v: missed is %v", c, r.missed())
		}
	}
}

// TestText: the table has the figures, and marks what is not as wanted.
func TestText(t *testing.T) {
	r := testReport("abc", map[string][]float64{"send-lat/size=2/wait=poll": {80, 90, 100}, "send-bw/size=2/wait=poll": {80, 90, 85}})
	r.Rows = append(r.Rows, Row{Name: "mr/size=1/reg", Unit: microseconds, Better: less, Error: "no memory\nat all\n"})
	var out bytes.Buffer
	if err := r.writeText(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Linux 6.1.0, rxe0, amd64 with 2 processors (QEMU), 2026-01-02 03:04, commit abc, 3 rounds\n",
		"send-lat/size=2/wait=poll                 90.0          100  µs        0.90   0.85-0.95     0.80-1.00    <= 1.00\n",
		"send-bw/size=2/wait=poll                  85.0          100  msg/s     0.85   0.82-0.88     0.80-0.90    >= 1.00 !\n",
		"mr/size=1/reg                      no memory; at all\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// TestKeep: a report is found again by architecture, kernel and commit, with the rows of an earlier
// run of that commit.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.json")
	for _, rows := range []map[string][]float64{{"send-lat/size=2/wait=poll": {80}, "open/device": {20}}, {"send-lat/size=2/wait=poll": {70}, "call/post": {90}}} {
		if err := save(file, testReport("v1-2-gabc", rows).writeJSON); err != nil {
			t.Fatal(err)
		}
		var out, log bytes.Buffer
		if status := run([]string{"keep", "-dir", filepath.Join(dir, "all"), file}, &out, &log); status != 0 {
			t.Fatal(log.String())
		}
	}
	name := filepath.Join(dir, "all", "amd64-6.1.0", "v1-2-gabc")
	r, err := readReport(name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, row := range r.Rows {
		got = append(got, row.Name+" "+figure(row.OursMedian))
	}
	if want := []string{"open/device 20.0", "send-lat/size=2/wait=poll 70.0", "call/post 90.0"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for ending, want := range map[string]string{".html": "</html>", ".txt": "BenchmarkCall/post/by=goverbs 1 90000 ns/op"} {
		if b, err := os.ReadFile(name + ending); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v, without %q: %.200s", ending, err, want, b)
		}
	}
}

// TestReadReport: what is no report is refused, by the field that is wrong; what is told of the
// samples is not believed.
func TestReadReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.json")
	for want, change := range map[string]func(*Report){
		"version is 2, want 1":                        func(r *Report) { r.Version = 2 },
		`commit is "a/b", want`:                       func(r *Report) { r.Commit = "a/b" },
		`kernel is "..", want`:                        func(r *Report) { r.Kernel = ".." },
		`arch is "", want`:                            func(r *Report) { r.Arch = "" },
		"rows is empty":                               func(r *Report) { r.Rows = nil },
		`rows[1].name is "call/post", want`:           func(r *Report) { r.Rows = append(r.Rows, r.Rows[0]) },
		`rows[0].unit is "furlong"`:                   func(r *Report) { r.Rows[0].Unit = "furlong" },
		`rows[0].better is "", want less or more`:     func(r *Report) { r.Rows[0].Better = "" },
		"rows[0] has 1 samples of goverbs and 2 of r": func(r *Report) { r.Rows[0].RdmaCore = []float64{1, 2} },
		"rows[0] has the sample 0, want more than 0":  func(r *Report) { r.Rows[0].Ours[0] = 0 },
	} {
		r := testReport("abc", map[string][]float64{"call/post": {90}})
		change(r)
		if err := save(file, r.writeJSON); err != nil {
			t.Fatal(err)
		}
		if _, err := readReport(file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	r := testReport("abc", map[string][]float64{"call/post": {90}})
	r.Rows[0].Ratio.Median, r.Rows[0].OursMedian = 0.1, 10
	if err := save(file, r.writeJSON); err != nil {
		t.Fatal(err)
	}
	if r, err := readReport(file); err != nil || r.Rows[0].Ratio.Median != 0.9 || r.Rows[0].OursMedian != 90 {
		t.Errorf("%v, %v", r, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readReport(file); err == nil || !strings.Contains(err.Error(), "is no report") {
		t.Error(err)
	}
}

// TestJSON: the fields have the names that the help tells.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	if err := testReport("abc", map[string][]float64{"call/post": {90, 110}}).writeJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	row := got["rows"].([]any)[0].(map[string]any)
	_, json, _ := strings.Cut(usage, "The JSON has")
	for _, m := range []map[string]any{got, row, row["ratio"].(map[string]any)} {
		for name := range m {
			if !strings.Contains(json, name) {
				t.Errorf("the help does not tell of %s", name)
			}
		}
	}
	if row["ratio"].(map[string]any)["median"] != 1.0 || row["goverbs_median"] != 100.0 || row["unit"] != "µs" || got["version"] != 1.0 {
		t.Errorf("%v", got)
	}
}

// TestBenchstat: the text is as the format of Go's benchmarks has it.
func TestBenchstat(t *testing.T) {
	r := testReport("abc", map[string][]float64{"send-lat/size=2/wait=poll": {80, 90}, "send-bw/size=2/wait=poll/list=16": {150}})
	r.Rows = append(r.Rows, Row{Name: "read-bw/size=65536/wait=poll", Unit: bandwidth, Better: more, Ours: []float64{2}, RdmaCore: []float64{3}},
		Row{Name: "open/device", Unit: milliseconds, Better: less, Ours: []float64{2.5}, RdmaCore: []float64{3}})
	var out bytes.Buffer
	if err := r.writeBenchstat(&out); err != nil {
		t.Fatal(err)
	}
	want := `goos: linux
goarch: amd64
kernel: 6.1.0
device: rxe0
cpu: QEMU
Unit msg/s better=higher
Unit B/s better=higher
BenchmarkSendBw/size=2/wait=poll/list=16/by=goverbs 1 150 msg/s
BenchmarkSendBw/size=2/wait=poll/list=16/by=rdma-core 1 100 msg/s
BenchmarkSendLat/size=2/wait=poll/by=goverbs 1 80000 ns/op
BenchmarkSendLat/size=2/wait=poll/by=goverbs 1 90000 ns/op
BenchmarkSendLat/size=2/wait=poll/by=rdma-core 1 100000 ns/op
BenchmarkSendLat/size=2/wait=poll/by=rdma-core 1 100000 ns/op
BenchmarkReadBw/size=65536/wait=poll/by=goverbs 1 2097152 B/s
BenchmarkReadBw/size=65536/wait=poll/by=rdma-core 1 3145728 B/s
BenchmarkOpen/device/by=goverbs 1 2500000 ns/op
BenchmarkOpen/device/by=rdma-core 1 3000000 ns/op
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}

// TestHTML: the page has all rows, plots of what has several sizes, and needs nothing else.
func TestHTML(t *testing.T) {
	r := testReport("abc", map[string][]float64{
		"send-lat/size=2/wait=poll": {80, 90, 120}, "send-lat/size=4096/wait=poll": {200, 210, 205}, "send-bw/size=2/wait=poll": {80}, "call/post": {101},
	})
	r.CPU = "<script>"
	r.Rows = append(r.Rows, Row{Name: "mr/size=1/reg", Unit: microseconds, Better: less, Error: "no <memory>"})
	var out bytes.Buffer
	if err := r.writeHTML(&out); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	for _, r := range r.Rows {
		if !strings.Contains(page, "<td>"+r.Name+"</td>") {
			t.Errorf("%s is not in the table", r.Name)
		}
	}
	for _, want := range []string{`aria-label="send-lat, poll: µs"`, `aria-label="ratios"`, "4 KiB", "no &lt;memory&gt;", "&lt;script&gt;", `class="missed"`, "0.80 to 1.20"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
	for _, never := range []string{"aria-label=\"send-bw", "<script", "src=", "href=", "url(", "NaN", "ZgotmplZ", "<no value>"} {
		if strings.Contains(page, never) {
			t.Errorf("%q is in the page", never)
		}
	}
	if n := strings.Count(page, "<polyline"); n != 2 {
		t.Errorf("there are %d curves, want 2", n)
	}
	// A ratio of 1 is in the middle of the axis, and one below it at the left.
	p := r.ratios()
	if len(p.Rows) != 4 || p.Rows[0].Median < ratiosLeft || p.Rows[0].Median >= (ratiosLeft+ratiosRight)/2+10 || p.Rows[3].Most > ratiosRight {
		t.Errorf("%+v", p.Rows)
	}
}

// TestCompare: what has changed is told apart from what has not.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for name, rows := range map[string]map[string][]float64{
		"a": {"send-lat/size=2/wait=poll": {100, 101, 102}, "read-lat/size=2/wait=poll": {80, 100, 120}, "send-bw/size=2/wait=poll": {90, 91, 92}, "call/post": {50, 51, 52}, "only/a": {1}},
		"b": {"send-lat/size=2/wait=poll": {80, 81, 82}, "read-lat/size=2/wait=poll": {90, 110, 130}, "send-bw/size=2/wait=poll": {70, 71, 72}, "call/post": {60, 61, 62}, "only/b": {1}},
	} {
		file := filepath.Join(dir, name)
		if err := save(file, testReport(name, rows).writeJSON); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	slices.Sort(files)
	var out, log bytes.Buffer
	if status := run(append([]string{"compare"}, files...), &out, &log); status != 0 {
		t.Fatal(log.String())
	}
	for name, want := range map[string]string{"send-lat": " -19.8% 1.01 0.81 better", "read-lat": " +10.0% 1.00 1.10 ~", "send-bw": " -22.0% 0.91 0.71 worse", "call/post": " +19.6% 0.51 0.61 worse"} {
		found := false
		for l := range strings.Lines(out.String()) {
			if l = strings.Join(strings.Fields(l), " "); strings.HasPrefix(l, name) {
				found = true
				if !strings.HasSuffix(l, want) {
					t.Errorf("%q, want %q", l, want)
				}
			}
		}
		if !found {
			t.Errorf("%s is not in\n%s", name, out.String())
		}
	}
	if strings.Contains(out.String(), "only/") {
		t.Errorf("a row that only one has is in\n%s", out.String())
	}
	if err := compare(&out, testReport("a", map[string][]float64{"x": {1}}), testReport("b", map[string][]float64{"y": {1}})); err == nil {
		t.Error("nothing in common is no error")
	}
	out.Reset()
	b := testReport("b", map[string][]float64{"x": {1}})
	b.Kernel = "7.2"
	if err := compare(&out, testReport("a", map[string][]float64{"x": {1}}), b); err != nil || !strings.Contains(out.String(), "different kernels") {
		t.Errorf("%v: %s", err, out.String())
	}
}
