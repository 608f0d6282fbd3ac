package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

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
	must(t, r.writeText(&out))
	for _, want := range []string{
		"Linux 6.1.0, rxe0, amd64 with 2 processors (QEMU), 2026-01-02 03:04, commit abc, 3 rounds\n",
		"send-lat/size=2/wait=poll                         90.0          100  µs        0.90   0.85-0.95     0.80-1.00    <= 1.00\n",
		"send-bw/size=2/wait=poll                          85.0          100  msg/s     0.85   0.82-0.88     0.80-0.90    >= 1.00 !\n",
		"mr/size=1/reg                              no memory; at all\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// TestNotice: a report names the rows whose quartiles are more than a tenth of the median apart, and no others.
func TestNotice(t *testing.T) {
	narrow, wide := []float64{90, 95, 97}, []float64{90, 101, 111}
	r := testReport("abc", map[string][]float64{"call/post": narrow, "call/poll": wide, "mr/size=1/reg": wide})
	r.Rows = append(r.Rows, Row{Name: "open/device", Unit: milliseconds, Better: less, Error: "no device"})
	got := r.notice()
	for _, want := range []string{"2 of 4 rows", "10 %", "call/poll", "mr/size=1/reg"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	var out bytes.Buffer
	if err := r.writeText(&out); err != nil || !strings.HasSuffix(out.String(), got) || strings.Contains(got, "call/post") {
		t.Errorf("%v, %q", err, out.String())
	}
	if got := testReport("abc", map[string][]float64{"call/post": narrow}).notice(); got != "" {
		t.Errorf("a notice without a reason: %q", got)
	}
}

// TestKeep: a report is found again by architecture, kernel and commit, with the rows of an earlier
// run of that commit.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "run.json")
	for _, rows := range []map[string][]float64{{"send-lat/size=2/wait=poll": {80}, "open/device": {20}}, {"send-lat/size=2/wait=poll": {70}, "call/post": {90}}} {
		must(t, save(file, testReport("v1-2-gabc", rows).writeJSON))
		var out, log bytes.Buffer
		if status := run([]string{"keep", "-dir", filepath.Join(dir, "all"), file}, &out, &log); status != 0 {
			t.Fatal(log.String())
		}
	}
	name := filepath.Join(dir, "all", "amd64-6.1.0", "v1-2-gabc")
	r, err := readReport(name + ".json")
	must(t, err)
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
		must(t, save(file, r.writeJSON))
		if _, err := readReport(file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	r := testReport("abc", map[string][]float64{"call/post": {90}})
	r.Rows[0].Ratio.Median, r.Rows[0].OursMedian = 0.1, 10
	must(t, save(file, r.writeJSON))
	if r, err := readReport(file); err != nil || r.Rows[0].Ratio.Median != 0.9 || r.Rows[0].OursMedian != 90 {
		t.Errorf("%v, %v", r, err)
	}
	must(t, os.WriteFile(file, []byte("{"), 0o600))
	if _, err := readReport(file); err == nil || !strings.Contains(err.Error(), "is no report") {
		t.Error(err)
	}
}

// TestJSON: the fields have the names that the help tells.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	must(t, testReport("abc", map[string][]float64{"call/post": {90, 110}}).writeJSON(&out))
	var got map[string]any
	must(t, json.Unmarshal(out.Bytes(), &got))
	row := got["rows"].([]any)[0].(map[string]any)
	_, json, _ := strings.Cut(usage, "The JSON has")
	for _, m := range []map[string]any{got, row, row["ratio"].(map[string]any)} {
		for name := range m {
			if !strings.Contains(json, name) {
				t.Errorf("the help does not mention %s", name)
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
	must(t, r.writeBenchstat(&out))
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
		must(t, save(file, testReport(name, rows).writeJSON))
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

// TestWithCounted: a run by the clock and one that counted instructions are kept together, in either order.
func TestWithCounted(t *testing.T) {
	clock := testReport("abc", map[string][]float64{"mr/size=4096/reg": {10}})
	count := testReport("abc", map[string][]float64{"count/mr/size=4096/reg": {20}})
	count.CPUs = 1
	count.Counted = count.title()
	if !strings.Contains(clock.title(), " 2 processors (") || !strings.Contains(count.title(), " 1 processor (") {
		t.Errorf("the titles are %s and %s", clock.title(), count.title())
	}
	for _, both := range []*Report{clock.with(count), count.with(clock)} {
		if both.CPUs != 2 || both.Counted != count.title() || len(both.Rows) != 2 || !both.clocked() || count.clocked() {
			t.Errorf("%+v", both)
		}
	}
	if text := markdown([]*Report{clock.with(count)}, nil); !strings.Contains(text, clock.title()+". By instructions: "+count.title()+".\n") {
		t.Errorf("the titles are missing in\n%s", text)
	}
}
