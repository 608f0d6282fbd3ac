package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"testing"

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

// program returns the program with a device in software at an address, or without one.
func program(t *testing.T, device string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), mainEnv+"=1", "GOVERBS_SOFT="+device)
	return cmd
}

// TestCheck: a client with a device calls the server by RDMA, and one without by TCP.
func TestCheck(t *testing.T) {
	server := program(t, testenv.SoftAddr(0), "serve", testenv.SoftAddr(0)+":0")
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		server.Process.Kill()
		server.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	where, ok := strings.CutSuffix(strings.TrimPrefix(line, "listening on "), ", RDMA: true\n")
	if err != nil || !ok {
		t.Fatalf("the server prints %q: %v", line, err)
	}
	for device, network := range map[string]string{testenv.SoftAddr(1): "rdma+tcp", "": "tcp"} {
		got, err := program(t, device, "check", where).CombinedOutput()
		if want := "connected by " + network + "\nSERVING\n"; err != nil || string(got) != want {
			t.Errorf("device %q: %v, it prints %q, want %q", device, err, got, want)
		}
	}
}
