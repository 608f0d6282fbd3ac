package program

import (
	"os/exec"
	"testing"
)

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
