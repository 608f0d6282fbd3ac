package klog

import (
	"slices"
	"strings"
	"testing"
)

// report makes a judge of the release read the lines.
func judged(release string, lines ...string) []*Report {
	j := NewJudge(KnownBugs())
	j.SetRelease(release)
	for _, l := range lines {
		j.Console("[   12.345678] " + l)
	}
	return j.Reports()
}

func TestKnownBugs(t *testing.T) {
	const (
		completer = "WARNING: CPU: 0 PID: 311 at drivers/infiniband/sw/rxe/rxe_comp.c:742 rxe_completer+0xa89/0xc20 [rdma_rxe]"
		ufile     = "WARNING: CPU: 1 PID: 97 at drivers/infiniband/core/rdma_core.c:899 uverbs_destroy_ufile_hw+0xe5/0xf0 [ib_uverbs]"
		pd        = "WARNING: CPU: 1 PID: 97 at drivers/infiniband/core/verbs.c:345 ib_dealloc_pd_user+0x5a/0x70 [ib_core]"
		pool6     = "WARNING: CPU: 0 PID: 305 at drivers/infiniband/sw/rxe/rxe_pool.c:255 __rxe_cleanup+0x124/0x170 [rdma_rxe]"
		pool7     = "WARNING: drivers/infiniband/sw/rxe/rxe_pool.c:212 at __rxe_cleanup+0x12c/0x170 [rdma_rxe], CPU#0: python3/305"
	)
	for _, tt := range []struct {
		release, line string
		known         bool
	}{
		{"5.10.0-46-amd64", completer, true},
		{"5.10.0-46-amd64", ufile, true},
		{"5.10.0-46-amd64", pd, true},
		{"6.1.0-56-amd64", completer, false},
		{"6.1.0-56-amd64", ufile, false},
		{"6.1.0-56-amd64", pool6, true},
		{"6.12.117+deb13-amd64", pool6, true},
		{"7.2.13+deb14-amd64", pool7, true},
		{"5.10.0-46-amd64", pool6, false},
		{"", completer, false},
		{"5.10.0-46-amd64", strings.Replace(completer, "rxe_completer", "rxe_requester", 1), false},
	} {
		rs := judged(tt.release, tt.line)
		if len(rs) != 1 || (rs[0].Known != nil) != tt.known {
			t.Errorf("kernel %q, %q: %d reports, known: %v, want one and %v", tt.release, tt.line, len(rs), len(rs) > 0 && rs[0].Known != nil, tt.known)
		}
	}
}

// TestKnownAfter: a report that is known only behind another one is so there, and nowhere else.
func TestKnownAfter(t *testing.T) {
	const (
		cut     = "------------[ cut here ]------------"
		end     = "---[ end trace 0000000000000000 ]---"
		siw6    = "WARNING: CPU: 0 PID: 112 at /cache/siw/siw_cm.c:453 siw_cep_put+0x11d/0x130 [siw]"
		siw7    = "WARNING: siw_cm.c:498 at siw_cep_put+0x12e/0x140 [siw], CPU#0: cm.test/121"
		counter = "WARNING: CPU: 0 PID: 112 at lib/refcount.c:28 refcount_warn_saturate+0xba/0x110"
	)
	for _, tt := range []struct {
		release string
		lines   []string
		known   []bool
	}{
		{"6.1.0-56-amd64", []string{cut, siw6, end, cut, "refcount_t: underflow; use-after-free.", counter, end}, []bool{true, true}},
		{"7.2.13+deb14-amd64", []string{cut, siw7, end}, []bool{true}},
		{"6.1.0-56-amd64", []string{cut, "refcount_t: underflow; use-after-free.", counter, end}, []bool{false}},
		{"6.1.0-56-amd64", []string{cut, "refcount_t: underflow; use-after-free.", counter, end, cut, siw6, end}, []bool{false, true}},
	} {
		var got []bool
		for _, r := range judged(tt.release, tt.lines...) {
			got = append(got, r.Known != nil)
		}
		if !slices.Equal(got, tt.known) {
			t.Errorf("%s, %q: known %v, want %v", tt.release, tt.lines, got, tt.known)
		}
	}
}

// A function of a known bug in the trace of something else excuses nothing.
func TestKnownOnlyByHeadline(t *testing.T) {
	rs := judged("6.1.0", "BUG: unable to handle page fault for address: 0", "Call Trace:",
		" WARNING: CPU: 0 PID: 305 at drivers/infiniband/sw/rxe/rxe_pool.c:255 __rxe_cleanup+0x124/0x170 [rdma_rxe]")
	if len(rs) != 1 || rs[0].Known != nil {
		t.Errorf("%d reports, known %v", len(rs), rs[0].Known)
	}
}

func TestParseBugs(t *testing.T) {
	bugs, err := ParseBugs("# comment\nkernel: 6.1-6.5\nmessage: ^x: y\ncause: one\n two\n\nkernel: 5.10-\nmessage: z\ncause: w\n")
	if err != nil || len(bugs) != 2 {
		t.Fatalf("%d bugs, %v", len(bugs), err)
	}
	if bugs[0].Cause != "one two" || bugs[0].Message.String() != "^x: y" {
		t.Errorf("first is %+v", bugs[0])
	}
	for release, want := range map[string][2]bool{
		"5.4": {false, false}, "5.10": {false, true}, "6.0.1": {false, true}, "6.1.0-50-amd64": {true, true},
		"6.5.13": {true, true}, "6.6": {false, true}, "10.0": {false, true},
	} {
		v, ok := ParseVersion(release)
		if !ok {
			t.Errorf("%s is no version", release)
		}
		if got := [2]bool{bugs[0].applies(v), bugs[1].applies(v)}; got != want {
			t.Errorf("%s: %v, want %v", release, got, want)
		}
	}
	for _, bad := range []string{
		"kernel: 6.1\nmessage: x\n", "kernel: 6.1\ncause: x\n", "kernel: six\nmessage: x\ncause: y\n", "message: x\ncause: y\n",
		"kernel: 6.1\nmessage: (\ncause: y\n", "kernel: 6.1\nmessage: x\ncause: y\nwho: me\n", "kernel: 6.1\nmessage: x\nafter: (\ncause: y\n", "nonsense\n", "kernel: 6.1-x\nmessage: x\ncause: y",
	} {
		if _, err := ParseBugs(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	for _, bad := range []string{"", "6", "6.", "a.b", ".1"} {
		if v, ok := ParseVersion(bad); ok {
			t.Errorf("%q is version %v", bad, v)
		}
	}
}
