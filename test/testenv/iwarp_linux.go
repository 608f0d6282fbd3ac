package testenv

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// prepareIWARP removes two limits of the guest that disturb tests on iWARP:
//   - Connections of TCP keep no port once they have ended. The connection manager may choose such a port
//     for a connection, which then fails.
//   - The process may pin as much memory as it likes. siw of older kernels applies the limit to root, too.
func prepareIWARP() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/tcp_max_tw_buckets", []byte("0"), 0); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		return fmt.Errorf("the limit of pinned memory: %w", err)
	}
	return nil
}
