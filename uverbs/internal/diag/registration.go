package diag

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// Registration is a registration of memory, or of a ring, that the kernel has refused with Errno.
type Registration struct {
	Errno          syscall.Errno
	Device         string
	Start, Length  uint64 // of the memory, in bytes
	Write          bool   // the access needs memory that can be written
	MaxSize, MaxMR uint64 // what the device allows, 0 if it does not say
	Kernel         [2]int // version of the kernel, zeros if it is not known

	// MemlockForAll names the kernels that apply RLIMIT_MEMLOCK even to a process with CAP_IPC_LOCK,
	// or is empty.
	MemlockForAll string
}

// Hint says why the registration may have failed.
func (r *Registration) Hint() string {
	switch r.Errno {
	case syscall.ENOMEM:
		if m, ok := r.memory(); ok {
			return m.hint(r)
		}
	case syscall.EMFILE:
		if limit, ok := descriptorLimit(); ok {
			return fmt.Sprintf("the limit of descriptors is %d; raise it (ulimit -n, LimitNOFILE in a systemd unit), or close what is not needed", limit)
		}
	case syscall.EFAULT:
		maps, err := os.Open("/proc/self/maps")
		if err != nil {
			return "part of the memory is not mapped, or its protection does not permit the access"
		}
		defer maps.Close()
		return r.mappingHint(maps, kindOf)
	case syscall.EINVAL:
		if r.MaxSize > 0 && r.Length > r.MaxSize {
			return fmt.Sprintf("length is %d bytes, the device allows %d (max_mr_size)", r.Length, r.MaxSize)
		}
	}
	return ""
}

// memory are the limits of registered memory and their use.
type memory struct {
	memlock       uint64 // RLIMIT_MEMLOCK, in bytes
	status        processStatus
	maps, maxMaps uint64 // mappings, and how many the process may have; 0 if unknown
	mrs           uint64 // MRs of all programs, 0 if unknown
}

const unlimited = math.MaxUint64 // RLIM_INFINITY

// memory reads the limits and what is in use of them.
func (r *Registration) memory() (m memory, ok bool) {
	limit, ok := memlockLimit()
	if !ok {
		return memory{}, false
	}
	m = memory{memlock: limit, status: readStatus(), maps: countMaps(), maxMaps: readLimit("/proc/sys/vm/max_map_count")}
	if dev, err := netlinkrdma.DeviceByName(r.Device); err == nil {
		if res, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{}); err == nil {
			m.mrs = res.MRs
		}
	}
	return m, true
}

// hint names the limit that the registration exceeds: locked memory, mappings, or the device's.
func (m *memory) hint(r *Registration) string {
	noLimit, forAll := m.memlock == unlimited, r.MemlockForAll != ""
	limited := !noLimit && (forAll || !m.status.mayLock)
	inUse := fmt.Sprintf("in use are %d pinned and %d locked", m.status.pinned, m.status.locked)
	if !m.status.known {
		inUse = "/proc does not show what is in use"
	}
	or := " or give the process CAP_IPC_LOCK"
	if forAll {
		or = "; " + r.MemlockForAll + " counts it in spite of CAP_IPC_LOCK"
	}
	raise := "raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for a container)" + or
	if used := max(m.status.pinned, m.status.locked); limited && used+r.Length > m.memlock {
		return fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes, too few for %d more; %s; %s", m.memlock, r.Length, inUse, raise)
	}
	why := fmt.Sprintf("RLIMIT_MEMLOCK of %d bytes leaves room", m.memlock)
	switch {
	case limited && !m.status.known:
		why = fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes, which may be too few for %d more, as %s", m.memlock, r.Length, inUse)
	case m.status.mayLock && !forAll:
		why = "RLIMIT_MEMLOCK does not matter, as the process has CAP_IPC_LOCK"
	case noLimit:
		why = "RLIMIT_MEMLOCK is unlimited"
	}
	switch {
	case m.maxMaps > 0 && m.maps+1 >= m.maxMaps:
		return fmt.Sprintf("%s; the process has %d mappings, of %d that vm.max_map_count allows: raise that", why, m.maps, m.maxMaps)
	case r.MaxMR > 0 && m.mrs >= r.MaxMR:
		return fmt.Sprintf("%s; %s has %d MRs, of %d that it allows (max_mr), in this program and others", why, r.Device, m.mrs, r.MaxMR)
	}
	none := fmt.Sprintf("the machine has no memory for %d bytes to stay in, or %s has no more (it allows %d MRs)", r.Length, r.Device, r.MaxMR)
	if limited && !m.status.known {
		return fmt.Sprintf("%s: %s; or %s", why, raise, none)
	}
	return why + ", so " + none
}

// readLimit reads a number from a file of /proc, or returns 0.
func readLimit(path string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
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

// processStatus is what the kernel knows of this process.
type processStatus struct {
	locked, pinned uint64 // VmLck and VmPin, in bytes
	known          bool   // locked and pinned could be read
	mayLock        bool   // RLIMIT_MEMLOCK is no limit: it has CAP_IPC_LOCK where that counts
}

// readStatus reads the status of the process, and the capability of this thread, which may have
// dropped it by itself. The capability counts only in the initial user namespace, which maps every
// user ID to itself. Without /proc, the process is assumed to be there.
func readStatus() (st processStatus) {
	st.mayLock = hasIPCLock()
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
			st.pinned, st.known = kb<<10, true
		}
	}
	uids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return st
	}
	// "0 0 4294967295" is the map of the initial namespace.
	if ids := strings.Fields(string(uids)); len(ids) < 3 || ids[0] != ids[1] || ids[2] != strconv.FormatUint(math.MaxUint32, 10) {
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
			// The words are the addresses, the permissions, the offset, the device, and the inode with the name.
			words := strings.SplitN(s.Text(), " ", 5)
			if len(words) < 5 || len(words[1]) < 4 {
				continue
			}
			start, end, _ := strings.Cut(words[0], "-")
			_, name, _ := strings.Cut(words[4], " ")
			m := mapping{perms: words[1], name: strings.TrimSpace(name)}
			var startErr, endErr error
			m.start, startErr = strconv.ParseUint(start, 16, 64)
			m.end, endErr = strconv.ParseUint(end, 16, 64)
			if startErr != nil || endErr != nil {
				continue
			}
			if !yield(m) {
				return
			}
		}
	}
}

// mappingHint says which part of the memory cannot be registered, and why, from the mappings of the
// process and what a file is.
func (r *Registration) mappingHint(maps io.Reader, kindOf func(name string) fileKind) string {
	next, end := r.Start, r.Start+r.Length
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
		case r.Write && m.perms[1] != 'w':
			return fmt.Sprintf("the memory at %#x is not writable (%s); the access needs it", next, m.perms)
		}
		if next = m.end; next >= end {
			return m.notPinned(r.Write, r.Kernel, kindOf)
		}
	}
	return fmt.Sprintf("the memory at %#x is not mapped", next)
}

// fileKind is what a mapped file is.
type fileKind int

const (
	ordinary    fileKind = iota
	inTmpfs              // a file of tmpfs, or of memfd_create
	inHugePool           // a file of hugetlbfs
	hugePages            // memory of MAP_HUGETLB
	sharedPages          // memory of MAP_SHARED and MAP_ANONYMOUS, or of System V
	ofDevice             // memory of a device
)

// notPinned says why the pages of memory that has the rights may not be pinned, the likeliest cause first.
func (m *mapping) notPinned(write bool, kernel [2]int, kindOf func(name string) fileKind) string {
	switch {
	case m.name == "" || m.name == "/dev/zero": // a private mapping of the latter has pages of its own
		return "its pages cannot be pinned"
	case m.name[0] != '/': // such as [heap]
		return "the pages of " + m.name + " cannot be pinned"
	}
	base, kind, end := filepath.Base(m.name), kindOf(m.name), "the file ends before the memory: "+m.name
	const noHugePage = "the pool of huge pages is empty (sysctl vm.nr_hugepages)"
	switch kind {
	case ofDevice:
		return "the pages of " + m.name + " cannot be pinned; memory of a device is registered as a dma-buf (RegDMABuf)"
	case inTmpfs:
		end += ", or there is no room left for it"
	case inHugePool:
		end = noHugePage + ", or " + end
	case hugePages:
		base, end = "memory of MAP_HUGETLB", noHugePage
	case sharedPages:
		base, end = "shared memory", "mremap(2) has made the memory longer than what is there"
	}
	known := kernel != [2]int{}
	before := func(version [2]int) bool { return slices.Compare(kernel[:], version[:]) < 0 }
	shared, why := m.perms[3] == 's', "likely "+end
	switch {
	case shared && m.perms[1] != 'w' && known && before([2]int{6, 2}):
		why = "before Linux 6.2 the mapping of a file must be private or writable, even for reading; or " + end
	case shared && write && kind == ordinary && known && !before([2]int{6, 5}):
		why = "since Linux 6.5 a shared file can be registered for writing in tmpfs and hugetlbfs only; or " + end
	}
	return "the pages of " + base + " cannot be pinned; " + why
}
