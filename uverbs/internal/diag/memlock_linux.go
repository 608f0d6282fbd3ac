package diag

import "golang.org/x/sys/unix"

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
