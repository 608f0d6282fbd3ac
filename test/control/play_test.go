package control

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// serverAddr is an address of the guest itself.
const serverAddr = "10.1.0.1"

// patience is for one program, on a machine that emulates and is busy.
const patience = time.Minute

// program is one that runs. It does not outlive its test.
type program struct {
	line  []string
	out   bytes.Buffer
	ended chan struct{}
	err   error // valid when ended is closed
}

func start(t *testing.T, line []string) *program {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	p := &program{line: line, ended: make(chan struct{})}
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-p.ended
	})
	return p
}

// wait waits for a good end.
func (p *program) wait(t *testing.T) {
	t.Helper()
	if <-p.ended; p.err != nil {
		t.Errorf("%s: %v\n%s", strings.Join(p.line, " "), p.err, p.out.String())
	}
}

var port = 20000

// play runs a server and, when it listens, a client, on a TCP port of their own.
func play(t *testing.T, server, client []string) {
	t.Helper()
	port++
	number := []string{"-p", strconv.Itoa(port)}
	s := start(t, append(server, number...))
	until(t, s, func() bool { return listens(t, port) })
	c := start(t, append(append(client, number...), serverAddr))
	c.wait(t)
	if t.Failed() {
		return // the server may wait for ever
	}
	s.wait(t)
}

// connect runs a server and, when the connection manager listens for it, a client.
func connect(t *testing.T, server, client []string) {
	t.Helper()
	s := start(t, server)
	until(t, s, func() bool { return serves(t) })
	c := start(t, client)
	c.wait(t)
	if t.Failed() {
		return
	}
	s.wait(t)
}

// until waits for what a program that runs will do.
func until(t *testing.T, p *program, done func() bool) {
	t.Helper()
	for !done() {
		select {
		case <-p.ended:
			t.Fatalf("%s has ended: %v\n%s", strings.Join(p.line, " "), p.err, p.out.String())
		case <-time.After(5 * time.Millisecond):
		}
	}
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

// serves reports whether the connection manager listens for somebody.
func serves(t *testing.T) bool {
	t.Helper()
	devices, err := netlinkrdma.Devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		ids, err := netlinkrdma.CMIDs(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if id.State == netlinkrdma.CMListen {
				return true
			}
		}
	}
	return false
}

// run runs a program to its good end and gives what it printed.
func run(t *testing.T, line ...string) string {
	t.Helper()
	p := start(t, line)
	p.wait(t)
	return p.out.String()
}

// fails runs a program that must fail.
func fails(t *testing.T, line ...string) string {
	t.Helper()
	p := start(t, line)
	if <-p.ended; p.err == nil {
		t.Errorf("%s ended well", strings.Join(line, " "))
	}
	return p.out.String()
}

func contains(out, want string) bool { return strings.Contains(out, want) }

// attribute reads a file of an RDMA device in sysfs.
func attribute(t *testing.T, device, name string) string {
	t.Helper()
	b, err := os.ReadFile("/sys/class/infiniband/" + device + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
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
