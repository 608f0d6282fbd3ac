package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// compare reports on stdout how the files below root differ from those that
// were generated now, and returns an error if a difference is not allowed.
func compare(root string, files map[string][]byte, version string, stdout io.Writer) error {
	var bad, added int
	report := func(format string, args ...any) {
		bad++
		fmt.Fprintf(stdout, format+"\n", args...)
	}
	stale, err := staleFiles(root, files)
	if err != nil {
		return err
	}
	for _, name := range stale {
		report("%s: nothing in the allow-list generates it", name)
	}
	for _, name := range sortedKeys(files) {
		old, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			report("%s: %v", name, err)
			continue
		}
		if v, ok := sourceVersion(old); !ok || v == version {
			if n := firstDifference(old, files[name]); n > 0 {
				report("%s: line %d is not what abigen writes", name, n)
			}
			continue
		}
		before, err := readFacts(name, old)
		if err != nil {
			report("%v", err)
			continue
		}
		after, err := readFacts(name, files[name])
		if err != nil {
			return err
		}
		for _, key := range sortedKeys(before) {
			now, ok := after[key]
			switch {
			case !ok:
				report("%s: %s: is %s, and is gone in %s", name, key, before[key], version)
			case now != before[key]:
				report("%s: %s: is %s, and %s in %s", name, key, before[key], now, version)
			}
		}
		for key := range after {
			if _, ok := before[key]; !ok {
				added++
			}
		}
	}
	if added > 0 {
		fmt.Fprintf(stdout, "%s has %d additions\n", version, added)
	}
	if bad > 0 {
		return fmt.Errorf("the generated files and the headers disagree in %d places", bad)
	}
	return nil
}

// staleFiles returns the files that abigen generated once and does not now.
func staleFiles(root string, files map[string][]byte) ([]string, error) {
	dirs := map[string]bool{}
	for name := range files {
		dirs[path.Dir(name)] = true
	}
	var stale []string
	for _, dir := range sortedKeys(dirs) {
		entries, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(dir)))
		if err != nil {
			continue // then its files are missing, which is reported
		}
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			if files[name] != nil || !strings.HasPrefix(e.Name(), "z") || !strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
			if err != nil {
				return nil, err
			}
			if bytes.HasPrefix(b, []byte(generated)) {
				stale = append(stale, name)
			}
		}
	}
	return stale, nil
}

// sourceVersion returns the version in the second line of a generated file. It is "" for a file
// that was made without headers.
func sourceVersion(src []byte) (string, bool) {
	rest, ok := bytes.CutPrefix(src, []byte(generated))
	if !ok {
		return "", false
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	text, ok := strings.CutPrefix(string(line), "// Source: ")
	comma := strings.LastIndex(text, ", ")
	if !ok || comma < 0 {
		return "", false
	}
	return strings.TrimSuffix(text[comma+2:], "."), true
}

// firstDifference returns the number of the first line that is not the same,
// or 0.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return 0
	}
	la, lb := bytes.Split(a, []byte("\n")), bytes.Split(b, []byte("\n"))
	n := 0
	for n < len(la) && n < len(lb) && bytes.Equal(la[n], lb[n]) {
		n++
	}
	return n + 1
}

// readFacts returns what a generated file says about the ABI: the values of constants, the types and
// offsets of fields, the guarded sizes, the methods, and the rows of a table in text. Padding and
// reserved fields are no facts, as new fields grow in their place.
func readFacts(name string, src []byte) (map[string]string, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	facts := map[string]string{}
	text := func(n ast.Node) string {
		var b strings.Builder
		printer.Fprint(&b, fset, n)
		return b.String()
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			facts["func "+receiver(d, text)+d.Name.Name] = text(d.Type) + " " + text(d.Body)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					valueFacts(spec, text, facts)
				case *ast.TypeSpec:
					typeFacts(spec, text, facts)
				}
			}
		}
	}
	return facts, nil
}

func receiver(d *ast.FuncDecl, text func(ast.Node) string) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
	}
	return "(" + text(d.Recv.List[0].Type) + ") "
}

func valueFacts(spec *ast.ValueSpec, text func(ast.Node) string, facts map[string]string) {
	for i, id := range spec.Names {
		if i >= len(spec.Values) {
			continue
		}
		v := spec.Values[i]
		if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			tableFacts(id.Name, strings.Trim(lit.Value, "`"), facts)
			continue
		}
		if id.Name != "_" {
			facts[id.Name] = text(v)
			continue
		}
		// A guard, -(measure ^ number): the measure is its name.
		if u, ok := v.(*ast.UnaryExpr); ok {
			if p, ok := u.X.(*ast.ParenExpr); ok {
				if g, ok := p.X.(*ast.BinaryExpr); ok {
					facts[text(g.X)] = text(g.Y)
				}
			}
		}
	}
}

// tableFacts adds the enumerators and fields of a table in text, which compactHelp describes.
func tableFacts(name, table string, facts map[string]string) {
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		key := name + " " + words[0] + " " + words[1]
		facts[key] = "there"
		next, end := "0", int64(0)
		for _, w := range words[min(3, len(words)):] {
			if words[0] == "enum" {
				n, value, ok := strings.Cut(w, "=")
				if !ok {
					value = next
				}
				facts[key+" "+strings.Trim(words[2], "-")+n] = value
				next = after(value)
				continue
			}
			field, typ, ok := strings.Cut(w, ":")
			if !ok {
				typ = "4"
			}
			field, text, ok := strings.Cut(field, "@")
			if ok {
				end, _ = strconv.ParseInt(text, 10, 64)
			}
			if !reserved(field[strings.LastIndex(field, ".")+1:]) {
				facts[key+" "+field] = fmt.Sprintf("%d:%s", end, typ)
			}
			end = fieldEnd(end, typ)
		}
	}
}

func typeFacts(spec *ast.TypeSpec, text func(ast.Node) string, facts map[string]string) {
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range st.Fields.List {
		_, offset, _ := strings.Cut(strings.TrimSpace(field.Comment.Text()), "at ")
		if len(field.Names) == 0 {
			facts[spec.Name.Name+"."+text(field.Type)] = "embedded at " + offset
			continue
		}
		for _, id := range field.Names {
			switch {
			case id.Name == "_":
			case offset == "": // the storage of a union
				facts[spec.Name.Name+"."+id.Name] = text(field.Type)
			default:
				facts[spec.Name.Name+"."+id.Name] = text(field.Type) + " at " + offset
			}
		}
	}
}
