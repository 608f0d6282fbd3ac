package containers

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// Blocks of the section about networks.
const (
	interfaces = iota
	run
	exclusive
	move
	moveBack
	remove
	blocks
)

// namespaces returns the commands of the page about network namespaces.
func namespaces(t *testing.T) []string {
	t.Helper()
	all := section(t, "A network of its own")
	if len(all) != blocks {
		t.Fatalf("the section has %d blocks, want %d", len(all), blocks)
	}
	return all
}

// devices returns the devices that the first network namespace sees.
func devices(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("verbs", "devices", "--json").Output()
	must(t, err)
	var all []struct{ Device string }
	must(t, json.Unmarshal(out, &all))
	var names []string
	for _, d := range all {
		names = append(names, d.Device)
	}
	return strings.Join(names, " ")
}

// TestSharedNamespaces: two containers in network namespaces that have a network interface each, and see
// all devices.
func TestSharedNamespaces(t *testing.T) {
	testenv.Boot(t, exclusiveEnv, "containers/exclusive")
	image(t)
	commands := namespaces(t)
	shell(t, commands[interfaces])
	defer shell(t, commands[remove])
	wantPlayed(t, shell(t, commands[run]))
}

// TestExclusive: two containers in network namespaces that have an interface and a device each, which go
// back.
func TestExclusive(t *testing.T) {
	testenv.Boot(t, exclusiveEnv, "containers/exclusive")
	image(t)
	commands := namespaces(t)
	eventually(t, commands[exclusive]) // namespaces of the other test may still be going
	shell(t, commands[interfaces])
	shell(t, commands[move])
	if got := devices(t); got != "" {
		t.Errorf("the first network namespace still sees %s", got)
	}
	wantPlayed(t, shell(t, commands[run]))
	out, err := try(t, "podman", "run", "--rm", "--network=host", "--device=/dev/infiniband/uverbs0", "pingpong", "-verbs", "127.0.0.1:7471")
	if want := "exclusive): in a container --network host or ns:PATH"; err == nil || !strings.Contains(out, want) {
		t.Errorf("in the wrong network namespace: %v, want an error that says %q:\n%s", err, want, out)
	}
	shell(t, commands[moveBack])
	if got, want := devices(t), "mlx5_0"; got != want {
		t.Errorf("after the move back the first network namespace sees %q, want %q", got, want)
	}
	shell(t, commands[remove])
	eventually(t, "verbs system set netns shared")
	if got, want := devices(t), "mlx5_0 mlx5_1"; got != want {
		t.Errorf("without the namespaces the first one sees %q, want %q", got, want)
	}
	if out, err := exec.Command("ip", "link", "show", "eth1").CombinedOutput(); err != nil {
		t.Errorf("eth1 is not back: %v: %s", err, out)
	}
}

// eventually repeats a command until it succeeds.
func eventually(t *testing.T, command string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		out, err := try(t, "sh", "-ec", command)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
}
