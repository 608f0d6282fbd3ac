package report

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
)

// The tests here run the program on devices of the kernel.

// programEnv names the program.
const programEnv = "CONFORMANCE"

// runProgram runs the program, as another user if uid is not 0, and returns what it printed and its exit status.
func runProgram(t *testing.T, uid uint32, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(os.Getenv(programEnv), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Dir = "/" // which any user may read
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// TestKernelRefusals: a run that cannot start ends with status 2, and says what to do.
func TestKernelRefusals(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "devices")
	rig := testenv.TheRig()
	dev := rig.Devices[0]
	refused := func(t *testing.T, uid uint32, want string, args ...string) {
		t.Helper()
		out, code := runProgram(t, uid, append(args, "-run", "^TestPD$")...)
		if code != 2 || !strings.Contains(out, want) {
			t.Errorf("conformance %s: status %d, want 2 and %q:\n%s", args, code, want, out)
		}
	}
	refused(t, 0, "there is no device rxe9; devices here: "+strings.Join(rig.Devices[:], ", "), "rxe9")
	refused(t, 0, "soft0 is a software device in this process", "soft0", dev)

	refused(t, 65534, "permission denied: testing devices of the kernel needs root", dev)

	link, err := netlink.LinkByName(rig.Netdevs[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	refused(t, 0, "the tests need an active port (ip link set "+rig.Netdevs[0]+" up)", dev)
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
}

// TestKernelInterrupted: a run that is interrupted ends with status 1, and nothing of it is left on the device.
func TestKernelInterrupted(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "devices")
	devices, err := netlinkrdma.Devices()
	if err != nil || len(devices) == 0 {
		t.Fatal(devices, err)
	}
	before := counts(t, devices[0])
	cmd := exec.Command(os.Getenv(programEnv), "-v", devices[0].Name)
	cmd.Dir = t.TempDir()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	interrupted := false
	for s := bufio.NewScanner(out); s.Scan(); {
		text.WriteString(s.Text() + "\n")
		if !interrupted && counts(t, devices[0]) != before { // it has objects now
			interrupted = true
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); !interrupted || code != 1 || !strings.Contains(text.String(), "INTERRUPTED: ") {
		t.Errorf("interrupted %t: status %d, want 1\n%s", interrupted, code, text.String())
	}
	for end := time.Now().Add(10 * time.Second); counts(t, devices[0]) != before; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("objects are left: %+v, before %+v", counts(t, devices[0]), before)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(cmd.Dir, "*")); len(left) > 0 {
		t.Errorf("files are left: %s", left)
	}
}

// counts returns how many objects a device has.
func counts(t *testing.T, dev netlinkrdma.Device) netlinkrdma.ResourceCounts {
	t.Helper()
	c, err := netlinkrdma.Resources(dev)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
