package main

import (
	"bytes"
	"context"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/matrix"
	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// testConfig is what the command line says without flags, on amd64.
func testConfig() *config {
	return &config{root: "../..", version: "v0", kernel: "6.1", arch: "amd64", personalities: []string{"small", "unordered", "4711"}, fuzztime: "1x", jobs: 2}
}

// byHand are the suites that run only by name.
var byHand = []string{"softunit", "personalities", "walk", "conns", "attacks", "fuzz", "demo-vm", "bench", "benchsiw", "benchsoft", "benchmemory", "golden", "generate"}

// TestGroups: make test, make testall and make testlong together run every step that is not run by hand, once.
func TestGroups(t *testing.T) {
	c := testConfig()
	seen := map[string]int{}
	for name := range groups {
		p, err := c.plan([]string{name})
		must(t, err)
		for _, s := range p.steps {
			seen[s.name]++
		}
	}
	c.short = true
	for _, s := range c.suites() {
		for _, st := range s.steps {
			want := 1
			if slices.Contains(byHand, s.name) || st.named {
				want = 0
			}
			if n := seen[st.full(s.name)]; n != want {
				t.Errorf("%s is %d times in the groups, want %d", st.full(s.name), n, want)
			}
		}
	}
}

// TestVet: the check vets every module but the one that has a suite for it, since no step that runs tests does.
func TestVet(t *testing.T) {
	mods, err := filepath.Glob("../../*/*/go.mod")
	must(t, err)
	var vetted []string
	for _, s := range testConfig().suites() {
		for _, st := range s.steps {
			if (s.name == "check" || s.name == "kubernetes") && slices.Equal(st.host, words("go vet ./...")) {
				vetted = append(vetted, st.dir)
			}
		}
	}
	want := []string{""}
	for _, m := range mods {
		if dir, _ := filepath.Rel("../..", filepath.Dir(m)); dir != "test/runsc" { // which has no package
			want = append(want, filepath.ToSlash(dir))
		}
	}
	slices.Sort(vetted)
	if !slices.Equal(vetted, want) {
		t.Errorf("vetted are %q, the modules are %q", vetted, want)
	}
	if !slices.Contains(groups["test"], "check") {
		t.Error("make test has no check")
	}
}

// TestBrief: a test that makes less load in a brief run calls Brief itself, and makes all of its load in another step.
// Tests that brief steps leave out run in another.
func TestBrief(t *testing.T) {
	c := testConfig()
	p, err := c.plan([]string{"test", "testall", "testlong"})
	must(t, err)
	whole, brief := map[string][]string{}, map[string]bool{} // patterns of tests by package; packages with brief runs
	for _, s := range p.steps {
		add := func(dir, run string) {
			if slices.Contains(s.step.env, testenv.BriefEnv+"=1") {
				brief[dir] = true
			} else if s.step.device == "" && s.step.host == nil { // on the kernel's rxe
				whole[dir] = append(whole[dir], run)
			}
		}
		for _, prog := range s.step.programs {
			add(testPackages[strings.TrimSuffix(prog.name, ".test")], prog.run)
		}
		for i, word := range s.step.host {
			if strings.HasPrefix(word, "./") && !slices.Contains(s.step.host[:i], "-run") {
				add(path.Join(s.step.dir, word), "")
			}
		}
	}
	for _, dir := range []string{"mmio", "mmio/rxe", "uverbs"} {
		if !slices.Contains(whole[dir], "") {
			t.Errorf("no step runs all tests of %s in a VM", dir)
		}
	}
	found := 0
	for _, dir := range []string{"uverbs", "uverbs/soft", "cm", "cm/*", "test/suites/*"} {
		files, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
		must(t, err)
		for _, file := range files {
			src, err := os.ReadFile(file)
			must(t, err)
			dir, _ := filepath.Rel("../..", filepath.Dir(file))
			for _, f := range strings.Split(string(src), "\nfunc ")[1:] {
				if !strings.Contains(f, "testenv.Brief()") || !brief[filepath.ToSlash(dir)] {
					continue
				}
				found++
				name, _, _ := strings.Cut(f, "(")
				if !slices.ContainsFunc(whole[filepath.ToSlash(dir)], func(run string) bool { return regexp.MustCompile(run).MatchString(name) }) {
					t.Errorf("%s of %s makes all of its load in no step", name, dir)
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("%d functions of packages with brief runs call Brief, want 10 at least", found)
	}
}

// TestTables: names are unique, what steps need can be built, and each driver has its columns.
func TestTables(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		for _, short := range []bool{true, false} {
			c := testConfig()
			c.arch, c.short = arch, short
			seen := map[string]bool{}
			for _, s := range c.suites() {
				for _, st := range s.steps {
					full := st.full(s.name)
					if seen[full] || groups[s.name] != nil {
						t.Errorf("%s is there twice", full)
					}
					seen[full] = true
					for _, b := range c.needed(&st) {
						if _, err := c.build(b); err != nil {
							t.Errorf("%s: %v", full, err)
						}
					}
					if (st.host == nil) != (len(st.programs) > 0) {
						t.Errorf("%s is neither a command nor a boot, or both", full)
					}
					if st.driver != "" && !slices.ContainsFunc(columnSuites[st.driver], func(name string) bool { return st.matches(s.name, name) }) {
						t.Errorf("%s has results for %q, which no column has", full, st.driver)
					}
					if st.host != nil && st.driver != "" && (matrix.ParseColumn(st.driver).Driver != st.driver || !isGoTest(st.host)) {
						t.Errorf("%s has results for the matrix, and is no go test with a column of its own", full)
					}
				}
			}
		}
	}
	if _, err := testConfig().plan([]string{"rxe/nothing"}); err == nil || !strings.Contains(err.Error(), "rxe/nothing") {
		t.Errorf("of a step that is not there: %v", err)
	}
}

// TestEmulated: where another architecture is emulated, nothing is repeated.
func TestEmulated(t *testing.T) {
	c := testConfig()
	c.arch = "arm64"
	if runtime.GOARCH == c.arch {
		c.arch = "amd64"
	}
	p, err := c.plan([]string{"rxe"})
	must(t, err)
	for _, s := range p.steps {
		line := s.command.String()
		if !strings.Contains(line, "-env GOVERBS_SLOW=1") || strings.Contains(line, "GOVERBS_WAYS") || s.name == "rxe/write" {
			t.Errorf("%s: %s", s.name, line)
		}
	}
}

// testFuncs returns the tests and benchmarks of a package.
func testFuncs(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no tests: %v", dir, err)
	}
	for _, f := range files {
		src, err := os.ReadFile(f)
		must(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+|Benchmark\w+)\(`).FindAllSubmatch(src, -1) {
			names = append(names, string(m[1]))
		}
	}
	return names
}

// TestTestNames: what the tables name is there.
func TestTestNames(t *testing.T) {
	c := testConfig()
	for _, c.short = range []bool{true, false} {
		for _, s := range c.suites() {
			for _, st := range s.steps {
				for _, p := range st.programs {
					if p.run == "" || p.run == "^$" {
						continue
					}
					all := testFuncs(t, testPackages[strings.TrimSuffix(p.name, ".test")])
					for _, part := range alternatives(p.run) {
						if !slices.ContainsFunc(all, regexp.MustCompile(part).MatchString) {
							t.Errorf("%s: %s has no test %s", st.full(s.name), p.name, part)
						}
					}
				}
			}
		}
	}
}

// alternatives takes apart what only makes.
func alternatives(pattern string) []string {
	list, ok := strings.CutPrefix(pattern, "^(")
	if !ok {
		return []string{pattern}
	}
	var all []string
	for name := range strings.SplitSeq(strings.TrimSuffix(list, ")$"), "|") {
		all = append(all, "^"+name+"$")
	}
	return all
}

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(c *config)
		want string
	}{
		{"siw/mixed", nil, "cd .build/amd64 && ../vmrun -kernel 6.1 -arch amd64 -device rxe+siw+mlx5 -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_MIXED=1 -env VERBS=/bin/verbs " +
			"-file verbs:/bin/verbs interop.test -test.v=test2json -test.run '^(TestMixedLists|TestMixedConnections|TestMixedTools)$'"},
		{"racevm/cm", nil, "cd .build/race && ../vmrun -kernel 6.1 -arch amd64 -mem 2G -module bonding -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_SKIP_TAGS=race cm.test -test.v=test2json --- rdmacm.test -test.v=test2json"},
		{"valkey/race", nil, "cd .build/race && ../vmrun -kernel 6.1 -arch amd64 -timeout 40m -mem 6G -env GOVERBS_KERNEL_TEST=1 -env VERBS=/bin/verbs -with ibverbs-utils,ibverbs-providers,rdmacm-utils " +
			"-file ../amd64/valkey-server:/bin/valkey-server valkey.test -test.v=test2json --- " +
			"valkeypeers.test -test.v=test2json -test.run '^(TestServerClients|TestServerMany|TestServerRestart|TestServerVictim|TestServerIdle|TestServerBusy)$'"},
		{"siw/verbs", func(c *config) {
			c.kernel, c.env, c.args, c.short = "latest", []string{"GOVERBS_WALK=1s"}, []string{"-test.run", "^TestSend"}, true
		}, "cd .build/amd64 && ../vmrun -kernel latest -arch amd64 -device siw -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_SLOW=1 -env GOVERBS_DEVICES=siw0,siw1 -env GOVERBS_WALK=1s " +
			"cm.test -test.v=test2json -test.run '^TestSend' --- rdmacm.test -test.v=test2json -test.run '^TestSend' --- conformance.test -test.v=test2json -test.run '^TestSend'"},
		{"control/ib-hosts", func(c *config) { c.short = true },
			"cd .build/amd64 && ../vmrun -kernel latest -arch amd64 -device mlx5,mode=ib -hosts 2 -cpus 1 -env GOVERBS_KERNEL_TEST=1 " +
				"-with ibverbs-utils,ibverbs-providers,rdmacm-utils control.test -test.v=test2json -test.run '^TestHosts$'"},
		{"cross/vet-arm64", nil, "GOARCH=arm64 go vet ./..."},
		{"cross/build-windows-arm64", nil, "GOOS=windows GOARCH=arm64 go build ./mmio/... ./uverbs/... ./netlinkrdma/... ./cm/... ./test/hello"},
		{"race/vmrun", nil, "cd tools/vmrun && CGO_ENABLED=1 go test -json -vet=off -race -short ./..."},
		{"soft/sockets", func(c *config) { c.short = true }, "cd test/suites && GOVERBS_DEVICES=soft0,soft1 GOVERBS_WAYS=auto GOVERBS_SOFT_SOCKETS=1 GOVERBS_WALK=1s GOVERBS_BRIEF=1 go test -v=test2json -vet=off -count=1 ./conformance"},
		{"soft/write", nil, "cd test/suites && GOVERBS_DEVICES=soft0,soft1 RDMAABI=write GOVERBS_WAYS=write GOVERBS_WALK=1s go test -v=test2json -vet=off -count=1 ./conformance"},
		{"rxe/write", func(c *config) { c.arch, c.short = runtime.GOARCH, true }, "cd .build/" + runtime.GOARCH + " && ../vmrun -kernel 6.1 -arch " + runtime.GOARCH +
			" -module 8021q -env GOVERBS_KERNEL_TEST=1 -env VERBS=/bin/verbs -env GOVERBS_VLAN=1 -env GOVERBS_WALK=30s -env RDMAABI=write -env GOVERBS_WAYS=ioctl,write -file verbs:/bin/verbs conformance.test -test.v=test2json"},
		{"race/library", nil, "CGO_ENABLED=1 GOVERBS_SKIP_TAGS=memory,race go test -json -vet=off -count=1 -race -short -timeout 30m ./netlinkrdma/... ./uverbs/... ./cm/..."},
		{"soft/cm", nil, "GOVERBS_DEVICES=soft0,soft1 go test -v=test2json -vet=off -count=1 -p 1 ./cm ./cm/rdmacm"},
		{"benchonce", nil, "go test -run '^$' -bench . -benchtime 1x ./mmio/... ./uverbs/..."},
		{"traffic", nil, "cd .build/amd64 && ../vmrun -kernel 6.1 -arch amd64 -icount -env GOVERBS_KERNEL_TEST=1 -env GOVERBS_PINGPONG_MOST=1.12 -env GOVERBS_STREAM_LEAST=0.9 " +
			"cm.test -test.run '^$' -test.bench '^Benchmark(PingPong|Stream)$' -test.benchtime 5x"},
	} {
		cfg := testConfig()
		if c.set != nil {
			c.set(cfg)
		}
		p, err := cfg.plan([]string{c.name})
		if err != nil || len(p.steps) != 1 {
			t.Errorf("%s: %d steps, %v", c.name, len(p.steps), err)
			continue
		}
		if got := p.steps[0].command.String(); got != c.want {
			t.Errorf("%s is\n%s, want\n%s", c.name, got, c.want)
		}
	}
}

// TestPlan: a build that several steps need is there once, before all steps.
func TestPlan(t *testing.T) {
	c := testConfig()
	p, err := c.plan([]string{"mlx5", "mlx5/ib", "flat/clock", "personalities/4711-*"})
	must(t, err)
	var b bytes.Buffer
	p.print(&b)
	var got []string
	for line := range strings.Lines(b.String()) {
		if name, ok := strings.CutPrefix(line, "# "); ok {
			got = append(got, strings.TrimSpace(name))
		}
	}
	want := []string{"build vmrun", "build hca", "build conformance.test", "build umad.test", "build s3rdma.test", "build rdmacm.test", "build gcc", "build rdmacore-flat", "build control.test", "build cm.test",
		"mlx5/roce", "mlx5/ib", "mlx5/wq-5.10", "flat/clock", "personalities/4711-roce-control", "personalities/4711-ib-control", "personalities/4711-roce", "personalities/4711-ib"}
	if !slices.Equal(got, want) {
		t.Errorf("the plan is\n%q, want\n%q", got, want)
	}
}

// TestRandomCard: rdma-core's programs and the tests of the verbs get the same random card.
func TestRandomCard(t *testing.T) {
	c := testConfig()
	c.randomCard = "4712"
	p, err := c.plan([]string{"cards/random-roce-control", "cards/random-roce"})
	must(t, err)
	for _, s := range p.steps {
		// The programs of rdma-core may set reserved bits, ours may not.
		want := "-device mlx5,mode=roce,personality=4712" + pick(strings.HasSuffix(s.name, "-control"), " ", ",strict ")
		if !strings.Contains(s.command.String(), want) {
			t.Errorf("%s has another card: %s", s.name, s.command.String())
		}
	}
	if len(p.steps) != 2 {
		t.Errorf("%d steps, want 2", len(p.steps))
	}
}

// TestBuild: a program is built in the module of its package.
func TestBuild(t *testing.T) {
	c := testConfig()
	for name, want := range map[string]string{
		"cm.test":           "GOARCH=amd64 go test -c -ldflags=-w -o .build/amd64/cm.test ./cm",
		"report.test":       "cd test/suites && GOARCH=amd64 go test -c -ldflags=-w -o ../../.build/amd64/report.test ./conformance/report",
		"grpc.test":         "cd test/grpc && GOARCH=amd64 go test -c -ldflags=-w -o ../../.build/amd64/grpc.test .",
		"pingpong":          "cd test/suites && GOARCH=amd64 go build -trimpath -ldflags '-s -w' -o ../../.build/amd64/pingpong ./containers/pingpong",
		"bench-open":        "GOARCH=amd64 go build -trimpath -ldflags '-s -w' -o .build/amd64/bench-open ./test/bench/open",
		"hca":               "cd test/hca && go build -trimpath -o ../../.build/hca ./cmd/hca",
		"efa":               "cd test/efa && go build -trimpath -o ../../.build/efa ./cmd/efa",
		"runsc":             "cd test/runsc && GOARCH=amd64 go build -trimpath -ldflags -s -o ../../.build/amd64/runsc gvisor.dev/gvisor/runsc",
		"race/control.test": "cd test/suites && CGO_ENABLED=1 go test -race -c -tags netgo,osusergo -ldflags '-linkmode external -extldflags -static' -o ../../.build/race/control.test ./control",
	} {
		if cmd, err := c.build(name); err != nil || cmd.String() != want {
			t.Errorf("%s: %v\n%s, want\n%s", name, err, cmd.String(), want)
		}
	}
}

// TestFuzzFuncs: fuzz tests of all modules are found.
func TestFuzzFuncs(t *testing.T) {
	all := fuzzFuncs("../..")
	for _, want := range []fuzzFunc{{"cm", "FuzzHello"}, {"tools/vmrun/internal/apt", "FuzzSources"}} {
		if !slices.Contains(all, want) {
			t.Errorf("%v is not in %v", want, all)
		}
	}
}

func TestExecute(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string // part of the output, or of the error
	}{
		{"", 2, "usage:"},
		{"-help", 0, "examples:"},
		{"-wrong", 2, "not defined"},
		{"-suite siw -j 0", 2, "want 1 or more"},
		{"-list", 0, "soft iWARP"},
		{"-list -suite fuzz", 0, "FuzzHello"},
		{"-list -suite nothing", 2, `no suite "nothing"`},
		{"-suite nothing", 2, "no suite or step"},
		{"-suite siw -n", 0, "# siw/interop\n"},
		{"-n matrix amd64/6.12/siw", 0, "vmrun -kernel 6.12"},
		{"-n matrix -h", 2, `matrix column "-h": want soft, soft-sockets, or ARCH/KERNEL[/DRIVER]; ARCH is`},
		{"-n matrix amd64", 2, `matrix column "amd64": want soft`},
		{"-n matrix amd64/6.12/foo", 2, `matrix column "amd64/6.12/foo": there is no kernel "6.12/foo": want soft`},
		{"-n matrix amd64/./main.go/siw", 0, "vmrun -kernel ./main.go"},
		{"-n matrix soft", 0, "# soft/auto\n(cd test/suites && GOVERBS_DEVICES=soft0,soft1"},
	} {
		var b bytes.Buffer
		code, err := execute(context.Background(), strings.Fields(c.args), &b)
		if err != nil {
			b.WriteString(err.Error())
		}
		if code != c.code || !strings.Contains(b.String(), c.want) {
			t.Errorf("run %s: status %d, want %d, and %q in\n%s", c.args, code, c.code, c.want, b.String())
		}
	}
}

func TestQuote(t *testing.T) {
	for word, want := range map[string]string{"a/b=c:d,e": "a/b=c:d,e", "": "''", "^a|b$": "'^a|b$'", "it's": `'it'\''s'`} {
		if got := quote(word); got != want {
			t.Errorf("%s is quoted as %s, want %s", word, got, want)
		}
	}
}
