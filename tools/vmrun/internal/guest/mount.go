package guest

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// mountAll mounts what a program expects to find. The root is a tmpfs already,
// so /tmp needs no mount.
func mountAll() error {
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
		data                   string
	}{
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"},
		{"devpts", "/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,ptmxmode=0666"},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755"},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		err := unix.Mount(m.source, m.target, m.fstype, m.flags, m.data)
		// A kernel with CONFIG_DEVTMPFS_MOUNT has mounted /dev itself.
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
		}
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	for _, l := range [][2]string{{"/proc/self/fd", "/dev/fd"}, {"fd/0", "/dev/stdin"}, {"fd/1", "/dev/stdout"}, {"fd/2", "/dev/stderr"}} {
		if err := os.Symlink(l[0], l[1]); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if err := unix.Sethostname([]byte("vmrun")); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	return sysctls()
}

// HungTaskSeconds is how long a task may wait uninterruptibly before the kernel
// reports it. The kernel's own 120 s is longer than most runs.
const HungTaskSeconds = 60

func sysctls() error {
	for path, value := range map[string]string{
		"/proc/sys/kernel/hung_task_timeout_secs": strconv.Itoa(HungTaskSeconds),
		"/proc/sys/kernel/hung_task_warnings":     "-1",
		"/proc/sys/kernel/printk_ratelimit_burst": "1000",
		"/proc/sys/kernel/sysrq":                  "1",
	} {
		// A kernel of one's own may lack the option.
		if err := os.WriteFile(path, []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
