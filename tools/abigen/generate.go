package main

import (
	"fmt"
	"path"
	"strings"
)

// generate returns the content of every output file, by its path below the
// root of the repository.
func generate(c *compiler, pkgs []*packageList, version string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, list := range pkgs {
		if err := generatePackage(c, list, version, out); err != nil {
			return nil, fmt.Errorf("package %s: %w", list.dir, err)
		}
	}
	return out, nil
}

func generatePackage(c *compiler, list *packageList, version string, out map[string][]byte) error {
	headers := make([]string, len(list.headers))
	for i, h := range list.headers {
		headers[i] = h.path
	}
	u, err := c.declarations(headers)
	if err != nil {
		return err
	}
	if list.table != "" {
		return generateTable(c, list, u, version, out)
	}
	b, err := newBuilder(list, u)
	if err != nil {
		return err
	}
	files := make([]*file, len(list.headers))
	for i, h := range list.headers {
		f := &file{header: h.path}
		if f.groups, err = groups(list, u, h); err != nil {
			return err
		}
		for _, t := range h.types {
			l, err := b.layout(h.path, t)
			if err != nil {
				return err
			}
			f.types = append(f.types, l)
		}
		files[i] = f
	}
	if err := list.unused(); err != nil {
		return err
	}
	if err := measure(c, headers, files); err != nil {
		return err
	}
	for _, f := range files {
		src, err := f.emit(version)
		if err != nil {
			return err
		}
		out[path.Join(list.dir, fileName(f.header))] = src
	}
	src, err := emitPackage(list, b.helpers, version)
	if err != nil {
		return err
	}
	out[path.Join(list.dir, "zabi.go")] = src
	return nil
}

// groups resolves the constants of one header, without their values.
func groups(list *packageList, u *universe, h *headerList) ([]group, error) {
	var gs []group
	single := func(comment string, c constant) {
		if n := len(gs); n > 0 && gs[n-1].comment == comment {
			gs[n-1].constants = append(gs[n-1].constants, c)
			return
		}
		gs = append(gs, group{comment: comment, constants: []constant{c}})
	}
	for _, item := range h.constants {
		switch item.kind {
		case "macro":
			single("Macros.", constant{name: item.name, expr: item.name})
			continue
		case "const":
			single("Constants by a C expression.", constant{name: item.name, expr: item.expr})
			continue
		}
		e, comment := u.enums[item.name], "enum "+item.name
		if item.kind == "enumof" {
			e, comment = u.owner[item.name], "The nameless enum of "+item.name+"."
		}
		switch {
		case e == nil:
			return nil, fmt.Errorf("%s %s: not in the headers", item.kind, item.name)
		case item.kind == "enumof" && e.name != "":
			return nil, fmt.Errorf("enumof %s: its enum has a name, %s", item.name, e.name)
		case !strings.HasSuffix(e.header, "/"+h.path):
			return nil, fmt.Errorf("%s %s: declared in %s, not in %s", item.kind, item.name, e.header, h.path)
		}
		g := group{comment: comment}
		for _, v := range e.values {
			if list.omit[v] {
				list.use("omit", v)
				continue
			}
			g.constants = append(g.constants, constant{name: v, expr: v})
		}
		if len(g.constants) > 0 {
			gs = append(gs, g)
		}
	}
	return gs, nil
}

// measure lets gcc evaluate the constants, and compares the alignments of the
// types with those that the model assumes.
func measure(c *compiler, headers []string, files []*file) error {
	var exprs []expression
	for _, f := range files {
		for _, g := range f.groups {
			for _, k := range g.constants {
				exprs = append(exprs, expression{name: k.name, expr: k.expr})
			}
		}
		for _, l := range f.types {
			exprs = append(exprs, expression{name: l.ctype, expr: "_Alignof(" + l.ctype + ")"})
		}
	}
	values, err := c.evaluate(headers, exprs)
	if err != nil {
		return err
	}
	for _, f := range files {
		for i := range f.groups {
			for j := range f.groups[i].constants {
				f.groups[i].constants[j].value = values[0]
				values = values[1:]
			}
		}
		for _, l := range f.types {
			if got := int64(values[0].bits); got != l.align {
				return fmt.Errorf("%s: is aligned to %d bytes, its fields need %d: such structs are not supported", l.ctype, got, l.align)
			}
			values = values[1:]
		}
	}
	return nil
}
