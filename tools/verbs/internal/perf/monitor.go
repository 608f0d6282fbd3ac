package perf

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// hushMonitor has the thread that watches over Go's scheduler, which wakes a hundred times a second
// while anything runs, take a processor only where one is free (SCHED_IDLE): otherwise it interrupts
// the run, or the kernel's work for it. It returns the function that ends this. Going back takes a
// privilege, without which it lasts as long as the process. A run is right in any case, so there
// are no errors; and where the process was started with another policy than usual that stays.
func hushMonitor() func() {
	all := threads()
	if len(all) < 2 || !setPolicy(all[1], unix.SCHED_NORMAL, unix.SCHED_IDLE) {
		return func() {}
	}
	return func() {
		for _, tid := range threads() { // the monitor makes threads, and they are as it is
			setPolicy(tid, unix.SCHED_IDLE, unix.SCHED_NORMAL)
		}
	}
}

// setPolicy sets how a thread is scheduled that is scheduled in a certain way now. It reports whether
// it has done so.
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
