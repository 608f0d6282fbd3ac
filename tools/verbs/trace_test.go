package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTraceCommand: "verbs trace" exits with the status of the program, or says why there is none.
func TestTraceCommand(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--", "sh", "-c", "exit 0"}, 0, "exit: status 0"},
		{[]string{"sh", "-c", "exit 3"}, 3, "exit: status 3"},
		{[]string{"--json", "--", "sh", "-c", "kill -KILL $$"}, 137, `"call":"exit"`},
		{[]string{"--summary", "--", "true"}, 0, "calls  errors"},
		{[]string{"--object", "QP", "--", "true"}, 0, ""},
		{[]string{"--object", "completion channel 7", "--", "true"}, 0, ""},
		{[]string{"--object", "Q P", "--", "true"}, 2, `--object is "Q P", allowed: one of these, and perhaps a number: AH, `},
		{[]string{"show", "--object", "7", "/no/such/record"}, 2, `--object is "7", allowed`},
		{[]string{"--", "/no/such/program"}, 1, "no such file"},
		{[]string{"-o", "/no/such/folder/record", "--", "true"}, 1, "no such file"},
		{[]string{}, 2, "a program or --pid"},
		{[]string{"--pid", "1", "--", "true"}, 2, "a program or --pid"},
		{[]string{"--pid", "-5"}, 2, "--pid is -5, allowed: 1 and more"},
		{[]string{"show"}, 2, "the number of arguments of verbs trace show is 0, allowed: 1"},
		{[]string{"show", "/no/such/record"}, 1, "no such file"},
	} {
		out, err := run(t, append([]string{"trace"}, c.args...)...)
		if err != nil {
			out += err.Error()
		}
		if exitStatus(err) != c.status || !strings.Contains(out, c.want) || c.want == "" && out != "" {
			t.Errorf("verbs trace %q: status %d, want %d, %q, want %q", c.args, exitStatus(err), c.status, out, c.want)
		}
	}
}

// TestTraceSoft: the calls of a software device cannot be shown, and the command says what can be instead.
func TestTraceSoft(t *testing.T) {
	const hint = "trace=FILE and capture=FILE record packets"
	for soft, want := range map[string]bool{"": false, "auto": true} {
		t.Setenv("GOVERBS_SOFT", soft)
		if out, err := run(t, "trace", "--", "true"); err != nil || strings.Contains(out, hint) != want {
			t.Errorf("GOVERBS_SOFT=%q: %v, %q", soft, err, out)
		}
	}
}

// TestTraceRecord: what is recorded is shown, as far as there is anything.
func TestTraceRecord(t *testing.T) {
	record := filepath.Join(t.TempDir(), "record")
	if out, err := run(t, "trace", "-o", record, "--", "sh", "-c", "sh -c 'exit 4'; exit 5"); exitStatus(err) != 5 || out != "" {
		t.Fatalf("%q, %v", out, err)
	}
	show := func(change func(string) string, args ...string) (string, error) {
		b, err := os.ReadFile(record)
		if err != nil {
			t.Fatal(err)
		}
		changed := record + ".changed"
		if err := os.WriteFile(changed, []byte(change(string(b))), 0o666); err != nil {
			t.Fatal(err)
		}
		return run(t, append([]string{"trace", "show", changed}, args...)...)
	}
	same := func(s string) string { return s }
	out, err := show(same)
	if err != nil || !strings.Contains(out, "exit: status 4") || !strings.Contains(out, "exit: status 5") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := show(same, "--failed"); err != nil || out != "" {
		t.Errorf("--failed: %v\n%s", err, out)
	}
	out, err = show(func(s string) string { return s[:len(s)-10] })
	if exitStatus(err) != 1 || !strings.Contains(err.Error(), "the record is cut") || !strings.Contains(out, "exit: status 5") {
		t.Errorf("a record that was cut: %v\n%s", err, out)
	}
	for text, want := range map[string]func(string) string{
		"the version of the record is 2, allowed: 1": func(s string) string { return strings.Replace(s, `"version":1`, `"version":2`, 1) },
		"is not a record":     func(string) string { return "hello\n" },
		"the record is empty": func(string) string { return "" },
	} {
		if out, err := show(want); exitStatus(err) != 1 || !strings.Contains(err.Error(), text) || out != "" {
			t.Errorf("%v, want %q\n%s", err, text, out)
		}
	}
}

// showGolden prints a golden record of rdma-core's programs.
func showGolden(t *testing.T, record string, args ...string) string {
	t.Helper()
	out, err := run(t, append([]string{"trace", "show", filepath.Join("../../uverbs/replay/testdata", record+".record")}, args...)...)
	if err != nil {
		t.Fatalf("verbs trace show %s %q: %v", record, args, err)
	}
	return out
}

// TestTraceSummary: a table has the calls, errors and times of the record.
func TestTraceSummary(t *testing.T) {
	const table = `  calls  errors     time  longest  command
      2       1  11.01ms   9.54ms  query device
      1       0   9.97ms   9.97ms  open device
      1       0   6.45ms   6.45ms  create asynchronous event channel
      1       0   6.32ms   6.32ms  query port
      1       0   3.83ms   3.83ms  close
      1       0   1.89ms   1.89ms  open
`
	for _, c := range []struct {
		record string
		args   []string
		want   string
	}{
		{"devinfo_ioctl", nil, table},
		{"devinfo_ioctl", []string{"--failed"}, `  calls  errors    time  longest  command
      1       1  9.54ms   9.54ms  query device
`},
		{"srq_pingpong_ioctl", []string{"--object", "SRQ"}, `  calls  errors     time  longest  command
      1       0   1.08ms   1.08ms  create SRQ
      1       0  409.7µs  409.7µs  map memory
      1       0  192.1µs  192.1µs  destroy SRQ
`},
		// The post sends are in no line of the text, but they are calls.
		{"srq_pingpong_ioctl", []string{"--object", "QP 18", "--json"}, `[` +
			`{"verb":"modify QP","method":"IB_USER_VERBS_CMD_MODIFY_QP","calls":3,"errors":0,"time_ns":6090416,"longest_ns":5759235},` +
			`{"verb":"create QP","method":"UVERBS_METHOD_QP_CREATE","calls":1,"errors":0,"time_ns":535280,"longest_ns":535280},` +
			`{"verb":"post send","method":"IB_USER_VERBS_CMD_POST_SEND","calls":1,"errors":0,"time_ns":497267,"longest_ns":497267},` +
			`{"verb":"map memory","calls":1,"errors":0,"time_ns":412787,"longest_ns":412787},` +
			`{"verb":"destroy QP","method":"UVERBS_METHOD_QP_DESTROY","calls":1,"errors":0,"time_ns":303078,"longest_ns":303078},` +
			`{"verb":"query QP","method":"IB_USER_VERBS_CMD_QUERY_QP","calls":1,"errors":0,"time_ns":173280,"longest_ns":173280}]` + "\n"},
	} {
		if got := showGolden(t, c.record, append(c.args, "--summary")...); got != c.want {
			t.Errorf("%s %q:\n%swant\n%s", c.record, c.args, got, c.want)
		}
	}
}

// TestTraceFilters: --object and --failed keep the lines of the whole record that they are for, in their order.
func TestTraceFilters(t *testing.T) {
	const all = `run open query-device open-device create-asynchronous-event-channel allocate-PD register-MR create-CQ map-memory ` +
		`create-SRQ map-memory create-QP map-memory query-QP create-QP map-memory query-QP modify-QP modify-QP query-port ` +
		`query-GID-entry query-GID-entry modify-QP modify-QP modify-QP modify-QP destroy-QP destroy-QP destroy-SRQ ` +
		`destroy-CQ deregister-MR deallocate-PD close exit`
	const qp = "create-QP map-memory query-QP modify-QP modify-QP modify-QP destroy-QP"
	for _, c := range []struct {
		args []string
		want string
		has  string // in each line
	}{
		{nil, all, ""},
		{[]string{"--object", "QP"}, "create-QP map-memory query-QP create-QP map-memory query-QP modify-QP modify-QP modify-QP modify-QP modify-QP modify-QP destroy-QP destroy-QP", ": QP 1"},
		{[]string{"--object", "QP 17"}, qp, ": QP 17"}, // its queue is mapped as "QP 17 sq"
		{[]string{"--object", "qp 18"}, qp, ": QP 18"},
		{[]string{"--object", "QP 1"}, "", ""},
		{[]string{"--object", "SRQ 3"}, "create-SRQ map-memory destroy-SRQ", ": SRQ 3"},
		{[]string{"--object", "CQ"}, "create-CQ map-memory destroy-CQ", ": CQ 2"},
		{[]string{"--object", "PD 0"}, "allocate-PD deallocate-PD", ": PD 0"},
		{[]string{"--failed"}, "query-device", " = ENOSPC "},
		{[]string{"--failed", "--object", "device"}, "query-device", " = ENOSPC "},
		{[]string{"--failed", "--object", "QP"}, "", ""},
	} {
		var verbs []string
		whole := strings.SplitAfter(showGolden(t, "srq_pingpong_ioctl"), "\n")
		for line := range strings.Lines(showGolden(t, "srq_pingpong_ioctl", c.args...)) {
			i := slices.Index(whole, line)
			if i < 0 || !strings.Contains(line, c.has) {
				t.Errorf("%q: %s", c.args, line)
				continue
			}
			whole = whole[i+1:]
			verbs = append(verbs, lineVerb(line))
		}
		if got := strings.Join(verbs, " "); got != c.want {
			t.Errorf("%q:\n%s\nwant\n%s", c.args, got, c.want)
		}
	}
}

// lineVerb returns what the call of a line does, such as create-QP: "113 uverbs1 create QP: QP 17 on PD 0".
func lineVerb(line string) string {
	words := strings.Fields(line)[1:]
	if words[0] == "uverbs1" {
		words = words[1:]
	}
	if words[0] == "fd" { // of an open
		words = words[2:]
	}
	verb, _, _ := strings.Cut(strings.Join(words, "-"), ":")
	verb, _, _ = strings.Cut(verb, "-=")
	verb, _, _ = strings.Cut(verb, "-<")
	return verb
}
