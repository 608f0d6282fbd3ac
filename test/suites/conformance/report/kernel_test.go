package report

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// must fails a test on an error.
var must = testenv.Must

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
	must(t, err)
	for name, value := range map[string]string{"keep_addr_on_down": "1", "accept_dad": "0"} { // later tests need IPv6
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+rig.Netdevs[0]+"/"+name, []byte(value), 0))
	}
	must(t, netlink.LinkSetDown(link))
	refused(t, 0, "the tests need an active port (ip link set "+rig.Netdevs[0]+" up)", dev)
	must(t, netlink.LinkSetUp(link))
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
	must(t, err)
	must(t, cmd.Start())
	var text strings.Builder
	interrupted := false
	for s := bufio.NewScanner(out); s.Scan(); {
		text.WriteString(s.Text() + "\n")
		if !interrupted && counts(t, devices[0]) != before { // it has objects now
			interrupted = true
			must(t, cmd.Process.Signal(os.Interrupt))
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

// connectedToItself returns a QP of a device that is connected to itself.
func connectedToItself(t *testing.T, name string) *uverbs.QP {
	t.Helper()
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.CloseAll() })
	pd, pdErr := dev.AllocPD()
	cq, cqErr := dev.CreateCQ(uverbs.CQOptions{})
	must(t, errors.Join(pdErr, cqErr))
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	must(t, err)
	self, err := qp.Endpoint()
	if err == nil {
		err = qp.Init()
	}
	if err == nil {
		err = qp.Connect(t.Context(), self)
	}
	must(t, err)
	return qp
}

// counts returns how many objects a device has.
func counts(t *testing.T, dev netlinkrdma.Device) netlinkrdma.ResourceCounts {
	t.Helper()
	c, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestKernelOthers: a run leaves the objects of others on the tested device alone, and creates no
// objects on another one.
func TestKernelOthers(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "devices")
	devices, err := netlinkrdma.Devices()
	if err != nil || len(devices) < 2 {
		t.Fatal(devices, err)
	}
	var ours []*uverbs.QP
	for _, d := range devices[:2] {
		ours = append(ours, connectedToItself(t, d.Name))
	}
	before := []netlinkrdma.ResourceCounts{counts(t, devices[0]), counts(t, devices[1])}
	cmd := exec.Command(os.Getenv(programEnv), "-quick", devices[0].Name)
	cmd.Dir = t.TempDir()
	ended := make(chan error, 1)
	out := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	go func() { ended <- cmd.Wait() }()
	busy := 0 // looks at which the run had objects
	for running := true; running; {
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
			running = false
		case <-time.After(10 * time.Millisecond):
			if counts(t, devices[0]) != before[0] {
				busy++
			}
			now := counts(t, devices[1])
			now.Contexts = before[1].Contexts // a test opens it to read its attributes
			if now != before[1] {
				t.Fatalf("the run has objects on another device: %+v, before %+v", now, before[1])
			}
		}
	}
	if busy == 0 {
		t.Error("the run was never seen on its own device")
	}
	for i, qp := range ours {
		if attr, err := qp.Query(); err != nil || attr.State != ib.QPRTS {
			t.Errorf("%s: our QP is in state %v, %v", devices[i].Name, attr.State, err)
		}
		if now := counts(t, devices[i]); now != before[i] {
			t.Errorf("%s: %+v, before %+v", devices[i].Name, now, before[i])
		}
	}
}

// TestKernelStrict: a bug of the kernel that is known is tolerated, but not in a strict run, whose KTAP names the test.
// Each kernel has some bug in these tests.
func TestKernelStrict(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "devices")
	args := []string{"-ktap", "-run", "^TestFailedRequests$", testenv.TheRig().Devices[0]}
	if out, code := runProgram(t, 0, args...); code != 0 || strings.Contains(out, "not ok") || !strings.Contains(out, "ok 1 TestFailedRequests") {
		t.Errorf("status %d, want 0:\n%s", code, out)
	}
	out, code := runProgram(t, 0, append([]string{"-strict"}, args...)...)
	if code != 1 || !regexp.MustCompile(`not ok \d+ wrong_lkey`).MatchString(out) {
		t.Errorf("strict: status %d, want 1 and \"not ok\" for wrong_lkey:\n%s", code, out)
	}
}
