package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/exp/apidiff"
	"golang.org/x/tools/go/packages"
)

// module is the path of the module that programs import.
const module = "github.com/goverbs/goverbs"

// api compares the exported API of the checkout with that of the last tag of a version, and prints what differs.
// An incompatible change that CHANGELOG.md does not name is an error, and from v1.0.0 every one.
func api(dir string, out io.Writer) error {
	tag, err := git(dir, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")
	if err != nil {
		tags, listErr := git(dir, "tag", "--list", "v[0-9]*")
		if listErr != nil || tags != "" {
			return errors.Join(err, listErr)
		}
		fmt.Fprintln(out, "There is no tag of a version here, so the exported API is compared with nothing.")
		return nil
	}
	before, err := os.MkdirTemp("", "goverbs-api-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(before)
	if _, err := git(dir, "archive", "-o", before+".tar", tag); err != nil {
		return err
	}
	defer os.Remove(before + ".tar")
	if b, err := exec.Command("tar", "-xf", before+".tar", "-C", before).CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking %s: %w: %s", tag, err, b)
	}
	older, err := load(before)
	if err != nil {
		return fmt.Errorf("%s: %w", tag, err)
	}
	newer, err := load(dir)
	if err != nil {
		return err
	}
	said, err := added(before, dir, "CHANGELOG.md")
	if err != nil {
		return err
	}
	bad := 0
	for _, c := range changes(older, newer) {
		state := ""
		if !c.compatible && strings.HasPrefix(tag, "v0.") && strings.Contains(said, "`"+c.name+"`") {
			state = " (incompatible, and CHANGELOG.md names it)"
		} else if !c.compatible {
			bad++
			state = " (INCOMPATIBLE)"
		}
		fmt.Fprintf(out, "%s: %s%s\n", c.name, c.text, state)
	}
	switch {
	case bad == 0:
		fmt.Fprintf(out, "The exported API is compatible with %s, or CHANGELOG.md names what is not.\n", tag)
		return nil
	case strings.HasPrefix(tag, "v0."):
		return fmt.Errorf("%d changes are incompatible with %s: undo them, or add lines to CHANGELOG.md that have their names between backquotes, such as `uverbs.QP.Close`", bad, tag)
	}
	return fmt.Errorf("%d changes are incompatible with %s: undo them; from v1.0.0 the API only grows", bad, tag)
}

// git runs git in a checkout.
func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(b)), nil
}

// load loads the packages of a checkout whose API is promised. Those of mmio are not among them.
func load(dir string) (map[string]*packages.Package, error) {
	config := &packages.Config{Dir: dir, Mode: packages.NeedName | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps | packages.NeedExportFile,
		Env: append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOWORK=off", "GOFLAGS=-buildvcs=false")}
	list, err := packages.Load(config, "./uverbs/...", "./cm/...", "./netlinkrdma/...", "./tools/health/...", "./tools/metrics/...")
	if err != nil {
		return nil, err
	}
	all := map[string]*packages.Package{}
	for _, p := range list {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		if path := strings.TrimPrefix(p.PkgPath, module+"/"); !strings.Contains("/"+path+"/", "/internal/") {
			all[path] = p
		}
	}
	return all, nil
}

// change is a difference of the exported API.
type change struct {
	name       string // such as uverbs.QP.Close, with the package's path for what is below the top
	text       string // what changed
	compatible bool
}

// changes lists the differences of packages.
func changes(older, newer map[string]*packages.Package) (all []change) {
	for path, p := range older {
		if newer[path] == nil {
			all = append(all, change{path, "the package is removed", false})
			continue
		}
		for _, c := range apidiff.Changes(p.Types, newer[path].Types).Changes {
			name, text, _ := strings.Cut(c.Message, ": ")
			name, _, _ = strings.Cut(name, ",")
			all = append(all, change{path + "." + strings.NewReplacer("(*", "", "(", "", ")", "").Replace(name), text, c.Compatible})
		}
	}
	return all
}

// added returns the lines that a file has in one folder and not in another.
func added(before, now, name string) (string, error) {
	was, err := os.ReadFile(filepath.Join(before, name))
	if err != nil {
		return "", err
	}
	is, err := os.ReadFile(filepath.Join(now, name))
	if err != nil {
		return "", err
	}
	old := map[string]bool{}
	for l := range strings.Lines(string(was)) {
		old[l] = true
	}
	var b strings.Builder
	for l := range strings.Lines(string(is)) {
		if !old[l] {
			b.WriteString(l)
		}
	}
	return b.String(), nil
}
