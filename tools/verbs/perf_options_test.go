package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
)

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
