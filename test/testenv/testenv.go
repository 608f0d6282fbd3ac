// Package testenv knows what the machine that runs a test offers. It is the only place
// where a test may skip, and it makes sure that nothing is skipped unseen.
//
// It does not import the packages under test, so that their own tests can use it.
package testenv

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Environment variables.
const (
	// GuestEnv is set to 1 where the RDMA devices may be changed at will: in a VM.
	GuestEnv = "GOVERBS_KERNEL_TEST"
	// HostEnv, HostsEnv and PeerEnv are set where VMs are joined: which this is, how many there are, and
	// another one's address.
	HostEnv  = "VMRUN_HOST"
	HostsEnv = "VMRUN_HOSTS"
	PeerEnv  = "VMRUN_PEER"
	// MustEnv lists features, separated by commas, that must be there.
	MustEnv = "RDMA_TEST_MUST"
	// StrictEnv is set to 1 where tests fail because of known bugs of kernels.
	StrictEnv = "GOVERBS_STRICT"
	// OpenListEnv is set to 1 for a device that no list was written for, such as a real card: tests
	// of missing features are skipped, whether the list of what kernels lack has them or not.
	OpenListEnv = "GOVERBS_OPEN_LIST"
	// WaysEnv restricts the kernel interfaces (auto, ioctl, write) that tests of commands use,
	// separated by commas, so that two boots can share the work.
	WaysEnv = "GOVERBS_WAYS"
	// WalkEnv is how long the random walk of test/suites/conformance takes, such as 1h.
	WalkEnv = "GOVERBS_WALK"
)

// allWays are the values of RDMAABI: the kernel interfaces that tests of commands use.
var allWays = []string{"auto", "ioctl", "write"}

// Ways returns the kernel interfaces that a test of commands uses one after the other.
func Ways() []string { return run.ways }

// parseWays parses the value of WaysEnv.
func parseWays(env string) ([]string, error) {
	if env == "" {
		return allWays, nil
	}
	ways := strings.Split(env, ",")
	for _, w := range ways {
		if !slices.Contains(allWays, w) {
			return nil, fmt.Errorf("%s has %q, allowed: %s", WaysEnv, w, strings.Join(allWays, ", "))
		}
	}
	return ways, nil
}

// unsupported is an error of a test that reports a missing feature.
type unsupported interface {
	error
	Unsupported() (feature string, since [2]int)
}

// missing returns the feature that err, or an error in its tree, reports as missing, and the first
// Linux version with it. The version is zero if it depends on the driver. Besides the errors of tests
// it knows FeatureError of netlinkrdma. The tests of netlinkrdma use this package, so this package
// cannot import that type and reads its fields by reflection.
func missing(err error) (feature string, since [2]int, ok bool) {
	if u, ok := err.(unsupported); ok {
		feature, since = u.Unsupported()
		return feature, since, true
	}
	if v := reflect.ValueOf(err); v.IsValid() && v.Type().String() == "*netlinkrdma.FeatureError" {
		if v = v.Elem(); v.FieldByName("Driver").String() == "" {
			since = v.FieldByName("Since").Convert(reflect.TypeFor[[2]int]()).Interface().([2]int)
		}
		return v.FieldByName("Feature").String(), since, true
	}
	switch u := err.(type) {
	case interface{ Unwrap() error }:
		return missing(u.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range u.Unwrap() {
			if feature, since, ok = missing(err); ok {
				return feature, since, true
			}
		}
	}
	return "", since, false
}

// Guest skips the test unless it runs in a VM, or on software devices.
func Guest(tb testing.TB) {
	tb.Helper()
	if !inGuest() {
		tb.Skipf("%s is not 1: this test changes the RDMA devices of the kernel, so it runs in a VM (make test)", GuestEnv)
	}
}

// Hosts skips the test unless it runs in a VM that a link joins to another one, and returns
// which of the two it is, 1 or 2, and the other's address.
func Hosts(tb testing.TB) (host int, peer string) {
	tb.Helper()
	Guest(tb)
	host, err := strconv.Atoi(os.Getenv(HostEnv))
	if err != nil {
		tb.Skipf("%s is not set: this test is about two hosts (go run ./test/run -suite hosts)", HostEnv)
	}
	return host, os.Getenv(PeerEnv)
}

// Fleet skips the test unless it runs in one of several VMs that a link joins, least or more, and returns
// which of them it is, from 1, and how many there are.
func Fleet(tb testing.TB, least int) (host, hosts int) {
	tb.Helper()
	host, _ = Hosts(tb)
	hosts, err := strconv.Atoi(os.Getenv(HostsEnv))
	if err != nil || hosts < least {
		tb.Skipf("%s is %q: this test is about %d hosts and more (go run ./test/run -suite mesh)", HostsEnv, os.Getenv(HostsEnv), least)
	}
	return host, hosts
}

// MixedEnv, if it is set, says that the guest has devices of several kinds at once, as vmrun gives it
// with -device rxe+siw.
const MixedEnv = "GOVERBS_MIXED"

// Mixed skips the test unless it runs in a VM with devices of several kinds.
func Mixed(tb testing.TB) {
	tb.Helper()
	Guest(tb)
	if os.Getenv(MixedEnv) == "" {
		tb.Skipf("%s%s is not set: this test is about devices of several kinds in one guest (go run ./test/run -suite siw/mixed)", ElsewhereMark, MixedEnv)
	}
}

// ElsewhereMark stands in the output of a test that another boot is for, before the reason. The
// matrix of results takes no notice of the test in this boot.
const ElsewhereMark = "testenv: this boot is not for the test: "

// Boot skips the test unless it runs in the boot that it is for, in which a variable is 1. Step is the
// step of a suite of test/run that boots it.
func Boot(tb testing.TB, variable, step string) {
	tb.Helper()
	Guest(tb)
	if os.Getenv(variable) != "1" {
		tb.Skipf("%s%s is not 1 (go run ./test/run -suite %s)", ElsewhereMark, variable, step)
	}
}

// Kernel returns the running kernel's version, or the one that software devices play.
func Kernel(tb testing.TB) [2]int {
	tb.Helper()
	v, _, err := kernel()
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// kernel returns the running kernel's version and its whole name, or the version that software devices
// play.
func kernel() (v [2]int, release string, err error) {
	if onSoft() {
		return softKernel, SoftKernel() + ", played by a software device", nil
	}
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return v, "", err
	}
	release = strings.TrimSpace(string(b))
	if _, err := fmt.Sscanf(release, "%d.%d", &v[0], &v[1]); err != nil {
		return v, release, fmt.Errorf("kernel release %q: %w", release, err)
	}
	return v, release, nil
}

// LackingMark stands in the output of a test that found a feature missing, before the
// feature's name.
const LackingMark = "testenv: this kernel or driver lacks "

// Lacks reports whether err says that a feature is missing, and notes it for the matrix of
// results: the test goes on, for instance to check that the error is what it should be. The
// test fails if this machine promised that feature, runs a kernel that has it, or if the list that
// Main was given does not say that the feature is missing on this kernel. Other errors are left to
// the caller.
func Lacks(tb testing.TB, err error) bool {
	tb.Helper()
	feature, since, ok := missing(err)
	if !ok {
		return false
	}
	kernel := Kernel(tb)
	if problem := mustHave(feature, since, kernel, os.Getenv(MustEnv)); problem != "" {
		tb.Fatalf("%s: %v", problem, err)
	}
	l := lacking{tb.Name(), feature}
	run.Lock()
	defer run.Unlock()
	if !expected(run.list, kernel, l) && os.Getenv(OpenListEnv) != "1" {
		tb.Fatalf("the list of what kernels lack has no line %q for Linux %d.%d: %v", l.test+": "+l.feature, kernel[0], kernel[1], err)
	}
	run.found = append(run.found, l)
	tb.Log(LackingMark + feature)
	return true
}

// KnownBugMark stands in the output of a test that tolerates a known bug of a kernel, before the bug's name.
const KnownBugMark = "testenv: this kernel or driver has the known bug "

// KnownBug reports whether a test tolerates a bug of the kernel that it runs on, and says so in the
// test's output. The name is the name of a line of test/suites/conformance/BUGS.md. Where StrictEnv is 1
// no bug is tolerated, so that the test fails. Software devices have none of these bugs.
func KnownBug(tb testing.TB, name string) bool {
	tb.Helper()
	if onSoft() || os.Getenv(StrictEnv) == "1" {
		return false
	}
	tb.Log(KnownBugMark + name)
	return true
}

// Skip skips the test if err says that a feature is missing, unless that is a failure:
// see Lacks. Other errors are left to the caller.
func Skip(tb testing.TB, err error) {
	tb.Helper()
	if Lacks(tb, err) {
		tb.Skip(err)
	}
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

// run is this run of a package's tests.
var run struct {
	sync.Mutex
	list  []entry   // what kernels lack
	ways  []string  // that tests of commands go
	found []lacking // what the tests found missing

	leftOut bool // a test was skipped because of its tags
	soft    bool // on software devices
}

// StartMark stands in the output of a package's tests before what they are and where they
// run: "conformance on Linux 6.1.0-56-amd64".
const StartMark = "testenv: these are the tests of "

// StaleMark stands before a line of the list of what kernels lack that no test confirmed.
const StaleMark = "testenv: no test found missing what the list says is: "

// Main runs the tests of a package. The list says what kernels lack, in lines
//
//	KERNELS TEST: FEATURE
//
// where KERNELS is all, <6.2, >=6.2, ib, roce, arm64 or card:WORD, and a * in TEST stands for anything
// but a slash; the comment of parseList explains each. A test that finds something else missing
// fails, and so does a whole run that has not found missing what the list says. Use it in TestMain.
func Main(m *testing.M, list string) int {
	return MainFor(m, map[string]string{rxeRig.Driver: list})
}

// MainFor is Main with a list for each driver; a driver without one supports everything. The key
// "soft" is for the list of software devices: it says that the package makes the devices of the
// rig. The tests of a package without it do not run on them.
func MainFor(m *testing.M, lists map[string]string) int {
	list := lists[TheRig().Driver]
	if TheRig().Soft {
		list, run.soft = lists[soft]
	}
	entries, err := parseList(list)
	if err != nil {
		fmt.Fprintf(os.Stderr, "testenv: list of what kernels lack: %v\n", err)
		return 2
	}
	run.list = entries
	if !inGuest() {
		return m.Run()
	}
	v, release, err := kernel()
	if err != nil {
		fmt.Fprintf(os.Stderr, "testenv: %v\n", err)
		return 2
	}
	if run.ways, err = parseWays(os.Getenv(WaysEnv)); err != nil {
		fmt.Fprintf(os.Stderr, "testenv: %v\n", err)
		return 2
	}
	if rig := TheRig(); rig.IWARP() && !rig.Soft && os.Geteuid() == 0 { // not in a process that plays another user
		if err := prepareIWARP(); err != nil {
			fmt.Fprintf(os.Stderr, "testenv: %v\n", err)
			return 2
		}
	}
	fmt.Printf("%s%s on Linux %s\n", StartMark, strings.TrimSuffix(filepath.Base(os.Args[0]), ".test"), release)
	code := m.Run()
	if code != 0 || !whole() {
		return code
	}
	for _, line := range stale(run.list, v, run.ways, run.found) {
		fmt.Fprintf(os.Stderr, "%s%s\n", StaleMark, line)
		code = 1
	}
	return code
}

// whole reports whether the run has all tests, and left out none.
func whole() bool {
	if run.leftOut || os.Getenv(OpenListEnv) == "1" {
		return false
	}
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return true
}
