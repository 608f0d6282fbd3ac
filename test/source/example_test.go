package source

import (
	"go/ast"
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
