package conformance

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// childEnv makes the test binary run as the child of a test.
const childEnv = "GOVERBS_CHILD"

// nobody is an unprivileged user.
const nobody = 65534

// runChild runs one test of this binary as an unprivileged user.
func runChild(t *testing.T, test string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+test) {
		t.Fatalf("as user %d: %v\n%s", nobody, err, out)
	}
}

func isChild() bool { return os.Getenv(childEnv) == "1" }

// setMode changes the mode of rxe0's character device until the end of the test.
func setMode(t *testing.T, mode fs.FileMode) {
	t.Helper()
	testenv.Tags(t, testenv.Machine)
	infos, err := uverbs.Devices()
	must(t, err)
	i := slices.IndexFunc(infos, func(d uverbs.DeviceInfo) bool { return d.Name == deviceName })
	if i < 0 {
		t.Fatalf("%s is not listed", deviceName)
	}
	file := infos[i].CharDev
	st, err := os.Stat(file)
	must(t, err, os.Chmod(file, mode))
	t.Cleanup(func() { must(t, os.Chmod(file, st.Mode().Perm())) })
}

func TestPermission(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "permissions of device files")
	if !isChild() {
		setMode(t, 0o600)
		runChild(t, "TestPermission")
		return
	}
	_, err := uverbs.Open(deviceName, uverbs.OpenOptions{})
	says(t, err, deviceName, "/dev/infiniband/uverbs", "-rw-------", "user 65534")
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v is not fs.ErrPermission", err)
	}
	infos, err := uverbs.Devices()
	must(t, err)
	for _, d := range infos {
		if d.Name == deviceName && !errors.Is(d.Err, fs.ErrPermission) {
			t.Errorf("Devices lists %s with %v, want fs.ErrPermission", d.Name, d.Err)
		}
	}
}

func TestMemlock(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "limits of pinned memory")
	if !isChild() {
		setMode(t, 0o666)
		runChild(t, "TestMemlock")
		return
	}
	const limit = 64 << 10 // what every kernel allows at least
	must(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}))
	dev := openDevice(t, deviceName)
	pd, err := dev.AllocPD()
	must(t, err)
	closeLater(t, pd)
	small, err := uverbs.AllocBuffer(16<<10, uverbs.BufferOptions{})
	must(t, err)
	closeLater(t, small)
	mr, err := pd.RegMR(small, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	must(t, err)
	closeLater(t, mr)
	big, err := uverbs.AllocBuffer(1<<20, uverbs.BufferOptions{})
	must(t, err)
	closeLater(t, big)
	_, err = pd.RegMR(big, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	if !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("%v is not ENOMEM", err)
	}
	says(t, err, "REG_MR", strconv.Itoa(1<<20), "RLIMIT_MEMLOCK is "+strconv.Itoa(limit), strconv.Itoa(16<<10)+" pinned", "ulimit -l", "CAP_IPC_LOCK")
}

// TestOtherCredentials: a thread that has changed its user since the device was opened may
// not write() to it. The error says so, and how to do without; an ioctl is not refused, and takes the place of
// write() where that is the first choice.
func TestOtherCredentials(t *testing.T) {
	testenv.NeedsKernel(t, "credentials of device files")
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		buf := newBuffer(t, 4096)
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
			for range 2 {
				if err == nil {
					err = regAndDereg(pd, buf)
				}
			}
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

// regAndDereg registers memory and deregisters it.
func regAndDereg(pd *uverbs.PD, buf *uverbs.Buffer) error {
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	if err != nil {
		return err
	}
	return mr.Close()
}

// TestDeviceCgroup: a control group that does not let its processes open the device.
func TestDeviceCgroup(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "control groups")
	testenv.Tags(t, testenv.Machine)
	const groupEnv = "GOVERBS_CGROUP"
	if isChild() {
		must(t, os.WriteFile(filepath.Join(os.Getenv(groupEnv), "cgroup.procs"), []byte("0"), 0))
		_, err := uverbs.Open(deviceName, uverbs.OpenOptions{})
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
