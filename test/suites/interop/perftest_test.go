package interop

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// perftestResult is what is looked at of our result.
type perftestResult struct {
	Test    string
	Client  struct{ Device, Perftest string }
	Server  struct{ Device, Perftest string }
	Results []struct {
		Size       int
		Iterations int64
		Latency    *struct {
			Samples int
			Median  float64 `json:"median_us"`
		}
		Bandwidth *struct {
			Rate float64 `json:"messages_per_s"`
		}
	}
}

// perftestVersion asks a program of perftest for the version that it tells its peer.
func perftestVersion(t *testing.T) string {
	t.Helper()
	out, _ := exec.Command("ib_send_lat", "--version").CombinedOutput() // its status says nothing
	_, version, ok := strings.Cut(string(out), "Version: ")
	if !ok {
		t.Fatalf("ib_send_lat --version: %q", out)
	}
	return strings.Fields(version)[0]
}

// perftestPair runs a test, with a program of perftest at one side and our command at the other.
type perftestPair struct {
	test   string // such as send-lat
	server bool   // ours is the server
	cm     bool
	theirs string // options
	ours   string
	row    int // size of a row that perftest must print; 0 if it prints none
}

// ackTimeout is for how long both sides wait for an acknowledgement: 4.096 µs times 2 to this
// power, 4.3 s. perftest's default is 67 ms, which is too short on a machine that is very busy.
// Then rxe sends packets again, and on Linux 6.1 that may end a queue pair with messages of several
// packets under way, at either side and with one of several errors, or deliver a message twice. It
// is the driver and neither program: with perftest 6.06 at both sides, -b -q 2 -s 3000 -n 200 and
// busy processors, 1 of 30 runs failed with the default and 900 packets came twice; with -u 21 none
// of 15 failed, and no packet came twice.
const ackTimeout = "20"

// play plays it.
func (p perftestPair) play(t *testing.T) perftestResult {
	t.Helper()
	number, port := cmPort()
	theirs := append([]string{"ib_" + strings.ReplaceAll(p.test, "-", "_"), "-p", port, "-u", ackTimeout}, strings.Fields(p.theirs)...)
	ours := append([]string{os.Getenv(VerbsEnv), "perf", p.test, "--perftest", "--json", "--port", port, "--ack-timeout", ackTimeout}, strings.Fields(p.ours)...)
	if p.cm {
		theirs, ours = append(theirs, "-R"), append(ours, "--cm")
	}
	if !p.cm {
		theirs = append(theirs, "-d", dev1)
	}
	serverLine, clientLine := theirs, append(ours, ServerAddr)
	if p.server {
		serverLine, clientLine = ours, append(theirs, ServerAddr)
	}
	server := program.Launch(t, serverLine...)
	if p.cm {
		serving(t, server, netlinkrdma.PortSpaceTCP, number)
	} else {
		server.Until(t, "listen", func() bool { return listens(t, int(number)) })
	}
	client := program.Launch(t, clientLine...)
	clientOut, serverOut := client.Wait(t), server.Wait(t)
	out, other := clientOut, serverOut
	if p.server {
		out, other = serverOut, clientOut
	}
	var r perftestResult
	_, document, _ := strings.Cut(out, "{") // behind what it says on standard error
	if err := json.Unmarshal([]byte("{"+document), &r); err != nil {
		t.Fatalf("%v: %q", err, out)
	}
	if p.row != 0 && !perftestRow(other, p.row) {
		t.Errorf("perftest has no row of %d bytes", p.row)
	}
	return r
}

// perftestRow reports whether a size is in perftest's table.
func perftestRow(out string, size int) bool {
	for l := range strings.Lines(out) {
		if f := strings.Fields(l); len(f) > 3 && f[0] == strconv.Itoa(size) {
			return true
		}
	}
	return false
}

// listens reports whether somebody listens on a TCP port.
func listens(t *testing.T, port int) bool {
	t.Helper()
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err == nil && listening(string(b), port) {
			return true
		}
	}
	return false
}

// perftestKinds are the types of queue pairs that an operation has.
var perftestKinds = map[string][]string{"send": {"RC", "UC", "UD"}, "write": {"RC", "UC"}, "read": {"RC"}, "atomic": {"RC"}}

// TestPerftest plays each test with perftest's programs, over TCP and with -R: RC in both roles, and
// the other types in one.
func TestPerftest(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.Guest(t)
	version := perftestVersion(t)
	turn := true // the role that the next of the other types is played in is the other
	for _, op := range []string{"send", "write", "read", "atomic"} {
		for _, metric := range []string{"lat", "bw"} {
			for _, kind := range perftestKinds[op] {
				for _, cm := range []bool{false, true} {
					if cm && kind == "UC" {
						continue // rdma_cm does not have it
					}
					turn = !turn
					for _, server := range []bool{false, true} {
						if kind != "RC" && server != turn {
							continue
						}
						t.Run(fmt.Sprintf("%s-%s %s cm=%v server=%v", op, metric, kind, cm, server), func(t *testing.T) {
							t.Parallel()
							needsPerf(t, op, strings.ToLower(kind))
							if !cm {
								testenv.NeedsIB(t, "connections without the manager")
							}
							if !cm && op == "atomic" {
								needsNewer(t, "atomics between two devices")
							}
							if server && op == "write" && metric == "lat" {
								testenv.NeedsIB(t, "servers that send first")
							}
							playPerftest(t, version, op, metric, kind, cm, server)
						})
					}
				}
			}
		}
	}
}

// playPerftest plays one test.
func playPerftest(t *testing.T, version, op, metric, kind string, cm, server bool) {
	const n = 10
	p := perftestPair{
		test: op + "-" + metric, server: server, cm: cm,
		theirs: fmt.Sprintf("-F -n %d -c %s", n, kind),
		ours:   fmt.Sprintf("-n %d --type %s", n, strings.ToLower(kind)),
	}
	size := 8
	if op != "atomic" {
		size = 64
		p.theirs, p.ours = p.theirs+" -s 64", p.ours+" -s 64"
	}
	latency := metric == "lat"
	if server || !latency || op == "send" || op == "write" {
		p.row = size
	}
	r := p.play(t)
	if server && latency {
		return // only the client measures
	}
	want := int64(n)
	if latency {
		want-- // from one doorbell to the next
	}
	if r.Test != p.test || len(r.Results) != 1 || r.Results[0].Size != size || r.Results[0].Iterations != want {
		t.Fatalf("%+v", r)
	}
	theirs := r.Server
	if server {
		theirs = r.Client
	}
	if theirs.Perftest != version {
		t.Errorf("the peer is %+v", theirs)
	}
	// A server tells what the client has measured. perftest's measures its clock first, and if that
	// fails, as it may on a busy machine, everything takes no time, or for ever.
	if res := r.Results[0]; latency && (res.Latency == nil || int64(res.Latency.Samples) != want || res.Latency.Median <= 0) ||
		!latency && (res.Bandwidth == nil || !server && res.Bandwidth.Rate <= 0) {
		t.Errorf("%+v", res)
	}
}

// TestPerftestOptions runs both directions, several QPs, whose receives either side may have in an
// SRQ, all sizes, compare and swap, and immediate data where perftest has that.
func TestPerftestOptions(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.Guest(t)
	datagrams := []int{2, 4, 8, 16, 32, 64, 128, 256, 512, 1024} // up to the path MTU
	if rig.InfiniBand() {
		datagrams = append(datagrams, 2048, 4096)
	}
	for _, server := range []bool{false, true} {
		for _, c := range []struct {
			test, theirs, ours string
			cm                 bool
			sizes              []int
			count              int64 // messages of each size, both directions
		}{
			{test: "send-bw", theirs: "-b -q 2 -s 3000 -n 200", ours: "--both --qps 2 --size 3000 -n 200", sizes: []int{3000}, count: 800},
			{test: "send-bw", theirs: "--use-srq -q 2 -s 64 -n 200", ours: "--qps 2 --size 64 -n 200", sizes: []int{64}, count: 400},
			{test: "send-bw", theirs: "-q 2 -s 64 -n 200 -b", ours: "--use-srq --qps 2 --size 64 -n 200 -b", sizes: []int{64}, count: 800},
			{test: "send-lat", theirs: "--use-srq -s 64 -n 20", ours: "--use-srq --size 64 -n 20", sizes: []int{64}, count: 20},
			{test: "send-bw", theirs: "-e -X 1 --pkey_index=0 -s 64 -n 200", ours: "--events --vector 1 --pkey-index 0 -s 64 -n 200", sizes: []int{64}, count: 200},
			{test: "atomic-lat", theirs: "-A CMP_AND_SWAP -n 20", ours: "--atomic-type swap -n 20", cm: true, sizes: []int{8}, count: 20},
			{test: "atomic-bw", theirs: "-A CMP_AND_SWAP -n 200 -q 2", ours: "--atomic-type swap -n 200 -q 2", cm: true, sizes: []int{8}, count: 400},
			{test: "write-bw", theirs: "-b -q 2 -s 100 -n 200", ours: "--both --qps 2 --size 100 -n 200", cm: true, sizes: []int{100}, count: 800},
			{test: "send-lat", theirs: "-a -c UD -n 5", ours: "--all --type ud -n 5", sizes: datagrams, count: 5},
		} {
			if server && len(c.sizes) > 1 {
				continue
			}
			t.Run(fmt.Sprintf("%s %s server=%v", c.test, c.theirs, server), func(t *testing.T) {
				t.Parallel()
				needsPerf(t, c.test, typeOf(strings.ReplaceAll(c.ours, "--type", "-t")))
				if server && strings.Contains(c.theirs, "-b") && c.test != "send-bw" {
					testenv.NeedsIB(t, "servers that send first")
				}
				if strings.Contains(c.theirs+c.ours, "--use-srq") || strings.Contains(c.ours, "--pkey-index") {
					testenv.NeedsIB(t, "connections without the manager")
				}
				row := c.sizes[len(c.sizes)-1]
				if c.test == "atomic-lat" && !server { // perftest's server only waits
					row = 0
				}
				r := perftestPair{test: c.test, server: server, cm: c.cm || rig.IWARP(), theirs: "-F " + c.theirs, ours: c.ours, row: row}.play(t)
				if server && strings.HasSuffix(c.test, "-lat") {
					return // only the client measures
				}
				if len(r.Results) != len(c.sizes) {
					t.Fatalf("%+v", r)
				}
				count := c.count
				if !server && strings.HasSuffix(c.test, "-lat") {
					count-- // from one doorbell to the next
				}
				for i, res := range r.Results {
					if res.Size != c.sizes[i] || res.Iterations != count {
						t.Errorf("%+v, expected %d messages of %d bytes", res, count, c.sizes[i])
					}
				}
			})
		}
	}
}

// endlessLine is a line of a test without an end in which there are messages.
var endlessLine = regexp.MustCompile(`, [1-9]\d* messages, \d+ per second, `)

// TestPerftestEndless measures with a server of perftest that has no end, until interrupted.
func TestPerftestEndless(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.Guest(t)
	for _, test := range []string{"write-bw", "read-bw", "send-bw"} {
		for _, cm := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s cm=%v", test, cm), func(t *testing.T) {
				if !cm {
					testenv.NeedsIB(t, "connections without the manager")
				}
				number, port := cmPort()
				theirs := []string{"ib_" + strings.ReplaceAll(test, "-", "_"), "-F", "-p", port, "--run_infinitely", "-s", "64"}
				ours := []string{os.Getenv(VerbsEnv), "perf", test, "--perftest", "--json", "--run-infinitely", "-D", "100ms", "-s", "64", "--port", port, ServerAddr}
				if cm {
					theirs, ours = append(theirs, "-R"), append(ours, "--cm")
				} else {
					theirs = append(theirs, "-d", dev1)
				}
				server := program.Launch(t, theirs...)
				if cm {
					serving(t, server, netlinkrdma.PortSpaceTCP, number)
				} else {
					server.Until(t, "listen", func() bool { return listens(t, int(number)) })
				}
				client := program.Launch(t, ours...)
				client.Until(t, "measured", func() bool { return endlessLine.MatchString(client.Output()) })
				client.Signal(os.Interrupt)
				out := client.Wait(t)
				if test == "send-bw" { // it goes on receiving
					server.Signal(os.Kill)
				}
				<-server.Ended
				_, document, _ := strings.Cut(out, "{")
				var r perftestResult
				if err := json.Unmarshal([]byte("{"+document), &r); err != nil || len(r.Results) != 1 || r.Results[0].Iterations == 0 || r.Results[0].Bandwidth.Rate <= 0 {
					t.Errorf("%v: %q", err, out)
				}
			})
		}
	}
}

// TestPerftestImm sends with immediate data, to perftest of any version, and from it and by WRITE with one that has
// the option.
func TestPerftestImm(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.Guest(t)
	testenv.NeedsIB(t, "immediate data")
	const ours = "--imm -s 64 -n 200"
	for _, c := range []struct{ test, theirs, ours string }{
		{"send-bw", "", ""},
		{"send-bw", "--send_with_imm", ""},
		{"send-lat", "--send_with_imm", ""},
		{"send-bw", "--send_with_imm -b -q 2", " -b -q 2 --use-srq"},
		{"send-bw", "--send_with_imm -c UD", " -t ud"},
		{"write-bw", "--write_with_imm", ""},
		{"write-lat", "--write_with_imm", ""},
		{"write-bw", "--write_with_imm -b -q 2", " -b -q 2"},
		{"write-bw", "--write_with_imm -c UC", " -t uc"},
	} {
		help, _ := exec.Command("ib_"+strings.ReplaceAll(c.test, "-", "_"), "--help").CombinedOutput() // its status says nothing
		option, _, _ := strings.Cut(c.theirs, " ")
		for _, server := range []bool{false, true} {
			for _, cm := range []bool{false, true} {
				if !strings.Contains(string(help), option) || c.theirs == "" && server || cm && (strings.Contains(c.theirs, "UC") || c.theirs == "") {
					continue
				}
				t.Run(fmt.Sprintf("%s %s cm=%v server=%v", c.test, c.theirs, cm, server), func(t *testing.T) {
					r := perftestPair{test: c.test, server: server, cm: cm, theirs: "-F -s 64 -n 200 " + c.theirs, ours: ours + c.ours, row: 64}.play(t)
					if len(r.Results) != 1 || !server && r.Results[0].Iterations == 0 {
						t.Errorf("%+v", r)
					}
				})
			}
		}
	}
}

// TestPerftestMismatch: settings that do not meet end with an error that says what to look at.
func TestPerftestMismatch(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.Guest(t)
	testenv.NeedsIB(t, "connections without the manager")
	from := fmt.Sprintf("perftest %s at 10.1.0.", perftestVersion(t))
	wrongGID := fmt.Sprintf("--gid is %d (fd00:1::1), allowed: one with an address of the family of the peer's GID, 10.1.0.", rig.GID6)
	for _, c := range []struct {
		test, program, theirs, ours string
		server                      bool
		want                        string
	}{
		{"send-lat", "ib_send_lat", "-s 64 -n 10", "-s 128 -n 10", true, "a message of 64 bytes has come, expected 128"},
		{"read-bw", "ib_read_bw", "-s 64 -n 10", "-s 128 -n 10", true, "the peer has run 10 messages of 64 bytes, and this side expected 10 of 128: it must run ib_read_bw -c RC -n 10 -s 128"},
		{"send-lat", "ib_send_lat", "-s 64 -n 10", "-s 64 -n 20 --timeout 1s", true, "nothing was completed for 1s: the peer may be gone, or a message lost; the peer must run ib_send_lat -c RC -n 20 -s 64"},
		{"send-bw", "ib_read_bw", "-s 64 -n 10", "-s 64 -n 10 --timeout 1s", false, "nothing was completed for 1s: the peer may be gone, or a message lost; the peer must run ib_send_bw -c RC -n 10 -s 64"},
		{"send-bw", "ib_send_bw", "-s 64 -n 10 -q 3", "-s 64 -n 10 -q 2", true, "the peer is at another point of the test: got the record of QP "},
		{"send-bw", "ib_send_bw", "-s 64 -n 10 -q 2", "-s 64 -n 10 -q 3", true, "it must run ib_send_bw -c RC -n 10 -s 64 -q 3"},
		{"write-bw", "ib_write_bw", "-s 64 -n 10 -q 2", "-s 64 -n 10", false, "the peer is at another point of the test: got the record of QP "},
		{"send-lat", "ib_send_lat", "-s 64 -n 10 -c UC", "-s 64 -n 10 --timeout 1s", true, "nothing was completed for 1s: the peer may be gone, or a message lost; the peer must run ib_send_lat -c RC -n 10 -s 64"},
		{"send-lat", "ib_send_lat", "-s 64 -n 10 -c UD", "-s 64 -n 10 --timeout 300ms", false, "nothing was completed for 300ms: the peer may be gone, or a message lost; the peer must run ib_send_lat -c RC -n 10 -s 64"},
		{"send-bw", "ib_send_bw", "-s 64 -n 10 -b", "-s 64 -n 10 --timeout 2s", true, "nothing came for 2s: it must run ib_send_bw -c RC -n 10 -s 64"},
		{"send-bw", "ib_send_bw", "-s 64 -D 1", "-s 64 -n 10", true, "more messages have come than the 10 of 64 bytes that were expected: it must run ib_send_bw -c RC -n 10 -s 64, without -D"},
		{"read-bw", "ib_read_bw", "-s 64 -D 1", "-s 64 -n 10", true, "and this side expected 10 of 64: it must run ib_read_bw -c RC -n 10 -s 64, without -D"},
		{"write-bw", "ib_write_bw", "-s 64 -n 10", "-s 64 -n 10 --both", false, "ib_write_bw -c RC -n 10 -s 64 -b"},
		{"send-lat", "ib_send_lat", "-s 64 -n 10", "-s 64 -n 10 -x GID6", false, wrongGID},
		{"send-lat", "ib_send_lat", "-s 64 -n 10 -R", "-s 64 -n 10 --cm -x GID6", false, wrongGID},
		{"send-lat", "ib_send_lat", "-s 64 -n 10 -R", "-s 64 -n 10", false, "no perftest server at " + ServerAddr + ":"},
		{"send-lat", "ib_send_lat", "-s 64 -n 10", "-s 64 -n 10 --cm", false, "(ib_send_lat -R): "},
		{"send-lat", "ib_send_lat", "-s 64 -n 10 -R", "-s 64 -n 10", true, ""},
	} {
		t.Run(c.program+" "+c.theirs+" "+c.ours, func(t *testing.T) {
			t.Parallel()
			if c.want == wrongGID {
				testenv.NeedsRoCE(t, "GIDs of IP addresses")
			}
			if c.test == "send-bw" && (c.program == "ib_read_bw" || strings.Contains(c.theirs, "-D ")) {
				needsNewer(t, "sends for which there are no receives for long")
			}
			number, port := cmPort()
			// Subtests have the same name whatever the index.
			own := strings.ReplaceAll(c.ours, "GID6", strconv.Itoa(int(rig.GID6)))
			theirs := append([]string{c.program, "-F", "-p", port}, strings.Fields(c.theirs)...)
			ours := append([]string{os.Getenv(VerbsEnv), "perf", c.test, "--perftest", "--port", port}, strings.Fields(own)...)
			serverLine, clientLine := theirs, append(ours, ServerAddr)
			if c.server {
				serverLine, clientLine = ours, append(theirs, ServerAddr)
			}
			server := program.Launch(t, serverLine...)
			if !c.server && strings.Contains(c.theirs, "-R") {
				serving(t, server, netlinkrdma.PortSpaceTCP, number)
			} else {
				server.Until(t, "listen", func() bool { return listens(t, int(number)) })
			}
			client := program.Launch(t, clientLine...)
			us, them := client, server
			if c.server {
				us, them = server, client
			}
			if c.want == "" { // nobody comes here, and there
				<-them.Ended
				us.Signal(os.Interrupt)
				<-us.Ended
				if out := us.Output(); them.Err == nil || us.Err == nil || !strings.Contains(out, "waiting for ib_send_lat on ") || strings.Contains(out, "was served") {
					t.Errorf("%s has ended with %v, and ours with %v: %q", them.Name, them.Err, us.Err, out)
				}
				return
			}
			<-us.Ended
			if us.Err == nil || !strings.Contains(us.Output(), c.want) || !strings.Contains(us.Output(), from) && !strings.Contains(us.Output(), "no perftest server") {
				t.Errorf("%v, %q, expected %q", us.Err, us.Output(), c.want)
			}
			them.Signal(os.Kill) // it may wait for ever
			<-them.Ended
		})
	}
}

// connectedQPs counts the queue pairs of both devices that are connected.
func connectedQPs(t *testing.T) (n int) {
	t.Helper()
	devices, err := netlinkrdma.Devices()
	must(t, err)
	for _, d := range devices {
		qps, err := netlinkrdma.QPs(d, netlinkrdma.ListOptions{})
		must(t, err)
		for _, q := range qps {
			if q.RemoteNum != 0 && q.State == ib.QPRTS {
				n++
			}
		}
	}
	return n
}

// TestPerftestKilled kills perftest in mid-run, which our side says long before its patience ends.
func TestPerftestKilled(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard, testenv.Perftest)
	testenv.NeedsIB(t, "manual QP state changes")
	testenv.Guest(t)
	from := fmt.Sprintf("perftest %s at 10.1.0.", perftestVersion(t))
	for _, c := range []struct {
		test, ours string
		server, cm bool
	}{
		{"send-lat", "", false, false}, {"send-lat", "--events", true, false}, {"write-lat", "", false, true}, {"send-bw", "", true, true},
	} {
		t.Run(fmt.Sprintf("%s cm=%v server=%v", c.test, c.cm, c.server), func(t *testing.T) {
			number, port := cmPort()
			const options = "-s 64 -n 1000000"
			theirs := line([]string{"ib_" + strings.ReplaceAll(c.test, "-", "_"), "-F", "-p", port}, strings.Fields(options)...)
			ours := line([]string{os.Getenv(VerbsEnv), "perf", c.test, "--perftest", "--port", port, "--timeout", "50s"}, strings.Fields(options+" "+c.ours)...)
			qps := 2
			if c.cm {
				theirs, ours, qps = append(theirs, "-R"), append(ours, "--cm"), 4
			} else {
				theirs = append(theirs, "-d", dev1)
			}
			serverLine, clientLine := theirs, append(ours, ServerAddr)
			if c.server {
				serverLine, clientLine = ours, append(theirs, ServerAddr)
			}
			before := connectedQPs(t)
			server := program.Launch(t, serverLine...)
			if c.cm {
				serving(t, server, netlinkrdma.PortSpaceTCP, number)
			} else {
				server.Until(t, "listened", func() bool { return listens(t, int(number)) })
			}
			client := program.Launch(t, clientLine...)
			us, them := client, server
			if c.server {
				us, them = server, client
			}
			us.Until(t, "had its queue pairs", func() bool { return connectedQPs(t) == before+qps })
			time.Sleep(time.Second) // a few messages of the handshake are left
			them.Signal(syscall.SIGKILL)
			<-them.Ended
			<-us.Ended
			if out := us.Output(); us.Err == nil || !strings.Contains(out, from) || !strings.Contains(out, "size 64: the peer has closed the connection") {
				t.Errorf("%v, %q", us.Err, out)
			}
		})
	}
}
