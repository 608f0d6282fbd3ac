package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// record traces a program and returns its exit status and what was recorded.
func record(t *testing.T, noIoctl bool, args ...string) (int, []map[string]any) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "trace")
	type result struct {
		code int
		err  error
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	defer func(was *os.File) { os.Stdout = was }(os.Stdout)
	os.Stdout = null // what the program says is of no interest
	done := make(chan result)
	go func() { // its thread ends with it, and takes the filter along
		code, err := run(out, noIoctl, args)
		done <- result{code, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var all []map[string]any
	for line := range strings.Lines(string(text)) {
		c := map[string]any{}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, c)
	}
	return r.code, all
}

// TestExitStatus: the traced program's end is ours, that of its children is not.
func TestExitStatus(t *testing.T) {
	for script, want := range map[string]int{"exit 3": 3, "(exit 4); exit 0": 0, "kill -TERM $$": 128 + 15, "trap 'exit 5' USR1; kill -USR1 $$": 5} {
		if code, all := record(t, false, "sh", "-c", script); code != want || len(all) != 0 {
			t.Errorf("%s: status %d with %d commands, want %d", script, code, len(all), want)
		}
	}
	if _, err := run(filepath.Join(t.TempDir(), "trace"), false, []string{"/no/such/program"}); err == nil {
		t.Error("a program that is not there was traced")
	}
}

// TestTrace traces our own command, which takes the ioctl where there is one and falls
// back to write() where there is none.
func TestTrace(t *testing.T) {
	testenv.Guest(t)
	for _, noIoctl := range []bool{false, true} {
		code, all := record(t, noIoctl, os.Getenv("VERBS"), "info", "rxe0")
		if code != 0 {
			t.Fatalf("without ioctl %t: status %d", noIoctl, code)
		}
		count := map[string]int{}
		for _, c := range all {
			call := c["call"].(string)
			if errno, ok := c["errno"]; ok {
				call = errno.(string)
			} else if call == "write" && c["response"] == nil {
				t.Errorf("a query by write() without an answer: %v", c)
			}
			count[call]++
		}
		if noIoctl && (count["write"] < 3 || count["ENOTTY"] < 3 || count["ioctl"] > 0) ||
			!noIoctl && (count["ioctl"] < 3 || count["write"] > 0) {
			t.Errorf("without ioctl %t: commands %v", noIoctl, count)
		}
	}
}
