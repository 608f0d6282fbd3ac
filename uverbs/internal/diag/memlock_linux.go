package diag

import "golang.org/x/sys/unix"

// memlockLimit returns RLIMIT_MEMLOCK in bytes.
func memlockLimit() (limit uint64, ok bool) {
	var lim unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim)
	return lim.Cur, err == nil
}
