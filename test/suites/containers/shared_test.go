package containers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// mostImage limits the size of the image, in bytes.
const mostImage = 8_000_000

// TestImage: the image holds one program and is small.
func TestImage(t *testing.T) {
	testenv.Boot(t, sharedEnv, "containers/shared")
	image(t)
	text := strings.TrimSpace(shell(t, "podman image inspect --format '{{.Size}}' pingpong"))
	size, err := strconv.Atoi(text)
	if err != nil || size <= 0 || size >= mostImage {
		t.Errorf("the image has %q bytes, want less than %d", text, mostImage)
	}
	t.Logf("the image has %d bytes", size)
}

// TestDeviceFiles: two containers that got the device files, in the network of the host.
func TestDeviceFiles(t *testing.T) {
	testenv.Boot(t, sharedEnv, "containers/shared")
	image(t)
	wantPlayed(t, shell(t, section(t, "Device files")[0]))
}

// TestCDI: two containers that asked for devices by name. The file is what the page shows, and has the
// name that its manifest for Kubernetes uses.
func TestCDI(t *testing.T) {
	testenv.Boot(t, sharedEnv, "containers/shared")
	image(t)
	wantPlayed(t, shell(t, section(t, "Devices by name")[0]))
	written, err := os.ReadFile("/etc/cdi/rdma.json")
	must(t, err)
	_, shown, _ := strings.Cut(page, "\n```json\n")
	shown, _, _ = strings.Cut(shown, "```\n")
	if named(shown) != string(written) {
		t.Errorf("verbs cdi writes\n%s\nand the page shows\n%s", written, named(shown))
	}
	var spec struct {
		Kind    string
		Devices []struct{ Name string }
	}
	must(t, json.Unmarshal(written, &spec))
	_, manifest, _ := strings.Cut(page, "\n```yaml\n")
	if want := "- " + spec.Kind + "=" + spec.Devices[0].Name + "\n"; !strings.Contains(named(manifest), want) {
		t.Errorf("the manifest does not use the device %q", want)
	}
	if out, err := try(t, "podman", "run", "--rm", "--device", "goverbs/rdma=none", "pingpong"); err == nil || !strings.Contains(out, "goverbs/rdma=none") {
		t.Errorf("a device that is not in the file: %v, %s", err, out)
	}
}

// TestLittle: without /sys and connection manager, with little memory and few system calls. The profile
// does forbid: the connection manager cannot be used with it.
func TestLittle(t *testing.T) {
	testenv.Boot(t, sharedEnv, "containers/shared")
	image(t)
	commands := section(t, "As little as possible")[0]
	wantPlayed(t, shell(t, commands))
	less, _, _ := strings.Cut(commands, "podman run")
	const run = "podman run --rm --device /dev/infiniband/uverbs0 --device /dev/infiniband/rdma_cm $less "
	for arguments, want := range map[string]string{
		"pingpong 10.1.0.1:7471":                          "forbids write()",
		"pingpong -verbs -size 100000 127.0.0.1:7471":     "RLIMIT_MEMLOCK is 65536 bytes",
		"-e RDMAABI=write pingpong -verbs 127.0.0.1:7471": "operation not permitted",
	} {
		if out, err := try(t, "sh", "-ec", less+run+arguments); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v, want an error that says %q:\n%s", arguments, err, want, out)
		}
	}
}

// TestMissing: an error of a container that has not what it needs says what to add to the command line.
func TestMissing(t *testing.T) {
	testenv.Boot(t, sharedEnv, "containers/shared")
	image(t)
	const cm, uverbs, memory, host = "--device /dev/infiniband/rdma_cm", "--device /dev/infiniband/uverbs0", "--ulimit memlock=-1", "--network host"
	little := []string{"--ulimit=memlock=1024:1024"}
	t.Run("all", func(t *testing.T) { follow(t, little, cm, host, uverbs, memory) })
	files := append(little, "--network=host", "--device=/dev/infiniband/rdma_cm", "--device=/dev/infiniband/uverbs0")
	t.Run("capability", func(t *testing.T) { follow(t, append(files[:4:4], "--cap-add=IPC_LOCK")) })
	t.Run("group", func(t *testing.T) {
		for _, f := range []string{"rdma_cm", "uverbs0"} {
			file := filepath.Join("/dev/infiniband", f)
			must(t, os.Chown(file, 0, 44))
			must(t, os.Chmod(file, 0o660))
			t.Cleanup(func() {
				must(t, os.Chmod(file, 0o666))
				must(t, os.Chown(file, 0, 0))
			})
		}
		follow(t, append(files[:4:4], "--ulimit=memlock=-1"), "--group-add 44")
	})
	t.Run("control group", func(t *testing.T) {
		follow(t, []string{"--network=host", "--ulimit=memlock=-1", "-v=/dev/infiniband:/dev/infiniband"}, cm, uverbs)
	})
	for name, rule := range map[string]string{
		"netlink": `{"names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [{"index": 0, "value": 16, "op": "SCMP_CMP_EQ"}]}`,
		"ioctl":   `{"names": ["ioctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}`,
		"write":   `{"names": ["write"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": [{"index": 0, "value": 2, "op": "SCMP_CMP_GT"}, {"index": 2, "value": 8, "op": "SCMP_CMP_NE"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "seccomp.json")
			must(t, os.WriteFile(file, []byte(`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [`+rule+`]}`), 0o644))
			follow(t, append(files[:4:4], "--ulimit=memlock=-1", "--tmpfs=/sys", "--security-opt=no-new-privileges", "--security-opt=seccomp="+file),
				"--security-opt seccomp=FILE")
		})
	}
}
