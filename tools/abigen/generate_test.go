package main

import (
	"bytes"
	"flag"
	"go/format"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/golden anew")

// fixtureList returns the allow-list of the fixture.
func fixtureList(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("testdata/fix.txt")
	must(t, err)
	return string(b)
}

// generateFrom generates from the headers in dir.
func generateFrom(t *testing.T, dir, list, version string) (map[string][]byte, error) {
	t.Helper()
	c, err := newCompiler("gcc", []string{dir}, t.TempDir())
	must(t, err)
	pkgs, err := parseList(strings.NewReader(list))
	must(t, err)
	return generate(c, pkgs, version)
}

// fixtureHeaders copies the fixture's headers and replaces texts in them: pairs
// of an old and a new one, each of which must be there.
func fixtureHeaders(t *testing.T, oldnew ...string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS("testdata/include")))
	for i := 0; i < len(oldnew); i += 2 {
		done := false
		for _, name := range []string{"fix/fix.h", "fix/base.h", "linux/version.h"} {
			name = filepath.Join(dir, name)
			b, err := os.ReadFile(name)
			must(t, err)
			if !bytes.Contains(b, []byte(oldnew[i])) {
				continue
			}
			done = true
			b = bytes.Replace(b, []byte(oldnew[i]), []byte(oldnew[i+1]), 1)
			must(t, os.WriteFile(name, b, 0o666))
		}
		if !done {
			t.Fatalf("the fixture has no %q", oldnew[i])
		}
	}
	return dir
}

func TestGolden(t *testing.T) {
	got, err := generateFrom(t, "testdata/include", fixtureList(t), "fixture 1")
	must(t, err)
	names := []string{"zabi.go", "zbase.go", "zfix.go"}
	var paths []string
	for _, name := range names {
		paths = append(paths, "some/abi/"+name)
	}
	if diff := cmp.Diff(paths, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Fatalf("files (-want +got):\n%s", diff)
	}
	for _, name := range names {
		src := got["some/abi/"+name]
		if again, err := format.Source(src); err != nil || !bytes.Equal(again, src) {
			t.Errorf("%s: gofmt would change it: %v\n%s", name, err, cmp.Diff(string(src), string(again)))
		}
		golden := filepath.Join("testdata", "golden", name)
		if *update {
			must(t, os.WriteFile(golden, src, 0o666))
		}
		want, err := os.ReadFile(golden)
		must(t, err)
		if diff := cmp.Diff(string(want), string(src)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestGenerateTwice(t *testing.T) {
	first, err := generateFrom(t, "testdata/include", fixtureList(t), "fixture 1")
	must(t, err)
	second, err := generateFrom(t, fixtureHeaders(t), fixtureList(t), "fixture 1")
	must(t, err)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the output depends on something beside the headers (-first +second):\n%s", diff)
	}
}

// refused are headers and lists that are errors.
var refused = []struct {
	name, header, list, want string
}{
	{
		"missing struct", "", "struct nope",
		"package p: struct nope: not in the headers",
	}, {
		"missing enum", "", "enum nope",
		"enum nope: not in the headers",
	}, {
		"missing nameless enum", "", "enumof NOPE",
		"enumof NOPE: not in the headers",
	}, {
		"enum with a name", "enum e { A };", "enumof A",
		"enumof A: its enum has a name, e",
	}, {
		"missing macro", "#define THERE 1", "macro THERE\nmacro NOPE",
		"gcc can't evaluate NOPE: 'NOPE' undeclared",
	}, {
		"macro that is no number", `#define TEXT "text"`, "macro TEXT",
		"gcc can't evaluate TEXT: invalid operands",
	}, {
		"macro that is no integer", `#define HALF 0.5`, "macro HALF",
		"gcc can't evaluate HALF: invalid operands",
	}, {
		"missing header", "", "header fix/nope.h",
		"header fix/nope.h: not in ",
	}, {
		"struct of another header", "", "struct fix_gid",
		"struct fix_gid: declared in ",
	}, {
		"enum of another header", "#include <fix/fix.h>", "enum fix_kind",
		"enum fix_kind: declared in ",
	}, {
		"union that is a struct", "struct s { __u32 a; };", "union s",
		"union s: not in the headers",
	}, {
		"declared but not defined", "struct s; struct s *p;", "struct s",
		"struct s: not in the headers",
	}, {
		"bitfield", "struct s { __u32 a : 3; };", "struct s",
		"struct s.a: a bitfield of 3 bits",
	}, {
		"bitfield in a union", "union u { __u32 a : 3; };", "union u",
		"union u.a: a bitfield of 3 bits",
	}, {
		"packed field", "struct s { __u8 a; __u32 b; } __attribute__((packed));", "struct s",
		"struct s: has 5 bytes, which is no multiple of its alignment 4: packed",
	}, {
		"packed field in a size that fits", "struct s { __u16 a; __u32 b; __u16 c; } __attribute__((packed));", "struct s",
		"struct s.b: at offset 2, which is no multiple of its alignment 4: packed",
	}, {
		"packed union", "struct s { __u8 a; union { __u32 b; __u8 c[4]; } u; __u8 d[3]; } __attribute__((packed));", "struct s",
		"struct s.u: at offset 1, which is no multiple",
	}, {
		"aligned more than its fields", "struct s { __u32 a; } __attribute__((aligned(16)));", "struct s",
		"struct s: is aligned to 16 bytes, its fields need 4",
	}, {
		"struct that is not listed", "struct s { struct fix_gid gid; };", "struct s",
		"struct s.gid: needs struct fix_gid, which is not on the allow-list",
	}, {
		"floating point", "struct s { double d; };", "struct s",
		"struct s.d: has type double, which is not supported",
	}, {
		"array in the middle", "struct s { union { struct { __u32 n; struct fix_gid g[0][2]; } in; } u; };", "struct s",
		"needs struct fix_gid, which is not on the allow-list",
	}, {
		"field of no size", "struct s { __u32 a; struct {} b; };", "struct s",
		"struct s.b: a member of 0 bytes",
	}, {
		"two names become one", "struct a_b { __u32 x; }; struct aB { __u32 x; };", "struct a_b\nstruct aB",
		"struct a_b and struct aB would both be AB in Go",
	}, {
		"two fields become one", "struct s { __u32 x_y; __u32 xY; };", "struct s",
		"struct s: x_y and xY would both be XY in Go",
	}, {
		"small pointer", "struct s { __u32 p; };", "struct s\npointer s.p",
		"struct s.p: has 4 bytes and can't be a pointer",
	}, {
		"small substitute", "struct s { union { __u32 a; __u64 b; }; };", "struct s\nmember s.a",
		"struct s.a: has 4 bytes and can't stand for its union of 8",
	}, {
		"directives about nothing", "struct s { __u32 a; };", "struct s\npointer s.b\ntail s.t\nomit X\nname s.q Q\nnote s.q q\nmember s.q",
		"the headers have nothing for these directives: member s.q, name s.q, note s.q, omit X, pointer s.b, tail s.t",
	}, {
		"header that is no C", "struct {", "struct s",
		"error:",
	},
}

// TestRefused has what abigen must not generate from, and what it says.
func TestRefused(t *testing.T) {
	for _, tt := range refused {
		t.Run(tt.name, func(t *testing.T) {
			dir := fixtureHeaders(t)
			text := "#include <fix/base.h>\n" + tt.header + "\n"
			must(t, os.WriteFile(filepath.Join(dir, "fix", "x.h"), []byte(text), 0o666))
			files, err := generateFrom(t, dir, "package p\nheader fix/x.h\n"+tt.list+"\n", "fixture 1")
			if err == nil {
				t.Fatalf("no error, and %d files", len(files))
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q, want %q in it", err, tt.want)
			}
		})
	}
}

func TestNewCompilerErrors(t *testing.T) {
	if _, err := newCompiler("no-such-gcc", []string{"testdata/include"}, t.TempDir()); err == nil || !strings.Contains(err.Error(), "apt-get install gcc") {
		t.Errorf("without gcc: %v, want the way to get it", err)
	}
	if _, err := newCompiler("gcc", []string{"testdata/fix.txt"}, t.TempDir()); err == nil || !strings.Contains(err.Error(), "testdata/fix.txt: not a directory") {
		t.Errorf("with a file for a directory: %v", err)
	}
}

// TestAllowList reads the list that is built in: that it is well formed, and
// that its packages are those that exist.
func TestAllowList(t *testing.T) {
	pkgs, err := parseList(strings.NewReader(allowList))
	must(t, err)
	for _, p := range pkgs {
		if p.table != "" {
			if _, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(p.dir), compactFile)); err != nil {
				t.Error(err)
			}
			continue
		}
		for _, h := range p.headers {
			name := filepath.Join("..", "..", filepath.FromSlash(path.Join(p.dir, fileName(h.path))))
			b, err := os.ReadFile(name)
			if err != nil {
				t.Error(err)
				continue
			}
			for _, ty := range h.types {
				if !bytes.Contains(b, []byte(" is "+ty.String()+" (")) {
					t.Errorf("%s: has no %s, which is on the allow-list: abigen was not run", name, ty)
				}
			}
		}
	}
}
