package report

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// kernelLog reads what the kernel logs from now on.
type kernelLog struct{ fd int }

// openKernelLog opens the kernel's log at its end.
func openKernelLog() (*kernelLog, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/kmsg", Err: err}
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("seek in /dev/kmsg: %w", err)
	}
	return &kernelLog{fd}, nil
}

// close closes the log.
func (k *kernelLog) close() { unix.Close(k.fd) }

// read returns the warnings and errors since it was read last.
func (k *kernelLog) read() []string {
	var all []string
	b := make([]byte, 8192)
	for {
		n, err := unix.Read(k.fd, b)
		switch {
		case errors.Is(err, unix.EPIPE): // records were overwritten
			continue
		case err != nil || n <= 0:
			return all
		}
		if line, ok := warning(string(b[:n])); ok {
			all = append(all, line)
		}
	}
}

// warning returns the text of a record of /dev/kmsg, and whether it is a warning or worse. A record is
// "PRIORITY,SEQUENCE,TIME,...;TEXT" and may have more lines, which describe the device.
func warning(record string) (text string, ok bool) {
	const worst, levels = 4, 8 // KERN_WARNING; the priority has the facility above the level
	head, text, found := strings.Cut(record, ";")
	text, _, _ = strings.Cut(text, "\n")
	fields := strings.Split(head, ",")
	priority, err := strconv.Atoi(fields[0])
	if !found || err != nil || len(fields) < 3 || priority%levels > worst {
		return "", false
	}
	micros, _ := strconv.ParseInt(fields[2], 10, 64)
	return fmt.Sprintf("[%d.%06d] %s", micros/1e6, micros%1e6, text), true
}

// complaints are words by which a warning of the kernel is a fault of the kernel.
var complaints = []string{
	"WARNING:", "BUG:", "Oops", "general protection", "KASAN", "KCSAN", "UBSAN", "possible recursive locking", "circular locking",
	"inconsistent lock state", "blocked for more than", "soft lockup", "refcount_t:", "list_add corruption", "list_del corruption", "Call Trace:", "leaked",
}

// isComplaint reports whether a line of the kernel's log is about a fault of the kernel.
func isComplaint(line string) bool {
	return slices.ContainsFunc(complaints, func(c string) bool { return strings.Contains(line, c) })
}

// taint returns the kernel's taint flags.
func taint() uint64 {
	b, err := os.ReadFile("/proc/sys/kernel/tainted")
	if err != nil {
		return 0
	}
	t, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return t
}
