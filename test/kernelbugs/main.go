// Kernelbugs looks for bugs of the kernel's software drivers that may crash it. Each attack gives the
// driver what a careful program never does, such as a work request that was changed in the ring,
// and runs in a VM of its own, which is thrown away. The outcome is compared with the tables of
// test/suites/conformance/BUGS.md: a kernel that is listed with a bug must have it, and no other may.
//
//	go run ./test/run -suite kernelbugs
//	go run ./test/kernelbugs -kernel latest -run ^send
//
// A bug counts as seen if the kernel reports an oops or a warning, or if the driver visibly does something
// wrong. The kernels have no KASAN: memory that is read or written by mistake, but is mapped, is not
// noticed. The attacks therefore aim at addresses that are not mapped. They do nothing else with the
// memory of the kernel.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"

	"github.com/goverbs/goverbs/test/testenv"
)

// An attack is one way of looking for a bug.
type attack struct {
	name   string // of the bug in BUGS.md
	device string // of vmrun's -device
	since  [2]int // the first kernel whose driver has what is attacked; zero for all

	// run is the attack, in the guest. It returns nil if the driver refused what it was given and still
	// works, and otherwise what is wrong.
	run func(*rig) error
}

// guestEnv is set to 1 in the VMs, as for tests that change devices.
const guestEnv = testenv.GuestEnv

// outcomePrefix stands in a guest's output before what an attack came to.
const outcomePrefix = "kernelbugs: outcome: "

// Outcomes of an attack.
const (
	clean   = "clean"   // the driver works as before
	wrong   = "wrong"   // the driver did something wrong, and the kernel lives
	warning = "warning" // the kernel printed a warning with a trace
	oops    = "oops"    // the kernel oopsed
	unclear = "unclear" // the attack itself failed, or the guest hangs
)

func main() {
	kernel := flag.String("kernel", "6.1", "the guests' `KERNEL`")
	vmrun := flag.String("vmrun", ".build/vmrun", "the program that boots them")
	page := flag.String("bugs", "test/suites/conformance/BUGS.md", "the `FILE` with the tables of bugs")
	run := flag.String("run", "", "run only the attacks that match `REGEXP`")
	inGuest := flag.String("attack", "", "run the attack `NAME`, here and now: only in a VM that may crash")
	flag.Parse()
	if *inGuest != "" {
		os.Exit(runHere(*inGuest))
	}
	pattern, err := regexp.Compile(*run)
	if err != nil {
		fatal(err)
	}
	text, err := os.ReadFile(*page)
	if err != nil {
		fatal(err)
	}
	table, err := parsePage(string(text))
	if err != nil {
		fatal(fmt.Errorf("%s: %w", *page, err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ran, failed := 0, 0
	for i := range attacks {
		a := &attacks[i]
		if !pattern.MatchString(a.name) {
			continue
		}
		want, known, err := table.expected(a.name, *kernel)
		if err != nil {
			fatal(err)
		}
		if !known {
			continue // the kernel does not have what is attacked
		}
		ran++
		got, output, err := boot(ctx, *vmrun, *kernel, a)
		if err != nil {
			fatal(err)
		}
		if bad := got == oops || got == warning || got == wrong; got == unclear || bad != want {
			failed++
			fmt.Printf("FAIL  %s on %s: %s, want %s\n%s\n", a.name, *kernel, got, wanted(want), indent(output))
			continue
		}
		fmt.Printf("ok    %s on %s: %s\n", a.name, *kernel, got)
	}
	if ran == 0 {
		fatal(fmt.Errorf("no attack on %s matches %q", *kernel, *run))
	}
	if failed > 0 {
		fmt.Printf("%d attacks had another outcome than %s says\n", failed, *page)
		os.Exit(1)
	}
}

// wanted names an expected outcome.
func wanted(bug bool) string {
	if bug {
		return "the bug"
	}
	return clean
}

// fatal ends the program.
func fatal(err error) {
	fmt.Fprintln(os.Stderr, "kernelbugs:", err)
	os.Exit(2)
}

// indent sets lines off.
func indent(s string) string {
	return "      " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n      ")
}

// boot runs an attack in a guest and returns its outcome and the output. A guest that says nothing of the
// attack may not have come up, and is booted once more.
func boot(ctx context.Context, vmrun, kernel string, a *attack) (outcome, output string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", "", err
	}
	for range 2 {
		cmd := exec.CommandContext(ctx, vmrun, "-kernel", kernel, "-device", a.device, "-timeout", "2m", "-env", guestEnv+"=1", self, "-attack", a.name)
		b, err := cmd.CombinedOutput() // a guest that crashes has no exit status that says so
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		if err != nil && cmd.ProcessState == nil {
			return "", "", err
		}
		outcome, output = judge(string(b)), string(b)
		if outcome != unclear || outcomeLine.MatchString(output) {
			break
		}
	}
	return outcome, output, nil
}

// What the kernel says at the beginning of a report.
var (
	oopsLine    = regexp.MustCompile(`(?m)^\s*(\[[ 0-9.]+\] )?(BUG: |Oops: |general protection fault|Kernel panic|Unable to handle kernel|Internal error: )`)
	warningLine = regexp.MustCompile(`(?m)^\s*(\[[ 0-9.]+\] )?(WARNING: |refcount_t: |INFO: task )`)
	outcomeLine = regexp.MustCompile(`(?m)^` + outcomePrefix + `(\w+)`)
)

// judge returns the outcome that the output of a guest shows.
func judge(output string) string {
	switch {
	case oopsLine.MatchString(output):
		return oops
	case warningLine.MatchString(output):
		return warning
	}
	if m := outcomeLine.FindStringSubmatch(output); m != nil {
		return m[1]
	}
	return unclear
}

// runHere runs an attack on this kernel, and prints the outcome.
func runHere(name string) int {
	if os.Getenv(guestEnv) != "1" {
		fmt.Fprintf(os.Stderr, "kernelbugs: %s is not 1: an attack may crash the kernel, so it runs in a VM\n", guestEnv)
		return 2
	}
	for i := range attacks {
		if a := &attacks[i]; a.name == name {
			return a.here()
		}
	}
	fmt.Fprintf(os.Stderr, "kernelbugs: no attack is called %q\n", name)
	return 2
}

// here runs the attack, and prints the outcome.
func (a *attack) here() int {
	r, err := newRig(a.device)
	if err != nil {
		fmt.Printf("%s%s: %v\n", outcomePrefix, unclear, err)
		return 1
	}
	if err := a.run(r); err != nil {
		if errors.Is(err, errWrong) {
			fmt.Printf("%s%s: %v\n", outcomePrefix, wrong, err)
			return 0
		}
		fmt.Printf("%s%s: %v\n", outcomePrefix, unclear, err)
		return 1
	}
	if err := r.works(); err != nil {
		fmt.Printf("%s%s: after the attack: %v\n", outcomePrefix, wrong, err)
		return 0
	}
	fmt.Printf("%s%s\n", outcomePrefix, clean)
	return 0
}
