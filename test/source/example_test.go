package source

import (
	"go/ast"
	"go/doc"
	"strings"
	"testing"
)

// TestExamples: every type of objects, which are what a function returns a pointer to, has an
// example: of its own, of one of its methods, or of how it is made.
func TestExamples(t *testing.T) {
	for _, pkg := range []string{"mmio", "mmio/rxe", "netlinkrdma", "uverbs", "uverbs/umad", "cm", "cm/rdmacm"} {
		errs := map[string]bool{}       // types that are errors
		makers := map[string][]string{} // by type, how examples of what makes it are called
		examples := map[string]bool{}
		for _, f := range files(t) {
			if f.pkg() != pkg {
				continue
			}
			for _, d := range f.ast.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				receiver := receiverOf(fn)
				switch name := fn.Name.Name; {
				case f.test():
					if example, ok := strings.CutPrefix(name, "Example"); ok && receiver == "" {
						examples[example] = true
					}
				case name == "Error":
					errs[receiver] = true
				case ast.IsExported(name) && (receiver == "" || ast.IsExported(receiver)):
					if typ := madeBy(fn); typ != "" {
						makers[typ] = append(makers[typ], strings.TrimPrefix(receiver+"_"+name, "_"))
					}
				}
			}
		}
		if len(makers) == 0 {
			t.Errorf("%s has no objects", pkg)
		}
		for typ, made := range makers {
			if !errs[typ] && !hasExample(examples, append(made, typ)) {
				t.Errorf("%s.%s has no example, nor has what makes it: Example%s", pkg, typ, strings.Join(append(made, typ), ", Example"))
			}
		}
	}
}

// mainTypes are the types and functions that a newcomer meets first, by package.
var mainTypes = map[string][]string{
	"uverbs":      {"Device", "PD", "MR", "MW", "CQ", "QP", "SRQ", "AH", "CompChannel", "SendBuilder", "BufferPool", "Flow", "DM", "WCError"},
	"uverbs/soft": {"New", "NewT", "Options", "Faults", "ParseFaults", "Device"},
	"cm":          {"Conn", "Listener", "Request", "Op", "Remote", "Stream", "Dialer", "ListenConfig", "PacketConn"},
}

// TestMainExamples: each of the main types has an example of its own, or of a method, that runs on any machine and whose
// output is checked.
func TestMainExamples(t *testing.T) {
	runs := map[string]map[string]bool{} // by package: the examples with an output
	for _, f := range files(t) {
		if !f.test() || mainTypes[f.pkg()] == nil {
			continue
		}
		if runs[f.pkg()] == nil {
			runs[f.pkg()] = map[string]bool{}
		}
		for _, e := range doc.Examples(f.ast) {
			if e.Output != "" {
				runs[f.pkg()][e.Name] = true
			}
		}
	}
	for pkg, types := range mainTypes {
		for _, typ := range types {
			if !hasExample(runs[pkg], []string{typ}) {
				t.Errorf("%s.%s has no example with an output: Example%s", pkg, typ, typ)
			}
		}
	}
}

// receiverOf returns the name of the type that a function is a method of, or "".
func receiverOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	typ := fn.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

// madeBy returns the exported type of the package that a function returns a pointer to, or "".
func madeBy(fn *ast.FuncDecl) string {
	if fn.Type.Results == nil {
		return ""
	}
	star, ok := fn.Type.Results.List[0].Type.(*ast.StarExpr)
	if !ok {
		return ""
	}
	if id, ok := star.X.(*ast.Ident); ok && id.IsExported() {
		return id.Name
	}
	return ""
}

// hasExample reports whether there is an example of one of some names, whatever its suffix, or of a
// method of one.
func hasExample(examples map[string]bool, names []string) bool {
	for _, name := range names {
		for e := range examples {
			if e == name || strings.HasPrefix(e, name+"_") {
				return true
			}
		}
	}
	return false
}
