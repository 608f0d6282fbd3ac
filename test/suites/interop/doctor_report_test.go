package interop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// doctorFinding is an element of what "verbs doctor --json" prints.
type doctorFinding struct {
	ID       string
	Device   string
	Port     int
	Level    string
	Title    string
	Evidence []string
	Fix      []string
}

// doctorReport is what "verbs doctor --json" prints.
type doctorReport struct {
	Schema   int
	Works    bool
	Verdict  string
	Findings []doctorFinding
}

// patient is how the doctor is run.
type patient struct {
	names []string
	env   []string
	attr  syscall.SysProcAttr
}

// doctor runs the command and checks what holds of every report.
func doctor(t *testing.T, p patient) doctorReport {
	t.Helper()
	cmd := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), append([]string{"doctor", "--json"}, p.names...)...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.SysProcAttr = &p.attr
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		t.Fatalf("%v: %s", err, msg.String())
	}
	var r doctorReport
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	full := struct {
		doctorReport
		Version string
	}{}
	if jerr := dec.Decode(&full); jerr != nil {
		t.Fatalf("not a JSON document: %v\n%s", jerr, msg.String())
	}
	r = full.doctorReport
	if dec.More() {
		t.Error("there is more than one document")
	}
	if r.Works != (err == nil) {
		t.Errorf("works is %t, the command ends with %v", r.Works, err)
	}
	if r.Schema != 1 || r.Verdict == "" || len(r.Findings) == 0 {
		t.Errorf("report is %+v", r)
	}
	errs := 0
	for _, f := range r.Findings {
		if f.ID == "" || f.Title == "" || len(f.Evidence) == 0 || f.Fix == nil {
			t.Errorf("finding %+v is not complete", f)
		}
		switch f.Level {
		case "error":
			errs++
		case "ok", "info", "warning":
		default:
			t.Errorf("finding %s has level %q", f.ID, f.Level)
		}
		t.Logf("%-7s %s %s %d: %s", f.Level, f.ID, f.Device, f.Port, f.Title)
	}
	if r.Works != (errs == 0) {
		t.Errorf("works is %t with %d errors", r.Works, errs)
	}
	t.Log(r.Verdict)
	return r
}

// want looks for a finding of a level, and for words in it.
func (r doctorReport) want(t *testing.T, id, device, level string, words ...string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.ID != id || f.Device != device {
			continue
		}
		if f.Level != level {
			t.Errorf("%s of %q is %s (%s), want %s; evidence %q", id, device, f.Level, f.Title, level, f.Evidence)
		}
		text := strings.Join(append(append([]string{f.Title}, f.Evidence...), f.Fix...), "\n")
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%s of %q does not say %q:\n%s", id, device, w, text)
			}
		}
		return
	}
	t.Errorf("there is no finding %s of %q", id, device)
}

// works checks the outcome.
func (r doctorReport) works(t *testing.T, want bool, words ...string) {
	t.Helper()
	if r.Works != want {
		t.Errorf("works is %t, want %t: %s", r.Works, want, r.Verdict)
	}
	for _, w := range words {
		if !strings.Contains(r.Verdict, w) {
			t.Errorf("verdict %q does not say %q", r.Verdict, w)
		}
	}
}

// TestDoctorExpect: the machine is compared with a file: as it is, and in each way that it differs, with what is
// there and what is expected.
func TestDoctorExpect(t *testing.T) {
	testenv.Guest(t)
	layer, gid := "Ethernet", ib.GIDTypeRoCEv2.String()
	if rig.InfiniBand() {
		layer, gid = "InfiniBand", "IB"
	}
	if rig.IWARP() {
		gid = "IB" // as the kernel calls it where RoCE is not used
	}
	as := func(change string) string {
		return fmt.Sprintf(`{"netns": "shared", "ports": [{"driver": %q, "count": %d, "link_layer": %q, "gid_type": %q, "rate_gbps": 2}%s]}`,
			rig.Driver, len(rig.Devices), layer, gid, change)
	}
	file := filepath.Join(t.TempDir(), "expected.json")
	for _, c := range []struct {
		text   string
		status int
		says   []string
	}{
		{as(""), 0, []string{fmt.Sprintf("driver %s: %d ports, as expected", rig.Driver, len(rig.Devices)), "the mode of network namespaces is shared", "all is as expected"}},
		{`{"netns": "exclusive"}`, 1, []string{"the mode of network namespaces is shared, expected exclusive", "verbs system set netns exclusive", "not as expected: 1 difference"}},
		{as(`, {"device": "` + dev0 + `", "count": 2}`), 1, []string{"found 1 port, expected 2"}},
		{as(`, {"device": "` + dev0 + `", "rate_gbps": 5000}`), 1, []string{"expected 5000 Gb/s or more"}},
		{as(`, {"device": "nosuch*"}`), 1, []string{"devices nosuch*: found no port, expected one or more"}},
		{as(`, {"device": "` + dev0 + `", "mtu": 1}`), 2, []string{"ports[1].mtu is 1, allowed: 256"}},
	} {
		must(t, os.WriteFile(file, []byte(c.text), 0o600))
		cmd := exec.CommandContext(timed(t), os.Getenv(VerbsEnv), "doctor", "--expect", file, dev0)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != c.status {
			t.Errorf("%s: status %d, want %d\n%s", c.text, got, c.status, out)
		}
		for _, says := range c.says {
			if !strings.Contains(string(out), says) {
				t.Errorf("%s: the doctor does not say %q\n%s", c.text, says, out)
			}
		}
	}
}
