package program

import (
	"os"
	"os/exec"
	"testing"
)

// TestServer: the address is between prefix and suffix, and the program has ended with the test.
func TestServer(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo listening on 10.0.0.1:7, RDMA: true; exec sleep 1h")
	t.Run("run", func(t *testing.T) {
		if got := Server(t, cmd, "listening on ", ", RDMA: true"); got != "10.0.0.1:7" {
			t.Errorf("the address is %q", got)
		}
	})
	if s := cmd.ProcessState; s == nil || s.String() != "signal: "+os.Kill.String() {
		t.Errorf("the server has ended with %v, want that it was killed", s)
	}
}

// TestEnd: rping's race at its end is no failure, all else that ends a program badly is one.
func TestEnd(t *testing.T) {
	const race = "echo client DISCONNECT EVENT...; echo rdma_get_cm_event: Bad file descriptor; "
	for script, good := range map[string]bool{
		"true":                      true,
		race + "exit 255":           true,
		race + "exit 1":             false, // what rping itself returns
		race + "kill -9 $$":         false,
		"echo wait error; exit 255": false,
		"echo DISCONNECT; exit 255": false,
		race + "exit 0":             true,
		"echo rdma_get_cm_event: Bad file descriptor; exit 255": false,
	} {
		out, err := exec.Command("sh", "-c", script).CombinedOutput()
		if err = End(err, string(out)); (err == nil) != good {
			t.Errorf("%q ends with %v", script, err)
		}
	}
}
