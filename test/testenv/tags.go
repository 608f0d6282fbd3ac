package testenv

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// A Tag says something about a test by which a run can leave it out.
type Tag string

// The tags of tests. Command test/run says which of its boots leave out which tags.
const (
	// AnyLink marks a test that shows the same on InfiniBand as on Ethernet.
	AnyLink Tag = "any-link"
	// AnyCard marks a test that shows the same on a ConnectX as on rxe.
	AnyCard Tag = "any-card"
	// AnyTransport marks a test that shows the same on iWARP as on RoCE.
	AnyTransport Tag = "any-transport"
	// DeadCard marks a test of what happens when a card dies.
	DeadCard Tag = "dead-card"
	// KernelLink marks a test that cuts the kernel's link or removes its device, which the packets of
	// a modelled card do not pass through.
	KernelLink Tag = "kernel-link"
	// SpecialCard marks a test that runs on cards which differ from the usual ones, and Unordered
	// one that does not expect receives in order, as on an unordered card.
	SpecialCard, Unordered Tag = "special-card", "unordered"
	// Perftest marks a test that needs the programs of the package perftest, or verbs perf, which
	// talks to them.
	Perftest Tag = "perftest"
	// Memory marks a test that counts allocations or memory, which under the race detector are not those
	// of the library alone.
	Memory Tag = "memory"
	// Machine marks a test that changes more than objects of its own: network interfaces, addresses,
	// RDMA devices, files in /dev, /proc or /sys. It also marks one that needs the addresses of vmrun.
	Machine Tag = "machine"
	// Long marks a test that takes seconds.
	Long Tag = "long"
	// Race marks a test that takes too long, or uses too much memory, under the race detector.
	Race Tag = "race"
)

// SkipTagsEnv lists tags, separated by commas. Tests that have one of them are skipped.
const SkipTagsEnv = "GOVERBS_SKIP_TAGS"

// Tags gives a test tags. It skips the test if this run leaves one of them out.
func Tags(tb testing.TB, tags ...Tag) {
	tb.Helper()
	if tag := leftOut(os.Getenv(SkipTagsEnv), tags); tag != "" {
		run.Lock()
		run.leftOut = true
		run.Unlock()
		tb.Skipf("%s%s has %s", ElsewhereMark, SkipTagsEnv, tag)
	}
}

// leftOut returns the tag that is in a list of tags to skip, or "".
func leftOut(list string, tags []Tag) Tag {
	skip := strings.Split(list, ",")
	i := slices.IndexFunc(tags, func(t Tag) bool { return slices.Contains(skip, string(t)) })
	if i < 0 {
		return ""
	}
	return tags[i]
}
