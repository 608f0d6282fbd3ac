package perf

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// monitor is the thread that watches over Go's scheduler, which wakes a hundred times a second while
// anything runs. In a run it takes a processor only where one is free (SCHED_IDLE): otherwise it
// interrupts the run, or the kernel's work for it.
//
// A run is right in any case, so there are no errors.
type monitor struct {
	tid int // 0 if it is left as it is, as the process was started with another policy than usual
}

// hushMonitor gives the monitor the lowest priority until loud.
func hushMonitor() *monitor {
	all := threads()
	if len(all) < 2 || !setPolicy(all[1], unix.SCHED_NORMAL, unix.SCHED_IDLE) {
		return &monitor{}
	}
	return &monitor{tid: all[1]}
}

// loud ends what hushMonitor did, for the monitor and for the threads that it has made, which have its
// policy. Going back takes a privilege, without which the monitor's policy lasts as long as the process.
func (m *monitor) loud() {
	if m.tid == 0 {
		return
	}
	for _, tid := range threads() {
		setPolicy(tid, unix.SCHED_IDLE, unix.SCHED_NORMAL)
	}
}

// setPolicy changes the scheduling policy of a thread from one to another. It reports whether it
// has done so.
func setPolicy(tid int, from, to uint32) bool {
	a, err := unix.SchedGetAttr(tid, 0)
	if err != nil || a.Policy != from {
		return false // it has ended, or somebody has chosen another policy
	}
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: to, Nice: a.Nice}, 0) == nil
}

// threads returns the process's threads in the order in which they were made, as the kernel lists
// them. The first is the process's own, and the second watches over the scheduler: Go's runtime makes
// it before any other, and it never ends.
func threads() []int {
	d, err := os.Open("/proc/self/task")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, err := d.Readdirnames(0)
	if err != nil {
		return nil
	}
	var all []int
	for _, n := range names {
		if tid, err := strconv.Atoi(n); err == nil {
			all = append(all, tid)
		}
	}
	return all
}
