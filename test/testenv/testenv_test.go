package testenv

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
)

func TestMustHave(t *testing.T) {
	for _, c := range []struct {
		name   string
		since  [2]int
		kernel [2]int
		must   string
		want   string // part of the problem; empty if the test may skip
	}{
		{"older kernel", [2]int{6, 2}, [2]int{6, 1}, "", ""},
		{"major decides", [2]int{5, 12}, [2]int{6, 1}, "", "since 5.12"},
		{"same kernel", [2]int{6, 1}, [2]int{6, 1}, "", "since 6.1"},
		{"driver's choice", [2]int{}, [2]int{6, 1}, "", ""},
		{"promised", [2]int{}, [2]int{6, 1}, "x,flush", "promised"},
		{"something else promised", [2]int{}, [2]int{6, 1}, "flushing", ""},
	} {
		got := mustHave("flush", c.since, c.kernel, c.must)
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: problem %q, want %q", c.name, got, c.want)
		}
	}
}

// list is a list of what kernels lack.
const list = `
# a comment
<6.2   TestFlush/*: FLUSH
>=6.1  TestRaw/auto: on-demand paging
all    TestXRC: OPEN_XRCD
card:no-atomics  TestAtomic/*: atomics
`

func TestExpected(t *testing.T) {
	l, err := parseList(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		kernel   [2]int
		found    lacking
		expected bool
	}{
		{"older", [2]int{6, 1}, lacking{"TestFlush/auto", "FLUSH"}, true},
		{"major decides", [2]int{5, 10}, lacking{"TestFlush/write", "FLUSH"}, true},
		{"first that has it", [2]int{6, 2}, lacking{"TestFlush/auto", "FLUSH"}, false},
		{"another feature", [2]int{6, 1}, lacking{"TestFlush/auto", "FLUSHES"}, false},
		{"another test", [2]int{6, 1}, lacking{"TestFlushes/auto", "FLUSH"}, false},
		{"deeper", [2]int{6, 1}, lacking{"TestFlush/auto/empty", "FLUSH"}, false},
		{"first without it", [2]int{6, 1}, lacking{"TestRaw/auto", "on-demand paging"}, true},
		{"before", [2]int{5, 19}, lacking{"TestRaw/auto", "on-demand paging"}, false},
		{"all", [2]int{7, 2}, lacking{"TestXRC", "OPEN_XRCD"}, true},
	} {
		if got := expected(l, c.kernel, c.found); got != c.expected {
			t.Errorf("%s: expected is %t, want %t", c.name, got, c.expected)
		}
	}
}

// A line about a personality applies to cards that have it.
func TestCardIs(t *testing.T) {
	l, err := parseList(list)
	if err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]bool{"": false, "no-atomics": false, "vf noise": false, "small bar=1MiB no-atomics noise": true} {
		t.Setenv(PersonalityEnv, env)
		if got := expected(l, [2]int{6, 1}, lacking{"TestAtomic/auto", "atomics"}); got != want {
			t.Errorf("personality %q: expected is %t, want %t", env, got, want)
		}
	}
	for word, want := range map[string]bool{"bar": true, "bar=1MiB": true, "bar=2MiB": false, "small": false, "ba": false} {
		t.Setenv(PersonalityEnv, "small bar=1MiB no-atomics")
		if got := CardIs(word); got != want {
			t.Errorf("the card is %q: %t, want %t", word, got, want)
		}
	}
	if _, err := parseList("card: TestAtomic: atomics"); err == nil {
		t.Error("a line about no personality is accepted")
	}
}

func TestStale(t *testing.T) {
	l, err := parseList(list)
	if err != nil {
		t.Fatal(err)
	}
	xrc := lacking{"TestXRC", "OPEN_XRCD"}
	if got := stale(l, [2]int{5, 10}, allWays, []lacking{xrc, {"TestFlush/ioctl", "FLUSH"}}); got != nil {
		t.Errorf("stale lines %q, want none: one is about newer kernels, the others are confirmed", got)
	}
	if got := stale(l, [2]int{5, 10}, allWays, []lacking{xrc}); len(got) != 1 || !strings.Contains(got[0], "TestFlush/*") {
		t.Errorf("stale lines %q, want that of TestFlush", got)
	}
}

// TestStaleCard: a line that its test could not confirm, because a modelled card's personality ended it
// before, is not stale. Without that reason it is.
func TestStaleCard(t *testing.T) {
	l, err := parseList("<6.10 TestHigh/*: NUMBERS\ncard:bar TestHigh/*: PAGES\ncard:bar TestRaw: FRAMES\nall TestRaw: ETHERNET")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(PersonalityEnv, "small bar=1MiB")
	pages, ethernet := lacking{"TestHigh/auto", "PAGES"}, lacking{"TestRaw", "ETHERNET"}
	if got := stale(l, [2]int{6, 1}, allWays, []lacking{pages, ethernet}); got != nil {
		t.Errorf("stale lines %q, want none", got)
	}
	if got := stale(l, [2]int{6, 1}, allWays, []lacking{ethernet}); len(got) != 2 {
		t.Errorf("stale lines %q, want both of TestHigh", got)
	}
	if got := stale(l, [2]int{6, 1}, allWays, []lacking{pages}); len(got) != 2 {
		t.Errorf("stale lines %q, want both of TestRaw", got)
	}
	t.Setenv(PersonalityEnv, "small noise")
	if got := stale(l, [2]int{6, 1}, allWays, nil); len(got) != 2 {
		t.Errorf("stale lines %q, want those that are about no card", got)
	}
}

// TestStaleWays: an entry for one kernel interface is not stale if no test has used that interface.
func TestStaleWays(t *testing.T) {
	l, err := parseList("all TestAdvise/write: ADVISE_MR\nall TestAdvise/*: PREFETCH")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ways string
		want int
	}{{"", 2}, {"write", 2}, {"ioctl,write", 2}, {"auto,ioctl", 1}} {
		ways, err := parseWays(c.ways)
		if err != nil {
			t.Fatal(err)
		}
		if got := stale(l, [2]int{6, 1}, ways, nil); len(got) != c.want {
			t.Errorf("with the ways %q the stale lines are %q, want %d", c.ways, got, c.want)
		}
	}
	if _, err := parseWays("auto,netlink"); err == nil || !strings.Contains(err.Error(), `"netlink"`) {
		t.Errorf("a way that is none: %v", err)
	}
}

func TestParseList(t *testing.T) {
	for _, bad := range []string{"TestA: X", "<6 TestA: X", "5.10 TestA: X", "all TestA", "all Test[: X", "eth TestA: X"} {
		if _, err := parseList(bad); err == nil {
			t.Errorf("%q is taken for a list", bad)
		}
	}
}

// lackError is an error about a feature.
type lackError struct {
	feature string
	since   [2]int
}

func (e lackError) Error() string                 { return e.feature + " is missing" }
func (e lackError) Unsupported() (string, [2]int) { return e.feature, e.since }

// TestRigEnv: a rig from the environment is taken as it is.
func TestRigEnv(t *testing.T) {
	t.Setenv(DevicesEnv, "rxe0,rxe1")
	t.Setenv(RigEnv, `{"Driver": "mlx5", "Devices": ["rocep1s0", "rocep1s0"], "Netdevs": ["eth0", "eth0"], "Addrs": ["10.0.0.7", "10.0.0.7"], "GID": 5, "GID6": 7}`)
	want := Rig{Driver: "mlx5", Devices: [2]string{"rocep1s0", "rocep1s0"}, Netdevs: [2]string{"eth0", "eth0"}, Addrs: [2]string{"10.0.0.7", "10.0.0.7"}, GID: 5, GID6: 7}
	if got := TheRig(); got != want {
		t.Errorf("the rig is %+v, want %+v", got, want)
	}
}

// TestOpenList: on a device that no list was written for, tests of missing features are skipped,
// unless its kernel has them.
func TestOpenList(t *testing.T) {
	old := run.list
	defer func() { run.list, run.found = old, nil }()
	for _, c := range []struct {
		open  string
		since [2]int
		want  bool // it is skipped
	}{{"", [2]int{}, false}, {"1", [2]int{}, true}, {"1", [2]int{2, 6}, false}} {
		t.Setenv(OpenListEnv, c.open)
		run.list, run.found = nil, nil
		w := &watched{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			Skip(w, lackError{"ATOMICS", c.since})
		}()
		<-done
		if w.skipped != c.want {
			t.Errorf("%+v: skipped %t, fatal %q", c, w.skipped, w.fatal)
		}
	}
}

// TestKnownBug: a test tolerates a known bug and says so, unless the run is strict.
func TestKnownBug(t *testing.T) {
	for strict, want := range map[string]bool{"": true, "1": false} {
		t.Setenv(StrictEnv, strict)
		w := &watched{TB: t}
		if got := KnownBug(w, "flushed"); got != want || (w.log == KnownBugMark+"flushed") != want {
			t.Errorf("%s=%s: tolerated %t, log %q", StrictEnv, strict, got, w.log)
		}
	}
}

// watched is a test that tells what became of it.
type watched struct {
	testing.TB
	fatal, log string
	skipped    bool
}

func (w *watched) Helper()          {}
func (w *watched) Name() string     { return "TestXRC" }
func (w *watched) Log(args ...any)  { w.log += fmt.Sprint(args...) }
func (w *watched) Skip(args ...any) { w.skipped = true; runtime.Goexit() }
func (w *watched) Fatalf(format string, args ...any) {
	w.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestLacks(t *testing.T) {
	old := run.list
	defer func() { run.list, run.found = old, nil }()
	var err error
	if run.list, err = parseList(list); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err     error
		fatal   string
		skipped bool
	}{
		{fmt.Errorf("wrapped: %w", lackError{feature: "OPEN_XRCD"}), "", true},
		{lackError{"OPEN_XRCD", [2]int{99, 0}}, "", true},
		{lackError{"OPEN_XRCD", [2]int{2, 6}}, "has been in Linux since 2.6", false},
		{fmt.Errorf("wrapped: %w", &netlinkrdma.FeatureError{Feature: "OPEN_XRCD"}), "", true},
		{errors.Join(io.EOF, &netlinkrdma.FeatureError{Feature: "OPEN_XRCD", Since: netlinkrdma.Version{99, 0}}), "", true},
		{&netlinkrdma.FeatureError{Feature: "OPEN_XRCD", Since: netlinkrdma.Version{2, 6}}, "has been in Linux since 2.6", false},
		{&netlinkrdma.FeatureError{Feature: "OPEN_XRCD", Since: netlinkrdma.Version{2, 6}, Driver: "rxe"}, "", true},
		{&netlinkrdma.FeatureError{Feature: "FLUSH", Driver: "rxe"}, `no line "TestXRC: FLUSH"`, false},
		{lackError{feature: "FLUSH"}, `no line "TestXRC: FLUSH"`, false},
		{errors.New("something else"), "", false},
	} {
		w := &watched{TB: t}
		run.found = nil
		done := make(chan struct{})
		go func() { // which Skip and Fatalf end
			defer close(done)
			Skip(w, c.err)
		}()
		<-done
		if w.skipped != c.skipped || !strings.Contains(w.fatal, c.fatal) || (c.fatal == "") != (w.fatal == "") {
			t.Errorf("%v: skipped is %t, fatal %q, want %t, %q", c.err, w.skipped, w.fatal, c.skipped, c.fatal)
		}
		if c.skipped != (w.log == LackingMark+"OPEN_XRCD") || c.skipped != (len(run.found) == 1) {
			t.Errorf("%v: log %q, found %v", c.err, w.log, run.found)
		}
	}
}

func TestLeftOut(t *testing.T) {
	for _, c := range []struct {
		list string
		tags []Tag
		want Tag
	}{
		{"", []Tag{AnyLink}, ""},
		{"any-link", []Tag{AnyLink}, AnyLink},
		{"race,any-card", []Tag{AnyLink, AnyCard}, AnyCard},
		{"any", []Tag{AnyLink}, ""},
		{"race", nil, ""},
	} {
		if got := leftOut(c.list, c.tags); got != c.want {
			t.Errorf("of %q the list %q leaves out %q, want %q", c.tags, c.list, got, c.want)
		}
	}
}

// TestSoftRig: the names of software devices make a rig that needs no guest, with the addresses of the
// loopback interface, and only in packages that make the devices.
func TestSoftRig(t *testing.T) {
	none := func(string) string { return "" }
	ib := func(string) bool { return true }
	ethernet := func(string) bool { return false }
	for names, want := range map[string]Rig{
		"":            rxeRig,
		"rxe0,rxe1":   rxeRig,
		"soft0,soft1": {Driver: "rxe", Soft: true, Devices: [2]string{"soft0", "soft1"}, Netdevs: [2]string{"lo", "lo"}, Addrs: [2]string{SoftAddr(0), SoftAddr(1)}, GID: 1, GID6: 2},
		"soft7":       {Driver: "rxe", Soft: true, Devices: [2]string{"soft7", "soft7"}, Netdevs: [2]string{"lo", "lo"}, Addrs: [2]string{SoftAddr(0), SoftAddr(1)}, GID: 1, GID6: 2},
		"siw0,siw1":   {Driver: "siw", Devices: [2]string{"siw0", "siw1"}, Netdevs: [2]string{"ve0", "ve1"}, Addrs: [2]string{"10.1.0.1", "10.1.0.2"}},
		"efa_0,efa_1": {Driver: "efa", Devices: [2]string{"efa_0", "efa_1"}},
		"mlx5_0":      {Driver: "mlx5", Devices: [2]string{"mlx5_0", "mlx5_0"}, OnInfiniBand: true},
	} {
		if got := rigOf(names, none, ib); got != want {
			t.Errorf("%q: %+v, want %+v", names, got, want)
		}
	}
	netdev := func(device string) string { return "net" + device[5:] }
	if got := rigOf("mlx5_0,mlx5_1", netdev, ib); got.Addrs != guestAddrs || !got.InfiniBand() || got.GID != 0 {
		t.Errorf("ConnectX on InfiniBand with IPoIB: %+v", got)
	}
	if got := rigOf("mlx5_0,mlx5_1", netdev, ethernet); got.Addrs != guestAddrs || got.Netdevs != [2]string{"net0", "net1"} || got.GID != gidRoCE {
		t.Errorf("ConnectX on Ethernet: %+v", got)
	}
	t.Setenv(DevicesEnv, "")
	for guest, soft := range map[string]bool{"1": false, "": true} {
		t.Setenv(GuestEnv, guest)
		if got := TheRig().Soft; got != soft {
			t.Errorf("%s is %q; the rig has software devices: %v, want %v", GuestEnv, guest, got, soft)
		}
	}
	t.Setenv(GuestEnv, "")
	t.Setenv(DevicesEnv, "soft0,soft1")
	for _, made := range []bool{false, true} {
		run.soft = made
		t.Cleanup(func() { run.soft = false })
		if got := inGuest(); got != made {
			t.Errorf("the package makes the devices: %v; tests that need a guest run: %v", made, got)
		}
		if v := Kernel(t); (v == softKernel) != made {
			t.Errorf("the package makes the devices: %v; the kernel is %v", made, v)
		}
		ran := false
		t.Run("on the kernel", func(t *testing.T) {
			NeedsKernel(t, "limits")
			ran = true
		})
		if ran == made {
			t.Errorf("the package makes the devices: %v; a test about the kernel runs: %v", made, ran)
		}
	}
}
