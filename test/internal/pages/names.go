// Package pages writes the tables of uverbs/RDMA-CORE.md from the documentation of the packages.
package pages

import (
	_ "embed"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

//go:embed names.txt
var namesText string

//go:embed absent.txt
var absentText string

// A place is a documented name of a package and what its documentation says.
type place struct{ name, text string }

// places returns the documented names of a package that programs can use: functions, types, methods, constants, variables
// and fields. The package path stands before each, except uverbs.
func places(root, pkg string) (all []place, err error) {
	paths, err := filepath.Glob(filepath.Join(root, pkg, "*.go"))
	if err != nil {
		return nil, err
	}
	set, files := token.NewFileSet(), []*ast.File{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	d, err := doc.NewFromFiles(set, files, pkg)
	if err != nil {
		return nil, err
	}
	prefix := filepath.Base(pkg) + "."
	if pkg == "uverbs" {
		prefix = ""
	}
	add := func(name, text string) {
		all = append(all, place{prefix + name, strings.Join(strings.Fields(text), " ")})
	}
	values := func(values []*doc.Value) {
		for _, v := range values {
			add(v.Names[0], v.Doc)
		}
	}
	funcs := func(of string, funcs []*doc.Func) {
		for _, f := range funcs {
			add(of+f.Name, f.Doc)
		}
	}
	funcs("", d.Funcs)
	values(append(d.Consts, d.Vars...))
	for _, t := range d.Types {
		add(t.Name, t.Doc)
		funcs("", t.Funcs)
		funcs(t.Name+".", t.Methods)
		values(append(t.Consts, t.Vars...))
		s, ok := t.Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range s.Fields.List {
			for _, n := range f.Names {
				add(t.Name+"."+n.Name, f.Doc.Text()+f.Comment.Text())
			}
		}
	}
	return all, nil
}

// packages are those that have counterparts of rdma-core's functions.
var packages = []string{"uverbs", "uverbs/ib", "uverbs/flow", "uverbs/mlx5", "cm/rdmacm", "cm/rsocket"}

// lists returns the names of rdma-core by their headings in names.txt.
func lists() (titles []string, names map[string][]string) {
	names = map[string][]string{}
	for _, part := range strings.Split(namesText, "\n# ")[1:] {
		title, list, _ := strings.Cut(part, "\n")
		titles = append(titles, title)
		names[title] = strings.Fields(list)
	}
	return titles, names
}

var (
	group = regexp.MustCompile(`\(([^()]*)\)`)
	cName = regexp.MustCompile(`\b(ibv_|mlx5dv_|IBV_|MLX5DV_|RDMA_(?:PS|OPTION|CM_EVENT|MC)_)\w+`)
)

// counterparts returns, for each function of rdma-core, the names in Go whose documentation has it in parentheses, and the
// errors of the documentation: a name of C that does not exist.
func counterparts(root string) (of map[string][]string, err error) {
	_, names := lists()
	functions, known := map[string]bool{}, map[string]bool{}
	for title, list := range names {
		for _, n := range list {
			known[n] = true
			functions[n] = functions[n] || strings.HasSuffix(title, ": functions")
		}
	}
	of = map[string][]string{}
	variants := map[string][]string{} // of functions with certain arguments
	for _, pkg := range packages {
		all, failed := places(root, pkg)
		if failed != nil {
			return nil, failed
		}
		for _, p := range all {
			for _, g := range group.FindAllStringSubmatch(p.text, -1) {
				for part := range strings.SplitSeq(g[1], ", ") {
					for w := range strings.FieldsFuncSeq(part, notInName) {
						switch {
						case functions[w] && part == w:
							of[w] = append(of[w], p.name)
						case functions[w] && !slices.Contains(of[w], p.name):
							variants[w] = append(variants[w], p.name)
						case part == w && strings.HasPrefix(w, "rdma_") && !known[w]:
							err = errors.Join(err, fmt.Errorf("%s: rdma-core has no %s", p.name, w))
						}
					}
				}
			}
			for _, n := range cName.FindAllString(p.text, -1) {
				if !known[n] && !(strings.HasSuffix(n, "_") && strings.Contains(namesText, "\n"+n)) {
					err = errors.Join(err, fmt.Errorf("%s: rdma-core has no %s", p.name, n))
				}
			}
		}
	}
	for w, names := range variants {
		of[w] = append(of[w], names...)
	}
	return of, err
}

// notInName reports whether a character is not part of a name.
func notInName(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// absent returns the reasons of absent.txt and the functions of each, of those of a list.
func absent(functions []string) (reasons []string, of map[string][]string) {
	of = map[string][]string{}
	reason := ""
	for line := range strings.Lines(absentText) {
		if !strings.HasPrefix(line, "\t") {
			reason = strings.TrimSpace(line)
			continue
		}
		for pattern := range strings.FieldsSeq(line) {
			for _, f := range functions {
				if ok, _ := filepath.Match(pattern, f); ok {
					if of[reason] == nil {
						reasons = append(reasons, reason)
					}
					of[reason] = append(of[reason], f)
				}
			}
		}
	}
	return reasons, of
}
