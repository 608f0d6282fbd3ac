package conformance

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestOtherCredentials: a thread that has changed its user since the device was opened may
// not write() to it. The error says so, and how to do without; an ioctl is not refused.
func TestOtherCredentials(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		type result struct {
			pd  *uverbs.PD
			err error
		}
		done := make(chan result)
		go func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			if err := unix.Setfsuid(nobody); err != nil {
				done <- result{err: err}
				return
			}
			pd, err := dev.AllocPD()
			done <- result{pd, err}
		}()
		r := <-done
		switch {
		case os.Getenv("RDMAABI") != "write":
			must(t, r.err, r.pd.Close())
		case !errors.Is(r.err, syscall.EACCES):
			t.Errorf("error is %v, want EACCES", r.err)
		default:
			says(t, r.err, "permission denied", "other credentials", "RDMAABI=ioctl")
		}
	})
}

// TestDeviceCgroup: a control group that does not let its processes open the device.
func TestDeviceCgroup(t *testing.T) {
	testenv.Guest(t)
	const groupEnv = "GOVERBS_CGROUP"
	if isChild() {
		must(t, os.WriteFile(filepath.Join(os.Getenv(groupEnv), "cgroup.procs"), []byte("0"), 0))
		_, err := uverbs.Open(deviceName)
		if !errors.Is(err, syscall.EPERM) {
			t.Errorf("%v is not EPERM", err)
		}
		says(t, err, "operation not permitted", "control group")
		infos, err := uverbs.Devices()
		must(t, err)
		for _, d := range infos {
			if !errors.Is(d.Err, syscall.EPERM) {
				t.Errorf("%s is listed with %v, want EPERM", d.Name, d.Err)
			}
		}
		return
	}
	root := t.TempDir()
	must(t, unix.Mount("none", root, "cgroup", 0, "devices"))
	t.Cleanup(func() { must(t, unix.Unmount(root, 0)) })
	group := filepath.Join(root, "test")
	must(t, os.Mkdir(group, 0o700))
	t.Cleanup(func() { must(t, unix.Rmdir(group)) })
	must(t, os.WriteFile(filepath.Join(group, "devices.deny"), []byte("a"), 0))
	cmd := exec.Command("/proc/self/exe", "-test.run", "^TestDeviceCgroup$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"=1", groupEnv+"="+group)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestDeviceCgroup") {
		t.Fatalf("in the control group: %v\n%s", err, out)
	}
}
