package pyverbs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// traced are the tests of rdma-core that are traced: those that give many different commands, and few of a kind. Each
// command of a program that is traced takes milliseconds in a guest. The test that resizes a CQ is not among them: it
// expects that sends have completed when they are posted, which rxe of Linux 7.2 does later unless a trace slows the test down.
var traced = []string{"test_addr", "test_cq.CQAPITest", "test_device", "test_pd", "test_qp", "test_mr.MWTest.test_mw_type1"}

// TestTraced runs rdma-core's tests with and without "verbs trace". They do the same, and the trace knows all that
// they do.
func TestTraced(t *testing.T) {
	testenv.Guest(t)
	dir := filepath.Join(t.TempDir(), "tests")
	var files []string
	for _, f := range traced {
		module, _, _ := strings.Cut(f, ".")
		files = append(files, module+".py")
	}
	unpack(t, dir, files...)
	line := []string{"python3", filepath.Join(dir, "run_tests.py"), "--dev", testenv.TheRig().Devices[0], "-v"}
	for _, f := range traced {
		line = append(line, "tests."+f)
	}
	plain, plainCode := results(t, line...)
	record := filepath.Join(t.TempDir(), "record")
	verbs := os.Getenv("VERBS")
	got, code := results(t, append([]string{verbs, "trace", "-o", record, "--"}, line...)...)
	passed := 0
	for i, r := range plain {
		if i >= len(got) || got[i] != r {
			t.Errorf("without a trace: %s\ntraced: %s", r, strings.Join(got[min(i, len(got)):min(i+1, len(got))], ""))
		}
		if strings.HasSuffix(r, " ok") {
			passed++
		}
	}
	if len(got) != len(plain) || code != plainCode {
		t.Errorf("%d results and exit status %d, without a trace %d and %d", len(got), code, len(plain), plainCode)
	}
	t.Logf("%d tests, %d of them ok", len(plain), passed)
	if passed < 30 {
		t.Errorf("%d tests are ok: too few to prove anything\n%s", passed, strings.Join(plain, "\n"))
	}
	known(t, verbs, record)
}

// results runs tests and returns a line for each of them, sorted, and the exit status.
func results(t *testing.T, line ...string) ([]string, int) {
	t.Helper()
	cmd := exec.Command(line[0], line[1:]...)
	out, err := cmd.CombinedOutput()
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^(.+) \.\.\. (ok|skipped|FAIL|ERROR)`).FindAllStringSubmatch(string(out), -1) {
		all = append(all, m[1]+" "+m[2])
	}
	if len(all) == 0 {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	slices.Sort(all)
	return all, cmd.ProcessState.ExitCode()
}

// known checks that the headers name everything in a record.
func known(t *testing.T, verbs, record string) {
	t.Helper()
	cmd := exec.Command(verbs, "trace", "show", "--json", record)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	must(t, err)
	verbsSeen := map[string]int{}
	for l := range strings.Lines(string(out)) {
		var c struct {
			Verb, Lost string
			Unknown    int
		}
		if err := json.Unmarshal([]byte(l), &c); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		if c.Unknown > 0 || c.Lost != "" || c.Verb == "" {
			t.Errorf("not known: %s", l)
		}
		verbsSeen[c.Verb]++
	}
	for _, v := range []string{"open device", "query device", "register MR", "create CQ", "create QP", "modify QP", "destroy QP", "map memory"} {
		if verbsSeen[v] == 0 {
			t.Errorf("the trace has no %q, only %v", v, verbsSeen)
		}
	}
	t.Logf("%v", verbsSeen)
}
