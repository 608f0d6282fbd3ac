package uverbs

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// The kernel answers a command that firmware has refused with an errno, which many refusals
// share. The status and the syndrome, which say what it was, stand in its log, if this process
// may read that.

// mlx5LogAge is how old a line may be that is about the command that has just failed.
const mlx5LogAge = time.Second

// mlx5LogSize is how much of the end of the log is read.
const mlx5LogSize = 16 << 10

// mlx5Told is the time of the last line that was told of: it is not about another command.
var mlx5Told atomic.Int64

// refusal finds the refusal in the kernel's log, if that can be read.
func (mlx5Driver) refusal() string {
	var ts unix.Timespec
	log := make([]byte, mlx5LogSize)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, log)
	if err != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return "" // it is for root alone
	}
	return findRefusal(string(log[:min(n, len(log))]), time.Duration(ts.Nano()), isThread)
}

// isThread reports whether a thread is one of this process.
func isThread(tid string) bool {
	_, err := os.Stat("/proc/self/task/" + tid)
	return err == nil
}

// findRefusal finds the last refusal in the log, now being the time since the system started,
// that is of a thread of this process and was not told of yet.
func findRefusal(log string, now time.Duration, ours func(tid string) bool) string {
	told := mlx5Told.Load()
	for log != "" {
		last := strings.LastIndexByte(strings.TrimSuffix(log, "\n"), '\n') + 1
		r, ok := parseRefusal(log[last:])
		log = log[:last]
		if !ok {
			continue
		}
		seconds, err := strconv.ParseFloat(r.at, 64)
		when := time.Duration(seconds * float64(time.Second))
		if err != nil || int64(when) <= told || now-when > mlx5LogAge {
			return ""
		}
		if !ours(r.tid) {
			continue
		}
		mlx5Told.Store(int64(when))
		return fmt.Sprintf("the device's firmware refused %s: %s (%s), syndrome %s", r.command, r.status, r.number, r.syndrome)
	}
	return ""
}

// refusal is what mlx5_core writes: when, the thread, the command, and how firmware answered.
type refusal struct{ at, tid, command, status, number, syndrome string }

// parseRefusal reads a line of the log (mlx5_cmd_check of Linux 5.10, mlx5_cmd_out_err of 6.0 and later):
//
//	<3>[   10.619158][  T125] mlx5_core 0000:00:02.0: mlx5_cmd_check:777:(pid 125): CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x4711)
//
// It is no regular expression, as a program that has one takes longer to start.
func parseRefusal(line string) (r refusal, ok bool) {
	// cut returns what is before the next sep, and goes on behind it.
	ok = true
	cut := func(sep string) (before string) {
		found := false
		before, line, found = strings.Cut(line, sep)
		ok = ok && found
		return before
	}
	if strings.HasPrefix(line, "<") {
		cut(">")
	}
	ok = ok && strings.HasPrefix(line, "[")
	cut("[")
	r.at = strings.TrimLeft(cut("]"), " ")
	cut(" mlx5_core ")
	cut("(pid ")
	r.tid = cut("): ")
	r.command = cut("(")
	cut(" failed, status ")
	r.status = cut("(")
	r.number = cut("), syndrome (")
	r.syndrome = cut(")")
	const digits = "0123456789"
	for _, w := range []string{r.command, r.status, r.number, r.syndrome} { // they become part of an error's text
		ok = ok && w != "" && !strings.ContainsFunc(w, unicode.IsControl)
	}
	return r, ok && r.tid != "" && strings.Trim(r.tid, digits) == "" && strings.Trim(r.at, digits+".") == ""
}
