package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTraceCommand: the exit status of "verbs trace" is that of the program, or says why there is none.
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
		"it is no record": func(string) string { return "hello\n" },
		"it is empty":     func(string) string { return "" },
	} {
		if out, err := show(want); exitStatus(err) != 1 || !strings.Contains(err.Error(), text) || out != "" {
			t.Errorf("%v, want %q\n%s", err, text, out)
		}
	}
}
