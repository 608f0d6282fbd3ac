package diag

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// descriptorLimit returns RLIMIT_NOFILE.
func descriptorLimit() (limit uint64, ok bool) {
	var lim unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim)
	return lim.Cur, err == nil
}

// memlockLimit returns RLIMIT_MEMLOCK in bytes.
func memlockLimit() (limit uint64, ok bool) {
	var lim unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim)
	return lim.Cur, err == nil
}

// hasIPCLock reports whether this thread has CAP_IPC_LOCK in its user namespace.
func hasIPCLock() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}

// kindOf looks at a mapped file, or at its directory if it has been deleted. A mapping that has no
// file in a file system is known by what the kernel calls it.
func kindOf(name string) fileKind {
	is := func(start string) bool { return strings.HasPrefix(name, start) }
	switch {
	case is("/dev/zero") || is("/SYSV"):
		return sharedPages
	case is("/anon_hugepage"):
		return hugePages
	case is("/memfd:"):
		return inTmpfs
	case is("/dmabuf:"):
		return ofDevice
	}
	var st unix.Stat_t
	if unix.Stat(name, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
		return ofDevice
	}
	var fsys unix.Statfs_t
	if unix.Statfs(name, &fsys) != nil && unix.Statfs(filepath.Dir(name), &fsys) != nil {
		return ordinary
	}
	switch uint32(fsys.Type) { // it has a sign where it has 32 bits
	case unix.TMPFS_MAGIC:
		return inTmpfs
	case unix.HUGETLBFS_MAGIC:
		return inHugePool
	}
	return ordinary
}
