package diag

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
)

// refusalAge limits the age of a line: an older one is not about the command that has just failed.
const refusalAge = time.Second

// reported is the time of the last line that was reported, so that it is not reported for another
// command.
var reported atomic.Int64

// FirmwareRefusal says why the firmware of a ConnectX adapter refused the command of this process that
// has just failed. The kernel returns one errno for many refusals; the status and the syndrome are only
// in its log. The text is empty if it was not the firmware that refused, or if the process may not read
// the log.
func FirmwareRefusal() string {
	log, now, ok := kernelLog()
	if !ok {
		return ""
	}
	return findRefusal(log, now, isThread)
}

// isThread reports whether a thread is one of this process.
func isThread(tid string) bool {
	_, err := os.Stat("/proc/self/task/" + tid)
	return err == nil
}

// findRefusal returns the last refusal in the log that is of a thread of this process and was not
// reported yet. The time since the system started is now.
func findRefusal(log string, now time.Duration, ours func(tid string) bool) string {
	last := reported.Load()
	for log != "" {
		start := strings.LastIndexByte(strings.TrimSuffix(log, "\n"), '\n') + 1
		r, ok := parseRefusal(log[start:])
		log = log[:start]
		if !ok {
			continue
		}
		seconds, err := strconv.ParseFloat(r.at, 64)
		when := time.Duration(seconds * float64(time.Second))
		if err != nil || int64(when) <= last || now-when > refusalAge {
			return ""
		}
		if !ours(r.tid) {
			continue
		}
		reported.Store(int64(when))
		return fmt.Sprintf("the device's firmware refused %s: %s (%s), syndrome %s", r.command, r.status, r.number, r.syndrome)
	}
	return ""
}

// refusal is a line of mlx5_core: its time, the thread, the command, and the answer of the firmware.
type refusal struct{ at, tid, command, status, number, syndrome string }

// parseRefusal reads a line of the log (mlx5_cmd_check of Linux 5.10, mlx5_cmd_out_err of 6.0 and later), of
// a PCI function or of a subfunction, which has "mlx5_core.sf mlx5_core.sf.4" in place of both names:
//
//	<3>[   10.619158][  T125] mlx5_core 0000:00:02.0: mlx5_cmd_check:777:(pid 125): CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x4711)
//
// It uses no regular expression, because compiling one makes every program start later.
func parseRefusal(line string) (r refusal, ok bool) {
	// cut returns the text before the next sep and skips both.
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
	cut(" mlx5_core")
	line = strings.TrimPrefix(line, ".sf") // the driver of a subfunction
	ok = ok && strings.HasPrefix(line, " ")
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
