package report

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/matrix"
	"github.com/goverbs/goverbs/test/testenv"
)

// played is what a run of the fake tests gave.
type played struct {
	code   int
	err    error
	out    string
	report *Report
	page   string
}

// watch calls a function when a text is written, and keeps what is written.
type watch struct {
	bytes.Buffer
	text string
	call func()
}

// Write implements io.Writer.
func (w *watch) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	if w.call != nil && strings.Contains(w.String(), w.text) {
		w.call()
		w.call = nil
	}
	return n, err
}

// play runs the program on fake tests, which do what the text says.
func play(t *testing.T, ctx context.Context, what string, args ...string) played {
	t.Helper()
	return playTo(t, ctx, new(watch), what, args...)
}

// playTo is play with the writer for the output.
func playTo(t *testing.T, ctx context.Context, out *watch, what string, args ...string) played {
	t.Helper()
	t.Setenv(fakeEnv, what)
	t.Setenv(testenv.SkipTagsEnv, "")
	dir := t.TempDir()
	jsonFile, page := filepath.Join(dir, "r.json"), filepath.Join(dir, "r.html")
	args = append([]string{"-json", jsonFile, "-html", page, "-run", "^TestFake"}, args...)
	o, err := parse(append(args, "soft0"), os.Stderr)
	must(t, err)
	var p played
	p.code, p.err = o.execute(ctx, args, out, out, []string{os.Args[0]})
	p.out = out.String()
	if p.err == nil {
		if p.report, err = read(jsonFile); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(page)
		must(t, err)
		p.page = string(b)
	}
	return p
}

// outcomes lists the results in short.
func (p *played) outcomes() (all []string) {
	for _, r := range p.report.Results {
		all = append(all, r.Test+" "+string(r.Outcome))
	}
	return all
}

// has checks that a text has some others.
func has(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s has no %q:\n%s", what, p, text)
		}
	}
}

func TestRunPasses(t *testing.T) {
	p := play(t, t.Context(), "pass", "-v")
	want := []string{
		"TestFakeA/auto/deep passed", "TestFakeA/auto passed", "TestFakeA/write unsupported", "TestFakeA passed",
		"TestFakeB passed", "TestFakeC not tested", "TestFakeD passed",
	}
	if got := p.outcomes(); p.code != 0 || p.err != nil || !slices.Equal(got, want) {
		t.Errorf("exit status %d, %v, results %q, want %q", p.code, p.err, got, want)
	}
	has(t, "text", p.out, "4 tests", "not supported: atomics: TestFakeA", "it changes the machine (-vm runs it): TestFakeC", "PASS: 3 passed, 1 left out of", "soft0: driver rxe")
	if d := p.report.Devices[0]; !d.InProcess || d.Attributes["max_qp"] == "" || len(d.GIDs) == 0 {
		t.Errorf("the device is %+v", d)
	}
}

// TestRunChoices: the flags decide what is left out.
func TestRunChoices(t *testing.T) {
	for _, c := range []struct {
		flags, passed []string
	}{
		{[]string{"-vm"}, []string{"TestFakeA", "TestFakeB", "TestFakeC", "TestFakeD"}},
		{[]string{"-quick"}, []string{"TestFakeA", "TestFakeB"}},
		{[]string{"-run", "^TestFakeA$/auto"}, []string{"TestFakeA"}},
	} {
		p := play(t, t.Context(), "pass", c.flags...)
		var passed []string
		for _, r := range p.report.Results {
			if r.Outcome == matrix.Passed && r.Test == top(r.Test) {
				passed = append(passed, r.Test)
			}
		}
		if !slices.Equal(passed, c.passed) {
			t.Errorf("with %q passed %q, want %q", c.flags, passed, c.passed)
		}
	}
}

// TestRunFails: a failed test has its output and runs again for its trace, in all forms of the report.
func TestRunFails(t *testing.T) {
	p := play(t, t.Context(), "fail")
	if p.code != 1 || p.err != nil {
		t.Errorf("exit status %d, %v, want 1", p.code, p.err)
	}
	all := p.report.failures()
	if len(all) != 1 || all[0].Test != "TestFakeA/auto/deep" || all[0].Alone != "failed" || !slices.Contains(all[0].Trace, "soft0: write command 3: ok") {
		t.Fatalf("failures are %+v", *all[0])
	}
	for what, text := range map[string]string{"text": p.out, "JSON": all[0].Output, "page": p.page} {
		has(t, what, text, "the answer is 41,", "want 42")
	}
	has(t, "text", p.out, "FAILED TestFakeA/auto/deep", "again by itself: failed, 1 commands", "FAIL: 2 passed, 1 failed, 1 left out")
	has(t, "page", p.page, "TestFakeA/auto/deep", "soft0: write command 3: ok", "max_qp", p.report.Machine.Kernel)
	for _, outside := range []string{"http:", "https:", "src=", "@import", "url("} {
		if strings.Contains(p.page, outside) {
			t.Errorf("the page needs something else: %s", outside)
		}
	}
	if p := play(t, t.Context(), "fail", "-no-traces"); p.report.failures()[0].Alone != "" {
		t.Error("with -no-traces the test ran again")
	}
}

// TestRunCrashes: a test that ends its process has failed, and the others run.
func TestRunCrashes(t *testing.T) {
	p := play(t, t.Context(), "crash", "-ktap")
	want := []string{"TestFakeA passed", "TestFakeB failed", "TestFakeC not tested", "TestFakeD passed"}
	got := slices.DeleteFunc(p.outcomes(), func(s string) bool { return strings.Contains(s, "/") })
	if p.code != 1 || !slices.Equal(got, want) {
		t.Errorf("exit status %d, results %q, want %q", p.code, got, want)
	}
	f := p.report.failures()[0]
	has(t, "reason", f.Reason, "its process ended: exit status 2")
	has(t, "output", f.Output, "soon", "a pointer that is nil", "goroutine")
	has(t, "KTAP", p.out, "\nnot ok 2 TestFakeB # ERROR its process ended: exit status 2\n", "# panic: a pointer that is nil", "\nok 4 TestFakeD\n", "\nok 5 kernel_log_and_objects\n")
}

// TestRunHangs: a test that does nothing for too long is ended, with its goroutines in the report.
func TestRunHangs(t *testing.T) {
	p := play(t, t.Context(), "hang", "-timeout", "5s")
	f := p.report.failures()
	if p.code != 1 || len(f) != 1 || f[0].Test != "TestFakeB" || f[0].Reason != "it did nothing for 5s" || f[0].Alone != "" {
		t.Fatalf("exit status %d, failures are %+v", p.code, f)
	}
	has(t, "output", f[0].Output, "SIGQUIT", "TestFakeB")
	if p.outcomes()[len(p.report.Results)-1] != "TestFakeD passed" {
		t.Errorf("results %q: the tests after it did not run", p.outcomes())
	}
}

// TestRunInterrupted: the process of the tests ends, and the report has what ran before.
func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := playTo(t, ctx, &watch{text: "ok 1 TestFakeA\n", call: cancel}, "hang", "-ktap")
	if p.err != nil {
		t.Fatal(p.err)
	}
	if p.code != 1 || !p.report.Interrupted || len(p.report.failures()) != 0 || p.outcomes()[len(p.report.Results)-1] != "TestFakeA passed" {
		t.Errorf("exit status %d, interrupted %t, results %q", p.code, p.report.Interrupted, p.outcomes())
	}
	has(t, "KTAP", p.out, "ok 1 TestFakeA\n", "Bail out! interrupted\n")
	if strings.Contains(p.out, "TestFakeB") {
		t.Errorf("KTAP has the test that was interrupted:\n%s", p.out)
	}
}

// TestRunNothing: without a result of a test there is an error.
func TestRunNothing(t *testing.T) {
	p := play(t, t.Context(), "nothing")
	if p.code != 2 || p.err == nil || !strings.Contains(p.err.Error(), "no memory") {
		t.Errorf("exit status %d, %v, want 2 and the reason", p.code, p.err)
	}
	p = play(t, t.Context(), "pass", "-run", "^TestFakeZ")
	if p.code != 2 || p.err == nil || !strings.Contains(p.err.Error(), "no test matches -run ^TestFakeZ") {
		t.Errorf("exit status %d, %v, want 2 and the reason", p.code, p.err)
	}
}

// TestCompareRuns: what is new and what is gone between two runs, and the same for reports that are read.
func TestCompareRuns(t *testing.T) {
	good, bad := play(t, t.Context(), "pass"), play(t, t.Context(), "fail")
	dir := t.TempDir()
	files := map[string]*Report{filepath.Join(dir, "good"): good.report, filepath.Join(dir, "bad"): bad.report}
	for path, r := range files {
		b, err := r.encode()
		must(t, err)
		must(t, os.WriteFile(path, b, 0o666))
	}
	for _, c := range []struct{ from, with, want string }{
		{"bad", "good", "new failures: TestFakeA/deep\n"},
		{"good", "bad", "failures that are gone: TestFakeA/deep\n"},
		{"good", "good", "Nothing differs from the report in "},
	} {
		o, err := parse([]string{"-from", filepath.Join(dir, c.from), "-compare", filepath.Join(dir, c.with)}, os.Stderr)
		must(t, err)
		var out bytes.Buffer
		if _, err := o.execute(t.Context(), nil, &out, &out, nil); err != nil {
			t.Fatal(err)
		}
		has(t, "comparison of "+c.from+" with "+c.with, out.String(), c.want)
	}
}
