package diag

import (
	"strings"
	"testing"
	"time"
	"unicode"
)

// TestFindRefusal reads lines as kernels write them.
func TestFindRefusal(t *testing.T) {
	const (
		old   = "[   10.619158] mlx5_core 0000:00:02.0: mlx5_cmd_check:777:(pid 117): CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x4711)\n"
		newer = "[   10.807704][  T125] mlx5_core 0000:00:02.0: mlx5_cmd_out_err:808:(pid 125): ALLOC_PD(0x800) op_mod(0x0) failed, status bad parameter(0x3), syndrome (0xabcdef), err(-22)\n"
		other = "[   10.900000] rdma_rxe: something else failed, status x(0x3), syndrome (0x1)\n"
		cut   = "<3>core 0000:00:02.0: mlx5_cmd_out_err:8"
	)
	mine := func(tid string) bool { return tid == "117" || tid == "125" }
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	for _, tt := range []struct {
		name, log string
		now       time.Duration
		ours      func(string) bool
		want      string
	}{
		{"5.10", cut + "\n" + old, at(10.7), mine, "the device's firmware refused CREATE_MKEY: limits exceeded (0x8), syndrome 0x4711"},
		{"of a subfunction", strings.Replace(newer, "mlx5_core 0000:00:02.0", "mlx5_core.sf mlx5_core.sf.4", 1), at(11), mine, "the device's firmware refused ALLOC_PD: bad parameter (0x3), syndrome 0xabcdef"},
		{"of another driver", strings.Replace(newer, "mlx5_core", "mlx5_core2", 1), at(11), mine, ""},
		{"the last one", "<3>" + old + newer + other, at(11), mine, "the device's firmware refused ALLOC_PD: bad parameter (0x3), syndrome 0xabcdef"},
		{"of another process in between", old + newer, at(11), func(tid string) bool { return tid == "117" }, "the device's firmware refused CREATE_MKEY: limits exceeded (0x8), syndrome 0x4711"},
		{"of another process", old + newer, at(11), func(string) bool { return false }, ""},
		{"too old", old + newer, at(11.9), mine, ""},
		{"nothing", other, at(11), mine, ""},
		{"no log", "", at(11), mine, ""},
		{"no command", strings.ReplaceAll(old, "CREATE_MKEY", ""), at(11), mine, ""},
		{"an escape", strings.ReplaceAll(old, "limits", "\x1b[2J"), at(11), mine, ""},
		{"no thread", strings.ReplaceAll(old, "(pid 117)", "(pid ../..)"), at(11), func(string) bool { return true }, ""},
		{"a time that is none", strings.ReplaceAll(old, "10.619158", "inf"), at(11), mine, ""},
		{"no time", strings.ReplaceAll(old, "[   10.619158] ", ""), at(11), mine, ""},
	} {
		reported.Store(0)
		if got := findRefusal(tt.log, tt.now, tt.ours); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if tt.want != "" {
			if got := findRefusal(tt.log, tt.now, tt.ours); got != "" {
				t.Errorf("%s: %q once more", tt.name, got)
			}
		}
	}
	reported.Store(0)
	if isThread("0") {
		t.Error("a thread that cannot be is one of this process")
	}
}

// FuzzRefusal: whatever stands in the log, a refusal is one line that can be shown, and its words
// come from the log.
func FuzzRefusal(f *testing.F) {
	f.Add("[   10.619158] mlx5_core 0000:00:02.0: mlx5_cmd_check:777:(pid 117): CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x4711)\n")
	f.Add("[99999999999999999999999999.9] mlx5_core (pid 1): X(0x1) failed, status y(0x1), syndrome (0x1)")
	f.Fuzz(func(t *testing.T, log string) {
		reported.Store(0)
		got := findRefusal(log, 11*time.Second, func(string) bool { return true })
		if got == "" {
			return
		}
		rest, ok := strings.CutPrefix(got, "the device's firmware refused ")
		verb, rest, ok2 := strings.Cut(rest, ": ")
		status, syndrome, ok3 := strings.Cut(rest, ", syndrome ")
		if !ok || !ok2 || !ok3 || !strings.Contains(log, verb+"(") || !strings.Contains(log, strings.Replace(status, " (", "(", 1)) || !strings.Contains(log, syndrome) {
			t.Errorf("%q is not what the log says: %q", got, log)
		}
		if strings.ContainsFunc(got, unicode.IsControl) {
			t.Errorf("%q has control characters", got)
		}
	})
}
