package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestAffected: what a change affects, by how far it is from it.
func TestAffected(t *testing.T) {
	at := func(dir string, p pkg) *pkg {
		p.Dir, p.ImportPath = dir, "m/"+dir
		return &p
	}
	packages := []*pkg{
		at("tool", pkg{Imports: []string{"m/mid"}}), at("mid", pkg{Imports: []string{"fmt", "m/low"}}), at("low", pkg{}),
		at("user", pkg{TestImports: []string{"m/low"}}), at("far", pkg{Imports: []string{"m/user"}}), at("outer", pkg{XTestImports: []string{"m/tool"}}),
	}
	for _, c := range []struct{ files, changed, importers string }{
		{"low/a.go", "low", "mid user tool outer"}, // no tests of far use low
		{"low/a_test.go", "low", ""},
		{"low/testdata/x/y.bin low/README.md", "low", ""},
		{"low/deep/data.txt mid/a_test.go", "low mid", "user"},
		{"mid/a_test.go low/a.go", "mid low", "user"},
		{"Makefile gone/a.go", "", ""},
	} {
		changed, importers := affected(strings.Fields(c.files), packages)
		names := func(all []*pkg) string {
			var s []string
			for _, p := range all {
				s = append(s, p.Dir)
			}
			return strings.Join(s, " ")
		}
		if names(changed) != c.changed || names(importers) != c.importers {
			t.Errorf("%s: changed %q, importers %q; want %q, %q", c.files, names(changed), names(importers), c.changed, c.importers)
		}
	}
}

// TestQuickPlan: a change of the verbs has its package's tests, and those of the verbs and of connections before others.
func TestQuickPlan(t *testing.T) {
	c := testConfig()
	root, err := filepath.Abs(c.root)
	must(t, err)
	c.root = root
	packages, err := c.listPackages()
	must(t, err)
	p := c.quickPlan([]string{"uverbs/qp.go", "test/suites/conformance/qp_test.go"}, packages)
	var names []string
	for _, s := range p.steps {
		names = append(names, strings.TrimPrefix(s.name, "quick/")+pick(s.step.ifTime, "?", ""))
	}
	want := []string{"gofmt", "vet", "vet-suites", "rules", "uverbs", "test/suites/conformance", "cm?", "cm/rdmacm?"}
	if len(names) < 20 || !slices.Equal(names[:len(want)], want) || slices.Contains(names, "tools/verbs?") {
		t.Errorf("the steps are %q, want first %q", names, want)
	}
	if line := p.steps[5].command.String(); line != "cd test/suites && GOVERBS_BRIEF=1 GOVERBS_WALK=1s go test -json -vet=off ./conformance" {
		t.Error(line)
	}
}

// TestChangedFiles: files that a branch, or nobody yet, has changed or made.
func TestChangedFiles(t *testing.T) {
	dir := t.TempDir()
	script := `set -e; export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q -b main; echo x > same; echo x > old; echo x > gone; git add .; git commit -qm one
git checkout -q -b topic; echo y > mine; git add .; git commit -qm two
git checkout -q main; echo z > theirs; git add .; git commit -qm three; git checkout -q topic
echo y > old; rm gone; echo y > new`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files, err := changedFiles(dir)
	must(t, err)
	slices.Sort(files)
	if want := []string{"gone", "mine", "new", "old"}; !slices.Equal(files, want) {
		t.Errorf("%q have changed, want %q", files, want)
	}
}

// TestLeftOut: a step for which there is no time does not run, is named, and is no failure.
func TestLeftOut(t *testing.T) {
	defer func(old time.Duration) { quickTime = old }(quickTime)
	quickTime = 0
	good, out, _ := runPlan(t, context.Background(), shellPlan(step{name: "a", host: shell("true")}, step{name: "b", ifTime: true, host: shell("false")}))
	if !good || !strings.Contains(out, "left out, since TIME is over: b\n") {
		t.Errorf("good is %t:\n%s", good, out)
	}
}
