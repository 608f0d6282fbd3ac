package source

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// shipped reports whether code of a file runs at users: it is part of the library or of verbs.
func shipped(f *file) bool {
	return !f.test() && under(f.pkg(), "uverbs", "cm", "netlinkrdma", "mmio", "tools/verbs", "tools/metrics", "tools/health", "tools/internal")
}

// uses reports the names of packages that a file uses, prints that are built in, and files that are a terminal's.
func (f *file) uses(report func(at ast.Node, pkg, name string)) {
	imported := f.imports()
	for i, path := range imported {
		imported[i] = path[strings.LastIndexByte(path, '/')+1:]
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(imported, x.Name) {
				report(n, x.Name, n.Sel.Name)
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
				report(n, "builtin", id.Name)
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && slices.Contains(outputs, text) {
				report(n, "file", text)
			}
		}
		return true
	})
}

// outputs are files that are the standard output, the standard error or the terminal of a process.
var outputs = []string{"/dev/tty", "/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2", "/proc/self/fd/1", "/proc/self/fd/2"}

// terminalNames are names with which text may get to a terminal past the package terminal, by package; of a package
// without names, all.
var terminalNames = map[string][]string{
	"os": {"Stdout", "Stderr"}, "fmt": {"Print", "Printf", "Println"}, "unix": {"Stdout", "Stderr"}, "syscall": {"Stdout", "Stderr"},
	"log": nil, "slog": nil, "builtin": nil, "file": nil,
}

// TestTerminal: text of peers, files and devices has one way to a terminal, which escapes it.
func TestTerminal(t *testing.T) {
	allowed := []string{"tools/verbs/internal/terminal/terminal.go",
		"uverbs/internal/kernel/trace.go"} // makes the one name printable that is not the library's own
	for _, f := range files(t) {
		if !shipped(f) || slices.Contains(allowed, f.path) {
			continue
		}
		f.uses(func(at ast.Node, pkg, name string) {
			if names, ok := terminalNames[pkg]; ok && (names == nil || slices.Contains(names, name)) {
				t.Errorf("%s: %s.%s may write to a terminal what it obeys; commands print to Out and Err of package command", f.set.Position(at.Pos()), pkg, name)
			}
		})
	}
}

// TestCreatedFiles: files that users name are made where links are not followed and others cannot read.
func TestCreatedFiles(t *testing.T) {
	for _, f := range files(t) {
		if !shipped(f) || f.pkg() == "tools/internal/privatefile" || f.path == "uverbs/soft/record_file.go" || f.path == "uverbs/xrcd.go" { // the last has flags of an XRC domain
			continue
		}
		f.uses(func(at ast.Node, pkg, name string) {
			creates := pkg == "os" && (name == "Create" || name == "WriteFile") || strings.HasPrefix(name, "O_CREAT")
			if creates {
				t.Errorf("%s: %s.%s makes a file that others may read, and follows links: use privatefile.Create", f.set.Position(at.Pos()), pkg, name)
			}
		})
	}
}
