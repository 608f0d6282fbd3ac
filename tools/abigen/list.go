package main

import (
	"bufio"
	"errors"
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
	table   string   // Go package of a table of all that the headers declare, instead of Go types
	headers []*headerList

	omit    map[string]bool     // enumerators left out
	pointer map[string]bool     // "type.field" of fields that become a Ptr
	tail    map[string]bool     // "type.field" of arrays without a length that get a method
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
	p := listParser{taken: map[string]bool{}}
	sc := bufio.NewScanner(r)
	for line := 1; sc.Scan(); line++ {
		text := strings.TrimSpace(sc.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		word, rest, _ := strings.Cut(text, " ")
		if err := p.directive(word, strings.TrimSpace(rest)); err != nil {
			return nil, fmt.Errorf("allow-list line %d: %s: %w", line, word, err)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("allow-list: %w", err)
	}
	return p.pkgs, nil
}

// A listParser is the state between two lines of an allow-list.
type listParser struct {
	pkgs  []*packageList
	pkg   *packageList    // the package of the next directive, or nil
	hdr   *headerList     // the header of the next directive, or nil
	taken map[string]bool // package, directive and name
}

// directive parses the directive word with the argument rest.
func (p *listParser) directive(word, rest string) error {
	switch {
	case rest == "":
		return errors.New("has no argument")
	case word == "package":
		return p.startPackage(rest)
	case p.pkg == nil:
		return errors.New("stands before the first package")
	}
	switch word {
	case "about":
		p.pkg.about = append(p.pkg.about, rest)
		return nil
	case "strip":
		p.pkg.strip = rest
		return nil
	case "table":
		p.pkg.table = rest
		return nil
	case "header":
		return p.startHeader(rest)
	}
	if p.hdr == nil {
		return fmt.Errorf("stands before the first header of package %s", p.pkg.dir)
	}
	arg, extra, _ := strings.Cut(rest, " ")
	extra = strings.TrimSpace(extra)
	if err := p.checkEntry(word, rest, arg, extra); err != nil {
		return err
	}
	return p.addEntry(word, rest, arg, extra)
}

// startPackage begins a package.
func (p *listParser) startPackage(dir string) error {
	if slices.ContainsFunc(p.pkgs, func(l *packageList) bool { return l.dir == dir }) {
		return fmt.Errorf("%s: twice", dir)
	}
	p.pkg = &packageList{
		dir:     dir,
		omit:    map[string]bool{},
		pointer: map[string]bool{},
		tail:    map[string]bool{},
		member:  map[string]bool{},
		name:    map[string]string{},
		note:    map[string][]string{},
		used:    map[string]bool{},
	}
	p.pkgs, p.hdr = append(p.pkgs, p.pkg), nil
	return nil
}

// startHeader begins a header of the current package.
func (p *listParser) startHeader(path string) error {
	if slices.ContainsFunc(p.pkg.headers, func(h *headerList) bool { return h.path == path }) {
		return fmt.Errorf("%s: twice in package %s", path, p.pkg.dir)
	}
	p.hdr = &headerList{path: path}
	p.pkg.headers = append(p.pkg.headers, p.hdr)
	return nil
}

// checkEntry checks the number of arguments of a directive about a header, and that no constant or
// type is listed twice. The argument rest is arg and extra.
func (p *listParser) checkEntry(word, rest, arg, extra string) error {
	switch word {
	case "macro", "enum", "enumof", "omit", "struct", "union", "pointer", "tail", "member":
		if extra != "" {
			return fmt.Errorf("%q: want one name", rest)
		}
	case "name", "note":
		if extra == "" {
			return fmt.Errorf("%q: want a field and a text", rest)
		}
	}
	switch word {
	case "macro", "enum", "enumof", "const", "struct", "union":
		key := p.pkg.dir + " " + word + " " + arg
		if p.taken[key] {
			return fmt.Errorf("%s: twice in package %s", arg, p.pkg.dir)
		}
		p.taken[key] = true
	}
	return nil
}

// addEntry adds a directive about a header to the list.
func (p *listParser) addEntry(word, rest, arg, extra string) error {
	switch word {
	case "macro", "enum", "enumof":
		p.hdr.constants = append(p.hdr.constants, constItem{kind: word, name: arg})
	case "const":
		expr, ok := strings.CutPrefix(extra, "= ")
		if !ok {
			return fmt.Errorf("%q: want NAME = EXPR", rest)
		}
		p.hdr.constants = append(p.hdr.constants, constItem{kind: word, name: arg, expr: expr})
	case "struct", "union":
		p.hdr.types = append(p.hdr.types, typeItem{kind: word, name: arg})
	case "omit":
		p.pkg.omit[arg] = true
	case "pointer":
		p.pkg.pointer[arg] = true
	case "tail":
		p.pkg.tail[arg] = true
	case "member":
		p.pkg.member[arg] = true
	case "name":
		p.pkg.name[arg] = extra
	case "note":
		p.pkg.note[arg] = append(p.pkg.note[arg], extra)
	default:
		return errors.New("no such directive")
	}
	return nil
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
	for key := range p.tail {
		add("tail", key)
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
