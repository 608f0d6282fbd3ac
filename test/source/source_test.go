// Package source holds the tests over the source itself: rules of the house that the
// compiler does not know.
package source

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// module is the root module's path.
const module = "github.com/goverbs/goverbs"

// root is the checkout's root.
const root = "../.."

// file is a parsed Go file.
type file struct {
	path string // relative to the root, with slashes
	src  []byte
	set  *token.FileSet
	ast  *ast.File
}

func (f *file) pkg() string     { return filepath.ToSlash(filepath.Dir(f.path)) }
func (f *file) test() bool      { return strings.HasSuffix(f.path, "_test.go") }
func (f *file) base() string    { return filepath.Base(f.path) }
func (f *file) generated() bool { return ast.IsGenerated(f.ast) }

// imports lists what the file imports.
func (f *file) imports() []string {
	var all []string
	for _, i := range f.ast.Imports {
		all = append(all, strings.Trim(i.Path.Value, `"`))
	}
	return all
}

// files returns every Go file of the checkout, of all modules. Tests only read them.
func files(t *testing.T) []*file {
	t.Helper()
	all, err := parsed()
	must(t, err)
	if len(all) < 50 {
		t.Fatalf("only %d files found: the test does not see the source", len(all))
	}
	return all
}

// parsed parses the files once for all tests.
var parsed = sync.OnceValues(func() (all []*file, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != root) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f := &file{path: filepath.ToSlash(rel), set: token.NewFileSet()}
		if f.src, err = os.ReadFile(path); err != nil {
			return err
		}
		f.ast, err = parser.ParseFile(f.set, path, f.src, parser.ParseComments|parser.SkipObjectResolution)
		all = append(all, f)
		return err
	})
	return all, err
})

// under reports whether a package is, or is below, one of the folders.
func under(pkg string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return pkg == f || strings.HasPrefix(pkg, f+"/") })
}

// TestTopLevel: the house has these folders and no other.
func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(root)
	must(t, err)
	allowed := []string{"mmio", "netlinkrdma", "uverbs", "cm", "test", "tools"}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(allowed, e.Name()) {
			t.Errorf("folder %s is not part of the layout (%s)", e.Name(), strings.Join(allowed, ", "))
		}
	}
}

// mayImport says which packages of the module each part may import.
var mayImport = []struct {
	part    string
	imports []string
}{
	{"mmio/rxe", []string{"mmio", "mmio/internal", "mmio/rxe/internal", "uverbs/ib"}},
	{"mmio/siw", []string{"mmio", "mmio/internal", "mmio/siw/internal", "uverbs/ib"}},
	{"mmio/mlx5", []string{"mmio", "mmio/internal", "mmio/mlx5/internal", "uverbs/ib"}},
	{"mmio/efa", []string{"mmio", "mmio/internal", "mmio/efa/internal", "uverbs/ib"}},
	{"mmio", nil},
	{"uverbs/ib", nil}, // values, below everything else
	{"netlinkrdma", []string{"netlinkrdma/internal", "uverbs/ib"}},
	{"uverbs/internal/abi", nil},
	{"uverbs/internal/kernel", []string{"mmio", "uverbs/internal/abi"}},
	{"uverbs/internal/rtnetlink", nil},
	{"uverbs/internal/diag", []string{"netlinkrdma", "uverbs/internal/rtnetlink"}}, // plain facts, not uverbs
	{"uverbs/internal/hook", []string{"mmio", "mmio/mlx5", "uverbs/ib", "uverbs/internal/kernel"}},
	{"uverbs/mlx5", []string{"mmio/mlx5", "uverbs", "uverbs/ib", "uverbs/internal"}},
	{"uverbs/flow", []string{"uverbs/internal/abi", "uverbs/internal/kernel"}},
	{"uverbs/internal/inproc", []string{"uverbs/ib", "uverbs/internal/kernel"}},
	// The software device plays the kernel: it has neither uverbs nor the program's side of rxe.
	{"uverbs/soft", []string{"mmio", "uverbs/ib", "uverbs/internal/abi", "uverbs/internal/kernel", "uverbs/internal/inproc", "uverbs/internal/rtnetlink", "uverbs/soft/gsi", "uverbs/soft/internal"}},
	{"uverbs/trace", []string{"netlinkrdma", "uverbs", "uverbs/ib"}},
	{"uverbs/replay", []string{"mmio", "netlinkrdma", "uverbs", "uverbs/ib", "uverbs/internal", "uverbs/trace"}},
	{"uverbs/umad/sa", []string{"netlinkrdma", "uverbs/ib", "uverbs/umad", "uverbs/umad/mad"}},
	{"uverbs/umad/fabric", []string{"netlinkrdma", "uverbs/ib", "uverbs/umad", "uverbs/umad/mad"}},
	{"uverbs/umad/mad", []string{"uverbs/ib"}},
	{"uverbs/umad", []string{"netlinkrdma", "uverbs/ib", "uverbs/umad/internal", "uverbs/umad/mad"}},
	{"uverbs", []string{"mmio", "mmio/rxe", "mmio/efa", "mmio/mlx5", "mmio/siw", "netlinkrdma", "uverbs/flow", "uverbs/ib", "uverbs/internal", "uverbs/soft", "uverbs/soft/gsi"}},
	{"cm/internal/protocol", []string{"cm", "cm/rdmacm", "cm/internal/inprocess", "cm/internal/limits", "cm/internal/liveness", "cm/internal/redial", "uverbs"}},
	{"cm/internal/strangers", []string{"cm", "cm/rdmacm", "cm/internal/ibcm", "cm/rsocket", "cm/valkey", "uverbs/soft", "uverbs/umad", "uverbs/umad/mad"}}, // tests only
	{"cm/internal/redial", []string{"cm/rdmacm"}},
	{"cm/internal/cmtest", []string{"cm/internal/inprocess", "cm/internal/ucm", "test/softrig", "test/testenv", "uverbs/soft/gsi"}},                                                // tests only
	{"cm/internal/streamtest", []string{"cm/internal/limits", "cm/internal/protocol", "cm/internal/redial", "cm/rdmacm", "netlinkrdma", "test/softrig", "test/testenv", "uverbs"}}, // tests only
	{"cm/rdmacm", []string{"uverbs", "uverbs/ib", "uverbs/soft/gsi", "uverbs/umad/mad", "netlinkrdma", "cm/internal"}},
	{"cm/rsocket", []string{"cm", "cm/rdmacm", "cm/internal/limits", "cm/internal/protocol", "uverbs"}},
	{"cm/valkey", []string{"cm", "cm/rdmacm", "cm/internal/limits", "cm/internal/protocol", "uverbs"}},
	{"cm/s3rdma", []string{"uverbs", "uverbs/ib", "uverbs/mlx5"}},
	{"cm", []string{"uverbs", "uverbs/ib", "uverbs/soft/gsi", "uverbs/umad/mad", "netlinkrdma", "cm/internal", "cm/rdmacm"}},
	{"test/hca/engine", nil},
	{"test/hca/prm", nil},
	{"test/hca/subnet", nil},
	{"test/hca/vfiouser", nil},
	{"test/hca", []string{"test/hca", "test/hca/engine", "test/hca/prm", "test/hca/subnet", "test/hca/vfiouser"}},
	{"test/suites/exporter", []string{"uverbs", "uverbs/soft", "tools/metrics", "tools/probe", "test"}},
	{"test/efa", []string{"test/efa", "test/hca/vfiouser"}},
	{"test/pairs", nil},
	{"test/steps", nil},
	{"test/testenv", nil},
	{"test", []string{"mmio", "netlinkrdma", "uverbs", "uverbs/flow", "uverbs/ib", "uverbs/mlx5", "uverbs/soft", "uverbs/umad", "uverbs/umad/fabric", "uverbs/umad/mad", "uverbs/umad/sa", "cm", "cm/rdmacm", "cm/rsocket", "cm/s3rdma", "cm/valkey", "test"}},
	{"tools/vmrun", []string{"tools/vmrun"}},
	{"tools/abigen", nil},
	{"tools/health", []string{"netlinkrdma", "uverbs", "uverbs/ib", "uverbs/soft", "cm", "cm/rdmacm", "tools/internal"}},
	{"tools/internal/objects", []string{"uverbs"}},
	{"tools/internal", nil},
	{"tools/metrics", []string{"netlinkrdma", "uverbs", "uverbs/ib", "uverbs/soft", "tools/health", "tools/internal", "tools/probe"}},
	{"tools/probe", []string{"uverbs", "uverbs/ib", "uverbs/soft", "cm/rdmacm"}},
	{"tools", []string{"netlinkrdma", "uverbs", "uverbs/ib", "uverbs/mlx5", "uverbs/soft", "uverbs/trace", "uverbs/umad", "uverbs/umad/fabric", "uverbs/umad/mad", "uverbs/umad/sa", "cm", "cm/rdmacm", "tools", "tools/health", "tools/internal", "tools/metrics", "tools/probe", "tools/verbs/internal"}},
}

// TestImports reads the import graph.
func TestImports(t *testing.T) {
	for _, f := range files(t) {
		i := slices.IndexFunc(mayImport, func(r struct {
			part    string
			imports []string
		}) bool {
			return under(f.pkg(), r.part)
		})
		if i < 0 {
			t.Errorf("%s: no rule says what it may import", f.path)
			continue
		}
		allowed := append([]string{f.pkg()}, mayImport[i].imports...)
		if f.test() {
			allowed = append(allowed, "test/testenv", "test/pairs", "test/steps")
		}
		if f.test() && slices.Contains([]string{"cm", "cm/rdmacm"}, f.pkg()) { // makes the software devices of the rig, and announces services
			allowed = append(allowed, "uverbs/soft", "test/softrig", "uverbs/umad")
		}
		if f.test() && f.pkg() == "tools/verbs/internal/perf" { // names the descriptor of memory of a heap
			allowed = append(allowed, "mmio")
		}
		if f.test() && f.pkg() == "tools/probe" { // shows an agent with both
			allowed = append(allowed, "tools/metrics")
		}
		if f.test() && slices.Contains([]string{"cm/internal/protocol", "cm/s3rdma"}, f.pkg()) { // makes the software devices of the rig
			allowed = append(allowed, "uverbs/soft")
		}
		if f.test() && slices.Contains([]string{"cm/rsocket", "cm/valkey"}, f.pkg()) { // runs the tests that both share
			allowed = append(allowed, "cm/internal/streamtest")
		}
		if f.test() && f.pkg() == "cm/valkey" { // checks what each says to the other
			allowed = append(allowed, "cm/rsocket")
		}
		if f.test() && f.pkg() == "uverbs/trace" { // compares its names of events
			allowed = append(allowed, "cm/rdmacm")
		}
		if f.test() && under(f.pkg(), "uverbs/umad", "tools/verbs/internal/ib") { // uses a simulated subnet
			allowed = append(allowed, "test/ibsim")
		}
		if f.pkg() == "uverbs/soft" && f.ast.Name.Name == "soft_test" { // shows and tests what programs see
			allowed = append(allowed, "uverbs", "cm", "cm/rdmacm")
		}
		if f.test() && f.pkg() == "uverbs" && f.ast.Name.Name == "uverbs_test" { // plays the firmware for its functions
			allowed = append(allowed, "uverbs/mlx5")
		}
		if f.test() && f.pkg() == "test/testenv" { // compares with the type that testenv reads by reflection
			allowed = append(allowed, "netlinkrdma")
		}
		for _, imp := range f.imports() {
			own, ok := strings.CutPrefix(imp, module+"/")
			if ok && !slices.ContainsFunc(allowed, func(a string) bool {
				return own == a || (strings.HasSuffix(a, "internal") || a == "test" || a == "tools/vmrun") && under(own, a)
			}) {
				t.Errorf("%s imports %s; it may import %s", f.path, own, strings.Join(allowed, ", "))
			}
			if imp == "C" {
				t.Errorf(`%s imports "C"`, f.path)
			}
		}
	}
}

// TestModules: programs can import the root module as it is, without the others, and the model of a card stands
// alone.
func TestModules(t *testing.T) {
	for _, dir := range []string{"", "test/hca/"} {
		mod := strings.TrimPrefix(read(t, dir+"go.mod"), "module "+module)
		if strings.Contains(mod, module) || strings.Contains(mod, "replace") {
			t.Errorf("%sgo.mod names another module of ours, or replaces one:\n%s", dir, mod)
		}
	}
}

// TestDependencies: the library stands on two modules, tests on two more. test/grpc, test/kubernetes,
// test/release, test/s3sdk, test/valkey and test/websocket are modules of their own.
func TestDependencies(t *testing.T) {
	library := []string{"golang.org/x/sys", "github.com/vishvananda/netlink/nl"} // not package netlink, see uverbs/internal/rtnetlink
	for _, f := range files(t) {
		allowed := library
		if f.test() || f.pkg() == "cm/internal/streamtest" { // tests only
			allowed = append(slices.Clip(allowed), "github.com/google/go-cmp", "github.com/vishvananda/netlink", "golang.org/x/net/nettest")
		}
		if under(f.pkg(), "tools", "test/grpc", "test/kubernetes", "test/release", "test/s3sdk", "test/valkey", "test/websocket") {
			continue
		}
		for _, imp := range f.imports() {
			first, _, _ := strings.Cut(imp, "/")
			if !strings.Contains(first, ".") || under(imp, module) {
				continue // the standard library, and ours
			}
			if !under(imp, allowed...) {
				t.Errorf("%s depends on %s; outside of tools these are allowed: %s", f.path, imp, strings.Join(allowed, ", "))
			}
		}
	}
}

// TestUnsafe: unsafe stands in files that say so.
func TestUnsafe(t *testing.T) {
	for _, f := range files(t) {
		if !slices.Contains(f.imports(), "unsafe") || f.generated() || under(f.pkg(), "mmio") {
			continue
		}
		if !strings.HasSuffix(strings.TrimSuffix(f.base(), "_test.go"), "_unsafe") && !strings.HasSuffix(f.base(), "_unsafe.go") && !(f.test() && under(f.pkg(), "uverbs/internal/abi")) {
			t.Errorf("%s imports unsafe, which belongs into *_unsafe.go, generated files and mmio", f.path)
		}
	}
}

// TestSkips: a test skips through testenv and nowhere else. vmrun, a module of its own, skips its VM
// tests under -short; "go run ./test/run -suite vmtest" runs them.
func TestSkips(t *testing.T) {
	for _, f := range files(t) {
		if under(f.pkg(), "test/testenv", "tools/vmrun") || !f.test() {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "testenv" {
				return true
			}
			t.Errorf("%s: %s outside of testenv", f.set.Position(call.Pos()), sel.Sel.Name)
			return true
		})
	}
}

// contains reports whether a node of a tree is right.
func contains(tree ast.Node, right func(ast.Node) bool) (found bool) {
	ast.Inspect(tree, func(n ast.Node) bool {
		found = found || n != nil && right(n)
		return !found
	})
	return found
}

// TestLength: a file that is longer is two files.
func TestLength(t *testing.T) {
	const longest = 700
	for _, f := range files(t) {
		if n := bytes.Count(f.src, []byte("\n")); n > longest && !f.generated() {
			t.Errorf("%s has %d lines, more than %d", f.path, n, longest)
		}
	}
}

// TestDocumented: every exported name says what it is.
func TestDocumented(t *testing.T) {
	for _, f := range files(t) {
		if f.test() || f.generated() || f.ast.Name.Name == "main" || strings.Contains(f.path, "internal/") {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && d.Doc == nil && !standardMethod(d.Name.Name) {
					t.Errorf("%s: %s has no comment", f.set.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				undocumented(t, f, d)
			}
		}
	}
}

// exportedReceiver reports whether a function is none of an unexported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

// standardMethod reports whether everybody knows a method.
func standardMethod(name string) bool {
	return slices.Contains([]string{"String", "Error", "Unwrap", "Is"}, name)
}

// undocumented reports the exported names of a declaration that have no comment.
func undocumented(t *testing.T, f *file, d *ast.GenDecl) {
	for _, s := range d.Specs {
		var names []*ast.Ident
		var doc bool
		switch s := s.(type) {
		case *ast.TypeSpec:
			names, doc = []*ast.Ident{s.Name}, s.Doc != nil || s.Comment != nil
			if s.Name.IsExported() {
				undocumentedFields(t, f, s)
			}
		case *ast.ValueSpec:
			names, doc = s.Names, s.Doc != nil || s.Comment != nil
		}
		for _, n := range names {
			if n.IsExported() && !doc && d.Doc == nil {
				t.Errorf("%s: %s has no comment", f.set.Position(n.Pos()), n.Name)
			}
		}
	}
}

// undocumentedFields reports the exported fields of a struct that have no comment.
func undocumentedFields(t *testing.T, f *file, s *ast.TypeSpec) {
	st, ok := s.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range st.Fields.List {
		for _, n := range field.Names {
			if n.IsExported() && field.Doc == nil && field.Comment == nil {
				t.Errorf("%s: %s.%s has no comment", f.set.Position(n.Pos()), s.Name.Name, n.Name)
			}
		}
	}
}

// TestPackageDoc: every package says what it is for, once.
func TestPackageDoc(t *testing.T) {
	docs, pkgs := map[string]int{}, map[string]bool{}
	for _, f := range files(t) {
		if f.test() {
			continue
		}
		pkgs[f.pkg()] = true
		if f.ast.Doc != nil {
			docs[f.pkg()]++
		}
	}
	for pkg := range pkgs {
		if docs[pkg] != 1 {
			t.Errorf("package %s has %d package comments, want 1", pkg, docs[pkg])
		}
	}
}
