package uverbs

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// regHint says what a failed registration may be due to.
func regHint(errno syscall.Errno, length, maxMR uint64) string {
	switch errno {
	case syscall.ENOMEM:
		return memlockHint(length)
	case syscall.EFAULT:
		return "part of the memory is not mapped, or not writable although the access asks for writing"
	case syscall.EINVAL:
		if maxMR > 0 && length > maxMR {
			return fmt.Sprintf("length is %d bytes, the device allows %d (max_mr_size)", length, maxMR)
		}
	}
	return ""
}

// memlockHint compares a registration with RLIMIT_MEMLOCK.
func memlockHint(length uint64) string {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		return ""
	}
	if lim.Cur == unix.RLIM_INFINITY {
		return "RLIMIT_MEMLOCK is unlimited, so the machine or the device is out of memory, or of map entries (vm.max_map_count)"
	}
	locked, pinned := lockedMemory()
	return fmt.Sprintf("registering %d bytes: RLIMIT_MEMLOCK is %d bytes, in use are %d pinned and %d locked; "+
		"raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a container) or give the process CAP_IPC_LOCK",
		length, lim.Cur, pinned, locked)
}

// lockedMemory returns VmLck and VmPin of this process, in bytes.
func lockedMemory() (locked, pinned uint64) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), ":")
		var kb uint64
		if _, err := fmt.Sscanf(strings.TrimSpace(value), "%d kB", &kb); err != nil {
			continue
		}
		switch name {
		case "VmLck":
			locked = kb << 10
		case "VmPin":
			pinned = kb << 10
		}
	}
	return locked, pinned
}
