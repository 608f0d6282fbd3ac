package interop

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// TestPerfHugePages has a client's memory come from huge pages.
func TestPerfHugePages(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.AnyTransport, testenv.Perftest)
	testenv.Guest(t)
	const reserved = 20 // of 2 MiB each
	const dir = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	pages := func(name string) int {
		b, err := os.ReadFile(dir + name)
		must(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		must(t, err)
		return n
	}
	must(t, os.WriteFile(dir+"nr_hugepages", []byte(fmt.Sprint(reserved)), 0))
	t.Cleanup(func() {
		if err := os.WriteFile(dir+"nr_hugepages", []byte("0"), 0); err != nil {
			t.Error(err)
		}
	})
	if pages("free_hugepages") != reserved {
		t.Fatalf("%d of %d huge pages are free", pages("free_hugepages"), reserved)
	}
	server, port := perfServe(t)
	client := program.Launch(t, perfLine(port, "send-bw", "--huge-pages", "-D", "1s", "-V")...)
	server.Until(t, "had the client", func() bool { return strings.Contains(server.Output(), " begins: ") })
	if free := pages("free_hugepages"); free >= reserved {
		t.Errorf("%d of %d huge pages are free while they are used", free, reserved)
	}
	client.Wait(t)
	if free := pages("free_hugepages"); free != reserved {
		t.Errorf("%d of %d huge pages are free afterwards", free, reserved)
	}
}

// pinned counts the threads of a process that may run on one processor alone, or waits until there is
// one.
func pinned(t *testing.T, p *program.Program, cpu int) (n int) {
	t.Helper()
	p.Until(t, "kept to its processor", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.PID()))
		must(t, err)
		for _, file := range threads {
			b, _ := os.ReadFile(file) // it may have ended
			if strings.Contains(string(b), fmt.Sprintf("Cpus_allowed_list:\t%d\n", cpu)) {
				n++
			}
		}
		return n > 0
	})
	return n
}

// TestPerfCPU: each side keeps its traffic to the processor that it was given.
func TestPerfCPU(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.AnyTransport, testenv.Perftest)
	testenv.Guest(t)
	last := runtime.NumCPU() - 1
	server, port := perfServe(t, "--cpu", "0")
	client := program.Launch(t, perfLine(port, "send-lat", "--cpu", fmt.Sprint(last), "-D", "2s")...)
	if here, there := pinned(t, client, last), pinned(t, server, 0); last > 0 && (here != 1 || there != 1) {
		t.Errorf("%d threads of the client and %d of the server keep to a processor, want 1", here, there)
	}
	client.Wait(t)
}

// rocePort is the UDP port of RoCE v2.
const rocePort = 4791

// TestPerfTrafficClass looks at the traffic class of the packets.
func TestPerfTrafficClass(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	testenv.Guest(t)
	testenv.Needs(t, "packets that the kernel sees", "rxe")
	_, port := perfServe(t)
	for _, options := range []string{"", "-R", "-t ud -s 64"} {
		t.Run(cmp.Or(options, "defaults"), func(t *testing.T) {
			// Every packet of every interface, big-endian as the kernel wants it.
			const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
			must(t, err)
			defer unix.Close(fd)
			const class = 0x68
			perfJSON(t, port, "send-lat", strings.Fields(fmt.Sprintf("-d %s -n 20 --tos %d %s", dev1, class, options))...)
			seen := map[byte]int{}
			for buf := make([]byte, 2048); ; {
				n, _, err := unix.Recvfrom(fd, buf, 0)
				if err != nil {
					break // there are no more
				}
				if b := buf[:n]; n > 28 && b[0] == 0x45 && b[9] == unix.IPPROTO_UDP && int(b[22])<<8|int(b[23]) == rocePort {
					seen[b[1]]++
				}
			}
			// The connection manager's own packets do not have it.
			if seen[class] < 20 || options == "" && len(seen) != 1 {
				t.Errorf("packets by their traffic class: %v, want 20 and more of %#x", seen, class)
			}
		})
	}
}

// TestPerfProgress: on a terminal a test tells how far it is, and clears the line in the end. In a pipe
// there is nothing but the result.
func TestPerfProgress(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.AnyTransport, testenv.Perftest)
	testenv.Guest(t)
	_, port := perfServe(t)
	out, err := perf(t, port, "write-bw", "-D", "1500ms", "-s", "100")
	if rows := strings.Split(out, "\n"); err != nil || len(rows) != 3 || !strings.HasPrefix(strings.TrimSpace(rows[0]), "bytes ") || strings.ContainsAny(out, "\r\x1b") {
		t.Errorf("in a pipe: %v, %q", err, out)
	}
	screen, tty := testenv.PTY(t, os.O_RDWR)
	line := perfLine(port, "write-bw", "-D", "2s", "-s", "100")
	cmd := exec.CommandContext(timed(t), line[0], line[1:]...)
	cmd.Stderr = tty
	must(t, cmd.Start())
	shown := make(chan string)
	go func() {
		var all []byte
		for buf := make([]byte, 4096); ; {
			n, err := screen.Read(buf)
			all = append(all, buf[:n]...)
			if err != nil { // nobody has the other end any more
				shown <- string(all)
				return
			}
		}
	}()
	if err := tty.Close(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	select {
	case text := <-shown:
		lines := strings.Split(text, "\r\x1b[K")
		told := slices.DeleteFunc(slices.Clone(lines), func(s string) bool {
			return !strings.HasPrefix(s, "100 bytes: ") || !strings.Contains(s, " completions, ")
		})
		if len(told) < 2 || lines[len(lines)-1] != "" {
			t.Errorf("on the screen was %q", text)
		}
	case <-time.After(30 * time.Second):
		t.Error("the terminal does not end")
	}
}
