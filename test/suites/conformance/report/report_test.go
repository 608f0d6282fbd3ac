package report

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/matrix"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args    string
		devices []string
		want    string // part of the error
	}{
		{"rxe0", []string{"rxe0"}, ""},
		{"rxe0 rxe1 -ktap", []string{"rxe0", "rxe1"}, ""},
		{"--run TestA rxe0 --quick", []string{"rxe0"}, ""},
		{"-run=TestA rxe0", []string{"rxe0"}, ""},
		{"a b c", nil, "3 devices, allowed: 1 or 2"},
		{"a a", nil, "both devices are a"},
		{"-run [ a", nil, "-run: "},
		{"-card a -quick", nil, "a whole run on one device"},
		{"-card -run TestA a", nil, "a whole run on one device"},
		{"-card a b", nil, "a whole run on one device"},
		{"-timeout 0s a", nil, "-timeout is 0s"},
		{"-from x -quick", nil, "-quick"},
		{"-color", nil, "conformance -help"},
		{"-run", nil, "conformance -help"},
	} {
		o, err := parse(strings.Fields(c.args), io.Discard)
		if c.want == "" && (err != nil || !slices.Equal(o.devices, c.devices)) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %+v, %v, want devices %q, error %q", c.args, o, err, c.devices, c.want)
		}
	}
	var help bytes.Buffer
	if _, err := parse([]string{"-help"}, &help); err == nil {
		t.Error("-help is no error")
	}
	for l := range strings.Lines(help.String()) {
		if len(l) > 101 { // with the newline
			t.Errorf("a line of the help is too long: %s", l)
		}
	}
	has(t, "help", help.String(), "usage:", "-ktap", "Exit status")
}

func TestWanted(t *testing.T) {
	for args, want := range map[string]bool{
		"conformance": true, "/bin/conformance rxe0 -ktap": true, "x -run TestA": true, "./conformance test.json": true,
		"conformance.test": false, "conformance.test rxe0": false, "/proc/self/exe -test.run ^TestA$": false, "x --test.v": false, "x -test.v=test2json": false,
	} {
		if got := Wanted(strings.Fields(args)); got != want {
			t.Errorf("%q: %t, want %t", args, got, want)
		}
	}
}

func TestChoose(t *testing.T) {
	rxe := func(names ...string) (all []uverbs.DeviceInfo) {
		for _, n := range names {
			all = append(all, uverbs.DeviceInfo{Name: n, Driver: strings.TrimRight(n, "01")})
		}
		return all
	}
	closed := []uverbs.DeviceInfo{{Name: "bnxt_re0", Driver: "bnxt_re", Err: errors.New("driver bnxt_re is not supported")}}
	for _, c := range []struct {
		names, all string
		infos      []uverbs.DeviceInfo
		err        error
		want       string // devices, or part of the error
		fails      bool
	}{
		{"", "one", rxe("rxe0"), nil, "rxe0", false},
		{"", "a pair in software", rxe("rxe0", "rxe1"), nil, "rxe0 rxe1", false},
		{"", "two cards", rxe("mlx5_0", "mlx5_1"), nil, "name the DEVICE to test, or two that reach each other: mlx5_0, mlx5_1", true},
		{"", "two drivers", rxe("rxe0", "siw0"), nil, "name the DEVICE", true},
		{"mlx5_1", "two cards", rxe("mlx5_0", "mlx5_1"), nil, "mlx5_1", false},
		{"rxe0 siw0", "two drivers", rxe("rxe0", "siw0"), nil, "drivers of rxe0 and siw0 differ", true},
		{"rxe7", "another", rxe("rxe0"), nil, "there is no device rxe7; devices here: rxe0", true},
		{"", "none", nil, nil, "no RDMA device", true},
		{"", "no RDMA", nil, errors.New("modprobe ib_uverbs"), "modprobe ib_uverbs", true},
		{"soft0", "no RDMA", nil, errors.New("modprobe ib_uverbs"), "soft0", false},
		{"soft0 rxe0", "both", rxe("rxe0"), nil, "soft0 is a software device", true},
		{"bnxt_re0", "no driver", closed, nil, "bnxt_re0 cannot be tested: driver bnxt_re is not supported", true},
	} {
		got, err := choose(strings.Fields(c.names), c.infos, c.err)
		if c.fails && (err == nil || !strings.Contains(err.Error(), c.want)) || !c.fails && (err != nil || strings.Join(got, " ") != c.want) {
			t.Errorf("%q of %s: %q, %v, want %q", c.names, c.all, got, err, c.want)
		}
	}
}

func TestPlace(t *testing.T) {
	gid := func(s string) ib.GID {
		g, err := ib.ParseGID(s)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	table := []uverbs.GIDEntry{
		{Port: 1, Index: 0, GID: gid("fe80::1"), Type: ib.GIDTypeRoCEv2},
		{Port: 1, Index: 1, GID: gid("10.0.0.7"), Type: ib.GIDTypeRoCEv1},
		{Port: 1, Index: 2, GID: gid("10.0.0.7"), Type: ib.GIDTypeRoCEv2},
		{Port: 1, Index: 3, GID: gid("fd00::7"), Type: ib.GIDTypeRoCEv2},
	}
	d := Device{Device: "x", Netdev: "eth0", Protocol: "roce", LinkLayer: "Ethernet"}
	if p, err := placeOf(d, table); err != nil || p != (place{"10.0.0.7", 2, 3}) {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := placeOf(d, table[:3]); err != nil || p.gid6 != 0 {
		t.Errorf("without a routable IPv6 address: %+v, %v, want the link-local one", p, err)
	}
	if _, err := placeOf(d, table[:1]); err == nil || !strings.Contains(err.Error(), "ip address add ADDRESS dev eth0") {
		t.Errorf("without an IPv4 address: %v", err)
	}
}

// TestEnvironment: package testenv gets the devices as they are, and what to leave out.
func TestEnvironment(t *testing.T) {
	t.Setenv(testenv.SkipTagsEnv, "race")
	rig := testenv.Rig{Driver: "mlx5", Devices: [2]string{"ibp1s0", "ibp1s0"}, Netdevs: [2]string{"ib0", "ib0"}, GID: 4, GID6: 5, OnInfiniBand: true}
	env, err := (&options{quick: true}).environment(rig)
	must(t, err)
	for _, want := range []string{testenv.GuestEnv + "=1", testenv.SkipTagsEnv + "=race,machine,long", testenv.WaysEnv + "=auto", testenv.OpenListEnv + "=1"} {
		if !slices.Contains(env, want) {
			t.Errorf("%q has no %q", env, want)
		}
	}
	efa, err := (&options{}).environment(testenv.Rig{Driver: "efa", Devices: rig.Devices})
	if err != nil || !slices.Contains(efa, testenv.OpenListEnv+"=1") {
		t.Errorf("an EFA card: %q, %v", efa, err)
	}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	if got := testenv.TheRig(); got != rig || !got.InfiniBand() {
		t.Errorf("the tests get %+v, want %+v", got, rig)
	}
	t.Setenv(testenv.ModelEnv, "1")
	t.Setenv(testenv.SkipTagsEnv, "race")
	if env, err = (&options{vm: true}).environment(rig); err != nil || slices.Contains(env, testenv.OpenListEnv+"=1") || !slices.Contains(env, testenv.SkipTagsEnv+"=race") {
		t.Errorf("%q, %v: want the list of the model, and every test", env, err)
	}
}

func TestReason(t *testing.T) {
	skip := matrix.Result{Outcome: matrix.Elsewhere}
	for output, want := range map[string]string{
		"    a_test.go:7: " + testenv.ElsewhereMark + testenv.SkipTagsEnv + " has machine\n": "it changes the machine (-vm runs it)",
		"    a_test.go:7: " + testenv.ElsewhereMark + "X is not 1 (go run)\n":                "X is not 1 (go run)",
		"said before\n    a_test.go:8: " + testenv.NotSoftMark + "limits are the kernel's\n": "limits are the kernel's",
		"": "",
	} {
		if got := reason(skip, output); got != want {
			t.Errorf("of %q the reason is %q, want %q", output, got, want)
		}
	}
	if got := reason(matrix.Result{Outcome: matrix.Unsupported, Note: "ALLOC_MW"}, "x"); got != "not supported: ALLOC_MW" {
		t.Errorf("the reason is %q", got)
	}
}

func TestWarning(t *testing.T) {
	for record, want := range map[string]string{
		"4,812,61023456,-;WARNING: CPU: 1 PID: 77 at rxe_qp.c:123\n": "[61.023456] WARNING: CPU: 1 PID: 77 at rxe_qp.c:123",
		"27,3,1000001,-;rxe0: failed\n SUBSYSTEM=infiniband\n":       "[1.000001] rxe0: failed", // facility 3, level 3
		"6,813,61023457,-;rdma_rxe: loaded\n":                        "",
		"5,1,2,c;notice\n":                                           "",
		"no record":                                                  "",
	} {
		if got, ok := warning(record); got != want && want != "" || ok != (want != "") {
			t.Errorf("%q: %q, %t, want %q", record, got, ok, want)
		}
	}
	for line, want := range map[string]bool{"[1.0] WARNING: CPU: 0": true, "[1.0] BUG: KASAN: use-after-free in rxe_post": true, "[1.0] rxe0: failed": false} {
		if isComplaint(line) != want {
			t.Errorf("%q is a complaint: %t, want %t", line, !want, want)
		}
	}
}

// TestKernelLog reads what this process writes into the kernel's log.
func TestKernelLog(t *testing.T) {
	log, err := openKernelLog()
	testenv.NeedsRights(t, "reading the kernel's log", err)
	defer log.close()
	log.read()
	const line = "goverbs: a test of the conformance report, no error"
	testenv.NeedsRights(t, "writing to the kernel's log", os.WriteFile("/dev/kmsg", []byte("<4>"+line+"\n"), 0))
	all := log.read()
	if !slices.ContainsFunc(all, func(l string) bool { return strings.HasSuffix(l, line) }) {
		t.Errorf("the log has %q", all)
	}
}

func TestAttributes(t *testing.T) {
	all := attributes(uverbs.DeviceAttr{MaxQPWR: 7, MaxCQE: 8, CapFlags: 0x1c36, CoreClockKHz: 9, MaxPKeys: 10})
	for key, want := range map[string]string{
		"max_qp_wr": "7", "max_cqe": "8", "cap_flags": "0x1c36", "core_clock_khz": "9", "max_pkeys": "10", "max_srq_sge": "0", "max_raw_ipv6_qp": "0",
		"odp_caps_rc": "0x0", "max_rwq_ind_tables": "0", "node_guid": "0000:0000:0000:0000", "tag_matching_max_tags": "0", "local_ca_ack_delay": "0", "max_mr_size": "0",
	} {
		if all[key] != want {
			t.Errorf("%s is %q, want %q", key, all[key], want)
		}
	}
	if t.Failed() {
		t.Log(all)
	}
}

// recorded are results in the order in which tests end.
var recorded = []Result{
	{Test: "TestA", Outcome: matrix.Passed},
	{Test: "TestB/auto/x/y", Outcome: matrix.Passed}, // a subtest named x/y
	{Test: "TestB/auto/z#01", Outcome: matrix.Failed, Output: "    b_test.go:7: bad\n        worse\n"},
	{Test: "TestB/auto", Outcome: matrix.Failed},
	{Test: "TestB/write", Outcome: matrix.Unsupported, Reason: "not supported: ALLOC_MW"},
	{Test: "TestB", Outcome: matrix.Failed},
	{Test: "TestC", Outcome: matrix.Elsewhere, Reason: "X is not 1"},
	{Test: "TestE/auto", Outcome: matrix.Unsupported, Reason: "not supported: X"},
	{Test: "TestE", Outcome: matrix.Passed},
	{Test: "TestD", Outcome: matrix.Failed, Reason: "it did nothing for 3m0s", Output: "SIGQUIT\n"},
}

// wantKTAP is what they are in KTAP.
const wantKTAP = `KTAP version 1
1..6
# device rxe0, driver rxe, Linux 6.1.0-56-amd64, amd64
ok 1 TestA
  KTAP version 1
  1..2
    KTAP version 1
    1..2
    ok 1 x/y
    # b_test.go:7: bad
    #     worse
    not ok 2 z_01
  not ok 1 auto
  ok 2 write # SKIP not supported: ALLOC_MW
not ok 2 TestB
ok 3 TestC # SKIP X is not 1
  KTAP version 1
  1..1
  ok 1 auto # SKIP not supported: X
ok 4 TestE # SKIP all subtests
# SIGQUIT
not ok 5 TestD # ERROR it did nothing for 3m0s
# [61.0] WARNING: CPU
# the kernel complained: [61.0] WARNING: CPU
not ok 6 kernel_log_and_objects
`

// rxeReport is a report on rxe.
func rxeReport() *Report {
	return &Report{
		Schema: schema, Machine: Machine{Release: "6.1.0-56-amd64", Arch: "amd64"}, Devices: []Device{{Device: "rxe0", Driver: "rxe", LinkLayer: "Ethernet"}},
		Results: slices.Clone(recorded), KernelLog: []string{"[61.0] WARNING: CPU"}, Problems: []string{"the kernel complained: [61.0] WARNING: CPU"},
	}
}

func TestKTAP(t *testing.T) {
	var out bytes.Buffer
	rxeReport().replay(&ktap{w: &out}, nil, "")
	if got := out.String(); got != wantKTAP {
		t.Errorf("KTAP is\n%swant\n%s", got, wantKTAP)
	}
}

// TestCompare: a report of rxe is compared with the column of its driver and kernel.
func TestCompare(t *testing.T) {
	published, err := matrix.Published()
	must(t, err)
	r := rxeReport()
	of := published.Nearest(r.column())
	if c := published.Columns[of]; c.Driver != "rxe" || c.Version() != "6.1" || c.Arch != "amd64" {
		t.Fatalf("it is compared with %+v", c)
	}
	// One test that passes in the column fails here, one that is unsupported there passes, and one passes here
	// and there, but is unsupported in the column before.
	r.Results = nil
	var fails, passes, same string
	for _, row := range published.Rows {
		switch o := row.Cells[of].Outcome(); {
		case strings.Contains(row.Test, "/"):
		case o == matrix.Passed && row.Cells[of-1].Outcome() == matrix.Unsupported && same == "":
			same = row.Test
			r.Results = append(r.Results, Result{Test: same, Outcome: matrix.Passed})
		case o == matrix.Passed && fails == "":
			fails = row.Test
			r.Results = append(r.Results, Result{Test: fails, Outcome: matrix.Failed})
		case o == matrix.Unsupported && passes == "":
			passes = row.Test
			r.Results = append(r.Results, Result{Test: passes, Outcome: matrix.Passed})
		}
	}
	if same == "" {
		t.Fatal("no test is unsupported on the kernel before")
	}
	r.Tests = []string{fails, passes, same, "TestNew"}
	c, err := r.compare(nil, "")
	must(t, err)
	has(t, "comparison", c.String(), "the published matrix (Linux 6.1 amd64, 20", "new failures: "+fails+"\n", "newly supported: "+passes+"\n")
	if strings.Contains(c.String(), same) {
		t.Errorf("it is compared with another column:\n%s", c)
	}
	if n := len(c.table.Columns); n < 4 || len(c.table.Rows) != 4 {
		t.Errorf("the table has %d columns and %d rows", n, len(c.table.Rows))
	}
	r.Devices[0].Driver = "irdma"
	if c, err = r.compare(nil, ""); err != nil || !strings.Contains(c.String(), "no column of this driver") {
		t.Errorf("of another driver: %v, %v", c, err)
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	for text, want := range map[string]string{"{}": "schema 1", "[]": "no report", `{"schema": 2, "devices": [{}]}`: "schema 1"} {
		must(t, os.WriteFile(path, []byte(text), 0o666))
		if _, err := read(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// bugName matches where a test tolerates a bug, and bugLine a line of the table of bugs with its tests.
var (
	bugName = regexp.MustCompile(`testenv\.KnownBug\(\w+, "([a-z0-9-]+)"\)`)
	bugLine = regexp.MustCompile(`(?m)^\| ([a-z0-9-]+) \|.*\| ([^|]+) \|$`)
)

// kernelBugs is the program that looks for bugs that crash kernels. Its own tests compare its attacks with
// the page.
const kernelBugs = "kernelbugs"

// TestBugs: the bugs that tests tolerate are in the table of known bugs, and the other way round, but for
// those because of which tests skip. The tests that the tables name are there.
func TestBugs(t *testing.T) {
	files, err := filepath.Glob("../*_test.go")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	var source []byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		must(t, err)
		source = append(source, b...)
	}
	tolerated := map[string]bool{}
	for _, m := range bugName.FindAllSubmatch(source, -1) {
		tolerated[string(m[1])] = true
	}
	interop, err := os.ReadFile("../../interop/doctor_cm_test.go")
	must(t, err)
	page, err := os.ReadFile("../BUGS.md")
	must(t, err)
	page, vain, _ := bytes.Cut(page, []byte("\n## Looked for and not found\n"))
	for _, m := range bugLine.FindAllSubmatch(vain, -1) {
		for _, test := range strings.Split(string(m[2]), ", ") {
			if name := string(m[1]); name != "name" && test != kernelBugs && !bytes.Contains(source, []byte("func "+test+"(")) {
				t.Errorf("%s, which was not found: there is no test %q", name, test)
			}
		}
	}
	listed := map[string]bool{}
	for _, m := range bugLine.FindAllSubmatch(page, -1) {
		name, tests := string(m[1]), string(m[2])
		if test, ok := strings.CutSuffix(tests, " (interop)"); ok {
			if !bytes.Contains(interop, []byte("func "+test+"(")) {
				t.Errorf("%s: the suite interop has no test %q", name, test)
			}
			continue
		}
		if name == "bug" || tests == kernelBugs {
			continue
		}
		listed[name] = true
		if skips := strings.HasSuffix(tests, " (skips)"); skips == tolerated[name] {
			t.Errorf("%s: the table says that tests skip: %t; a test tolerates it: %t", name, skips, tolerated[name])
		}
		for _, test := range strings.Split(strings.TrimSuffix(tests, " (skips)"), ", ") {
			if !bytes.Contains(source, []byte("func "+test+"(")) {
				t.Errorf("%s: there is no test %q", name, test)
			}
		}
	}
	for name := range tolerated {
		if !listed[name] {
			t.Errorf("BUGS.md does not have %s", name)
		}
	}
	if len(listed) < 10 {
		t.Errorf("the table has only %d bugs", len(listed))
	}
}

// TestMet: a report has the known bugs that tests met, once each.
func TestMet(t *testing.T) {
	var r Report
	line := "    a_test.go:7: " + testenv.KnownBugMark + "flushed\n"
	r.met("TestA/x", line+line)
	r.met("TestA/y", line)
	r.met("TestB", "said\n"+line)
	r.met("TestC", "said\n")
	if got := r.bugs(); !slices.Equal(got, []string{"flushed (TestA, TestB)"}) {
		t.Errorf("the bugs are %q", got)
	}
}

func TestByTest(t *testing.T) {
	got := byTest([]string{"TestA/x", "TestB/y", "TestA/z", "TestC"})
	if want := []string{"TestA (2 subtests)", "TestB/y", "TestC"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
