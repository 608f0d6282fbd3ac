package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

// The harness is the code that compares the table of a package with the
// headers that are installed. Each package gets a copy, as none of them may
// import another.
//
//go:embed harness.go.txt
var harness string

// emitHarness returns the source of zgcc_test.go.
func emitHarness() ([]byte, error) {
	return gofmt("harness.go.txt", []byte(generated+"\n"+harness))
}

// emitTable returns the source of zlayout_test.go: what the Go compiler makes
// of the generated types, beside the C names. No number of gcc's is in it, so
// that the comparison is worth something.
func emitTable(list *packageList, files []*file, version string) ([]byte, error) {
	var b bytes.Buffer
	var headers []string
	for _, f := range files {
		headers = append(headers, f.header)
	}
	b.WriteString(generated + source(strings.Join(headers, ", "), version) + "\npackage abi\n")
	if slices.ContainsFunc(files, func(f *file) bool { return len(f.types) > 0 }) {
		b.WriteString("\nimport \"unsafe\"\n")
	}
	fmt.Fprintf(&b, "\nvar layoutHeaders = %#v\n", headers)
	b.WriteString("\nvar layoutStructs = []layoutStruct{\n")
	for _, f := range files {
		for _, l := range f.types {
			l.emitTable(&b)
		}
	}
	b.WriteString("}\n\nvar layoutConsts = []layoutConst{\n")
	for _, f := range files {
		for _, g := range f.groups {
			for _, c := range g.constants {
				bits := c.name
				if c.value.negative {
					bits = fmt.Sprintf("1<<64 + %s", c.name)
				}
				fmt.Fprintf(&b, "{%q, %q, %s, %t},\n", c.name, c.expr, bits, c.value.negative)
			}
		}
	}
	b.WriteString("}\n")
	return gofmt(list.dir, b.Bytes())
}

func (l *layout) emitTable(b *bytes.Buffer) {
	fmt.Fprintf(b, "{%q, %q, %t, %d, unsafe.Sizeof(%s{}), unsafe.Alignof(%s{}), []layoutField{\n", l.ctype, l.base, l.embedded, l.origin, l.goName, l.goName)
	for _, f := range l.fields {
		switch {
		case l.union:
			fmt.Fprintf(b, "layoutMember(%q, layoutAt[%s]().%s()),\n", f.path, l.goName, f.goName)
		case f.goName != "_" && f.goName != "":
			fmt.Fprintf(b, "{%q, unsafe.Offsetof(%s{}.%s), unsafe.Sizeof(%s{}.%s)},\n", f.path, l.goName, f.goName, l.goName, f.goName)
		}
	}
	for _, t := range l.tails {
		fmt.Fprintf(b, "layoutMember(%q, &layoutAt[%s]().%s(1)[0]),\n", t.path+"[0]", l.goName, t.goName)
	}
	b.WriteString("}},\n")
	for _, n := range l.nested {
		n.emitTable(b)
	}
}
