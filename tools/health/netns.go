package health

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// otherNetns is a network namespace that is not this process's.
type otherNetns struct {
	path string   // of a file that stands for it, such as /run/netns/NAME or /proc/PID/ns/net
	devs []string // names of the RDMA devices that are seen from there
	err  error    // why they are not known
}

// liveNetns finds the other network namespaces: those that have a name, and those of processes,
// as far as they may be looked at.
func liveNetns() []otherNetns {
	named, _ := filepath.Glob("/run/netns/*")        // the patterns are none that could be wrong
	procs, _ := filepath.Glob("/proc/[0-9]*/ns/net") // likewise
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	place := func(path string) (inode, error) {
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		return inode{uint64(st.Dev), st.Ino}, err
	}
	if own, err := place("/proc/self/ns/net"); err == nil {
		seen[own] = true
	}
	var all []otherNetns
	for n := range len("/proc/4194304/ns/net") + 1 { // the greatest number that a process may have
		for _, path := range procs {
			if len(path) == n {
				named = append(named, path) // those with lower numbers first
			}
		}
	}
	for _, path := range named {
		i, err := place(path)
		if err != nil || seen[i] {
			continue // a process that is gone, or another's
		}
		seen[i] = true
		n := otherNetns{path: path}
		n.devs, n.err = devicesOf(path)
		all = append(all, n)
	}
	return all
}

// devicesOf lists the RDMA devices of a network namespace.
func devicesOf(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread, which is elsewhere then, ends with the goroutine
		if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("setns: %w", err)
			return
		}
		devs, err := netlinkrdma.Devices()
		for _, d := range devs {
			names = append(names, d.Name)
		}
		done <- err
	}()
	err = <-done
	return names, err
}

// lookElsewhere reports which devices other network namespaces have, if each device is in one
// of them only, and how to get at one of a name, or at all if that is empty.
func (m *machine) lookElsewhere(f *Finding, name string) {
	if mode, err := m.netnsMode(); err != nil || mode != "exclusive" {
		return
	}
	for _, n := range m.otherNetns() {
		if n.err != nil {
			f.see("network namespace %s: its devices are not known: %s", n.path, n.err)
			continue
		}
		if len(n.devs) == 0 {
			continue
		}
		f.see("network namespace %s has %s", n.path, strings.Join(n.devs, ", "))
		for _, dev := range n.devs {
			if name == "" || dev == name {
				f.fix("run there what needs %s: nsenter --net=%s", dev, n.path)
				f.fix("or bring it here, if its driver can: nsenter --net=%s verbs dev set %s netns /proc/$$/ns/net", n.path, dev)
			}
		}
	}
}

// liveNetnsMode returns the mode of network namespaces.
func liveNetnsMode() (string, error) {
	s, err := netlinkrdma.SystemSettings()
	return s.NetNSMode.String(), err
}
