package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
)

// TestSoftPerfLimits: a client says that the server has ended its test, and a value that a device refuses is a wrong
// one; a server refuses its own at once.
func TestSoftPerfLimits(t *testing.T) {
	device, port := softServe(t, "--max-time", "200ms")
	text, err := retry(t, func() (string, error) {
		return softRun(t, device, "perf", "write-bw", "--run-infinitely", "--port", port, "127.0.0.1")
	})
	if err != nil || !strings.Contains(text, "the server has ended the test after 200ms (--max-time)\n") {
		t.Errorf("%v: %s", err, text)
	}
	for _, args := range [][]string{
		{"perf", "send-bw", "--events", "--vector", "99999", "--port", port, "127.0.0.1"},
		{"perf", "serve", "--vector", "99999", "--port", fmt.Sprint(freeTCP(t))},
	} {
		text, err := softRun(t, fmt.Sprintf("127.0.0.1:%d,name=left", freeUDP(t)), args...)
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 2 || !strings.Contains(text, "--vector is 99999, allowed: 0 to ") || !strings.Contains(text, ", the completion vectors of left") {
			t.Errorf("%v: %v: %s", args, err, text)
		}
	}
}

// TestSoftPerfEndless: a test without an end prints lines, and its result when it is interrupted.
func TestSoftPerfEndless(t *testing.T) {
	device, port := softServe(t)
	if text, err := retry(t, func() (string, error) {
		return softRun(t, device, "perf", "read-lat", "-n", "1", "--port", port, "127.0.0.1")
	}); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	client := softCommand(t, device, "perf", "write-bw", "--run-infinitely", "--duration", "100ms", "--json", "--port", port, "127.0.0.1")
	var out bytes.Buffer
	client.Stdout = &out
	lines, err := client.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for b := make([]byte, 256); strings.Count(said.String(), " per second, ") < 2; {
		n, err := lines.Read(b)
		if said.Write(b[:n]); err != nil {
			t.Fatalf("%v: %s", err, said.String())
		}
	}
	client.Process.Signal(os.Interrupt)
	for b := make([]byte, 256); err == nil; {
		_, err = lines.Read(b)
	}
	var r perf.Report
	if err := client.Wait(); err != nil || json.Unmarshal(out.Bytes(), &r) != nil || len(r.Results) != 1 || r.Results[0].Iterations == 0 {
		t.Errorf("%v: %s", err, out.String())
	}
	if !strings.HasPrefix(said.String(), "65536 bytes: ") {
		t.Errorf("the lines are %s", said.String())
	}
}
