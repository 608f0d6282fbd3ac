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
	p, changed := c.quickPlan([]string{"uverbs/qp.go", "test/suites/conformance/qp_test.go"}, packages)
	var names []string
	for _, s := range p.steps {
		names = append(names, strings.TrimPrefix(s.name, "quick/")+pick(s.step.ifTime, "?", ""))
	}
	want := []string{"gofmt", "vet", "vet-suites", "rules", "uverbs", "test/suites/conformance", "cm?", "cm/rdmacm?"}
	if len(names) < 20 || !slices.Equal(names[:len(want)], want) || slices.Contains(names, "tools/verbs?") {
		t.Errorf("the steps are %q, want first %q", names, want)
	}
	if changed != 2 {
		t.Errorf("%d packages have changed, want 2", changed)
	}
	if line := p.steps[5].command.String(); line != "cd test/suites && GOVERBS_BRIEF=1 GOVERBS_WALK=1s go test -json -vet=off ./conformance" {
		t.Error(line)
	}
}

// TestChangedFiles: files that a branch, or nobody yet, has changed or made, since the branch main here or there. Without
// one, those that are not committed; without a checkout, an error.
func TestChangedFiles(t *testing.T) {
	dir := t.TempDir()
	run := func(script string) {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir, "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	if files, _, err := changedFiles(dir); err == nil || !strings.Contains(err.Error(), "git") {
		t.Errorf("without a checkout: %q, %v", files, err)
	}
	run(`git init -q -b main; echo x > same; echo x > old; echo x > gone; git add .; git commit -qm one
git checkout -q -b topic; echo y > mine; git add .; git commit -qm two
git checkout -q main; echo z > theirs; git add .; git commit -qm three; git checkout -q topic
echo y > old; rm gone; echo y > 'new é'`)
	all := []string{"gone", "mine", "new é", "old"}
	for _, c := range []struct {
		change, since string
		want          []string
	}{
		{"true", "the last commit that the branch main has too", all},
		{"git checkout -q --detach", "the last commit that the branch main has too", all},
		{"git update-ref refs/remotes/origin/main main; git branch -qD main", "the last commit that the branch origin/main has too", all},
		{"git update-ref -d refs/remotes/origin/main", "the last commit, as there is no branch main", []string{"gone", "new é", "old"}},
	} {
		run(c.change)
		files, since, err := changedFiles(dir)
		must(t, err)
		slices.Sort(files)
		if !slices.Equal(files, c.want) || since != c.since {
			t.Errorf("%s: %q have changed since %s, want %q since %s", c.change, files, since, c.want, c.since)
		}
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
