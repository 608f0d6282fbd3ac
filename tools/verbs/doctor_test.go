package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/tools/health"
	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
)

// TestDoctorPrint: one line for each finding, and the evidence and the fix of a problem.
func TestDoctorPrint(t *testing.T) {
	d := health.Report{Verdict: "It is so.", Findings: []health.Finding{
		{Code: health.CodeKernel, Level: health.LevelOK, Title: "fine", Evidence: []string{"a"}},
		{Code: health.CodePort, Device: "rxe0", Port: 1, Level: health.LevelError, Title: "bad", Evidence: []string{"b"}, Fix: []string{"c"}},
	}}
	for verbose, want := range map[bool]string{
		false: `ok       kernel  fine
error    port    rxe0 port 1: bad
                 - b
                 fix: c

It is so.
`,
		true: `ok       kernel  fine
                 - a
error    port    rxe0 port 1: bad
                 - b
                 fix: c

It is so.
`,
	} {
		var out bytes.Buffer
		if err := printHealth(&out, d, verbose); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("verbose %t (-want +got):\n%s", verbose, diff)
		}
	}
}

// TestDoctorHere runs the command on this machine, whatever it has: the document is whole
// and the error agrees with it.
func TestDoctorHere(t *testing.T) {
	var out bytes.Buffer
	root := newRoot()
	root.Stdout = terminal.New(&out)
	err := root.Execute(t.Context(), []string{"doctor", "--json", "no-such-device"})
	if err == nil || !strings.HasPrefix(err.Error(), "doctor: ") {
		t.Errorf("error is %v", err)
	}
	var d health.Report
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil || dec.More() {
		t.Fatalf("not one document: %v", err)
	}
	if d.Schema != health.Schema || d.Works || !strings.HasPrefix(d.Verdict, "RDMA does not work on no-such-device") {
		t.Errorf("document is %+v", d)
	}
	text, err := run(t, "help", "json")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Findings {
		id, _, _ := strings.Cut(string(f.Code), ".")
		if !strings.Contains(text, id) {
			t.Errorf("JSON.md does not describe finding %s", string(f.Code))
		}
	}
}

// TestDoctorInterrupted: an interrupted doctor prints no findings, and says why.
func TestDoctorInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("by hand"))
	for _, args := range []string{"doctor", "doctor --json", "exporter --once"} {
		var out bytes.Buffer
		root := newRoot()
		root.Stdout = terminal.New(&out)
		if err := root.Execute(ctx, strings.Fields(args)); err == nil || !strings.HasSuffix(err.Error(), ": by hand") || out.Len() > 0 {
			t.Errorf("verbs %s: %v, and it prints %q", args, err, &out)
		}
	}
}

// TestDoctorUsage: a flag that has no effect, and a port that does not exist, are usage errors.
func TestDoctorUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--listen 127.0.0.1":       `--listen is "127.0.0.1", allowed: only with --serve`,
		"-p 7175 x":                `--port is "7175", allowed: only with --serve`,
		"--serve x":                `the device is "x", allowed: none with --serve`,
		"--serve --peer a":         `--peer is "a", allowed: only without --serve`,
		"--serve --expect a":       `--expect is "a", allowed: only without --serve`,
		"--serve --json":           `--json is "true", allowed: only without --serve`,
		"--serve -v":               `--verbose is "true", allowed: only without --serve`,
		"--serve --watch":          `--watch is "true", allowed: only without --serve`,
		"--watch --peer a":         `--peer is "a", allowed: only without --watch`,
		"--window 2h":              `--window is "2h0m0s", allowed: only with --watch`,
		"--state x":                `--state is "x", allowed: only with --watch`,
		"--watch --interval 1ms":   `--interval is 1ms, allowed: 1s to 720h0m0s`,
		"--watch --interval 0":     `--interval is 0s, allowed: 1s to 720h0m0s`,
		"--peer a:99999":           `the port of --peer "a:99999" is "99999", allowed: 1 to 65535`,
		"--peer [fe80::1%eth0]:0":  `the port of --peer "[fe80::1%eth0]:0" is "0", allowed: 1 to 65535`,
		"--peer 10.1.0.1:no-such.": `is "no-such.", allowed: 1 to 65535`,
	} {
		if _, err := run(t, append([]string{"doctor"}, strings.Fields(args)...)...); exitStatus(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("doctor %s: status %d, %v, want %q", args, exitStatus(err), err, want)
		}
	}
}

// TestDoctorWatch: it prints what begins, and ends well when it is interrupted. The exporter goes on with its file.
func TestDoctorWatch(t *testing.T) {
	dir, device := t.TempDir(), fmt.Sprintf("127.0.0.1:%d", freeUDP(t)) // whose GUID stays the same
	state, expect := filepath.Join(dir, "state"), filepath.Join(dir, "expect")
	testenv.Must(t, os.WriteFile(expect, []byte(`{"ports": [{"device": "soft0", "rate_gbps": 99999}]}`), 0o600))
	for _, c := range []struct{ flag, want string }{
		{"--json", `"state":"began","id":"speed","device":"soft0","port":1,"level":"warning","title":"the rate is `},
		{"--interval=1s", "began  warning  speed: soft0 port 1: the rate is "},
	} {
		cmd := softCommand(t, device, "doctor", "--watch", "--state", state, "--expect", expect, c.flag)
		out, err := cmd.StdoutPipe()
		testenv.Must(t, err, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil || !strings.Contains(line, c.want) {
			t.Errorf("%s: %v, it prints %q, want %q", c.flag, err, line, c.want)
		}
		testenv.Must(t, cmd.Process.Signal(os.Interrupt))
		io.Copy(io.Discard, out)
		testenv.Must(t, cmd.Wait())
	}
	text, err := os.ReadFile(state)
	testenv.Must(t, err)
	best := regexp.MustCompile(`"best_gbps":[0-9.]+`)
	if len(best.FindAll(text, -1)) != 1 {
		t.Fatalf("the state is %s", text)
	}
	testenv.Must(t, os.WriteFile(state, best.ReplaceAll(text, []byte(`"best_gbps":99999`)), 0o600))
	const metric = `rdma_watch_finding_level{code="speed",device="soft0",port="1"} 2`
	if out, err := softRun(t, device, "exporter", "--once", "--doctor-interval=0", "--watch-state", state); err != nil || !strings.Contains(out, metric) {
		t.Errorf("exporter: %v, no %s in\n%s", err, metric, out)
	}
	other := device + ",name=other"
	out, err := softRun(t, other, "doctor", "--watch", "soft0")
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 2 || !strings.Contains(out, `the device is "soft0", allowed with --watch: other, or one in --state`) {
		t.Errorf("a device that was never there: %v, %s", err, out)
	}
	cmd := softCommand(t, other, "doctor", "--watch", "soft0", "--state", state)
	pipe, err := cmd.StdoutPipe()
	testenv.Must(t, err, cmd.Start())
	if line, err := bufio.NewReader(pipe).ReadString('\n'); err != nil || !strings.Contains(line, "soft0: the device has disappeared") {
		t.Errorf("a device that is in the file: %v, %s", err, line)
	}
	testenv.Must(t, cmd.Process.Signal(os.Interrupt))
	io.Copy(io.Discard, pipe)
	testenv.Must(t, cmd.Wait())
}

// TestDoctorExpect: a machine that differs from the file fails, one that does not passes, and a file that makes
// no sense is a wrong command line.
func TestDoctorExpect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "expected.json")
	for text, want := range map[string]struct {
		status int
		says   string
	}{
		`{"ports": [{"device": "soft*", "count": 1, "mtu": 1024, "gid_type": "RoCE v2"}]}`: {0, "devices soft*: 1 port, as expected"},
		`{"ports": [{"device": "soft*", "rate_gbps": 5000}]}`:                              {1, "expected 5000 Gb/s or more"},
		`{"ports": [{"device": "mlx5_*", "count": 2}]}`:                                    {1, "devices mlx5_*: found 0 ports, expected 2"},
		`{"ports": [{"device": "soft*", "mtu": 1}]}`:                                       {2, "ports[0].mtu is 1, allowed: 256"},
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := softRun(t, "auto", "doctor", "--expect", file)
		status := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			status = exit.ExitCode()
		}
		if status != want.status || !strings.Contains(out, want.says) {
			t.Errorf("%s: status %d, %v, want %d and %q:\n%s", text, status, err, want.status, want.says, out)
		}
	}
	if out, err := softRun(t, "auto", "doctor", "--expect", file+".gone"); err == nil || !strings.Contains(out, "no such file") {
		t.Errorf("a file that is missing: %v\n%s", err, out)
	}
}
