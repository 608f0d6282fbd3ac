package perf

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// monitor is the thread that watches over Go's scheduler, which wakes a hundred times a second while
// anything runs. In a run it takes a processor only where one is free (SCHED_IDLE): otherwise it
// interrupts the run, or the kernel's work for it. And if the process has one run, which waits for
// events, it stays on the run's processor: one that is free for the moment is likely to be the peer's,
// which then lacks what the processor had cached of its memory, for several messages to come.
//
// A run is right in any case, so there are no errors.
type monitor struct {
	tid  int         // 0 if it is left as it is, as the process was started with another policy than usual
	cpus unix.CPUSet // the processors that it may have otherwise
	cpu  int         // the one that it has, or anywhere
}

// anywhere is any of the processors that the process may have.
const anywhere = -1

// hushMonitor has the monitor keep out of the way until loud.
func hushMonitor() *monitor {
	m := &monitor{cpu: anywhere}
	all := threads()
	if len(all) < 2 || unix.SchedGetaffinity(all[1], &m.cpus) != nil || !setPolicy(all[1], unix.SCHED_NORMAL, unix.SCHED_IDLE) {
		return m
	}
	m.tid = all[1]
	return m
}

// follow has the monitor run where the calling thread does.
func (m *monitor) follow() {
	if m.tid == 0 {
		return
	}
	cpu, ok := processor()
	if !ok || cpu == m.cpu {
		return
	}
	var set unix.CPUSet
	set.Set(cpu)
	if unix.SchedSetaffinity(m.tid, &set) == nil {
		m.cpu = cpu
	}
}

// roam has the monitor, and the threads that it has made, which are as it is, run anywhere again.
func (m *monitor) roam() {
	if m.cpu == anywhere {
		return
	}
	m.cpu = anywhere
	for _, tid := range threads() {
		if hushed(tid) {
			unix.SchedSetaffinity(tid, &m.cpus) // or it has ended
		}
	}
}

// loud ends what hushMonitor and follow did. Going back takes a privilege, without which the monitor's
// policy lasts as long as the process.
func (m *monitor) loud() {
	if m.tid == 0 {
		return
	}
	m.roam()
	for _, tid := range threads() {
		setPolicy(tid, unix.SCHED_IDLE, unix.SCHED_NORMAL)
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

// hushed reports whether a thread takes a processor only where one is free.
func hushed(tid int) bool {
	a, err := unix.SchedGetAttr(tid, 0)
	return err == nil && a.Policy == unix.SCHED_IDLE
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
