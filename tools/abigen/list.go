package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A packageList is the part of the allow-list that describes one output package.
type packageList struct {
	dir     string   // below the repository's root
	about   []string // lines of the package comment
	strip   string   // prefix cut off C struct names
	headers []*headerList

	omit    map[string]bool     // enumerators left out
	pointer map[string]bool     // "type.field" of fields that become a Ptr
	member  map[string]bool     // "type.field" of members that stand for their nameless union
	name    map[string]string   // "type.field" to the Go name of the field's nameless type
	note    map[string][]string // "type.field" to lines of comment

	// used collects the entries of the maps above that had an effect, so that
	// one that names nothing can be reported.
	used map[string]bool
}

// A headerList is the part of the allow-list that describes one output file.
type headerList struct {
	path      string // as written between <>
	constants []constItem
	types     []typeItem
}

// A constItem stands for one constant or for all enumerators of an enum.
type constItem struct {
	kind string // "macro", "enum", "enumof" or "const"
	name string
	expr string // C expression, for "const"
}

// A typeItem is a struct or a union.
type typeItem struct {
	kind string // "struct" or "union"
	name string
}

func (t typeItem) String() string { return t.kind + " " + t.name }

// parseList reads an allow-list. The format is described at its head.
func parseList(r io.Reader) ([]*packageList, error) {
	var (
		pkgs []*packageList
		pkg  *packageList
		hdr  *headerList
		line int
	)
	taken := map[string]bool{} // package, directive and name
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		line++
		text := strings.TrimSpace(sc.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		word, rest, _ := strings.Cut(text, " ")
		rest = strings.TrimSpace(rest)
		fail := func(format string, args ...any) error {
			return fmt.Errorf("allow-list line %d: %s: %s", line, word, fmt.Sprintf(format, args...))
		}
		if rest == "" {
			return nil, fail("has no argument")
		}
		if word == "package" {
			if slices.ContainsFunc(pkgs, func(p *packageList) bool { return p.dir == rest }) {
				return nil, fail("%s: twice", rest)
			}
			pkg = &packageList{
				dir:     rest,
				omit:    map[string]bool{},
				pointer: map[string]bool{},
				member:  map[string]bool{},
				name:    map[string]string{},
				note:    map[string][]string{},
				used:    map[string]bool{},
			}
			pkgs, hdr = append(pkgs, pkg), nil
			continue
		}
		if pkg == nil {
			return nil, fail("stands before the first package")
		}
		switch word {
		case "about":
			pkg.about = append(pkg.about, rest)
			continue
		case "strip":
			pkg.strip = rest
			continue
		case "header":
			if slices.ContainsFunc(pkg.headers, func(h *headerList) bool { return h.path == rest }) {
				return nil, fail("%s: twice in package %s", rest, pkg.dir)
			}
			hdr = &headerList{path: rest}
			pkg.headers = append(pkg.headers, hdr)
			continue
		}
		if hdr == nil {
			return nil, fail("stands before the first header of package %s", pkg.dir)
		}
		arg, extra, _ := strings.Cut(rest, " ")
		extra = strings.TrimSpace(extra)
		switch word {
		case "macro", "enum", "enumof", "omit", "struct", "union", "pointer", "member":
			if extra != "" {
				return nil, fail("%q: want one name", rest)
			}
		case "name", "note":
			if extra == "" {
				return nil, fail("%q: want a field and a text", rest)
			}
		}
		switch word {
		case "macro", "enum", "enumof", "const", "struct", "union":
			if taken[pkg.dir+" "+word+" "+arg] {
				return nil, fail("%s: twice in package %s", arg, pkg.dir)
			}
			taken[pkg.dir+" "+word+" "+arg] = true
		}
		switch word {
		case "macro", "enum", "enumof":
			hdr.constants = append(hdr.constants, constItem{kind: word, name: arg})
		case "const":
			expr, ok := strings.CutPrefix(extra, "= ")
			if !ok {
				return nil, fail("%q: want NAME = EXPR", rest)
			}
			hdr.constants = append(hdr.constants, constItem{kind: word, name: arg, expr: expr})
		case "struct", "union":
			hdr.types = append(hdr.types, typeItem{kind: word, name: arg})
		case "omit":
			pkg.omit[arg] = true
		case "pointer":
			pkg.pointer[arg] = true
		case "member":
			pkg.member[arg] = true
		case "name":
			pkg.name[arg] = extra
		case "note":
			pkg.note[arg] = append(pkg.note[arg], extra)
		default:
			return nil, fail("no such directive")
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("allow-list: %w", err)
	}
	return pkgs, nil
}

// unused returns an error that names the directives that had no effect, which
// are misspelt or about a field that is gone.
func (p *packageList) unused() error {
	var idle []string
	add := func(word, key string) {
		if !p.used[word+" "+key] {
			idle = append(idle, word+" "+key)
		}
	}
	for key := range p.omit {
		add("omit", key)
	}
	for key := range p.pointer {
		add("pointer", key)
	}
	for key := range p.member {
		add("member", key)
	}
	for key := range p.name {
		add("name", key)
	}
	for key := range p.note {
		add("note", key)
	}
	if idle == nil {
		return nil
	}
	slices.Sort(idle)
	return fmt.Errorf("the headers have nothing for these directives: %s", strings.Join(idle, ", "))
}

// use marks a directive as having had an effect.
func (p *packageList) use(word, key string) { p.used[word+" "+key] = true }
