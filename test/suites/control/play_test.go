package control

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
)

// serverAddr is an address of the guest itself.
const serverAddr = "10.1.0.1"

var port = 20000

// play runs a server and, when it listens, a client, on a TCP port of their own.
func play(t *testing.T, server, client []string) {
	t.Helper()
	port++
	number := []string{"-p", strconv.Itoa(port)}
	s := program.Launch(t, append(server, number...)...)
	s.Until(t, "listened", func() bool { return listens(t, port) })
	program.Launch(t, append(append(client, number...), serverAddr)...).Wait(t)
	if t.Failed() {
		return // the server may wait for ever
	}
	s.Wait(t)
}

// playFails is play of programs that must both fail. It returns what the client says.
func playFails(t *testing.T, server, client []string) string {
	t.Helper()
	port++
	number := []string{"-p", strconv.Itoa(port)}
	s := program.Launch(t, append(server, number...)...)
	s.Until(t, "listened", func() bool { return listens(t, port) })
	out := fails(t, append(append(client, number...), serverAddr)...)
	if <-s.Ended; s.Err == nil {
		t.Errorf("%s ended well", s.Name)
	}
	return out
}

// connect runs a server and, when it listens on a port of the connection manager, a client.
func connect(t *testing.T, space netlinkrdma.PortSpace, port uint16, server, client []string) {
	t.Helper()
	s := program.Launch(t, server...)
	s.Serving(t, space, port)
	program.Launch(t, client...).Wait(t)
	if t.Failed() {
		return
	}
	s.Wait(t)
}

// listens reports whether somebody listens on a TCP port. A connection would be taken for the
// client.
func listens(t *testing.T, port int) bool {
	t.Helper()
	const stateListen = "0A"
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // a kernel without IPv6
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == stateListen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				return true
			}
		}
	}
	return false
}

// fails runs a program that must fail.
func fails(t *testing.T, line ...string) string {
	t.Helper()
	p := program.Launch(t, line...)
	if <-p.Ended; p.Err == nil {
		t.Errorf("%s ended well", p.Name)
	}
	return p.Output()
}

// attribute reads a file of an RDMA device in sysfs.
func attribute(t *testing.T, device, name string) string {
	t.Helper()
	b, err := os.ReadFile("/sys/class/infiniband/" + device + "/" + name)
	must(t, err)
	return strings.TrimSpace(string(b))
}

// gidIndex finds the RoCE v2 entry of an address.
func gidIndex(t *testing.T, device, addr string) string {
	t.Helper()
	want := netip.MustParseAddr(addr)
	for i := range 32 {
		n := strconv.Itoa(i)
		ip := net.ParseIP(attribute(t, device, "ports/1/gids/"+n))
		got, ok := netip.AddrFromSlice(ip)
		if !ok || got.Unmap() != want {
			continue
		}
		if attribute(t, device, "ports/1/gid_attrs/types/"+n) == "RoCE v2" {
			return n
		}
	}
	t.Fatalf("%s has no RoCE v2 GID for %s", device, addr)
	return ""
}
