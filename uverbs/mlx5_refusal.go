package uverbs

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel answers a command that firmware has refused with an errno, which many refusals
// share. The status and the syndrome, which say what it was, stand in its log, if this process
// may read that.

// mlx5Log is the line that mlx5_core writes (mlx5_cmd_check of Linux 5.10, mlx5_cmd_out_err of
// 6.0 and later): when, the thread, the command, and how firmware answered. It is compiled when
// it is needed, as most programs never do.
var mlx5Log = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^(?:<\d+>)?\[ *(\d+\.\d+)\](?:\[[^]]*\])? mlx5_core .*\(pid (\d+)\): (\w+)\(0x\w+\).* failed, status ([^(]+)\((0x\w+)\), syndrome \((0x\w+)\)`)
})

// mlx5LogAge is how old a line may be that is about the command that has just failed.
const mlx5LogAge = time.Second

// mlx5LogSize is how much of the end of the log is read.
const mlx5LogSize = 16 << 10

// mlx5Told is the time of the last line that was told of: it is not about another command.
var mlx5Told atomic.Int64

// mlx5Refusal says how firmware refused the command that has just failed, if it was firmware
// that did and the kernel's log can be read.
func mlx5Refusal() string {
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
	all := mlx5Log().FindAllStringSubmatch(log, -1)
	for i := len(all) - 1; i >= 0; i-- {
		at, tid, command, status, number, syndrome := all[i][1], all[i][2], all[i][3], all[i][4], all[i][5], all[i][6]
		seconds, err := strconv.ParseFloat(at, 64)
		when := time.Duration(seconds * float64(time.Second))
		if err != nil || int64(when) <= told || now-when > mlx5LogAge {
			return ""
		}
		if !ours(tid) {
			continue
		}
		mlx5Told.Store(int64(when))
		return fmt.Sprintf("the device's firmware refused %s: %s (%s), syndrome %s", command, status, number, syndrome)
	}
	return ""
}
