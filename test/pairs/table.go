package pairs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A Use says beside which other methods of the same object a method may run. One goroutine at a time may be in the
// methods with the same use, except Freely.
type Use string

// Uses. A package may have others.
const (
	Freely Use = "freely" // beside all methods but those that are used alone
	Alone  Use = "alone"  // no other method at the same time
)

// beside begins the uses of Beside.
const beside = "beside: "

// Beside returns the use of methods that may run beside one another, but not beside those with the given use.
func Beside(use Use) Use { return beside + use }

// permits reports whether methods of the same object with these uses may run at the same time.
func (u Use) permits(other Use) bool {
	a, b := strings.TrimPrefix(string(u), beside), strings.TrimPrefix(string(other), beside)
	switch {
	case u == Alone || other == Alone:
		return false
	case a != b || u == Freely:
		return true
	}
	return u == other && u != Use(a)
}

// Table says what the documentation of each type of a package says.
type Table []Object

// Object is a type in a Table.
type Object struct {
	Object  any            // Object is a nil pointer of the type.
	Often   bool           // Often says that half of the methods that run belong to such types.
	Methods map[Use]string // Methods has the names of the methods, separated by spaces.
}

// usesOf returns the uses of the methods of an object, by name.
func (t Table) usesOf(typ reflect.Type) map[string]Use {
	all := map[string]Use{}
	for _, c := range t {
		if reflect.TypeOf(c.Object) != typ {
			continue
		}
		for use, names := range c.Methods {
			for _, name := range strings.Fields(names) {
				all[name] = use
			}
		}
	}
	return all
}

// often reports whether half of the methods that run belong to objects of a type.
func (t Table) often(typ reflect.Type) bool {
	return slices.ContainsFunc(t, func(o Object) bool { return o.Often && reflect.TypeOf(o.Object) == typ })
}

// Check fails the test unless the table has every exported method of every object of the package, once.
func (table Table) Check(t *testing.T) {
	t.Helper()
	var listed []string
	for _, c := range table {
		typ := reflect.TypeOf(c.Object)
		listed = append(listed, typ.Elem().Name())
		uses, n := table.usesOf(typ), 0
		for _, names := range c.Methods {
			n += len(strings.Fields(names))
		}
		if n != len(uses) {
			t.Errorf("%s: a method is listed twice", typ)
		}
		for m := range typ.Methods() {
			if uses[m.Name] == "" {
				t.Errorf("the table does not say how %s.%s may be used", typ, m.Name)
			}
			delete(uses, m.Name)
		}
		for name := range uses {
			t.Errorf("the table has %s.%s, which there is not", typ, name)
		}
	}
	table.checkDoc(t)
	for _, name := range objectTypes(t) {
		if !slices.Contains(listed, name) {
			t.Errorf("the table does not have type %s", name)
		}
	}
}

// documented matches the names in the first column of a row of the table in the documentation of package uverbs.
var documented = regexp.MustCompile(`(?:\b[a-z]+\.)?\b[A-Z]\w+(?:\.[A-Z]\w+)?`)

// checkDoc fails the test unless the section "Concurrency" in the documentation of package uverbs names every method that
// may not run freely, or its type, and no method or type of the package that does not exist.
func (table Table) checkDoc(t *testing.T) {
	t.Helper()
	if files, _ := filepath.Glob("*.go"); len(files) == 0 { // a VM, which does not have the source
		return
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	pkg := filepath.Base(dir) + "."
	var text []byte
	for text == nil {
		up := filepath.Dir(dir)
		if text, err = os.ReadFile(filepath.Join(up, "uverbs/doc.go")); err != nil && up == dir {
			t.Fatal(err)
		}
		dir = up
	}
	_, section, _ := strings.Cut(string(text), "\n// # Concurrency\n")
	section, _, _ = strings.Cut(section, "\n// # ")
	said := map[string]bool{}
	for line := range strings.Lines(section) {
		if row, ok := strings.CutPrefix(line, "//\t"); ok {
			names, _, _ := strings.Cut(row, "   ")
			for _, name := range documented.FindAllString(names, -1) {
				if strings.HasPrefix(name, pkg) || pkg == "uverbs." && ast.IsExported(name) {
					said[strings.TrimPrefix(name, pkg)] = true
				}
			}
		}
	}
	exist := map[string]bool{}
	for _, c := range table {
		typ := reflect.TypeOf(c.Object).Elem().Name()
		exist[typ] = true
		for method, use := range table.usesOf(reflect.TypeOf(c.Object)) {
			exist[typ+"."+method] = true
			if use != Freely && !said[typ] && !said[typ+"."+method] {
				t.Errorf("the section Concurrency of uverbs/doc.go does not have %s%s.%s, which is used %s", pkg, typ, method, use)
			}
		}
	}
	for name := range said {
		if !exist[name] {
			t.Errorf("the section Concurrency of uverbs/doc.go has %s%s, which there is not", pkg, name)
		}
	}
}

// objectTypes returns the exported types with methods on a pointer, except errors.
func objectTypes(t *testing.T) (types []string) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	methods := map[string][]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || !f.Name.IsExported() {
				continue
			}
			if star, ok := f.Recv.List[0].Type.(*ast.StarExpr); ok {
				typ := star.X.(*ast.Ident).Name
				methods[typ] = append(methods[typ], f.Name.Name)
			}
		}
	}
	for typ, all := range methods {
		// Errors, completions and addresses are values: they are written before they are shared.
		if ast.IsExported(typ) && !slices.ContainsFunc(all, func(m string) bool { return m == "Error" || m == "Err" || strings.HasPrefix(m, "Unmarshal") }) {
			types = append(types, typ)
		}
	}
	return types
}
