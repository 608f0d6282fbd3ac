package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/matrix"
	"github.com/goverbs/goverbs/test/testenv"
)

// guestOutput is what a test binary prints in a VM.
const guestOutput = testenv.StartMark + `cm on Linux 6.1.0
` + syn + `=== RUN   TestA
    a_test.go:7: said
` + syn + `--- FAIL: TestA (0.00s)
` + syn + `=== RUN   TestB
` + syn + `--- PASS: TestB (0.00s)
` + syn + `=== RUN   TestC
` + syn + `--- SKIP: TestC (0.00s)
` + syn + `FAIL
`

// jsonOutput is what go test -json prints of a package with a test that fails, of one that panics
// outside of a test, and of one that does not compile.
const jsonOutput = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: said\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"unseen\n"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"fail","Package":"p"}
{"Action":"output","Package":"q","Output":"panic: no\n"}
{"Action":"fail","Package":"q"}
{"ImportPath":"r [r.test]","Action":"build-output","Output":"r.go:1: wrong\n"}
{"ImportPath":"r [r.test]","Action":"build-fail"}
{"Action":"fail","Package":"r","FailedBuild":"r [r.test]"}
{"Action":"skip","Package":"s"}
not JSON
`

// exit returns the error of a command with an exit status.
func exit(t *testing.T, code string) error {
	t.Helper()
	if code == "0" {
		return nil
	}
	return exec.Command("sh", "-c", "exit "+code).Run()
}

func TestResults(t *testing.T) {
	vm, goTests := &step{programs: test("cm")}, []string{"go", "test", "-json"}
	hosts := &step{programs: test("cm"), flags: []string{"-hosts", "2"}}
	fleet := &step{programs: test("cm"), flags: []string{"-hosts", "4"}}
	host := &step{host: []string{"true"}}
	column := &step{driver: "soft", host: words("go test ./cm")}
	both := ""
	for line := range strings.Lines(guestOutput) {
		both += "1: " + line + "2: " + strings.ReplaceAll(line, "FAIL: TestA", "PASS: TestA")
	}
	for _, c := range []struct {
		name   string
		step   *step
		args   []string
		output string
		status string
		counts counts
		failed []string
		why    string
		report string // in words that it must have, and after "|" one that it must not
	}{
		{"guest", vm, nil, guestOutput, "1", counts{1, 1, 1}, []string{"cm.TestA"}, "cm.TestA", "said"},
		{"guest that does not end", vm, nil, guestOutput[:strings.Index(guestOutput, syn+"--- FAIL")], "124", counts{0, 1, 0}, []string{"cm.TestA"}, "the time was up, cm.TestA", "said"},
		{"kernel", vm, nil, strings.ReplaceAll(guestOutput, "FAIL", "PASS"), "126", counts{2, 1, 1}, nil, "the kernel complained", ""},
		{"four hosts", fleet, nil, both + strings.ReplaceAll(both, "1: ", "4: "), "1", counts{6, 2, 4}, []string{"cm.TestA", "cm.TestA"}, "cm.TestA, cm.TestA", "said"},
		{"two hosts", hosts, nil, both, "1", counts{3, 1, 2}, []string{"cm.TestA"}, "cm.TestA", "said"},
		{"go test", host, goTests, jsonOutput, "1", counts{1, 3, 1}, []string{"p.TestA", "q", "r [r.test]"}, "p.TestA, q, r [r.test]", "said|unseen"},
		{"go test for the matrix", column, column.host, guestOutput, "1", counts{1, 1, 1}, []string{"cm.TestA"}, "cm.TestA", "said"},
		{"test that is not for the devices", column, column.host, strings.Replace(guestOutput, "said\n"+syn+"--- FAIL", testenv.NotSoftMark+"limits\n"+syn+"--- SKIP", 1), "0", counts{1, 0, 2}, nil, "", ""},
		{"go test for the matrix that does not build", column, column.host, "FAIL cm [build failed]\n", "1", counts{0, 1, 0}, nil, "exit status 1", "build failed"},
		{"go test without a test", host, goTests, "", "0", counts{0, 1, 0}, nil, "no test ran", ""},
		{"command", host, host.host, "words\n", "0", counts{1, 0, 0}, nil, "", "|words"},
		{"command that fails", host, host.host, "words\n", "3", counts{0, 1, 0}, nil, "exit status 3", "words"},
		{"build", nil, []string{"go", "test", "-c"}, "words\n", "1", counts{0, 1, 0}, nil, "exit status 1", "words"},
	} {
		r := newResults(c.step, c.args)
		for line := range strings.Lines(c.output) {
			r.stdout(line)
		}
		o := new(outcome)
		r.finish(o, exit(t, c.status), nil)
		if o.counts != c.counts || !slices.Equal(o.failed, c.failed) || o.why() != c.why {
			t.Errorf("%s: %+v, failed %q because %q, want %+v, %q, %q", c.name, o.counts, o.failed, o.why(), c.counts, c.failed, c.why)
		}
		has, hasNot, ok := strings.Cut(c.report, "|")
		if !strings.Contains(o.report, has) || ok && strings.Contains(o.report, hasNot) {
			t.Errorf("%s: the report is\n%s", c.name, o.report)
		}
	}
}

func TestPlain(t *testing.T) {
	for _, c := range []struct {
		args       []string
		line, want string
	}{
		{[]string{"go", "test"}, `{"Action":"output","Output":"x\n"}` + "\n", "x\n"},
		{[]string{"go", "test"}, `{"Action":"run","Test":"TestA"}` + "\n", ""},
		{[]string{"go", "test"}, "go: downloading\n", "go: downloading\n"},
		{[]string{"vmrun"}, syn + "=== RUN   TestA\n", "=== RUN   TestA\n"},
	} {
		if got := newResults(&step{host: c.args}, c.args).plain(c.line); got != c.want {
			t.Errorf("%q is %q, want %q", c.line, got, c.want)
		}
	}
}

// shellPlan is a plan of steps that are shell scripts.
func shellPlan(steps ...step) *plan {
	p := new(plan)
	for i := range steps {
		s := &steps[i]
		p.steps = append(p.steps, planned{suite: strings.Split(s.name, "/")[0], name: s.name, step: s, command: command{args: s.host}})
	}
	return p
}

// times are times in the output of a run, which differ from machine to machine.
var times = regexp.MustCompile(`[0-9]+m[0-9]{2}s`)

// runPlan runs a plan in a directory of its own and returns what it prints.
func runPlan(t *testing.T, ctx context.Context, p *plan) (good bool, out, root string) {
	t.Helper()
	c := testConfig()
	c.root = t.TempDir()
	var b bytes.Buffer
	good = c.run(ctx, &b, p)
	return good, times.ReplaceAllString(b.String(), "TIME"), c.root
}

func TestRun(t *testing.T) {
	ctx := context.Background()
	good, out, _ := runPlan(t, ctx, shellPlan(step{name: "a/1", host: shell("echo unseen")}, step{name: "a/2", shown: true, host: shell("echo seen")}))
	for _, want := range []string{"1 of 2: a/1\n", "2 of 2: a/2 ok after TIME (TIME busy): 1 passed\n", "seen\n", "ok    a                  2       0       0    TIME    TIME\n", "passed after"} {
		if !good || !strings.Contains(out, want) || strings.Contains(out, "unseen") {
			t.Errorf("good is %t, want %q in\n%s", good, want, out)
		}
	}
	good, out, root := runPlan(t, ctx, shellPlan(step{name: "a", host: shell("echo why; exit 3")}, step{name: "b", host: shell("")}))
	for _, want := range []string{"a FAILED after TIME", "\nwhy\n", "FAIL  a ", "ok    b ", "a failed: exit status 3\nfull log: .build/log/a.log\n", "FAILED after"} {
		if good || !strings.Contains(out, want) {
			t.Errorf("good is %t, want %q in\n%s", good, want, out)
		}
	}
	if log, err := os.ReadFile(filepath.Join(root, ".build/log/a.log")); err != nil || !strings.Contains(string(log), "why\n") {
		t.Errorf("the log is %q, %v", log, err)
	}
}

// TestRunColumn: the results of a go test are kept for the matrix, for this machine's architecture and the
// kernel that software devices play.
func TestRunColumn(t *testing.T) {
	output := strings.ReplaceAll(guestOutput, "FAIL", "PASS")
	step := step{name: "soft", driver: "soft", path: "write", host: []string{"printf", "%s", output}}
	_, _, root := runPlan(t, context.Background(), shellPlan(step))
	text, err := os.ReadFile(filepath.Join(root, ".build/matrix", runtime.GOARCH+"-7.2-soft.soft.json"))
	must(t, err)
	var b matrix.Boot
	must(t, json.Unmarshal(text, &b))
	want := []matrix.Result{{Suite: "cm", Test: "TestA", Outcome: matrix.Passed}, {Suite: "cm", Test: "TestB", Outcome: matrix.Passed}, {Suite: "cm", Test: "TestC", Outcome: matrix.Unsupported}}
	if b.Path != "write" || b.Release != "6.1.0" || !slices.Equal(b.Results, want) {
		t.Errorf("path %q, release %q, results %v, want %v", b.Path, b.Release, b.Results, want)
	}
}

// TestRunBuild: nothing runs if a build fails.
func TestRunBuild(t *testing.T) {
	p := shellPlan(step{name: "a", host: shell("echo unseen")})
	p.builds = []planned{{name: "build x", command: command{args: shell("echo why; exit 1")}}}
	good, out, _ := runPlan(t, context.Background(), p)
	for _, want := range []string{"building x\n", "build x failed: exit status 1", "\nwhy\n", "1 steps did not run"} {
		if good || !strings.Contains(out, want) || strings.Contains(out, "1 of 1") {
			t.Errorf("good is %t, want %q in\n%s", good, want, out)
		}
	}
}

// TestRunTimes: with -times the summary has the steps and the tests, and a step's processor time includes that of the
// programs that it runs.
func TestRunTimes(t *testing.T) {
	c := testConfig()
	c.root, c.times = t.TempDir(), true
	var b bytes.Buffer
	p := shellPlan(step{name: "a", host: shell("sh -c 'i=0; while test $i -lt 500000; do i=$((i + 1)); done'; true")},
		step{name: "b", host: shell("printf '" + `\026--- PASS: TestLong (12.50s)\n--- PASS: TestLong/part (12.00s)\n--- FAIL: TestShort (0.10s)\n` + "'")})
	good := c.run(context.Background(), &b, p)
	_, list, _ := strings.Cut(b.String(), "  step\n")
	busy := regexp.MustCompile(`(?m)^ +([0-9.]+)s +[0-9.]+s  a$`).FindStringSubmatch(list)
	if !good || busy == nil || busy[1] == "0.0" || !strings.Contains(list, "  test\n   12.5s  b TestLong\n    0.1s  b TestShort\n\npassed") {
		t.Errorf("good is %t, a took %q in\n%s", good, busy, b.String())
	}
}

// TestRunAlone: nothing runs beside a step that is alone, and others run at the same time: as many as jobs says, and one
// that waits.
func TestRunAlone(t *testing.T) {
	const meet = `touch $0.here; for i in $(seq 600); do test -e "$1" && test -e "$2" && exit; sleep 0.1; done; exit 1`
	dir := t.TempDir()
	a, b, w := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "w")
	with := func(me, one, other string) []string {
		return []string{"sh", "-c", meet, me, one + ".here", other + ".here"}
	}
	lonely := shell(`test -z "$(ls "$1"/*.busy 2>/dev/null)" && touch "$1/$2.busy" && sleep 0.2 && rm "$1/$2.busy"`, dir, "x")
	good, out, _ := runPlan(t, context.Background(), shellPlan(
		step{name: "a", host: with(a, b, w)}, step{name: "b", host: with(b, a, w)}, step{name: "w", waits: true, host: with(w, a, b)},
		step{name: "c", alone: true, host: lonely}, step{name: "d", alone: true, host: lonely}, step{name: "e", waits: true, host: lonely}))
	if !good {
		t.Error(out)
	}
}

// TestRunStopped: an interrupt ends what runs, and what does not run is counted.
func TestRunStopped(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	good, out, _ := runPlan(t, ctx, shellPlan(step{name: "a", alone: true, host: shell("sleep 100; true")}, step{name: "b", host: shell("")}))
	if good || !strings.Contains(out, "a failed: stopped") || !strings.Contains(out, "1 steps did not run") || time.Since(begin) > 50*time.Second {
		t.Errorf("good is %t after %s:\n%s", good, time.Since(begin), out)
	}
}

func TestProblem(t *testing.T) {
	if got := problem(errors.New("no such program"), nil, false); got != "no such program" {
		t.Errorf("a program that does not start: %q", got)
	}
	if got := problem(exit(t, "1"), nil, true); got != "" {
		t.Errorf("a test that failed: %q", got)
	}
}

// TestMostNames: a line names some failed tests, not hundreds.
func TestMostNames(t *testing.T) {
	o := &outcome{failed: slices.Repeat([]string{"TestA"}, mostNames+5)}
	if why := o.why(); strings.Count(why, "TestA") != mostNames || !strings.HasSuffix(why, ", and 5 more") {
		t.Errorf("failed: %s", why)
	}
}

// TestLongReport: the report of long output has its beginning and its end.
func TestLongReport(t *testing.T) {
	r, o := newResults(nil, nil), new(outcome)
	for i := range 3 * endLines {
		r.stdout(fmt.Sprintf("line %d\n", i))
	}
	r.finish(o, exit(t, "1"), nil)
	first, last := strings.Contains(o.report, "line 0\n"), strings.HasSuffix(o.report, fmt.Sprintf("line %d\n", 3*endLines-1))
	if n := strings.Count(o.report, "\n"); !first || !last || n != 2*endLines+1 {
		t.Errorf("the report has %d lines, the first: %t, the last: %t", n, first, last)
	}
}
