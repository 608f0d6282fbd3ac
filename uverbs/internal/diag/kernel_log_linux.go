package diag

import (
	"time"

	"golang.org/x/sys/unix"
)

// logSize is how many bytes of the end of the log are read.
const logSize = 16 << 10

// kernelLog returns the end of the kernel's log and the time since the system started. It returns
// false if the process may not read the log.
func kernelLog() (log string, now time.Duration, ok bool) {
	var ts unix.Timespec
	b := make([]byte, logSize)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	if err != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return "", 0, false
	}
	return string(b[:min(n, len(b))]), time.Duration(ts.Nano()), true
}
