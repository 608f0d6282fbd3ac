package softrxe

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// softName is the software device of a program on the soft side.
const softName = "soft0"

// A place is where a program runs: with rxe0 in the namespace of the tests, or with a software device as
// nobody in that of the software device.
type place struct {
	soft bool
	addr netip.Addr // of the RDMA device
	tcp  netip.Addr // IPv4, as servers of rdma-core listen on no other
	dev  string
	gid  string // index of the GID of addr

	options string // more of the software device, in the text form of package soft
}

// places returns the place of the kernel's device and that of the software device, for a family of
// addresses.
func places(ipv6 bool) (rxe, software place) {
	rig := testenv.TheRig()
	rxe = place{addr: rxeAddr, tcp: rxeAddr, dev: kernelName, gid: strconv.Itoa(rig.GID)}
	software = place{soft: true, addr: softAddr, tcp: softAddr, dev: softName, gid: "1"}
	if ipv6 {
		rxe.addr, rxe.gid, software.addr = rxeAddr6, strconv.Itoa(rig.GID6), softAddr6
	}
	return rxe, software
}

// launch starts a program in the place.
func (p place) launch(t *testing.T, line ...string) *program.Program {
	t.Helper()
	if !p.soft {
		return program.Launch(t, line...)
	}
	return program.LaunchBy(t, func(cmd *exec.Cmd) error {
		cmd.Env = append(cmd.Environ(), "GOVERBS_SOFT="+p.addr.String()+p.options)
		if lab == nil {
			return cmd.Start()
		}
		return lab.nobody.start(cmd)
	}, line...)
}

// listens reports whether a program in the place listens on a TCP port.
func (p place) listens(port int) bool {
	dir := "/proc/thread-self/" // the first thread of the process may be in the namespace
	if p.soft {
		dir = lab.root.file("")
	}
	for _, file := range []string{"net/tcp", "net/tcp6"} {
		b, err := os.ReadFile(dir + file)
		if err == nil && listening(string(b), port) {
			return true
		}
	}
	return false
}

// listening reports whether a table of /proc/net has a listening socket on a port.
func listening(table string, port int) bool {
	const stateListen = "0A"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == stateListen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}

// nextPort gives each pair of programs a TCP port of its own.
var nextPort atomic.Int32

// pair runs a server and, when it listens, a client that gets the server's address as its last argument.
// Both get -p PORT.
func pair(t *testing.T, server, client place, serverLine, clientLine []string) (serverOut, clientOut string) {
	t.Helper()
	port := 20000 + int(nextPort.Add(1))
	common := []string{"-p", strconv.Itoa(port)}
	s := server.launch(t, append(serverLine[:len(serverLine):len(serverLine)], common...)...)
	s.Until(t, "listened", func() bool { return server.listens(port) })
	c := client.launch(t, append(append(clientLine[:len(clientLine):len(clientLine)], common...), server.tcp.String())...)
	clientOut = c.Wait(t)
	if c.Err != nil {
		s.Signal(os.Kill) // it would wait for a client that is gone
	}
	return s.Wait(t), clientOut
}

// verbs is the command line of our command.
func verbs(p place, words ...string) []string {
	return append(append([]string{os.Getenv("VERBS")}, words...), "-d", p.dev)
}

// mtu raises the MTU of the link so that the path MTU is 4096.
func raiseMTU(t *testing.T) {
	t.Helper()
	must(t, lab.setMTU(4200))
	t.Cleanup(func() {
		if err := lab.setMTU(1500); err != nil {
			t.Error(err)
		}
	})
}

// eachFamily runs a test with IPv4 and with IPv6 addresses.
func eachFamily(t *testing.T, test func(t *testing.T, rxe, software place)) {
	testenv.Guest(t)
	for _, ipv6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[ipv6], func(t *testing.T) {
			rxe, software := places(ipv6)
			test(t, rxe, software)
		})
	}
}

// eachRole runs a test with the software device at the server and at the client.
func eachRole(t *testing.T, rxe, software place, test func(t *testing.T, server, client place)) {
	t.Run("server rxe", func(t *testing.T) { test(t, rxe, software) })
	t.Run("server soft", func(t *testing.T) { test(t, software, rxe) })
}

// pingpongs are the options of ping-pongs. Both programs know them.
var pingpongs = []string{"-n 30", "-e -n 300", "-e -s 1 -n 100", "-e -s 65536 -n 50", "-e -s 20000 -n 50 -c", "-e -m 256 -r 10 -n 100", "-e -m 512 -s 10001 -n 100"}

// TestPingpong plays our ping-pong on the software device with rdma-core's and with ours on rxe.
func TestPingpong(t *testing.T) {
	eachFamily(t, func(t *testing.T, rxe, software place) {
		for _, options := range pingpongs {
			t.Run(options, func(t *testing.T) {
				eachRole(t, rxe, software, func(t *testing.T, server, client place) {
					for _, core := range []bool{true, false} {
						line := func(p place) []string {
							words := strings.Fields(options)
							if p.soft || !core {
								return verbs(p, append([]string{"pingpong", "-g", p.gid}, words...)...)
							}
							return append([]string{"ibv_rc_pingpong", "-d", p.dev, "-g", p.gid}, words...)
						}
						pingpong(t, server, client, line)
					}
				})
			})
		}
	})
}

// TestPingpongTypes is TestPingpong with the types of queue pairs other than RC.
func TestPingpongTypes(t *testing.T) {
	eachFamily(t, func(t *testing.T, rxe, software place) {
		for _, c := range []struct{ typ, options string }{
			{"uc", "-n 30"}, {"uc", "-e -n 300"}, {"uc", "-e -s 1 -n 100"}, {"uc", "-e -s 20000 -n 50"}, {"uc", "-e -m 512 -s 10001 -n 100"},
			{"ud", "-s 1024 -n 30"}, {"ud", "-e -s 1024 -n 300"}, {"ud", "-e -s 1 -n 100"},
			{"srq", "-n 300"}, {"srq", "-e -n 300 -q 1"}, {"srq", "-c -n 300 -s 20000 -q 5 -r 6"},
		} {
			t.Run(c.typ+" "+c.options, func(t *testing.T) {
				eachRole(t, rxe, software, func(t *testing.T, server, client place) {
					line := func(p place) []string {
						l := []string{"ibv_" + c.typ + "_pingpong", "-d", p.dev}
						if p.soft {
							l = verbs(p, "pingpong", "--type", c.typ)
						}
						return append(append(l, "-g", p.gid), strings.Fields(c.options)...)
					}
					pingpong(t, server, client, line)
				})
			})
		}
	})
}

// pingpong plays a ping-pong with the command lines of both places.
func pingpong(t *testing.T, server, client place, line func(place) []string) {
	t.Helper()
	so, co := pair(t, server, client, line(server), line(client))
	for _, out := range []string{so, co} {
		if !strings.Contains(out, "iters in ") {
			t.Errorf("no result: %q", out)
		}
	}
}

// TestPingpongMTU is TestPingpong with a path MTU of 4096.
func TestPingpongMTU(t *testing.T) {
	eachFamily(t, func(t *testing.T, rxe, software place) {
		raiseMTU(t)
		eachRole(t, rxe, software, func(t *testing.T, server, client place) {
			line := func(p place) []string {
				if p.soft {
					return verbs(p, "pingpong", "-g", p.gid, "-m", "4096", "-s", "100000", "-n", "30")
				}
				return []string{"ibv_rc_pingpong", "-d", p.dev, "-g", p.gid, "-m", "4096", "-s", "100000", "-n", "30"}
			}
			pingpong(t, server, client, line)
		})
	})
}

// operations are the tests of perftest and verbs perf, with the types of queue pairs that have them.
var operations = []struct {
	name  string
	types []string
}{
	{"send-lat", []string{"rc", "uc", "ud"}},
	{"send-bw", []string{"rc", "uc", "ud"}},
	{"write-lat", []string{"rc", "uc"}},
	{"write-bw", []string{"rc", "uc"}},
	{"read-lat", []string{"rc"}},
	{"read-bw", []string{"rc"}},
	{"atomic-lat", []string{"rc"}},
	{"atomic-bw", []string{"rc"}},
}

// answers reports whether the device at a place answers the requests of an operation. In Linux 5.10, the answers
// to atomics (send_atomic_ack of rxe_resp.c) do not arrive at any other device, not even at another rxe.
func (p place) answers(t *testing.T, op string) bool {
	t.Helper()
	kernel := testenv.Kernel(t)
	return p.soft || !strings.HasPrefix(op, "atomic") || slices.Compare(kernel[:], []int{6, 1}) >= 0
}

// perfReport is the part of the output of "verbs perf --json" that the tests check.
type perfReport struct {
	Results []struct {
		Size, Iterations, Lost int
		Verified               bool
	}
}

// TestPerf runs each test of verbs perf with the received data compared.
func TestPerf(t *testing.T) {
	eachFamily(t, func(t *testing.T, rxe, software place) {
		eachRole(t, rxe, software, func(t *testing.T, server, client place) {
			port := perfServe(t, server)
			for _, op := range operations {
				if !server.answers(t, op.name) {
					continue
				}
				for _, typ := range op.types {
					t.Run(op.name+" "+typ, func(t *testing.T) { perf(t, client, server.addr, port, op.name, typ, 40) })
				}
			}
		})
	})
}

// perfServe starts a server of verbs perf and returns its port.
func perfServe(t *testing.T, server place) int {
	t.Helper()
	port := 20000 + int(nextPort.Add(1))
	s := server.launch(t, verbs(server, "perf", "serve", "-p", strconv.Itoa(port))...)
	s.Until(t, "listened", func() bool { return server.listens(port) })
	s.KeepRunning()
	return port
}

// perf runs a client of verbs perf with n iterations.
func perf(t *testing.T, client place, server netip.Addr, port int, op, typ string, n int) {
	words := []string{"perf", op, server.String(), "-p", strconv.Itoa(port), "-t", typ, "-n", strconv.Itoa(n), "--json"}
	verify := op != "write-bw" || typ != "uc" // the last data may come after the client's word that it is done
	if verify {
		words = append(words, "-V")
	}
	sizes := 1
	if !strings.HasPrefix(op, "atomic") {
		list := "1000,2"
		if typ != "ud" {
			list = "65536,1000,2"
		}
		sizes = strings.Count(list, ",") + 1
		words = append(words, "-s", list)
	}
	out := client.launch(t, verbs(client, words...)...).Wait(t)
	var r perfReport
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Results) != sizes {
		t.Fatalf("%v: %q", err, out)
	}
	for _, row := range r.Results {
		if row.Iterations != n || row.Verified != verify || row.Lost != 0 {
			t.Errorf("result is %+v", row)
		}
	}
}

// TestPerftest plays each test of verbs perf on the software device with the program of perftest on rxe. The
// programs neither send data that is known nor look at what comes; TestPerf compares the data of the same tests.
func TestPerftest(t *testing.T) {
	eachFamily(t, func(t *testing.T, rxe, software place) {
		eachRole(t, rxe, software, func(t *testing.T, server, client place) {
			for _, op := range operations {
				if !server.answers(t, op.name) {
					continue
				}
				for _, typ := range op.types {
					t.Run(op.name+" "+typ, func(t *testing.T) { perftest(t, server, client, op.name, typ) })
				}
			}
		})
	})
}

// perftest plays a test with perftest on the side of rxe.
func perftest(t *testing.T, server, client place, op, typ string) {
	const ackTimeout = "18" // 1 s: the guest may be slow
	line := func(p place) []string {
		size := []string{"-s", "5000"}
		switch {
		case typ == "ud":
			size[1] = "1000"
		case strings.HasPrefix(op, "atomic"):
			size = nil
		}
		if p.soft {
			l := verbs(p, "perf", op, "--perftest", "--json", "-x", p.gid, "-t", typ, "-n", "50", "--ack-timeout", ackTimeout)
			return append(l, size...)
		}
		l := []string{"ib_" + strings.ReplaceAll(op, "-", "_"), "-F", "-d", p.dev, "-x", p.gid, "-c", strings.ToUpper(typ), "-n", "50", "-u", ackTimeout}
		return append(l, size...)
	}
	so, co := pair(t, server, client, line(server), line(client))
	out := so
	if client.soft {
		out = co
	}
	results := 1
	if server.soft && (op == "read-lat" || op == "atomic-lat") {
		results = 0 // only the client measures
	}
	var r perfReport
	_, document, _ := strings.Cut(out, "{") // behind its messages on standard error
	if err := json.Unmarshal([]byte("{"+document), &r); err != nil || len(r.Results) != results {
		t.Errorf("%v: %q", err, out)
	}
}
