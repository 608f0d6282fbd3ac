package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// must fails a test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// form is the schema of an issue form. Other keys are an error.
type form struct {
	Name, Description, Title string
	Labels                   []string
	Body                     []struct {
		Type       string
		ID         string
		Attributes struct {
			Label, Description, Placeholder, Value, Render string
			Options                                        []yaml.Node
		}
		Validations struct{ Required bool }
	}
}

// strict reads a file of .github into a struct that has all keys which may be in it.
func strict(t *testing.T, file string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, ".github", file))
	must(t, err)
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}

// TestForms checks the issue forms against the rules that GitHub has for them.
func TestForms(t *testing.T) {
	var config struct {
		Blank bool                                `yaml:"blank_issues_enabled"`
		Links []struct{ Name, URL, About string } `yaml:"contact_links"`
	}
	strict(t, "ISSUE_TEMPLATE/config.yml", &config)
	for _, l := range config.Links {
		if l.Name == "" || l.About == "" || !strings.HasPrefix(l.URL, "https://") {
			t.Errorf("config.yml: link %+v: want name, url and about", l)
		}
	}
	labels := map[string]bool{}
	for _, name := range []string{"bug.yml", "card.yml"} {
		var f form
		strict(t, "ISSUE_TEMPLATE/"+name, &f)
		if f.Name == "" || f.Description == "" || len(f.Body) == 0 {
			t.Errorf("%s: name, description and body must not be empty: %+v", name, f)
		}
		ids := map[string]bool{}
		for i, b := range f.Body {
			a := b.Attributes
			wrong := ""
			switch b.Type {
			case "markdown":
				if a.Value == "" {
					wrong = "without a value"
				}
				continue
			case "input", "textarea":
			case "dropdown":
				for _, o := range a.Options {
					switch strings.ToLower(o.Value) {
					case "yes", "no", "on", "off", "true", "false": // not text in YAML 1.1, which hosting sites read
						if o.Style == 0 {
							t.Errorf("line %d: the option %s needs quotes", o.Line, o.Value)
						}
					}
				}
				if len(a.Options) == 0 {
					wrong = "without options"
				}
			default:
				wrong = "of an unknown type"
			}
			if !regexp.MustCompile(`^[a-zA-Z0-9_-]+$`).MatchString(b.ID) || ids[b.ID] || a.Label == "" || wrong != "" {
				t.Errorf("%s: field %d (%q, %s) %s: want an ID of its own and a label", name, i, b.ID, b.Type, wrong)
			}
			ids[b.ID], labels[a.Label] = true, true
		}
	}
	for _, want := range []string{"verbs doctor --json", "verbs trace"} {
		if !labels[want] {
			t.Errorf("no form asks for %s", want)
		}
	}
}

// TestDependabot checks that every module gets updates, and the workflows.
func TestDependabot(t *testing.T) {
	var config struct {
		Version int
		Updates []struct {
			Ecosystem string `yaml:"package-ecosystem"`
			Directory string
			Schedule  struct{ Interval string }
		}
	}
	strict(t, "dependabot.yml", &config)
	got, want := map[string]bool{}, map[string]bool{"github-actions /": true}
	for _, u := range config.Updates {
		got[u.Ecosystem+" "+u.Directory] = true
		if !slices.Contains([]string{"daily", "weekly", "monthly"}, u.Schedule.Interval) {
			t.Errorf("%s: interval %q", u.Directory, u.Schedule.Interval)
		}
	}
	must(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != root) {
			return filepath.SkipDir
		}
		if err == nil && d.Name() == "go.mod" {
			dir, _ := filepath.Rel(root, filepath.Dir(path))
			want["gomod /"+strings.TrimPrefix(filepath.ToSlash(dir), ".")] = true
		}
		return err
	}))
	if config.Version != 2 || !maps.Equal(got, want) {
		t.Errorf("version %d of dependabot.yml has %v, want version 2 with %v", config.Version, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// TestWorkflow checks that the workflow is one, and runs what the file .ci/run says.
func TestWorkflow(t *testing.T) {
	var w struct {
		Name        string
		On          map[string]any
		Permissions map[string]string
		Jobs        map[string]struct {
			RunsOn    string `yaml:"runs-on"`
			Container struct{ Image, Options string }
			Timeout   int `yaml:"timeout-minutes"`
			Steps     []struct {
				Name, Uses, Run, If string
				With                map[string]string
			}
		}
	}
	strict(t, "workflows/test.yml", &w)
	runs := false
	for name, job := range w.Jobs {
		if job.RunsOn == "" || job.Timeout == 0 {
			t.Errorf("job %s: want runs-on and timeout-minutes", name)
		}
		for i, s := range job.Steps {
			runs = runs || s.Run == ".ci/run"
			if (s.Uses == "") == (s.Run == "") {
				t.Errorf("job %s, step %d: want either uses or run", name, i)
			}
			if s.Uses != "" && !regexp.MustCompile(`^[\w-]+/[\w-]+@v\d+$`).MatchString(s.Uses) {
				t.Errorf("job %s, step %d uses %q, want OWNER/NAME@vN", name, i, s.Uses)
			}
		}
	}
	if !runs || w.On["pull_request"] == nil && !slices.Contains(slices.Collect(maps.Keys(w.On)), "pull_request") {
		t.Errorf("the workflow does not run .ci/run for pull requests: %+v", w)
	}
	if w.Permissions["contents"] != "read" || len(w.Permissions) != 1 {
		t.Errorf("permissions %v, want contents: read alone", w.Permissions)
	}
}

// TestAPI: without a tag nothing is compared; with one, an incompatible change needs its name in CHANGELOG.md,
// and from v1.0.0 fails.
func TestAPI(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) { must(t, write(filepath.Join(dir, name), []byte(text))) }
	run := func(args ...string) {
		t.Helper()
		_, err := git(dir, append([]string{"-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"}, args...)...)
		must(t, err)
	}
	check := func(want string) {
		t.Helper()
		var b strings.Builder
		err := api(dir, &b)
		got := b.String()
		if err != nil {
			got += err.Error()
		}
		if !strings.Contains(got, want) || (err != nil) != strings.Contains(want, "incompatible with") {
			t.Errorf("got %q, error %v, want %q", got, err, want)
		}
	}
	const source = "// Package uverbs is a package.\npackage uverbs\n\ntype QP struct{ n int }\n\nfunc (q *QP) Close() error { return nil }\n"
	put("go.mod", "module "+module+"\n\ngo 1.26.0\n")
	put("CHANGELOG.md", "# Changelog\n\nThe first one has `uverbs.QP.Close`.\n")
	put("uverbs/uverbs.go", source)
	for _, p := range []string{"cm", "netlinkrdma", "tools/health", "tools/metrics", "uverbs/internal/x"} {
		put(p+"/x.go", "package x\n\nfunc X() {}\n")
	}
	run("init", "-q")
	run("add", ".")
	run("commit", "-q", "-m", "first")
	check("There is no tag of a version here")
	run("tag", "-a", "-m", "first", "v0.1.0")
	check("The exported API is compatible with v0.1.0")

	put("uverbs/uverbs.go", source+"\nfunc New() *QP { return nil }\n")
	put("uverbs/internal/x/x.go", "package x\n")
	check("uverbs.New: added\nThe exported API is compatible")
	put("uverbs/uverbs.go", strings.Replace(source, "error { return nil }", "(int, error) { return 0, nil }", 1))
	check("1 changes are incompatible with v0.1.0: undo them, or add lines to CHANGELOG.md")
	put("CHANGELOG.md", "# Changelog\n\n- `uverbs.QP.Close` also returns a number.\n\nThe first one has `uverbs.QP.Close`.\n")
	check("uverbs.QP.Close: changed from func() error to func() (int, error) (incompatible, and CHANGELOG.md names it)")
	run("commit", "-q", "--allow-empty", "-m", "second")
	run("tag", "-a", "-m", "second", "v1.0.0")
	check("incompatible with v1.0.0: undo them; from v1.0.0 the API only grows")
}

// TestManPage checks the form of a page.
func TestManPage(t *testing.T) {
	page, commands := manPage("verbs-ib", "Look at a subnet.\n\nUsage:\n  verbs ib COMMAND\n\nThere are these:\nlines. And \\ this.\n\n.more\n\nCommands:\n  ping         Send pings\n               twice\n  links        List links\n\nFlags:\n  -h, --help   help\n")
	const want = `.TH VERBS\-IB 1
.SH NAME
verbs\-ib \- Look at a subnet
.SH USAGE
.nf
  verbs ib COMMAND

.fi
.SH DESCRIPTION
.nf
There are these:
lines. And \e this.

\&.more

.fi
.SH COMMANDS
.nf
  ping         Send pings
               twice
  links        List links

.fi
.SH FLAGS
.nf
  \-h, \-\-help   help
.fi
`
	if page != want || !slices.Equal(commands, []string{"ping", "links"}) {
		t.Errorf("commands %q, page:\n%s\nwant:\n%s", commands, page, want)
	}
}

// TestImage unpacks an image as a container engine does, from digest to digest, and runs what it has.
func TestImage(t *testing.T) {
	dir := t.TempDir()
	const program = "package main\n\nfunc main() { println(\"hello\") }\n"
	must(t, write(filepath.Join(dir, "main.go"), []byte(program)))
	for _, arch := range architectures {
		cmd := exec.Command("go", "build", "-o", filepath.Join(dir, arch, "verbs"), filepath.Join(dir, "main.go"))
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	out := filepath.Join(dir, "image.tar")
	must(t, image(dir, out))
	b, err := os.ReadFile(out)
	must(t, err)
	files := untar(t, b)
	get := func(d descriptor) []byte {
		t.Helper()
		content := files["blobs/"+strings.ReplaceAll(d.Digest, ":", "/")]
		if d.Digest != fmt.Sprintf("sha256:%x", sha256.Sum256(content)) || d.Size != len(content) {
			t.Fatalf("%+v: the blob has %d bytes with another digest", d, len(content))
		}
		return content
	}
	var index struct{ Manifests []descriptor }
	must(t, json.Unmarshal(files["index.json"], &index))
	for i, m := range index.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		must(t, json.Unmarshal(get(m), &manifest))
		var config struct {
			Architecture string
			Config       struct{ Entrypoint []string }
			RootFS       struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		must(t, json.Unmarshal(get(manifest.Config), &config))
		layer := untar(t, get(manifest.Layers[0]))
		was, err := os.ReadFile(filepath.Join(dir, architectures[i], "verbs"))
		must(t, err)
		if config.Architecture != architectures[i] || config.RootFS.DiffIDs[0] != manifest.Layers[0].Digest ||
			len(layer) != 1 || !bytes.Equal(layer[strings.TrimPrefix(config.Config.Entrypoint[0], "/")], was) {
			t.Errorf("%s: manifest %+v, config %+v, files %v", m.Platform, manifest, config, slices.Collect(maps.Keys(layer)))
		}
	}
	if len(index.Manifests) != len(architectures) {
		t.Errorf("%d manifests, want %d", len(index.Manifests), len(architectures))
	}
}

// untar returns the files of an archive.
func untar(t *testing.T, b []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		must(t, err)
		files[h.Name], err = io.ReadAll(r)
		must(t, err)
	}
}

// TestOSSFuzz: the build for OSS-Fuzz finds every fuzz test of the repository, and gives each a name of its own.
func TestOSSFuzz(t *testing.T) {
	bin, root := t.TempDir(), filepath.Join("..", "..")
	must(t, os.WriteFile(filepath.Join(bin, "compile_native_go_fuzzer_v2"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o777))
	cmd := exec.Command("sh", "test/release/oss-fuzz/build.sh")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, targets := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(out)) {
		w := strings.Fields(line)
		if len(w) != 3 || targets[w[2]] {
			t.Fatalf("the line is %q, want a package, a test and a target that no other has", line)
		}
		got[w[0]+" "+w[1]], targets[w[2]] = true, true
	}
	want := map[string]bool{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != ".."):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil && strings.HasPrefix(d.Name.Name, "Fuzz") {
				want[module+"/"+dir+" "+d.Name.Name] = true
			}
		}
		return err
	}))
	if diff := slices.DeleteFunc(slices.Sorted(maps.Keys(want)), func(s string) bool { return got[s] }); len(diff) > 0 || len(got) != len(want) || len(want) == 0 {
		t.Errorf("%d fuzz tests are built, there are %d; missing: %v", len(got), len(want), diff)
	}
}
