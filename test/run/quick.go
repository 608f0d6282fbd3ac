package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// quickTime is how long make quick starts tests of packages that have not changed.
var quickTime = time.Minute

// quickEnv makes tests run on software devices with little load.
var quickEnv = []string{"GOVERBS_BRIEF=1", "GOVERBS_WALK=1s"}

// slowPackages are packages whose tests take most of a minute: they run if they have changed themselves.
var slowPackages = []string{"test/run", "test/source", "test/suites/delivery", "test/suites/softrxe", "tools/verbs"}

// provenFirst are packages whose tests use the library on software devices as programs do: they run before those of
// other packages that have not changed.
var provenFirst = []string{"cm", "cm/rdmacm", "test/suites/conformance"}

// rules are the rules of the source that a change breaks most often.
const rules = "go test -skip ^(TestBarrierInstructions|TestStart)$ ./test/source"

// quick checks what has changed since the branch main: the form of the files, go vet, and the tests of the packages
// and, as far as the time allows, of those that import them.
func (c *config) quick(ctx context.Context, out io.Writer, dry bool) (code int, err error) {
	files, since, err := changedFiles(c.root)
	if err != nil {
		return 1, fmt.Errorf("quick compares with what git has: %w", err)
	}
	packages, err := c.listPackages()
	if err != nil {
		return 1, err
	}
	p, changed := c.quickPlan(files, packages)
	if dry {
		p.print(out)
		return 0, nil
	}
	fmt.Fprintf(out, "changed since %s: %d files, of %d packages\n", since, len(files), changed)
	return pick(c.run(ctx, out, p), 0, 1), nil
}

// changedFiles returns the files that differ from where the branch was made, or from the last commit if there is no
// branch main, and the new ones. It names what they differ from.
func changedFiles(root string) (files []string, since string, err error) {
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		text, err := cmd.Output()
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(e.Stderr))
		}
		return strings.TrimSpace(string(text)), err
	}
	base, since := "HEAD", "the last commit, as there is no branch main"
	for _, branch := range []string{"main", "origin/main"} {
		if b, err := git("merge-base", "HEAD", branch); err == nil {
			base, since = b, "the last commit that the branch "+branch+" has too"
			break
		}
	}
	changed, err := git("diff", "--name-only", "--no-renames", "-z", base)
	fresh, err2 := git("ls-files", "--others", "--exclude-standard", "-z")
	files = strings.FieldsFunc(changed+"\x00"+fresh, func(r rune) bool { return r == 0 })
	return files, since, cmp.Or(err, err2)
}

// pkg is a package of one of the modules.
type pkg struct {
	ImportPath, Dir                    string
	Imports, TestImports, XTestImports []string
	TestGoFiles, XTestGoFiles          []string
}

// tests reports whether a package has tests.
func (p *pkg) tests() bool { return len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 }

// listPackages lists the packages of all modules.
func (c *config) listPackages() (all []*pkg, err error) {
	for _, dir := range modules {
		cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Imports,TestImports,XTestImports,TestGoFiles,XTestGoFiles", "./...")
		cmd.Dir = filepath.Join(c.root, dir)
		text, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list in %q: %w", dir, err)
		}
		for d := json.NewDecoder(strings.NewReader(string(text))); d.More(); {
			p := new(pkg)
			if err := d.Decode(p); err != nil {
				return nil, err
			}
			if p.Dir, err = filepath.Rel(c.root, p.Dir); err != nil {
				return nil, err
			}
			p.Dir = filepath.ToSlash(p.Dir)
			all = append(all, p)
		}
	}
	return all, nil
}

// affected returns the packages that a change of files affects: those that have changed, then those that import
// them, by how many packages are between. A change of tests affects the tests' package alone.
func affected(files []string, packages []*pkg) (changed, importers []*pkg) {
	dirs, paths := map[string]*pkg{}, map[string]*pkg{}
	for _, p := range packages {
		dirs[p.Dir], paths[p.ImportPath] = p, p
	}
	code := map[*pkg]bool{} // more than tests has changed
	for _, f := range files {
		dir := path.Dir(f)
		for ; dirs[dir] == nil && dir != "."; dir = path.Dir(dir) { // of testdata and embedded files
		}
		p := dirs[dir]
		if p == nil {
			continue
		}
		if !slices.Contains(changed, p) {
			changed = append(changed, p)
		}
		code[p] = code[p] || !strings.HasSuffix(f, "_test.go") && !strings.Contains(f, "/testdata/") && !strings.HasSuffix(f, ".md")
	}
	seen := map[*pkg]bool{}
	var layer []*pkg
	for _, p := range changed {
		if seen[p] = true; code[p] {
			layer = append(layer, p)
		}
	}
	for len(layer) > 0 {
		var next []*pkg
		for _, p := range packages {
			if seen[p] {
				continue
			}
			imports := func(all []string) bool {
				return slices.ContainsFunc(all, func(i string) bool { return slices.Contains(layer, paths[i]) })
			}
			switch {
			case imports(p.Imports):
				next = append(next, p)
			case imports(p.TestImports), imports(p.XTestImports):
			default:
				continue
			}
			seen[p] = true
			importers = append(importers, p)
		}
		layer = next
	}
	return changed, importers
}

// quickPlan plans what quick does, and counts the packages that have changed.
func (c *config) quickPlan(files []string, packages []*pkg) (p *plan, packagesChanged int) {
	changed, importers := affected(files, packages)
	p = new(plan)
	add := func(name string, s step) {
		s.name = name
		p.steps = append(p.steps, planned{suite: "quick", name: "quick/" + name, step: &s, command: c.command(&s)})
	}
	var formatted []string
	for _, f := range files {
		if strings.HasSuffix(f, ".go") {
			formatted = append(formatted, f)
		}
	}
	if len(formatted) > 0 {
		add("gofmt", step{host: shell(`for f; do test -e "$f" || continue; test -z "$(gofmt -l "$f")" || { echo "gofmt: run gofmt -w on $f"; exit 1; }; done`, formatted...)})
	}
	vet := map[string][]string{}
	for _, pk := range changed {
		dir, name, _ := moduleOf(pk.Dir)
		vet[dir] = append(vet[dir], name)
	}
	for _, dir := range modules {
		if len(vet[dir]) > 0 {
			add(strings.TrimSuffix("vet-"+path.Base(dir), "-."), step{dir: dir, host: append(words("go vet"), vet[dir]...)})
		}
	}
	if !slices.ContainsFunc(changed, func(pk *pkg) bool { return pk.Dir == "test/source" }) {
		add("rules", step{host: words(rules)})
	}
	test := func(pk *pkg, ifTime bool) {
		if dir, name, _ := moduleOf(pk.Dir); pk.tests() && (!ifTime || !slices.Contains(slowPackages, pk.Dir)) {
			add(strings.TrimPrefix(pk.Dir, "./"), step{dir: dir, env: quickEnv, ifTime: ifTime, host: words("go test " + name)})
		}
	}
	for _, pk := range changed {
		test(pk, false)
	}
	first := func(pk *pkg) bool { return slices.Contains(provenFirst, pk.Dir) }
	slices.SortStableFunc(importers, func(a, b *pkg) int { return pick(first(a), 0, 1) - pick(first(b), 0, 1) })
	for _, pk := range importers {
		test(pk, true)
	}
	return p, len(changed)
}
