package conformance

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestWithoutSysfs: devices are found, opened and used where nothing is mounted at /sys, as in a
// container.
func TestWithoutSysfs(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "devices without sysfs")
	if !isChild() {
		cmd := exec.Command("/proc/self/exe", "-test.run", "^TestWithoutSysfs$", "-test.v")
		cmd.Env = append(os.Environ(), childEnv+"=1", "RDMAABI=") // write() needs sysfs for the GIDs
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestWithoutSysfs") {
			t.Errorf("without /sys: %v\n%s", err, out)
		}
		return
	}
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Unmount("/sys", unix.MNT_DETACH))
	if _, err := os.Stat("/sys/class"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("/sys/class is still there: %v", err)
	}
	infos, err := uverbs.Devices()
	must(t, err)
	found := map[string]error{}
	for _, d := range infos {
		found[d.Name] = d.Err
	}
	for _, name := range rig.Devices {
		if err, ok := found[name]; !ok || err != nil {
			t.Errorf("%s is listed: %t, %v", name, ok, err)
		}
	}
	a, b := pair(t, uverbs.QPOptions{})
	want := a.fill(0, 1000, 7)
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)), a.qp.PostSend(send(2, a.mr.SGE(0, 1000))))
	a.want(t, 2, uverbs.WCSend)
	b.want(t, 1, uverbs.WCRecv)
	b.holds(t, 0, want)
}
