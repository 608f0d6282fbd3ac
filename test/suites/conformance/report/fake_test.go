package report

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// fakeEnv is set where this test binary plays the program of the conformance tests. It lists what its tests
// do, by their names.
const fakeEnv = "GOVERBS_FAKE_TESTS"

// fakes reports whether a fake test is to do something.
func fakes(what string) bool { return strings.Contains(os.Getenv(fakeEnv), what) }

// fake runs a fake test. In the usual run of this package's tests there is nothing to do.
func fake(t *testing.T, test func(t *testing.T)) {
	if os.Getenv(fakeEnv) != "" {
		test(t)
	}
}

// lacks is an error about a missing feature.
type lacks struct{}

func (lacks) Error() string                 { return "no atomics here" }
func (lacks) Unsupported() (string, [2]int) { return "atomics", [2]int{} }

func TestFakeA(t *testing.T) { fake(t, fakeA) }

func fakeA(t *testing.T) {
	fmt.Fprintln(os.Stderr, "uverbs: soft0: write command 3: ok")
	t.Run("auto", func(t *testing.T) {
		t.Run("deep", func(t *testing.T) {
			if fakes("fail") {
				t.Error("the answer is 41,\nwant 42")
			}
		})
	})
	t.Run("write", func(t *testing.T) { testenv.Skip(t, lacks{}) })
}

func TestFakeB(t *testing.T) { fake(t, fakeB) }

func fakeB(t *testing.T) {
	if fakes("crash") {
		t.Log("soon")
		panic("a pointer that is nil")
	}
	for end := time.Now().Add(time.Minute); fakes("hang") && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func TestFakeC(t *testing.T) { fake(t, fakeC) }

func fakeC(t *testing.T) {
	testenv.Tags(t, testenv.Machine)
}

func TestFakeD(t *testing.T) { fake(t, fakeD) }

func fakeD(t *testing.T) {
	testenv.Tags(t, testenv.Long)
}

// TestMain runs the fake tests on request, as a package with a list of missing features.
func TestMain(m *testing.M) {
	if os.Getenv(fakeEnv) == "" {
		os.Exit(m.Run())
	}
	if fakes("nothing") {
		fmt.Fprintln(os.Stderr, errors.New("no memory"))
		os.Exit(2)
	}
	os.Exit(testenv.MainFor(m, map[string]string{"soft": "all TestFakeA/*: atomics"}))
}
