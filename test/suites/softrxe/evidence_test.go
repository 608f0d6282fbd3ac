package softrxe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// recent is a trace of which only the last lines are kept.
type recent struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

// Lines of a trace.
const (
	recentLines = 200
	spareLines  = 200 // before they are removed
)

// Write adds a line.
func (r *recent) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) == recentLines+spareLines {
		r.lines = append(r.lines[:0], r.lines[spareLines:]...)
	}
	r.lines = append(r.lines, string(line))
	return len(line), nil
}

// String returns the last lines.
func (r *recent) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.lines[max(len(r.lines)-recentLines, 0):], "")
}

// rxeCounters returns the counters of the kernel's device that are not 0.
func rxeCounters() string {
	var b strings.Builder
	files, _ := filepath.Glob("/sys/class/infiniband/" + kernelName + "/ports/1/hw_counters/*") // the pattern is valid
	for _, f := range files {
		if v, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(v)) != "0" {
			fmt.Fprintf(&b, "%s=%s ", filepath.Base(f), strings.TrimSpace(string(v)))
		}
	}
	return b.String()
}

// traceOnFailure returns a trace for the software device, which is shown if the test fails.
func traceOnFailure(t *testing.T) *recent {
	r := new(recent)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		if lab != nil {
			t.Logf("%s: %s", kernelName, rxeCounters())
		}
		t.Logf("the last packets of the software device:\n%s", r)
	})
	return r
}
