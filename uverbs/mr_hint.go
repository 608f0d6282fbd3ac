package uverbs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// regHint says what a failed registration may be due to.
func (d *Device) regHint(errno syscall.Errno, s *region) string {
	switch errno {
	case syscall.ENOMEM:
		return d.memoryHint(s.length)
	case syscall.EFAULT:
		f, err := os.Open("/proc/self/maps")
		if err != nil {
			return "part of the memory is not mapped, or not as the access asks for"
		}
		defer f.Close()
		return faultHint(f, s.start, s.length, s.access&accessWriting != 0)
	case syscall.EINVAL:
		if limit := d.attr.MaxMRSize; limit > 0 && s.length > limit {
			return fmt.Sprintf("length is %d bytes, the device allows %d (max_mr_size)", s.length, limit)
		}
	}
	return ""
}

// accessWriting are the rights for which the kernel wants memory that can be written
// (ib_access_writable, include/rdma/ib_verbs.h).
const accessWriting = AccessLocalWrite | AccessRemoteWrite | AccessRemoteAtomic | AccessMWBind

// memoryFacts are what a registration may have met.
type memoryFacts struct {
	memlock       uint64 // RLIMIT_MEMLOCK, in bytes
	forAll        bool   // it may be a limit for a process with CAP_IPC_LOCK as well, as it is for siw of Linux 6.1
	status        processStatus
	maps, maxMaps uint64 // mappings, and how many there may be; 0 if unknown
	mrs, maxMR    uint64 // MRs of all programs, 0 if unknown, and how many there may be
}

// memoryHint says which limit a registration meets.
func (d *Device) memoryHint(length uint64) string {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		return ""
	}
	m := memoryFacts{memlock: lim.Cur, forAll: d.driver.kind() == kindSiw, status: readStatus(), maps: countMaps(), maxMaps: readLimit("/proc/sys/vm/max_map_count"), maxMR: uint64(d.attr.MaxMR)}
	if dev, err := netlinkrdma.DeviceByName(d.Name()); err == nil {
		if r, err := netlinkrdma.Resources(dev); err == nil {
			m.mrs = r.MRs
		}
	}
	return m.hint(length, d.Name())
}

// hint names the limit: that of locked memory, unless the process is above it, of mappings, or
// of the device.
func (m *memoryFacts) hint(length uint64, device string) string {
	unlimited := m.memlock == unix.RLIM_INFINITY
	if used := max(m.status.pinned, m.status.locked); !unlimited && (m.forAll || !m.status.mayLock) && used+length > m.memlock {
		or := " or give the process CAP_IPC_LOCK"
		if m.forAll {
			or = "; siw of Linux 6.1 counts it in spite of CAP_IPC_LOCK"
		}
		return fmt.Sprintf("registering %d bytes: RLIMIT_MEMLOCK is %d bytes, in use are %d pinned and %d locked; "+
			"raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a container)%s",
			length, m.memlock, m.status.pinned, m.status.locked, or)
	}
	why := fmt.Sprintf("RLIMIT_MEMLOCK of %d bytes leaves room", m.memlock)
	switch {
	case m.status.mayLock && !m.forAll:
		why = "RLIMIT_MEMLOCK does not matter, as the process has CAP_IPC_LOCK"
	case unlimited:
		why = "RLIMIT_MEMLOCK is unlimited"
	}
	switch {
	case m.maxMaps > 0 && m.maps+1 >= m.maxMaps:
		return fmt.Sprintf("%s; the process has %d mappings, of %d that vm.max_map_count allows: raise that", why, m.maps, m.maxMaps)
	case m.maxMR > 0 && m.mrs >= m.maxMR:
		return fmt.Sprintf("%s; %s has %d MRs, of %d that it allows (max_mr), in this program and others", why, device, m.mrs, m.maxMR)
	}
	return fmt.Sprintf("%s, so the machine has no memory for %d bytes to stay in, or %s has no more (it allows %d MRs)", why, length, device, m.maxMR)
}

// readLimit reads a number from a file of /proc, or returns 0.
func readLimit(path string) uint64 {
	line, err := readLine(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(line, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// countMaps returns how many mappings this process has.
func countMaps() uint64 {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return 0
	}
	defer f.Close()
	n := uint64(0)
	for range mappings(f) {
		n++
	}
	return n
}

// processStatus is what the kernel has noted about this process.
type processStatus struct {
	locked, pinned uint64 // VmLck and VmPin, in bytes
	mayLock        bool   // RLIMIT_MEMLOCK is no limit: it has CAP_IPC_LOCK where that counts
}

// readStatus reads /proc/self/status. A capability counts in the first user namespace alone,
// where all users have their own numbers.
func readStatus() (st processStatus) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return st
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), ":")
		value = strings.TrimSpace(value)
		kb, _ := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 54) // 0 if it is something else
		switch name {
		case "VmLck":
			st.locked = kb << 10
		case "VmPin":
			st.pinned = kb << 10
		case "CapEff":
			caps, err := strconv.ParseUint(value, 16, 64)
			st.mayLock = err == nil && caps&(1<<unix.CAP_IPC_LOCK) != 0
		}
	}
	var from, to, n uint64
	line, err := readLine("/proc/self/uid_map")
	if err != nil {
		return st
	}
	if _, err := fmt.Sscan(line, &from, &to, &n); err != nil || from != to || n != 1<<32-1 {
		st.mayLock = false
	}
	return st
}

// mapping is a line of /proc/self/maps.
type mapping struct {
	start, end uint64
	perms      string // such as "rw-p"
	name       string // of the file, "[heap]" or the like; empty for other memory
}

// mappings reads a process's mappings, in the order of their addresses.
func mappings(r io.Reader) func(yield func(mapping) bool) {
	return func(yield func(mapping) bool) {
		for s := bufio.NewScanner(r); s.Scan(); {
			var m mapping
			var offset, dev, inode string
			n, _ := fmt.Sscanf(s.Text(), "%x-%x %s %s %s %s", &m.start, &m.end, &m.perms, &offset, &dev, &inode)
			if n < 6 || len(m.perms) < 4 {
				continue
			}
			if f := strings.SplitN(s.Text(), " ", 6); len(f) == 6 {
				_, m.name, _ = strings.Cut(f[5], " ")
				m.name = strings.TrimSpace(m.name)
			}
			if !yield(m) {
				return
			}
		}
	}
}

// faultHint says which part of memory cannot be registered, and why, as far as the process's
// mappings tell.
func faultHint(maps io.Reader, addr, length uint64, writing bool) string {
	next, end := addr, addr+length
	var last mapping
	for m := range mappings(maps) {
		if m.end <= next {
			continue
		}
		if m.start > next {
			break
		}
		switch {
		case m.perms[0] != 'r':
			return fmt.Sprintf("the memory at %#x is not readable (%s)", next, m.perms)
		case writing && m.perms[1] != 'w':
			return fmt.Sprintf("the memory at %#x is not writable (%s), although the access asks for writing", next, m.perms)
		}
		last, next = m, m.end
		if next >= end {
			what := "its pages"
			if last.name != "" {
				what = "the pages of " + last.name
			}
			return fmt.Sprintf("the memory is mapped as the access needs it, but %s cannot be pinned: memory of a device is registered as a dma-buf (RegDMABuf); of a file, there is none behind its end", what)
		}
	}
	return fmt.Sprintf("the memory at %#x is not mapped", next)
}
