package interop

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// perfReport is what "verbs perf --json" prints, as far as it is looked at.
type perfReport struct {
	Schema         int
	Test           string
	Client, Server struct {
		Device, Driver, GID string
		Address             string `json:"control_address"`
	}
	Results []struct {
		Size, Iterations, Lost int
		Seconds                float64
		Verified               bool
		ClientCPU              float64 `json:"client_cpu"`
		ServerCPU              float64 `json:"server_cpu"`
		Latency                *struct {
			Samples   int
			Min       float64 `json:"min_us"`
			Median    float64 `json:"median_us"`
			P99       float64 `json:"p99_us"`
			Max       float64 `json:"max_us"`
			Histogram []struct{ Count int }
		}
		Bandwidth *struct {
			MiB      float64 `json:"mib_per_s"`
			Messages float64 `json:"messages_per_s"`
		}
	}
}

// perfServe starts a server of any number of clients, and returns it and its port.
func perfServe(t *testing.T, options ...string) (*program.Program, string) {
	t.Helper()
	number, port := cmPort()
	p := program.Launch(t, line([]string{os.Getenv(VerbsEnv), "perf", "serve", "-p", port}, options...)...)
	p.Until(t, "listened", func() bool {
		b, _ := os.ReadFile("/proc/net/tcp6")
		return listening(string(b), int(number))
	})
	p.KeepRunning()
	return p, port
}

// perfLine is the command line of a client. On iWARP there is no connection without the manager.
func perfLine(port, test string, options ...string) []string {
	l := []string{os.Getenv(VerbsEnv), "perf", test, ServerAddr, "-p", port}
	if rig.IWARP() {
		l = append(l, "--cm")
	}
	return append(l, options...)
}

// perf runs a client, and returns its output.
func perf(t *testing.T, port, test string, options ...string) (string, error) {
	t.Helper()
	line := perfLine(port, test, options...)
	out, err := exec.CommandContext(timed(t), line[0], line[1:]...).CombinedOutput()
	return string(out), err
}

// perfJSON runs a client, which must succeed, and returns its report.
func perfJSON(t *testing.T, port, test string, options ...string) perfReport {
	t.Helper()
	out, err := perf(t, port, test, append([]string{"--json"}, options...)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var r perfReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("no JSON: %v\n%s", err, out)
	}
	if r.Schema != 1 || r.Test != test || r.Client.Device == "" || r.Server.Address != ServerAddr+":"+port || len(r.Results) == 0 {
		t.Errorf("report is %+v", r)
	}
	return r
}

// perfTests are the tests and the types of queue pairs that have them.
var perfTests = map[string][]string{
	"send-lat": {"rc", "uc", "ud"}, "send-bw": {"rc", "uc", "ud"}, "write-lat": {"rc", "uc"}, "write-bw": {"rc", "uc"},
	"read-lat": {"rc"}, "read-bw": {"rc"}, "atomic-lat": {"rc"}, "atomic-bw": {"rc"},
}

// needsPerf skips what iWARP has not.
func needsPerf(t *testing.T, test, typ string) {
	t.Helper()
	if typ != "rc" {
		testenv.NeedsIB(t, "QP types other than RC")
	}
	if strings.HasPrefix(test, "atomic") {
		testenv.NeedsIB(t, "atomics")
	}
}

// TestPerf runs each test over each type, with the data compared, by one server.
func TestPerf(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	testenv.Guest(t)
	const n = 20
	_, port := perfServe(t)
	for test, types := range perfTests {
		for _, typ := range types {
			for _, options := range [][]string{nil, {"--cm"}} {
				if options != nil && typ == "uc" {
					continue // the connection manager has no uc
				}
				t.Run(strings.Join(append([]string{test, typ}, options...), " "), func(t *testing.T) {
					needsPerf(t, test, typ)
					options := append([]string{"-t", typ, "-n", strconv.Itoa(n), "-V"}, options...)
					if !strings.HasPrefix(test, "atomic") {
						options = append(options, "-s", "800,2")
					}
					for _, r := range perfJSON(t, port, test, options...).Results {
						if r.Iterations != n || r.Seconds <= 0 || !r.Verified || r.Lost != 0 {
							t.Errorf("result is %+v", r)
						}
						if strings.HasSuffix(test, "-bw") {
							if r.Latency != nil || r.Bandwidth == nil || r.Bandwidth.Messages <= 0 || r.Bandwidth.MiB <= 0 {
								t.Errorf("result is %+v", r)
							}
							continue
						}
						l := r.Latency
						if l == nil || r.Bandwidth != nil || l.Samples != n || l.Min <= 0 || l.Median < l.Min || l.P99 < l.Median || l.Max < l.P99 {
							t.Fatalf("result is %+v, %+v", r, l)
						}
						sum := 0
						for _, b := range l.Histogram {
							sum += b.Count
						}
						if sum != n {
							t.Errorf("%d in the histogram", sum)
						}
					}
				})
			}
		}
	}
}

// longestMessage returns the length of the longest message of the first device, in bytes. That of rxe
// depends on the kernel.
func longestMessage(t *testing.T) int {
	t.Helper()
	dev, err := uverbs.Open(dev0, uverbs.OpenOptions{})
	must(t, err)
	defer dev.Close()
	attr, err := dev.Port(1)
	must(t, err)
	return int(attr.MaxMsgSize)
}

// TestPerfRefused: what cannot be is refused with what can.
func TestPerfRefused(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	testenv.Guest(t)
	testenv.Needs(t, "limits of rxe", "rxe")
	_, port := perfServe(t)
	most := longestMessage(t)
	for _, c := range []struct{ test, options, want string }{
		{"send-lat", "-s 0", "--size is 0, allowed: 1 to"},
		{"send-lat", fmt.Sprint("-s ", most+1), fmt.Sprintf("--size is %d, allowed: 1 to %d", most+1, most)},
		{"send-bw", "-t ud -s 65536", "--size is 65536, allowed: 1 to 1024, the MTU of rxe0"},
		{"send-bw", "-I 60000", "--inline is 60000, allowed on rxe0: 0 to 512 bytes"},
		{"send-bw", "-I 70000", "--inline is 70000, allowed on rxe0: 0 to 512 bytes"},
		{"send-lat", "-I 70000 -R", "--inline is 70000, allowed on rxe0: 0 to 512 bytes"},
		{"send-lat", "-x 99", "GID index is 99, allowed: "},
		{"send-lat", "-d rxe9", "rxe9"},
		{"send-lat", "-i 2", "--ib-port is 2, allowed: 1 to 1, the ports of rxe0"},
		{"send-lat", "-m 4096", "--mtu is 4096, allowed: up to 1024"},
		{"send-bw", "--depth 1000000", "is 1000000, allowed: up to "},
		{"send-lat", "--huge-pages", "huge pages"},
		{"send-bw", "-q 1000 -s 8388608 --depth 8 -r 8", "which this machine has: a smaller --size, or fewer --qps"},
		{"send-lat", "-R --mtu 512", "--mtu is 512, but with --cm"},
		{"send-lat", "-R --sl 1", "--sl is 1, but with --cm"},
		{"send-lat", "--cpu 64", "--cpu is 64, allowed: a processor that this process may use"},
		{"send-bw", "--dmabuf " + os.Getenv(VerbsEnv), "--dmabuf: "},
	} {
		out, err := perf(t, port, c.test, strings.Fields(c.options)...)
		if err == nil || !strings.Contains(out, c.want) || strings.Contains(out, "is gone") {
			t.Errorf("%s %s: %v, want %q\n%s", c.test, c.options, err, c.want, out)
		}
	}
	const family = "allowed: one with an address of the family of the peer's GID, "
	for _, options := range []string{"-x 2 -R", "-x 2 -R -t ud"} {
		out, err := perf(t, port, "send-lat", strings.Fields(options)...)
		if want := "--gid is 2 (fd00:1::1), " + family + "10.1.0.1: "; err == nil || !strings.Contains(out, want) || !strings.Contains(out, "1 (10.1.0.1)") {
			t.Errorf("%s to an address of IPv4: %v, want %q\n%s", options, err, want, out)
		}
	}
	_, port = perfServe(t, "-x", "1")
	for _, options := range []string{"-x 2", "-x 2 -t ud"} {
		out, err := perf(t, port, "send-lat", strings.Fields(options)...)
		if want := `says: "--gid is 1 (10.1.0.1), ` + family + "fd00:1::1: "; err == nil || !strings.Contains(out, want) || !strings.Contains(out, "2 (fd00:1::1)") {
			t.Errorf("%s to an address of IPv4: %v, want %q\n%s", options, err, want, out)
		}
	}
	server, port := perfServe(t, "--dmabuf", os.Getenv(VerbsEnv))
	if out, err := perf(t, port, "send-bw"); err == nil || !strings.Contains(out, `says: "it cannot go on, and its own output says why"`) || strings.Contains(out, "dmabuf") {
		t.Errorf("a server without a dma-buf: %v\n%s", err, out)
	}
	// It tells the client first.
	server.Until(t, "said that it has no dma-buf", func() bool { return strings.Contains(server.Output(), "--dmabuf: ") })
	if out, err := perf(t, "9", "send-lat"); err == nil || !strings.Contains(out, "no perf server at "+ServerAddr+":9") {
		t.Errorf("nobody serves: %v\n%s", err, out)
	}
}

// TestPerfIWARP: what iWARP has not is refused, and says so.
func TestPerfIWARP(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	testenv.Guest(t)
	testenv.Needs(t, "iWARP", "siw")
	_, port := perfServe(t)
	for _, c := range []struct{ test, options, want string }{
		{"send-lat", "", "--cm is missing: " + dev0 + " is of iWARP"},
		{"send-lat", "--cm -t ud", "QP type UD not supported by driver siw"},
		{"write-bw", "-t uc", "QP type UC not supported by driver siw"},
		{"atomic-lat", "--cm", "atomics not supported by driver siw"},
		{"send-lat", "--cm -x 0", "--gid is 0, allowed: none, as " + dev0 + " is of iWARP"},
	} {
		out, err := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), line([]string{"perf", c.test, ServerAddr, "-p", port}, strings.Fields(c.options)...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.want) {
			t.Errorf("%s %s: %v, want %q\n%s", c.test, c.options, err, c.want, out)
		}
	}
	for _, dev := range []string{dev0, dev1} {
		r := perfJSON(t, port, "send-lat", "-n", "20", "-d", dev)
		if r.Client.Device != dev || r.Server.Device != dev0 || r.Client.GID != "" {
			t.Errorf("asked for %s, it was %+v", dev, r)
		}
	}
}

// TestPerfServerKilled kills the server while a test runs, which the client says.
func TestPerfServerKilled(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.Guest(t)
	for _, c := range []struct{ test, options string }{
		{"send-lat", "-D 1m"}, {"write-lat", "-D 1m"}, {"read-lat", "-D 1m"}, {"send-bw", "-D 1m"}, {"send-bw", "-D 1m -t ud -s 64"}, {"send-lat", "-D 1m -e"},
		{"write-bw", "-D 1m --both"}, {"send-lat", "-D 1m --cm"}, {"write-bw", "-D 1m -q 3 --both --cm"}, {"send-bw", "-D 1m -e --cm"},
	} {
		t.Run(c.test+" "+c.options, func(t *testing.T) {
			needsPerf(t, c.test, typeOf(c.options))
			server, port := perfServe(t)
			client := program.Launch(t, perfLine(port, c.test, strings.Fields(c.options)...)...)
			server.Until(t, "had the client", func() bool { return strings.Contains(server.Output(), " begins: "+c.test) })
			time.Sleep(100 * time.Millisecond)
			server.Signal(syscall.SIGKILL)
			began := time.Now()
			<-client.Ended
			if out := client.Output(); client.Err == nil || !strings.Contains(out, "server "+ServerAddr+":"+port+" is gone") {
				t.Errorf("%v\n%s", client.Err, out)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("the client needs %s to see it", took)
			}
		})
	}
}

// TestPerfClients: a server takes clients at once, and goes on when one is killed or says nothing.
func TestPerfClients(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.Guest(t)
	server, port := perfServe(t)
	var at []*program.Program
	for i := range 3 {
		at = append(at, program.Launch(t, perfLine(port, "send-bw", "-n", "200", "-s", fmt.Sprint(100+i), "-V")...))
	}
	for _, p := range at {
		p.Wait(t)
	}
	n := len(at) // clients so far
	tests := []string{"send-lat -D 1m", "send-bw -D 1m -b -r 8000", "write-lat -D 1m"}
	if !rig.IWARP() {
		tests = append(tests, "send-bw -D 1m -e -t ud -s 64")
	}
	for _, options := range tests {
		f := strings.Fields(options)
		killed := program.Launch(t, perfLine(port, f[0], f[1:]...)...)
		n++
		server.Until(t, "had the client", func() bool { return strings.Count(server.Output(), " begins: ") == n })
		time.Sleep(100 * time.Millisecond)
		killed.Signal(syscall.SIGKILL)
		<-killed.Ended
		server.Until(t, "missed the client", func() bool { return strings.Count(server.Output(), " is gone: ") == n-len(at) })
	}
	silent, err := net.Dial("tcp", net.JoinHostPort(ServerAddr, port))
	must(t, err)
	defer silent.Close()
	if r := perfJSON(t, port, "send-lat", "-n", "5"); r.Results[0].Iterations != 5 {
		t.Errorf("afterwards: %+v", r)
	}
	server.Signal(syscall.SIGTERM)
	server.Wait(t)
}
