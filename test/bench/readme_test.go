package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is where the checkout begins.
const root = "../.."

// TestCheckedIn checks that the figures in README.md are rendered from the run that is checked in, if there is one.
func TestCheckedIn(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, readmeFile))
	must(t, err)
	_, block, _, err := cutBlock(string(b))
	must(t, err)
	runs, err := shownRuns(root)
	must(t, err)
	hot, err := readCosts(hotFile(root, "amd64"))
	must(t, err)
	if block != markdown(runs, hot) {
		t.Errorf("the figures in %s are not those of %s and of %s: go run ./test/bench readme", readmeFile, shownFile, hotFile("", "amd64"))
	}
	if n := strings.Count(string(b), "\n"); n > 100 {
		t.Errorf("%s has %d lines, want at most 100", readmeFile, n)
	}
}

// TestReadme checks a run in: its figures replace the table in README.md, and nothing else changes.
func TestReadme(t *testing.T) {
	dir := t.TempDir()
	run1 := filepath.Join(t.TempDir(), "run.json")
	r := testReport("v1-2-gabc", map[string][]float64{
		"send-lat/size=2/wait=poll": {80, 90, 100}, "send-lat/size=2/wait=events": {80, 90, 100}, "send-lat/size=65536/wait=poll": {80, 90, 100},
		"write-bw/size=64/wait=poll": {80, 90, 85}, "plain/size=64/wait=poll": {99, 99, 99}, "count/plain/size=64/wait=events": {120, 130, 140},
		"count/mr/size=4096/reg": {99, 99, 99}, "count/qps/n=1/message": {50, 50, 50}, "count/qps/n=1000/message": {55, 55, 55}, "count/mrs/n=10/message": {51, 51, 51}, "count/conns/n=1/message": {20, 20, 20}, "count/conns/n=100/message": {40, 40, 40},
		"qps/n=1000/message": {99, 99, 99}, "connect/n=50": {99, 99, 99}, "new/row": {1, 2, 3},
	})
	r.Perftest = "6.06"
	r.Rows = append(r.Rows, Row{Name: "count/mr/size=4096/dereg", Unit: nanoseconds, Better: less, Error: "no device"})
	must(t, save(run1, r.writeJSON))
	readme := filepath.Join(dir, readmeFile)
	must(t, os.MkdirAll(filepath.Dir(readme), 0o777))
	before, after := "# x\n"+blockBegin, blockEnd+"more\n"
	const want = `Linux 6.1.0, rxe0, amd64 with 2 processors (QEMU), perftest 6.06, 2026-01-02 03:04, commit v1-2-gabc, 3 rounds.

A cell has both medians, the median ratio, and the middle half of the ratios. Less is better for times.

**What a user gets: an exchange of messages by a program without tuning, beside ` + "`ibv_rc_pingpong`" + `**

| | Linux 6.1 |
| --- | --- |
| 64 B, polling | 99.0 / 100 µs, 0.99 (0.99 to 0.99) |
| 64 B from a QP to itself, polling, by instructions, beside a C program | 50.0 / 100 µs, 0.50 (0.50 to 0.50) |
| 64 B, events, by instructions | 130 / 100 µs, 1.30 (1.25 to 1.35) |

**Control path, by instructions**

| | Linux 6.1 |
| --- | --- |
| register 4 KiB | 99.0 / 100 µs, 0.99 (0.99 to 0.99) |
| one of 50 connections, ` + "`rdmacm.ID`" + ` beside cmtime, by the clock | 99.0 / 100 µs, 0.99 (0.99 to 0.99) |

**The tuned tool: ` + "`verbs perf`" + ` beside perftest, polling; ratios**

| | SEND, latency | WRITE | READ | SEND, rate | WRITE | READ |
| --- | --- | --- | --- | --- | --- | --- |
| 6.1, 64 B |  |  |  |  | 0.85 (0.82 to 0.88) |  |
| 6.1, 64 KiB | 0.90 (0.85 to 0.95) |  |  |  |  |  |

**Scale: instructions of a message with so many objects in turn, relative to one; goverbs / rdma-core**

| Linux 6.1 | 10 | 100 | 1000 | 10000 |
| --- | --- | --- | --- | --- |
| queue pairs | | | 1.10 / 1.00 | |
| MRs | 1.02 / 1.00 | | | |
| ` + "`cm.Conn`s, beside queue pairs with a CQ each" + ` | | 2.00 / 1.00 | | |
`
	for _, args := range [][]string{{"readme", "-root", dir, run1}, {"readme", "-root", dir}} {
		must(t, os.WriteFile(readme, []byte(before+"old\n"+after), 0o666))
		var out, log bytes.Buffer
		if status := run(args, &out, &log); status != 0 {
			t.Fatalf("%q: %s", args, log.String())
		}
		got, err := os.ReadFile(readme)
		if err != nil || string(got) != before+want+after {
			t.Errorf("%q: %v\n%s\nwant\n%s", args, err, got, before+want+after)
		}
	}
	kept, err := os.ReadFile(filepath.Join(dir, shownFile))
	must(t, err)
	if !bytes.Contains(kept, []byte(`"count/mrs/n=10/message"`)) || bytes.Contains(kept, []byte("new/row")) || bytes.Contains(kept, []byte("median")) {
		t.Errorf("want the samples of the rows of the tables alone, have\n%s", kept)
	}
	must(t, os.WriteFile(readme, []byte("# x\n"), 0o666))
	var out, log bytes.Buffer
	if status := run([]string{"readme", "-root", dir}, &out, &log); status != 1 || !strings.Contains(log.String(), "README.md has no") {
		t.Errorf("a README without a place for it: %d, %s", status, log.String())
	}
	if status := run([]string{"readme", "a", "b"}, &out, &log); status != 2 || !strings.Contains(log.String(), "readme has 2 arguments") {
		t.Errorf("%d, %s", status, log.String())
	}
}

// TestDefaults: a run without flags measures everything, whichever output it writes.
func TestDefaults(t *testing.T) {
	b, err := options([]string{"-rounds", "9"}, nil)
	must(t, err)
	names := map[string]bool{}
	for _, w := range b.selected() {
		for _, r := range w.rows {
			names[r.Name] = true
		}
	}
	for _, want := range []string{"plain/size=64/wait=events", "mr/size=4096/reg", "qps/n=1/create", "mrs/n=1000/message", "send-lat/size=65536/wait=events"} {
		if !names[want] {
			t.Errorf("%s is not measured", want)
		}
	}
	if b, err = options([]string{"-counted"}, nil); err != nil {
		t.Fatal(err)
	}
	clear(names)
	for _, w := range b.selected() {
		for _, r := range w.rows {
			names[r.Name] = true
			if strings.HasPrefix(r.Name, "send") || strings.HasPrefix(r.Name, "plain/") && strings.HasSuffix(r.Name, "poll") {
				t.Errorf("%s, of two programs that poll, is counted", r.Name)
			}
		}
	}
	for _, want := range []string{"plain/size=64/wait=events", "dial/n=50/later", "open/nothing", "call/system", "mrs/n=1000/message", "conns/n=1/message"} {
		if !names[want] {
			t.Errorf("%s is not counted", want)
		}
	}
}
