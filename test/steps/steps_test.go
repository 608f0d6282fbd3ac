//go:build linux && (amd64 || arm64)

package steps

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// childEnv says what the program does that the tests count.
const childEnv = "STEPS_TEST_CHILD"

// sum executes the same instructions for each number.
//
//go:noinline
func sum(of []uint32) (total uint32) {
	for _, n := range of {
		total += n
	}
	return total
}

// copyTo copies so many bytes that the compiler leaves it to the runtime.
//
//go:noinline
func copyTo(to, from []uint32) { copy(to, from) }

// TestMain makes this the program that the tests count, if the environment says so.
func TestMain(m *testing.M) {
	mode, ok := os.LookupEnv(childEnv)
	if !ok {
		os.Exit(m.Run())
	}
	os.Exit(child(mode))
}

// child executes marked regions, and returns the exit status.
func child(mode string) int {
	for range 3 { // threads in system calls, and goroutines that wake up
		go func() {
			for {
				unix.Nanosleep(&unix.Timespec{Nsec: 10_000}, nil)
				time.Sleep(time.Millisecond)
			}
		}()
	}
	numbers := make([]uint32, 400)
	Begin("", 1)
	End()
	switch mode {
	case "exit":
		fmt.Println("the reason")
		return 3
	case "nested":
		Begin("one", 1)
		Begin("two", 1)
	case "endless":
		Begin("three", 1)
		return 0
	case "waiting":
		Begin("four", 1)
		<-make(chan int)
	}
	for _, n := range []int{100, 200, 400} {
		name := fmt.Sprint(n)
		for range 2 { // the least counts
			Begin(name, 2)
			sum(numbers[:n])
			End()
		}
	}
	Begin("copy", 1)
	copyTo(numbers[:200], numbers[200:])
	End()
	Begin("call", 1)
	unix.Getppid() // a call between the marks is no mark
	End()
	return 0
}

// count counts the program. More variables of the environment may change how.
func count(t *testing.T, mode string, env ...string) ([]Region, error) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	regions, err := Count([]string{program}, append(env, childEnv+"="+mode)...)
	if errors.Is(err, fs.ErrPermission) {
		testenv.NeedsRights(t, "count instructions", err)
	}
	return regions, err
}

// TestCount: a loop of twice as many rounds has twice as many instructions, to the last one, also while other threads
// are busy, and all are in the function that executes them.
func TestCount(t *testing.T) {
	regions, err := count(t, "")
	if err != nil {
		t.Fatal(err)
	}
	total := map[string]float64{}
	for _, r := range regions {
		total[r.Name] = r.Functions["github.com/goverbs/goverbs/test/steps.sum"]
		others := r.Total() - total[r.Name]
		if r.Name != "call" && r.Name != "copy" && others > 20 {
			t.Errorf("region %s: %.1f instructions are of other functions: %v", r.Name, others, r.Functions)
		}
	}
	if want := []string{"100", "200", "400", "call", "copy"}; !slices.Equal(slices.Sorted(maps.Keys(total)), want) {
		t.Fatalf("regions %v, want %v", total, want)
	}
	each := (total["200"] - total["100"]) / 50
	if each < 2 || each > 8 || total["400"]-total["200"] != 100*each || total["100"] < 50*each || total["100"] > 50*each+20 {
		t.Errorf("a round takes %.2f instructions, totals %v, want 2 to 8 and as many for each", each, total)
	}
}

// TestCountAnyProcessor: memory is copied with as many instructions as on a processor without AVX.
func TestCountAnyProcessor(t *testing.T) {
	var total []float64
	for _, env := range [][]string{nil, {"GODEBUG=asyncpreemptoff=1,cpu.avx=off,cpu.erms=off"}} {
		regions, err := count(t, "", env...)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range regions {
			if r.Name == "copy" {
				total = append(total, r.Functions["runtime.memmove"])
			}
		}
	}
	if len(total) != 2 || total[0] != total[1] || total[0] < 20 {
		t.Errorf("memmove has %v instructions, want the same number twice, and 20 at least", total)
	}
}

// TestCountErrors: the status of the program, and a region without an end.
func TestCountErrors(t *testing.T) {
	for mode, want := range map[string]string{"exit": "wait status 0x300, want exit status 0\nthe reason", "nested": `a region begins in region "one"`, "endless": `the program ended in region "three"`} {
		if regions, err := count(t, mode); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", mode, regions, err, want)
		}
	}
	defer func(old time.Duration) { patience = old }(patience)
	patience = 2 * time.Second
	if _, err := count(t, "waiting"); err == nil || !strings.Contains(err.Error(), "it was killed after 2s") {
		t.Errorf("a region that waits: %v", err)
	}
	if _, err := Count([]string{"/nonexistent"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

// TestRefused: where ptrace is forbidden, the error says what forbids it.
func TestRefused(t *testing.T) {
	err := refused(&fs.PathError{Op: "fork/exec", Path: "x", Err: unix.EPERM})
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "ptrace is not permitted") || !strings.Contains(err.Error(), "SYS_PTRACE") && !strings.Contains(err.Error(), "ptrace_scope is") {
		t.Errorf("%v", err)
	}
	if err := refused(unix.ENOENT); err != unix.ENOENT {
		t.Errorf("another error becomes %v", err)
	}
}
