package perf_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/mesh"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
)

// TestSilentFleet: hosts that accept connections and stop answering become findings, though nobody
// interrupts the run: at once, after the proof of the secret, and after the list of devices.
func TestSilentFleet(t *testing.T) {
	perf.ShortTimes(t, 2*time.Second, 10*time.Millisecond)
	secret, rail := []byte("0123456789abcdef"), perf.Rail{Device: "rail0", Driver: "rxe", Port: 1, MTU: 1024}
	host := func(name string, port int) mesh.Host { return mesh.Host{Name: name, Addr: "127.0.0.1", Port: port} }
	r := mesh.Run{
		Hosts: []mesh.Host{
			host("mute", perf.SilentServer(t, nil)), host("proves", perf.SilentServer(t, secret)),
			host("lists", perf.SilentServer(t, secret, rail)), host("lists too", perf.SilentServer(t, secret, rail)),
		},
		Secret: secret, Types: []string{perf.RC}, FlowLabels: []int{0}, Thresholds: mesh.Thresholds{LatencyRatio: 3},
		Iterations: 10, Messages: 10, Size: 4096, Timeout: time.Second,
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a run that needs it fails
	defer cancel()
	rep, err := r.Do(ctx)
	if err != nil || rep.OK || len(rep.Findings) != 3 {
		t.Fatalf("%v, %+v", err, rep)
	}
	for i, want := range []struct {
		cause    string
		hosts    []string
		problem  string
		evidence string
	}{
		{mesh.CauseHost, []string{"mute"}, "unreachable", "nothing came for 2s"},
		{mesh.CauseHost, []string{"proves"}, "unreachable", `has not sent "rails" for 4s`},
		{mesh.CauseLink, []string{"lists", "lists too"}, "failed", `has not sent "probed" for 4.01s`},
	} {
		f := rep.Findings[i]
		if f.Cause != want.cause || !slices.Equal(f.Hosts, want.hosts) || !slices.Equal(f.Problems, []string{want.problem}) || !strings.Contains(strings.Join(f.Evidence, "\n"), want.evidence) {
			t.Errorf("finding %d is %+v, want %+v", i, f, want)
		}
	}
}
