// Package testenv knows what the machine that runs a test offers. It is the only place
// where a test may skip, and it makes sure that nothing is skipped unseen.
//
// It does not import the packages under test, so that their own tests can use it.
package testenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Environment variables.
const (
	// GuestEnv is set to 1 where the RDMA devices may be changed at will: in a VM.
	GuestEnv = "GOVERBS_KERNEL_TEST"
	// MustEnv lists features, separated by commas, that must be there.
	MustEnv = "RDMA_TEST_MUST"
)

// unsupported is what an error that reports a missing feature tells of it.
type unsupported interface {
	error
	Unsupported() (feature string, since [2]int)
}

// Guest skips the test unless it runs in a VM.
func Guest(tb testing.TB) {
	tb.Helper()
	if os.Getenv(GuestEnv) != "1" {
		tb.Skipf("%s is not 1: this test changes the RDMA devices of the kernel, so it runs in a VM (make test)", GuestEnv)
	}
}

// Kernel returns the running kernel's version.
func Kernel(tb testing.TB) [2]int {
	tb.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		tb.Fatal(err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	var v [2]int
	if _, err := fmt.Sscanf(release, "%d.%d", &v[0], &v[1]); err != nil {
		tb.Fatalf("kernel release %q: %v", release, err)
	}
	return v
}

// Skip skips the test if err says that a feature is missing, unless this machine
// promised that feature or runs a kernel that has it: then the test fails. Other
// errors are left to the caller.
func Skip(tb testing.TB, err error) {
	tb.Helper()
	var u unsupported
	if !errors.As(err, &u) {
		return
	}
	feature, since := u.Unsupported()
	if problem := mustHave(feature, since, Kernel(tb), os.Getenv(MustEnv)); problem != "" {
		tb.Fatalf("%s: %v", problem, err)
	}
	record(tb.Name(), feature)
	tb.Skip(err)
}

// mustHave says why a feature may not be missing, or returns "".
func mustHave(feature string, since, kernel [2]int, must string) string {
	if slices.Contains(strings.Split(must, ","), feature) {
		return fmt.Sprintf("%s is promised by %s", feature, MustEnv)
	}
	if since != [2]int{} && slices.Compare(kernel[:], since[:]) >= 0 {
		return fmt.Sprintf("%s has been in Linux since %d.%d and this is %d.%d", feature, since[0], since[1], kernel[0], kernel[1])
	}
	return ""
}

// skips are the skips of this run.
var skips struct {
	sync.Mutex
	list []string
}

// record notes a skip.
func record(test, feature string) {
	skips.Lock()
	defer skips.Unlock()
	skips.list = append(skips.list, test+": "+feature)
}

// Main runs the tests of a package and fails if one was skipped by Skip that is not
// among expected, which is a list of lines "TEST: FEATURE". Use it in TestMain.
func Main(m *testing.M, expected string) int {
	code := m.Run()
	skips.Lock()
	defer skips.Unlock()
	if !report(os.Stderr, skips.list, strings.Split(expected, "\n")) && code == 0 {
		code = 1
	}
	return code
}

// report prints the skips and reports whether all were expected.
func report(w io.Writer, list, expected []string) bool {
	ok := true
	for _, s := range list {
		if slices.Contains(expected, s) {
			fmt.Fprintf(w, "testenv: skipped as expected: %s\n", s)
			continue
		}
		fmt.Fprintf(w, "testenv: skipped without being on the list: %s\n", s)
		ok = false
	}
	return ok
}
