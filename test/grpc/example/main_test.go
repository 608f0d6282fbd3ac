package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// mainEnv makes the test binary the program.
const mainEnv = "GOVERBS_TEST_GRPC"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// command returns the program with a software device at an address, or without one.
func command(t *testing.T, device string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1", "GOVERBS_SOFT="+device)
	return cmd
}

// TestCheck: a client with a device calls the server by RDMA, and one without by TCP.
func TestCheck(t *testing.T) {
	server := command(t, testenv.SoftAddr(0), "serve", testenv.SoftAddr(0)+":0")
	where := program.Server(t, server, "listening on ", ", RDMA: true")
	for device, network := range map[string]string{testenv.SoftAddr(1): "rdma+tcp", "": "tcp"} {
		got, err := command(t, device, "check", where).CombinedOutput()
		if want := "connected by " + network + "\nSERVING\n"; err != nil || string(got) != want {
			t.Errorf("device %q: %v, it prints %q, want %q", device, err, got, want)
		}
	}
}
