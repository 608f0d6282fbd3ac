package klog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// summary is what a log comes to.
type summary struct {
	Headline string
	Lines    int
	Fatal    bool
}

// judgeFile reads a log as a console shows it.
func judgeFile(t *testing.T, name string) *Judge {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	j := NewJudge(nil)
	for line := range strings.Lines(string(b)) {
		j.Console(line)
	}
	return j
}

func summaries(j *Judge) []summary {
	var all []summary
	for _, r := range j.Reports() {
		all = append(all, summary{r.Headline, len(r.Lines), r.Fatal})
	}
	return all
}

func TestReports(t *testing.T) {
	for _, tt := range []struct {
		file string
		want []summary
	}{
		{"clean.txt", nil},
		{"warning.txt", []summary{
			{"WARNING: CPU: 1 PID: 421 at drivers/infiniband/sw/rxe/rxe_comp.c:742 rxe_completer+0xa89/0xc20 [rdma_rxe]", 12, false},
			{"WARNING: drivers/infiniband/sw/rxe/rxe_pool.c:212 at __rxe_cleanup+0x12c/0x170 [rdma_rxe], CPU#0: python3/305", 7, false},
		}},
		{"refcount.txt", []summary{{"WARNING: CPU: 0 PID: 17 at lib/refcount.c:28 refcount_warn_saturate+0xba/0x110", 8, false}}},
		{"oops.txt", []summary{
			{"BUG: kernel NULL pointer dereference, address: 0000000000000008", 12, true},
			{"general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#2] PREEMPT SMP NOPTI", 5, true},
			{"Oops: general protection fault, probably for non-canonical address 0x6b6b6b6b6b6b6b6b: 0000 [#3] PREEMPT SMP", 3, true},
			{"Kernel panic - not syncing: Fatal exception in interrupt", 3, true},
		}},
		{"arm64.txt", []summary{{"Unable to handle kernel NULL pointer dereference at virtual address 0000000000000010", 9, true}}},
		{"kernelbug.txt", []summary{{"kernel BUG at lib/list_debug.c:56!", 9, true}}},
		{"hung.txt", []summary{
			{"INFO: task rdma:512 blocked for more than 120 seconds.", 8, false},
			{"INFO: task kworker/u4:1:33 blocked for more than 120 seconds.", 4, false},
		}},
		{"lockdep.txt", []summary{
			{"WARNING: possible circular locking dependency detected", 13, false},
			{"WARNING: possible recursive locking detected", 5, false},
			{"WARNING: inconsistent lock state", 4, false},
			{"WARNING: suspicious RCU usage", 4, false},
		}},
		{"stall.txt", []summary{
			{"rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", 6, false},
			{"rcu: INFO: rcu_sched self-detected stall on CPU", 3, false},
			{"watchdog: BUG: soft lockup - CPU#1 stuck for 134s! [rping:299]", 4, false},
			{"watchdog: Watchdog detected hard LOCKUP on cpu 0", 2, false},
		}},
		{"sanitizers.txt", []summary{
			{"BUG: KASAN: slab-use-after-free in rxe_send+0x1a2/0x3c0 [rdma_rxe]", 6, false},
			{"BUG: KFENCE: use-after-free read in rxe_elem_put+0x1f/0x60", 3, false},
			{"UBSAN: array-index-out-of-bounds in drivers/infiniband/hw/mlx5/main.c:2134:10", 4, false},
			{"BUG: sleeping function called from invalid context at kernel/locking/mutex.c:283", 4, false},
			{"BUG: scheduling while atomic: ib_send_lat/233/0x00000002", 3, false},
			{"unregister_netdevice: waiting for ve0 to become free. Usage count = 2", 1, false},
		}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			j := judgeFile(t, tt.file)
			if d := cmp.Diff(tt.want, summaries(j)); d != "" {
				t.Error(d)
			}
			fatal := false
			for _, w := range tt.want {
				fatal = fatal || w.Fatal
			}
			if j.Fatal() != fatal {
				t.Errorf("Fatal is %v", j.Fatal())
			}
		})
	}
}

func TestRecord(t *testing.T) {
	j := NewJudge(nil)
	for _, rec := range []string{
		"6,100,1000000,-;WARNING is not what this line begins with: no",
		"4,101,1000001,-;------------[ cut here ]------------\n",
		"4,102,1000002,-,caller=T421;WARNING: CPU: 1 PID: 421 at a.c:1 f+0x1/0x2\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:02.0",
		"4,103,1000003,c;Call Trace:",
		"4,104,9000000,-;a driver loaded much later",
		"12,105,9000001,-;BUG: written by a program, facility 1",
		"", ";", "x;y", "4,1;BUG: short header", "4,1,x,-;BUG: no time", "4294967296999999999999,1,2,-;BUG: big",
	} {
		j.Record([]byte(rec))
	}
	want := []summary{{"WARNING: CPU: 1 PID: 421 at a.c:1 f+0x1/0x2", 3, false}}
	if d := cmp.Diff(want, summaries(j)); d != "" {
		t.Error(d)
	}
}

// A report without an end mark ends where the log pauses, and never grows without
// bound.
func TestReportEnds(t *testing.T) {
	j := NewJudge(nil)
	j.Console("[    1.000000] INFO: task a:1 blocked for more than 60 seconds.")
	for range 2 * longest {
		j.Console("[    1.100000]  f+0x1/0x2")
	}
	if n := len(j.Reports()[0].Lines); n != longest {
		t.Errorf("%d lines, want %d", n, longest)
	}
}

func TestMerge(t *testing.T) {
	log, console := NewJudge(nil), NewJudge(nil)
	log.Console("[    1.000000] BUG: unable to handle page fault for address: ffff")
	console.Console("[    1.000000][   T12] BUG: unable to handle page fault for address: ffff")
	console.Console("[    1.000001][   T12] #PF: supervisor read access in kernel mode")
	console.Console("[    9.000000][    C1] Kernel panic - not syncing: Fatal exception")
	log.Merge(console)
	want := []summary{
		{"BUG: unable to handle page fault for address: ffff", 2, true},
		{"Kernel panic - not syncing: Fatal exception", 1, true},
	}
	if d := cmp.Diff(want, summaries(log)); d != "" {
		t.Error(d)
	}
}

func TestText(t *testing.T) {
	for rec, want := range map[string]string{
		"6,1,2,-;hello; world\n SUBSYSTEM=x": "hello; world",
		"no record":                          "no record",
	} {
		if got := Text([]byte(rec)); got != want {
			t.Errorf("%q: %q, want %q", rec, got, want)
		}
	}
}

func FuzzJudge(f *testing.F) {
	f.Add([]byte("4,102,1000002,-;WARNING: CPU: 1 PID: 421 at a.c:1"), "[    1.000000] Oops: 0002 [#1] SMP")
	f.Add([]byte("0,1,1,-;------------[ cut here ]------------"), "[    1.000000] kernel BUG at x.c:1!")
	f.Fuzz(func(t *testing.T, rec []byte, line string) {
		j := NewJudge(KnownBugs())
		j.SetRelease("6.1.0-50-amd64")
		for range 2 {
			j.Record(rec)
			j.Console(line)
		}
		for _, r := range j.Reports() {
			if len(r.Lines) == 0 || r.Headline == "" {
				t.Errorf("empty report: %+v", r)
			}
		}
		Text(rec)
	})
}
