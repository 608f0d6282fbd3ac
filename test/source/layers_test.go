package source

import (
	"go/ast"
	"go/build"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// layer is a group of files of a package. A pattern is as in [path.Match].
type layer struct {
	name     string
	patterns []string
}

// layered are packages whose files form layers, from the bottom. A reference, from a file to a name of
// another file, should go down. Up is the number of those that go up, names the number of exported names,
// and lines those of the largest group of files that depend on each other: none grows unnoticed.
// CONTRIBUTING.md draws the layers.
var layered = []struct {
	pkg              string
	up, names, lines int
	layers           []layer // a file belongs to the first layer with a pattern that matches
}{
	{"uverbs", 132, 518, 11206, []layer{
		{"diagnosis", []string{"qp_err.go", "wc_error.go", "port_counters.go"}},
		{"convenience", []string{"connect.go", "gid_choice.go", "grh.go", "open_first.go", "open_netdev.go", "pool.go", "route_*.go"}},
		{"only mlx5", mlx5Only},
		{"drivers", []string{"driver_*.go"}},
		{"data path", []string{"post.go", "builder*.go", "dispatch.go"}},
		{"kernel", []string{"command.go", "feature.go", "object.go", "kernel_*.go"}},
		{"values", []string{"errors.go", "wr.go", "wc.go", "path.go", "mr_access.go", "qp_attr.go", "device_attr.go", "doc.go"}},
		{"objects", []string{"*.go"}},
	}},
}

// order are the layers of uverbs from the bottom.
var order = []string{"values", "kernel", "objects", "data path", "drivers", "only mlx5", "diagnosis", "convenience"}

// TestLayers: references from a lower layer to a higher one, exported names, and lines that depend on each
// other do not become more. The limits are what the source has, so that they follow when it improves.
func TestLayers(t *testing.T) {
	t.Parallel()
	for _, p := range layered {
		x := checkPackage(t, p.pkg)
		rank := map[string]int{}
		for _, file := range x.files {
			i := slices.IndexFunc(p.layers, func(l layer) bool {
				return slices.ContainsFunc(l.patterns, func(pattern string) bool {
					ok, err := path.Match(pattern, file)
					return ok && err == nil
				})
			})
			rank[file] = slices.Index(order, p.layers[i].name)
		}
		up, between := 0, map[[2]int]int{}
		for r := range x.refs {
			if from, to := rank[r.from], rank[r.to]; from < to {
				up++
				between[[2]int{from, to}]++
			}
		}
		for from := range order {
			for to := range order {
				if n := between[[2]int{from, to}]; n > 0 {
					t.Logf("%s: %3d references up from %s to %s", p.pkg, n, order[from], order[to])
				}
			}
		}
		files, lines := x.largestComponent()
		t.Logf("%s: %d files, %d exported names, %d references between files, %d of them up; %d files with %d lines depend on each other",
			p.pkg, len(x.files), x.exported, len(x.refs), up, files, lines)
		if up != p.up {
			t.Errorf("%s has %d references up, the limit is %d: let them go down, or lower the limit", p.pkg, up, p.up)
		}
		if x.exported != p.names {
			t.Errorf("%s has %d exported names, the limit is %d: remove some, or lower the limit", p.pkg, x.exported, p.names)
		}
		if lines != p.lines {
			t.Errorf("%s has %d lines that depend on each other, the limit is %d: untie some, or lower the limit", p.pkg, lines, p.lines)
		}
	}
}

// reference is a use of a name of another file of the package. Uses in the same file count once.
type reference struct{ from, to, name string }

// checked is a package after type checking.
type checked struct {
	files    []string
	lines    map[string]int
	exported int
	refs     map[reference]bool
}

// checkPackage reads a package of the root module as it is built on this system, without its tests.
func checkPackage(t *testing.T, pkg string) *checked {
	t.Helper()
	ctx := build.Default
	dir, err := ctx.ImportDir(root+"/"+pkg, 0)
	must(t, err)
	x := &checked{files: dir.GoFiles, lines: map[string]int{}, refs: map[reference]bool{}}
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, name := range dir.GoFiles {
		f, err := parser.ParseFile(set, root+"/"+pkg+"/"+name, nil, parser.SkipObjectResolution)
		must(t, err)
		x.lines[name] = set.File(f.Pos()).LineCount()
		parsed = append(parsed, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(set, "gc", exportData(t, module+"/"+pkg))}
	p, err := conf.Check(module+"/"+pkg, set, parsed, info)
	must(t, err)
	for id, object := range info.Uses {
		if object.Pkg() != p || object.Parent() != p.Scope() && !ofType(object) {
			continue
		}
		from, to := path.Base(set.Position(id.Pos()).Filename), path.Base(set.Position(object.Pos()).Filename)
		if from != to {
			x.refs[reference{from, to, object.Name()}] = true
		}
	}
	for _, name := range p.Scope().Names() {
		if !token.IsExported(name) {
			continue
		}
		x.exported++
		if named, ok := p.Scope().Lookup(name).Type().(*types.Named); ok && named.Obj().Pkg() == p && named.Obj().Name() == name {
			for m := range named.Methods() {
				if m.Exported() {
					x.exported++
				}
			}
		}
	}
	return x
}

// exportData returns a function that opens what the compiler has written about a package that pkg needs.
func exportData(t *testing.T, pkg string) func(path string) (io.ReadCloser, error) {
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", pkg)
	cmd.Dir = root
	out, err := cmd.Output()
	must(t, err)
	where := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		where[path] = file
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(where[path]) }
}

// ofType reports whether an object is a method or a field.
func ofType(object types.Object) bool {
	switch o := object.(type) {
	case *types.Var:
		return o.IsField()
	case *types.Func:
		return o.Signature().Recv() != nil
	}
	return false
}

// largestComponent returns the largest group of files each of which depends on all others, directly or not,
// and its lines.
func (x *checked) largestComponent() (files, lines int) {
	reach := map[string]map[string]bool{}
	for _, f := range x.files {
		reach[f] = map[string]bool{f: true}
	}
	for r := range x.refs {
		reach[r.from][r.to] = true
	}
	for _, via := range x.files { // the transitive closure
		for _, from := range x.files {
			if reach[from][via] {
				for to := range reach[via] {
					reach[from][to] = true
				}
			}
		}
	}
	for _, f := range x.files {
		n, l := 0, 0
		for to := range reach[f] {
			if reach[to][f] {
				n, l = n+1, l+x.lines[to]
			}
		}
		if l > lines {
			files, lines = n, l
		}
	}
	return files, lines
}
