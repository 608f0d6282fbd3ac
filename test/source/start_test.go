package source

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// initAllocs is how much this module may allocate before a program's main begins.
const initAllocs = 10

// TestStart: what this module does before a program's main begins, each program that uses it pays for.
// Code is what takes the time, and where there is some it allocates.
func TestStart(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(t.TempDir(), "open")
	build := exec.Command("go", "build", "-o", exe, "./test/bench/open")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	open := exec.Command(exe, "no-such-device")
	open.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := open.CombinedOutput()
	if _, ended := err.(*exec.ExitError); !ended {
		t.Fatalf("%v: %s", err, out)
	}
	line := regexp.MustCompile(`(?m)^init (github\.com/goverbs/\S+) @.* bytes, (\d+) allocs$`)
	sum, lines := 0, line.FindAllStringSubmatch(string(out), -1)
	var all []string
	for _, l := range lines {
		n, err := strconv.Atoi(l[2])
		must(t, err)
		sum += n
		all = append(all, l[0])
	}
	if len(lines) == 0 || sum > initAllocs {
		t.Errorf("%d packages of ours allocate %d times before main begins, want at most %d:\n%s", len(lines), sum, initAllocs, strings.Join(all, "\n"))
	}
}
