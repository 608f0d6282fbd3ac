package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
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
		"memory -n 0":          "memory has 0 arguments and -n 0",
		"costs":                "costs has 0 arguments, want the JSON of a run",
		"hotpaths x":           "hotpaths has 1 arguments, want none",
		"keep":                 "keep has 0 arguments, want the JSON of a run",
		"render a b":           "render has 2 arguments",
		"child calls":          "not what this program tells itself",
		"child mr rxe0 -1 1":   "not what this program tells itself",
		"child qps rxe0 1 2":   "not what this program tells itself",
		"child conns rxe0 0 9": "not what this program tells itself",
		"child dial rxe0":      "not what this program tells itself",
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
			t.Errorf("--help does not mention %s", want)
		}
	}
}

// TestRowsCM: by the connection manager there is what iWARP has, and no more.
func TestRowsCM(t *testing.T) {
	b, err := options([]string{"-cm", "-sizes", "2"}, nil)
	must(t, err)
	tests := map[string]bool{}
	for _, w := range b.selected() {
		for _, r := range w.rows {
			test, _, _ := strings.Cut(r.Name, "/")
			tests[test] = true
		}
	}
	got := slices.Sorted(maps.Keys(tests))
	if want := []string{"connect", "dial", "mr", "open", "read-bw", "read-lat", "send-bw", "send-lat", "write-bw", "write-lat"}; !slices.Equal(got, want) {
		t.Errorf("rows are of %v, want %v", got, want)
	}
}

// TestRows: every test has a row with a name of its own.
func TestRows(t *testing.T) {
	b, err := options([]string{"-mr", "4096", "-qps", "10", "-sizes", "2,65536"}, nil)
	must(t, err)
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
		"plain/size=65536/wait=poll", "plain/size=65536/wait=events", "send-lat/size=2/wait=poll", "send-lat/size=65536/wait=events", "send-bw/size=2/wait=poll", "write-lat/size=2/wait=poll",
		"write-bw/size=2/wait=poll", "read-lat/size=2/wait=events", "read-bw/size=65536/wait=poll", "atomic-lat/size=8/wait=poll",
		"atomic-bw/size=8/wait=events", "send-bw/size=2/wait=poll/list=16", "send-bw/size=2/wait=poll/list=1", "open/program", "open/device", "open/nothing", "connect/n=50", "dial/n=50/first", "dial/n=50/later", "call/post", "call/poll", "call/system",
		"mr/size=4096/reg", "mr/size=4096/dereg", "qps/n=10/create", "qps/n=10/message", "qps/n=10/close", "conns/n=10/message",
	} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no %s", want)
		}
	}
	order := []string{"plain/size=65536/wait=events/processor", "open/program", "mr/size=4096/reg", "qps/n=10/create", "send-lat/size=2/wait=poll"}
	if !slices.IsSortedFunc(order, func(a, b string) int { return slices.Index(names, a) - slices.Index(names, b) }) || !slices.Contains(names, order[0]) {
		t.Errorf("rows are %q, want %q in this order", names, order)
	}
	for _, never := range []string{"plain/size=2/wait=poll", "plain/size=65536/wait=poll/processor", "write-lat/size=2/wait=events", "write-bw/size=2/wait=events", "send-bw/size=65536/wait=poll/list=16"} {
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
	// Whether the device has DC is known later. By -cm there are no such rows.
	if b, err = options([]string{"-rows", "^dc/"}, nil); err != nil || b.dc {
		t.Errorf("rows of DC alone: %v", err)
	}
	if _, err = options([]string{"-rows", "^dc/", "-cm"}, nil); err == nil {
		t.Error("rows of DC alone are accepted with -cm")
	}
}

// TestRowsCounted: instructions are counted of what waits for nobody. On a card that is the posting and polling
// alone, and other rows are refused.
func TestRowsCounted(t *testing.T) {
	for _, c := range []struct {
		rows     string
		card, dc bool
		want     []string // what the names of the rows begin with
		err      string
	}{
		{"", false, false, []string{"atomic-bw", "atomic-lat", "call", "connect", "conns", "cqs", "dial", "mr", "mrs", "open", "plain", "qps", "read-bw", "read-lat"}, ""},
		{"", true, true, []string{"call", "dc"}, ""},
		{"", true, false, []string{"call"}, ""},
		{"^(mr|call)/", true, true, []string{"call"}, ""},
		{"^srd/", true, true, nil, `-rows is "^srd/": mlx5_0 cannot do what these rows measure`},
		{"^mr/", true, true, nil, `-rows is "^mr/": with -counted, mlx5_0 can measure only the rows ^(call|dc|srd)/`},
		{"^nothing$", true, true, nil, "can measure only the rows"},
		{"^dc/", true, false, nil, `-rows is "^dc/": mlx5_0 cannot do what these rows measure`},
		{"^dc/", false, false, nil, "cannot do what these rows measure"},
		{"^send-bw/", false, false, nil, ""}, // by the clock there are some
	} {
		b, err := options([]string{"-counted", "-device", "mlx5_0", "-rows", c.rows}, nil)
		must(t, err)
		b.card, b.dc = c.card, c.dc
		if err := b.check(); (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%+v: %v", c, err)
		}
		tests := map[string]bool{}
		for _, w := range b.selected() {
			test, _, _ := strings.Cut(w.rows[0].Name, "/")
			tests[test] = true
		}
		if got := slices.Sorted(maps.Keys(tests)); !slices.Equal(got, c.want) {
			t.Errorf("%+v: rows are of %v", c, got)
		}
	}
}

// TestMany: the children are told how many of each object there are.
func TestMany(t *testing.T) {
	b := &bench{self: "echo", device: "d"}
	for _, c := range []struct {
		w    work
		args string
	}{
		{b.many("qps", 10), "child qps d 0 10 1 1 10000"}, {b.many("cqs", 9), "child qps d 0 9 9 1 10000"},
		{b.many("mrs", 8), "child qps d 0 1 1 8 10000"}, {b.conns(4000), "child conns d 4000 20000"},
	} {
		if _, err := c.w.ours(t.Context()); err == nil || !strings.Contains(err.Error(), `"`+c.args+`\n"`) {
			t.Errorf("%v, want that echo says %s", err, c.args)
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

// TestRetryHungRun: a run of perftest that hangs is repeated, at most three times, and counted. A run that
// fails is not repeated.
func TestRetryHungRun(t *testing.T) {
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
	for out, want := range map[string]float64{"12.50 µs per exchange\n": 12.5, "8192 bytes in 0.00 seconds = 1.23 Mbit/sec\n1000 iters in 0.02 seconds = 23.45 usec/iter\n": 23.45, "": 0, "0.00 µs per exchange\n": 0} {
		if v, err := pingpongFigure(out); v != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %g, %v, want %g", out, v, err, want)
		}
	}
	const maps = "00400000-00401000 rw-p 00000000 00:00 0 x\nc000000000-c000400000 rw-p 00000000 00:00 0\n7f0000000000-7f0000002000 rw-s 0 00:05 9 /dev/infiniband/uverbs0\n7f1000000000-7f1000002000 ---p 0 00:00 0\n"
	if n, err := mapped(maps); n != 3*4096 || err != nil {
		t.Errorf("%d bytes are mapped, %v, want 12288", n, err)
	}
	if _, err := mapped("no line\n"); err == nil {
		t.Error("a line without addresses is no error")
	}
	s, err := start([]string{"sh", "-c", "echo gone >&2; exit 3"}, nil)
	must(t, err)
	if err := s.listening(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "exit status 3: gone") {
		t.Errorf("a server that ends: %v", err)
	}
}

// TestExchange: an exchange has the time that the client prints, and the client's processor time, user and
// system, but not the time that it sleeps.
func TestExchange(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close() // in place of the server, which only has to run
	const count = 10
	client := []string{"sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; sleep 0.5; echo '12.50 µs per exchange'"}
	begin := time.Now()
	v, err := (&bench{}).exchange(t.Context(), l.Addr().(*net.TCPAddr).Port, []string{"sleep", "60"}, client, count)
	must(t, err)
	most := float64((time.Since(begin) - 500*time.Millisecond).Microseconds()) / count
	if v[0] != 12.5 || v[1] <= 0 || v[1] > most {
		t.Errorf("%v µs, want 12.5, and more than 0 and at most %.1f of processor time", v, most)
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
