package interop

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// traced is a program that "verbs trace" runs, and its record.
type traced struct {
	line   []string
	record string
}

// trace returns the command line that traces a program.
func trace(t *testing.T, program ...string) traced {
	t.Helper()
	record := filepath.Join(t.TempDir(), "record")
	return traced{append([]string{os.Getenv(VerbsEnv), "trace", "-o", record, "--"}, program...), record}
}

// traceCall is what is looked at of a call.
type traceCall struct {
	Call, Verb, File, Object, Parent, Errno, Lost string
	Unknown, Count                                int
	Doorbell                                      bool
	Payloads                                      []struct {
		Name   string
		Fields map[string]any
	}
}

// show returns the calls of a record. All of them must be known.
func (p traced) show(t *testing.T) []traceCall {
	t.Helper()
	out := verbs(t, "trace", "show", "--json", p.record)
	var all []traceCall
	for l := range strings.Lines(out) {
		var c traceCall
		if err := json.Unmarshal([]byte(l), &c); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		if c.Unknown > 0 || c.Lost != "" || c.Verb == "" {
			t.Errorf("%s: not known: %s", p.line, l)
		}
		all = append(all, c)
	}
	text := verbs(t, "trace", "show", p.record)
	if t.Failed() || testing.Verbose() {
		t.Logf("%s\n%s", p.line, text)
	}
	return all
}

// verbs runs our command and returns what it prints.
func verbs(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(os.Getenv(VerbsEnv), args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("verbs %s: %v", args, err)
	}
	return string(out)
}

// has checks that there are calls which succeeded, by what they do.
func has(t *testing.T, calls []traceCall, verbs ...string) {
	t.Helper()
	for _, v := range verbs {
		if !slices.ContainsFunc(calls, func(c traceCall) bool { return c.Verb == v && c.Errno == "" }) {
			t.Errorf("the record has no %q", v)
		}
	}
}

// TestTraceDevinfo: a traced program prints what it prints without a trace, and has the same exit status. In a brief run
// it does not read each of a thousand entries of the GID table.
func TestTraceDevinfo(t *testing.T) {
	testenv.Guest(t)
	all := []string{"-d", dev0}
	if !testenv.Brief() {
		all = append(all, "-v")
	}
	for _, args := range [][]string{all, {"-d", "none"}} {
		plain := exec.Command("ibv_devinfo", args...)
		want, _ := plain.CombinedOutput()
		p := trace(t, append([]string{"ibv_devinfo"}, args...)...)
		cmd := exec.Command(p.line[0], p.line[1:]...)
		got, _ := cmd.CombinedOutput()
		if string(got) != string(want) || cmd.ProcessState.ExitCode() != plain.ProcessState.ExitCode() {
			t.Errorf("ibv_devinfo %s: traced it ends with %d and prints\n%s\nwithout a trace with %d and\n%s", args,
				cmd.ProcessState.ExitCode(), got, plain.ProcessState.ExitCode(), want)
		}
		calls := p.show(t)
		if args[1] == dev0 {
			has(t, calls, "open", "open device", "query device", "query port", "close")
		}
	}
}

// TestTracePingpong traces both ends of ping-pongs, rdma-core's and ours, by polling and with events.
func TestTracePingpong(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	for _, events := range []bool{false, true} {
		options := []string{"-n", "20"}
		if events {
			options = append(options, "-e")
		}
		server, client := trace(t, rdmaCore...), trace(t, Verbs()...)
		server.line = append(server.line, "-d", dev0)
		client.line = append(client.line, "-d", dev1)
		if _, err := Play(t.Context(), server.line, client.line, options...); err != nil {
			t.Fatal(err)
		}
		for _, p := range []traced{server, client} {
			calls := p.show(t)
			has(t, calls, "open", "open device", "map memory", "allocate PD", "register MR", "create CQ", "create QP", "modify QP", "destroy QP")
			if events {
				has(t, calls, "create completion channel", "get CQ event")
			}
			for _, c := range calls {
				if c.Verb == "create QP" && (!strings.HasPrefix(c.Object, "QP ") || !strings.HasPrefix(c.Parent, "PD ")) {
					t.Errorf("create QP: %+v", c)
				}
				if c.Verb == "map memory" && testenv.TheRig().Driver == "rxe" {
					// The sizes of the queue, which rxe has written.
					if text, _ := c.Payloads[len(c.Payloads)-1].Fields["memory"].(string); len(text) != 2*64 {
						t.Errorf("map memory has no beginning: %+v", c)
					}
				}
				if c.Verb == "get CQ event" && c.Object == "" {
					t.Errorf("get CQ event: %+v", c)
				}
			}
		}
	}
}

// TestTraceMessages: a program that polls makes no call for a message on a card, and on rxe one doorbell,
// which is counted. So tracing it costs a message nothing on a card.
func TestTraceMessages(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsIB(t, "manual QP state changes")
	few, more := 20, 200
	if testenv.Brief() {
		few, more = 10, 40
	}
	var doorbells, others [2]int
	for i, n := range []int{few, more} {
		server, client := trace(t, rdmaCore...), trace(t, rdmaCore...)
		server.line, client.line = append(server.line, "-d", dev0), append(client.line, "-d", dev1)
		if _, err := Play(t.Context(), server.line, client.line, "-n", strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
		for _, c := range client.show(t) {
			if c.Doorbell {
				doorbells[i] += max(1, c.Count)
			} else {
				others[i]++
			}
		}
	}
	want := 0
	if rig.Driver == "rxe" {
		want = more - few
	}
	if got := doorbells[1] - doorbells[0]; got != want || others[0] != others[1] {
		t.Errorf("%d messages more took %d doorbells, want %d, and %d other calls became %d", more-few, got, want, others[0], others[1])
	}
}

// TestTraceOrdinaryUser: a user without rights traces programs of his own, and an error says what forbids it.
func TestTraceOrdinaryUser(t *testing.T) {
	testenv.Guest(t)
	const nobody = 65534
	devices, err := filepath.Glob("/dev/infiniband/uverbs*")
	if err != nil || len(devices) == 0 {
		t.Fatalf("no devices: %v", err)
	}
	for _, d := range devices {
		if err := os.Chmod(d, 0o666); err != nil { // as udev does
			t.Fatal(err)
		}
	}
	asUser := func(line ...string) *exec.Cmd {
		cmd := exec.Command(line[0], line[1:]...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	cmd := asUser(os.Getenv(VerbsEnv), "trace", "--", "ibv_devinfo", "-d", dev0)
	var calls strings.Builder
	cmd.Stderr = &calls
	if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "hca_id:") {
		t.Errorf("%v\n%s\n%s", err, out, calls.String())
	}
	if !strings.Contains(calls.String(), " query device: ") || strings.Contains(calls.String(), "verbs: ") {
		t.Errorf("the trace:\n%s", calls.String())
	}

	const yama = "/proc/sys/kernel/yama/ptrace_scope"
	before, err := os.ReadFile(yama)
	must(t, err)
	defer os.WriteFile(yama, before, 0)
	_, port := cmPort()
	victim := asUser(os.Getenv(VerbsEnv), "perf", "serve", "--port", port) // it waits
	must(t, victim.Start())
	defer victim.Wait()
	defer victim.Process.Kill()
	for scope, want := range map[string]string{"1": "ptrace_scope is 1, so", "2": "ptrace_scope is 2, so only root"} {
		must(t, os.WriteFile(yama, []byte(scope), 0))
		out, err := asUser(os.Getenv(VerbsEnv), "trace", "--pid", strconv.Itoa(victim.Process.Pid)).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("scope %s: %v, %s, want %q", scope, err, out, want)
		}
	}
}

// TestTraceRping traces both ends of rpings, rdma-core's and ours.
func TestTraceRping(t *testing.T) {
	testenv.Guest(t)
	ours, theirs := rpings()
	for _, programs := range [][2][]string{{theirs, ours}, {ours, theirs}} {
		number, port := cmPort()
		s := trace(t, line(programs[0], "-s", "-a", ServerAddr, "-p", port)...)
		c := trace(t, line(programs[1], "-c", "-V", "-C", "5", "-a", ServerAddr, "-p", port)...)
		server := program.Launch(t, s.line...)
		serving(t, server, netlinkrdma.PortSpaceTCP, number)
		client := program.Launch(t, c.line...)
		client.Wait(t)
		server.Wait(t)
		has(t, s.show(t), "create ID", "bind address", "listen", "get CM event", "accept", "create QP", "destroy ID")
		has(t, c.show(t), "create ID", "resolve address", "resolve route", "get CM event", "connect", "create QP", "destroy ID")
	}
}

// TestTracePerftest traces both ends of ib_send_bw. On iWARP the connection manager connects them.
func TestTracePerftest(t *testing.T) {
	testenv.Tags(t, testenv.Perftest)
	testenv.Guest(t)
	number, port := cmPort()
	options := []string{"ib_send_bw", "-p", port, "-n", "100", "-s", "1024", "-F"}
	if rig.IWARP() {
		options = append(options, "-R")
	} else {
		options = append(options, "-d", dev0, "-x", strconv.Itoa(rig.GID))
	}
	s, c := trace(t, options...), trace(t, append(options, ServerAddr)...)
	server := program.Launch(t, s.line...)
	if rig.IWARP() {
		serving(t, server, netlinkrdma.PortSpaceTCP, number)
	} else {
		server.Until(t, "listen", func() bool { return listens(t, int(number)) })
	}
	client := program.Launch(t, c.line...)
	if out := client.Wait(t); !perftestRow(out, 1024) {
		t.Errorf("ib_send_bw prints no row:\n%s", out)
	}
	server.Wait(t)
	for _, p := range []traced{s, c} {
		has(t, p.show(t), "create QP", "register MR", "map memory")
	}
}

// TestTraceAttach attaches to a server and detaches from it, and the server goes on.
func TestTraceAttach(t *testing.T) {
	testenv.Guest(t)
	ours, _ := rpings()
	number, port := cmPort()
	server := program.Launch(t, line(ours, "-s", "-a", ServerAddr, "-p", port)...)
	serving(t, server, netlinkrdma.PortSpaceTCP, number)
	record := filepath.Join(t.TempDir(), "record")
	tracer := program.Launch(t, os.Getenv(VerbsEnv), "trace", "-o", record, "-p", strconv.Itoa(server.PID()))
	tracer.Until(t, "attach", func() bool {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", server.PID()))
		return !strings.Contains(string(b), "TracerPid:\t0")
	})
	program.Launch(t, line(ours, "-c", "-V", "-C", "3", "-a", ServerAddr, "-p", port)...).Wait(t)
	server.Wait(t)
	tracer.Wait(t)
	has(t, traced{[]string{"attach"}, record}.show(t), "get CM event", "create QP", "accept")
}
