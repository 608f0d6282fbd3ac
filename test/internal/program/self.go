package program

import (
	"os"
	"os/exec"
	"testing"
)

// selfEnv makes a test binary the program that it tests.
const selfEnv = "GOVERBS_TEST_PROGRAM"

// Main is for TestMain of a package main: it runs the tests, or, in a process of [Self], the program.
func Main(m *testing.M, main func()) {
	if os.Getenv(selfEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Self returns the program of this test binary with a software device at an address, or without one.
func Self(t *testing.T, device string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), selfEnv+"=1", "GOVERBS_SOFT="+device)
	return cmd
}
