package udp

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// portHolder describes the process or module that uses a UDP port of an address. It returns "" if it
// does not find any.
func portHolder(addr netip.AddrPort) string { return holderUnder("/proc", "/sys", addr) }

// holderUnder is portHolder with the places of the file systems proc and sysfs.
func holderUnder(proc, sys string, addr netip.AddrPort) string {
	s, ok := findSocket(proc, addr)
	if !ok {
		return ""
	}
	if p := findProcess(proc, s.inode); p != "" {
		return p
	}
	if _, err := os.Stat(filepath.Join(sys, "module/rdma_rxe")); err == nil && addr.Port() == wire.Port && s.addr.IsUnspecified() && s.uid == 0 {
		return "the kernel's rdma_rxe (\"verbs devices\" lists its devices; \"verbs link delete NAME\" removes one, and \"modprobe -r rdma_rxe\" the module)"
	}
	return fmt.Sprintf("a process of user ID %d that this process may not look into", s.uid)
}

// udpSocket is a line of /proc/net/udp or udp6.
type udpSocket struct {
	addr  netip.Addr
	uid   int
	inode string
}

// findSocket finds the socket that has a port on an address, or on all addresses.
func findSocket(proc string, addr netip.AddrPort) (udpSocket, bool) {
	for _, name := range []string{"udp", "udp6"} {
		// Threads can be in different network namespaces. /proc/net belongs to the first thread.
		text, err := os.ReadFile(filepath.Join(proc, "thread-self/net", name))
		if err != nil {
			continue // no IPv6, or no /proc
		}
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode
			f := strings.Fields(line)
			if len(f) < 10 {
				continue
			}
			local, ok := parseProcAddr(f[1])
			if !ok || local.Port() != addr.Port() || local.Addr() != addr.Addr().WithZone("") && !local.Addr().IsUnspecified() {
				continue
			}
			if local.Addr().Is4() && addr.Addr().Is6() {
				continue
			}
			uid, err := strconv.Atoi(f[7])
			if err != nil {
				continue
			}
			return udpSocket{local.Addr(), uid, f[9]}, true
		}
	}
	return udpSocket{}, false
}

// parseProcAddr parses an address such as 0100007F:12B7: words of 32 bits in the byte order of the host.
func parseProcAddr(s string) (netip.AddrPort, bool) {
	a, p, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(a)
	if err != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	addr, ok := netip.AddrFromSlice(b)
	port, err := strconv.ParseUint(p, 16, 16)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), ok && err == nil
}

// findProcess names the process that has a socket open, or returns "".
func findProcess(proc, inode string) string {
	want := "socket:[" + inode + "]"
	fds, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return ""
	}
	for _, fd := range fds {
		if link, err := os.Readlink(fd); err != nil || link != want {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		pid := filepath.Base(dir)
		if pid == strconv.Itoa(os.Getpid()) {
			return "this process"
		}
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			return "process " + pid
		}
		return fmt.Sprintf("process %s (%q)", pid, strings.TrimSpace(string(comm))) // the process chooses its name
	}
	return ""
}
