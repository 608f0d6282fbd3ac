package main

import (
	"bytes"
	"errors"
	"io/fs"
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
	if err != nil {
		t.Fatal(err)
	}
	_, block, _, err := cutBlock(string(b))
	if err != nil {
		t.Fatal(err)
	}
	r, err := readReport(filepath.Join(root, shownFile))
	if errors.Is(err, fs.ErrNotExist) {
		return // the figures are of before there was a place for runs
	}
	if err != nil {
		t.Fatal(err)
	}
	if block != r.markdown() {
		t.Errorf("the figures in %s are not those of %s: go run ./test/bench readme", readmeFile, shownFile)
	}
}

// TestReadme checks a run in: its figures replace the table in README.md, and nothing else changes.
func TestReadme(t *testing.T) {
	dir := t.TempDir()
	run1 := filepath.Join(t.TempDir(), "run.json")
	r := testReport("v1-2-gabc", map[string][]float64{
		"send-lat/size=2/wait=poll": {80, 90, 100}, "send-lat/size=2/wait=events": {80, 90, 100}, "send-lat/size=65536/wait=poll": {80, 90, 100},
		"write-bw/size=2/wait=poll": {80, 90, 85}, "send-bw/size=64/wait=poll/list=16": {120, 130, 140},
		"mr/size=1073741824/reg": {99, 99, 99}, "qps/n=10000/message": {99, 99, 99}, "connect/n=50": {99, 99, 99}, "open/program": {50, 50, 50}, "new/row": {1, 2, 3},
	})
	r.Perftest = "6.06"
	r.Rows = append(r.Rows, Row{Name: "call/post", Unit: nanoseconds, Better: less, Error: "no device"})
	if err := save(run1, r.writeJSON); err != nil {
		t.Fatal(err)
	}
	readme := filepath.Join(dir, readmeFile)
	if err := os.MkdirAll(filepath.Dir(readme), 0o777); err != nil {
		t.Fatal(err)
	}
	before, after := "# x\n"+blockBegin, blockEnd+"more\n"
	const want = `Linux 6.1.0 on amd64, 2 processors (QEMU), rxe0, perftest 6.06, commit v1-2-gabc, 2026-01-02 03:04, polling, 3 rounds.
Each cell has the median of goverbs and of rdma-core, the median of the ratios of all rounds, and the
range of the middle half of the ratios. For times less than 1 is better, for rates more than 1.

| latency | send | write | read |
| --- | --- | --- | --- |
| 2 B | 90.0 / 100 µs, 0.90 (0.85 to 0.95) | not measured | not measured |
| 64 KiB | 90.0 / 100 µs, 0.90 (0.85 to 0.95) | not measured | not measured |

| bandwidth | send | write | read |
| --- | --- | --- | --- |
| 2 B | not measured | 85.0 / 100 msg/s, 0.85 (0.82 to 0.88) | not measured |
| 64 KiB | not measured | not measured | not measured |

| | |
| --- | --- |
| connect, 50 connections at once | 99.0 / 100 µs, 0.99 (0.99 to 0.99) |
| register 1 GiB | 99.0 / 100 µs, 0.99 (0.99 to 0.99) |
| ` + "`new/row`" + ` | 2.00 / 100 µs, 0.02 (0.01 to 0.03) |
| start a program that opens a device | 50.0 / 100 µs, 0.50 (0.50 to 0.50) |
| a message, with 10000 QPs | 99.0 / 100 µs, 0.99 (0.99 to 0.99) |
| send of 64 B, goverbs in lists of 16, perftest one by one | 130 / 100 msg/s, 1.30 (1.25 to 1.35) |
| one call that posts | not measured |
`
	for _, args := range [][]string{{"readme", "-root", dir, run1}, {"readme", "-root", dir}} {
		if err := os.WriteFile(readme, []byte(before+"old\n"+after), 0o666); err != nil {
			t.Fatal(err)
		}
		var out, log bytes.Buffer
		if status := run(args, &out, &log); status != 0 {
			t.Fatalf("%q: %s", args, log.String())
		}
		got, err := os.ReadFile(readme)
		if err != nil || string(got) != before+want+after {
			t.Errorf("%q: %v\n%s\nwant\n%s", args, err, got, before+want+after)
		}
	}
	if err := os.WriteFile(readme, []byte("# x\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	var out, log bytes.Buffer
	if status := run([]string{"readme", "-root", dir}, &out, &log); status != 1 || !strings.Contains(log.String(), "README.md has no") {
		t.Errorf("a README without a place for it: %d, %s", status, log.String())
	}
	if status := run([]string{"readme", "a", "b"}, &out, &log); status != 2 || !strings.Contains(log.String(), "readme has 2 arguments") {
		t.Errorf("%d, %s", status, log.String())
	}
}

// TestDefaults: a run without flags has all that is to be measured, whatever else is asked for.
func TestDefaults(t *testing.T) {
	b, err := options([]string{"-rounds", "9"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, w := range b.selected() {
		for _, r := range w.rows {
			names[r.Name] = true
		}
	}
	for _, want := range []string{"mr/size=4096/reg", "mr/size=1073741824/dereg", "qps/n=1/create", "qps/n=10000/message", "send-lat/size=1048576/wait=events"} {
		if !names[want] {
			t.Errorf("%s is not measured", want)
		}
	}
}
