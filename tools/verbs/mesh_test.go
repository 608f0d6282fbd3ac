package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/mesh"
)

const meshSecret = "0123456789abcdef0123456789abcdef"

// meshFleet starts four servers of a fleet, each a process with a software device, and returns their
// names. The second one has faults. With two rails each has a second device, without faults.
func meshFleet(t *testing.T, faults string, rails int) (hosts []string) {
	t.Helper()
	t.Setenv(secretEnv, meshSecret)
	udp := freeUDP(t)
	for i := 1; i <= 4; i++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", i))
		if err != nil {
			t.Fatal(err)
		}
		addr := l.Addr().(*net.TCPAddr)
		l.Close()
		device := fmt.Sprintf("%s:%d,name=rail0", addr.IP, udp)
		if i == 2 && faults != "" {
			device += ",faults=(" + faults + ")"
		}
		if rails == 2 {
			device += fmt.Sprintf(" 127.0.1.%d:%d,name=rail1", i, udp)
		}
		cmd := softCommand(t, device, "mesh", "serve", "--listen", addr.IP.String(), "--port", fmt.Sprint(addr.Port))
		log, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		if line, err := bufio.NewReader(log).ReadString('\n'); err != nil || !strings.Contains(line, "serving on") {
			t.Fatalf("server %d: %v %q", i, err, line)
		}
		go io.Copy(io.Discard, log)
		hosts = append(hosts, addr.String())
	}
	return hosts
}

// meshRun runs "verbs mesh run" and returns its report and exit status.
func meshRun(t *testing.T, args ...string) (rep mesh.Report, status int) {
	t.Helper()
	cmd := softCommand(t, "", append([]string{"mesh", "run", "--json"}, args...)...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &rep); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return rep, status
}

// meshCalm are flags for a machine that is busy with other things: pairs one after the other, and only
// what is far from the rest counts.
var meshCalm = []string{
	"--events", "--at-once", "1", "--msg-size", "1024", "--iterations", "100", "--messages", "300", "--latency-ratio", "16", "--bandwidth-ratio", "0", "--repeat", "3",
}

// onlyLink fails the test unless the report names the link of the second and third host, and no other.
func onlyLink(t *testing.T, rep mesh.Report, status int, hosts []string, problem string) {
	t.Helper()
	if status != 1 || rep.OK || len(rep.Findings) != 1 {
		t.Fatalf("status %d, findings %+v", status, rep.Findings)
	}
	f := rep.Findings[0]
	if f.Cause != mesh.CauseLink || !slices.Equal(f.Hosts, hosts[1:3]) || f.Rail != "rail0" || !slices.Contains(f.Problems, problem) {
		t.Errorf("%+v, want %q of the link between %s", f, problem, hosts[1:3])
	}
	for _, m := range rep.Measurements {
		if len(m.Problems) > 0 && !(slices.Contains(hosts[1:3], m.From) && slices.Contains(hosts[1:3], m.To)) {
			t.Errorf("%+v", m)
		}
	}
	if want := 4 * 3 * 2 * len(rep.Hosts[0].Rails); len(rep.Measurements) != want {
		t.Errorf("%d measurements, want %d", len(rep.Measurements), want)
	}
}

// TestMeshDelay: of four hosts with two rails, the link with a delay of 5 ms is found, and no other one.
func TestMeshDelay(t *testing.T) {
	hosts := meshFleet(t, "direction=sent,peer=127.0.0.3,delay=5ms,seed=7", 2)
	rep, status := meshRun(t, slices.Concat(meshCalm, hosts)...)
	onlyLink(t, rep, status, hosts, "latency")
	if t.Failed() || rep.Findings[0].Direction != "both" {
		t.Errorf("%+v", rep.Findings)
	}
}

// TestMeshLoss: of four hosts, the link that loses 1 % of the packets is found, and no other one.
func TestMeshLoss(t *testing.T) {
	hosts := meshFleet(t, "direction=sent,peer=127.0.0.3,loss=1%,seed=7", 1)
	rep, status := meshRun(t, slices.Concat(meshCalm, []string{"--messages", "2000", "--timeout", "2s", "--repeat", "2", "--latency-ratio", "1000"}, hosts)...)
	onlyLink(t, rep, status, hosts, "loss")
}

// TestMeshHosts: hosts that are down, do not know the secret, speak another protocol or are there twice
// are named, and the others are tested all the same.
func TestMeshHosts(t *testing.T) {
	hosts := meshFleet(t, "", 1)
	l, err := net.Listen("tcp", "127.0.0.5:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n\r\n")
			conn.Close()
		}
	}()
	down, err := net.Listen("tcp", "127.0.0.6:0")
	if err != nil {
		t.Fatal(err)
	}
	down.Close()
	_, port, _ := net.SplitHostPort(hosts[0])
	again := "[::ffff:127.0.0.1]:" + port
	file := filepath.Join(t.TempDir(), "hosts")
	text := fmt.Sprintf("# the fleet\n%s %s\n%s # down\n%s\n%s\n", hosts[0], hosts[1], down.Addr(), l.Addr(), again)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	page, picture := filepath.Join(t.TempDir(), "mesh.html"), filepath.Join(t.TempDir(), "mesh.svg")
	rep, status := meshRun(t, slices.Concat(meshCalm, []string{"--types", "rc", "--file", file, "--html", page, "--svg", picture})...)
	var got []string
	for _, f := range rep.Findings {
		got = append(got, fmt.Sprintf("%s %s %s: %s", f.Cause, f.Hosts[0], f.Problems[0], f.Evidence[0]))
	}
	for i, want := range []string{
		fmt.Sprintf("host %s unreachable: no perf server at %[1]s (verbs mesh serve): ", down.Addr()),
		fmt.Sprintf(`host %s unreachable: server %[1]s: the peer speaks another protocol: got "SSH-2.0-OpenSSH_`, l.Addr()),
		fmt.Sprintf("host %s unreachable: it is %s under another name", again, hosts[0]),
	} {
		if len(got) != 3 || !strings.HasPrefix(got[i], want) {
			t.Errorf("finding %d of %q, want %q", i, got, want)
		}
	}
	if status != 1 || len(rep.Measurements) != 2 || rep.Measurements[0].Latency == nil || rep.Measurements[1].Bandwidth == nil {
		t.Errorf("status %d, %+v", status, rep.Measurements)
	}
	if b, err := os.ReadFile(page); err != nil || !strings.Contains(string(b), "</html>") || !strings.Contains(string(b), hosts[1]) {
		t.Errorf("the page: %v\n%s", err, b)
	}
	if b, err := os.ReadFile(picture); err != nil || !strings.HasSuffix(string(b), "</svg>\n") || strings.Count(string(b), hosts[1]+"<") != 4 {
		t.Errorf("the picture: %v\n%s", err, b)
	}
	t.Setenv(secretEnv, "another secret of the fleet")
	rep, status = meshRun(t, hosts...)
	if status != 1 || len(rep.Findings) != 4 || !strings.Contains(rep.Findings[0].Evidence[0], "does not have the same secret") {
		t.Errorf("another secret: status %d, %+v", status, rep.Findings)
	}
}

// TestMeshWell: a fleet without faults has no finding, and the exit status says so.
func TestMeshWell(t *testing.T) {
	hosts := meshFleet(t, "", 2)
	rep, status := meshRun(t, slices.Concat(meshCalm, []string{"--flow-labels", "0,7"}, hosts[:3])...)
	if status != 0 || !rep.OK || len(rep.Findings) != 0 || len(rep.Measurements) != 3*2*2*2*2 || len(rep.Medians) != 2 {
		t.Errorf("status %d, %+v", status, rep)
	}
	for _, m := range rep.Measurements {
		if l := m.Latency; l == nil || l.Min <= 0 || l.Median < l.Min || l.P99 < l.Median || l.Max < l.P99 || m.Bandwidth == nil || *m.Bandwidth <= 0 || m.Round < 1 || m.Round > 3 {
			t.Errorf("%+v", m)
		}
	}
}

// TestMeshInterrupted: a run that the user interrupts prints what was measured.
func TestMeshInterrupted(t *testing.T) {
	hosts := meshFleet(t, "", 1)
	for wait := time.Second; ; wait *= 2 {
		if wait > time.Minute {
			t.Fatal("no run has a result before it is interrupted")
		}
		cmd := softCommand(t, "", append([]string{"mesh", "run", "--json", "--types", "rc", "--events", "--at-once", "1", "--iterations", "10000"}, hosts...)...)
		var out, log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
		cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		if out.Len() == 0 && strings.Contains(log.String(), "interrupted") {
			continue // before the first measurement
		}
		var rep mesh.Report
		if jerr := json.Unmarshal(out.Bytes(), &rep); jerr != nil {
			t.Fatalf("%v, %v: %s%s", jerr, err, out.String(), log.String())
		}
		if n := len(rep.Measurements); err == nil || rep.OK || !rep.Interrupted || n == 0 || n >= 4*3 || !strings.Contains(log.String(), "interrupted") {
			t.Errorf("%v, %+v, %s", err, rep, log.String())
		}
		return
	}
}

// TestMeshUsage: wrong arguments are refused with what is allowed.
func TestMeshUsage(t *testing.T) {
	t.Setenv(secretEnv, meshSecret)
	for _, c := range []struct{ args, want string }{
		{"run", "the number of hosts is 0, allowed: 2 to 1024"},
		{"run a", "the number of hosts is 1"},
		{"run a a", `the host "a" is there twice`},
		{"run a a:18517", `the host "a:18517" is there twice`},
		{"run a b:0", "allowed: 1 to 65535"},
		{"run a b --types rc,xx", `--types has "xx", allowed: rc, ud`},
		{"run a b --flow-labels 1048576", "--flow-labels has 1048576, allowed: 0 to 1048575"},
		{"run a b --latency-ratio 0.5", "--latency-ratio is 0.5, allowed: above 1"},
		{"run a b --latency-ratio x", `--latency-ratio is "x", allowed: a number`},
		{"run a b --bandwidth-ratio 1.5", "--bandwidth-ratio is 1.5, allowed: 0 to less than 1"},
		{"run a b --max-loss -1", "--max-loss is -1, allowed: 0 to less than 100"},
		{"run a b --max-latency 0s", "--max-latency is 0s, allowed: a time above 0"},
		{"run a b --max-p99 1us --max-latency 2us", "--max-p99 is 1 µs, allowed: --max-latency and more"},
		{"run a b --min-bandwidth fast", `--min-bandwidth is "fast", allowed: a number above 0`},
		{"run a b --timeout 0s", "--timeout is 0s, allowed: more than 0"},
		{"run a b --at-once 0", "--at-once is 0, allowed: 1 to 1024"},
		{"run a b --svg x --html x", `--svg and --html are both "x", allowed: two files`},
		{"serve a", "allowed: none"},
	} {
		if _, err := run(t, append([]string{"mesh"}, strings.Fields(c.args)...)...); exitStatus(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("verbs mesh %s: %v, want %q", c.args, err, c.want)
		}
	}
	for secret, want := range map[string]string{"": "the secret is missing", "short": "has 5 characters, allowed: 16 and more"} {
		t.Setenv(secretEnv, secret)
		for _, args := range []string{"run a b", "serve"} {
			if _, err := run(t, append([]string{"mesh"}, strings.Fields(args)...)...); exitStatus(err) != 2 || !strings.Contains(err.Error(), want) {
				t.Errorf("verbs mesh %s with the secret %q: %v, want %q", args, secret, err, want)
			}
		}
	}
}
