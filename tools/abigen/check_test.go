package main

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// abigen runs the command on the fixture and returns what it prints.
func abigen(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(append([]string{"-list", "testdata/fix.txt"}, args...), &out, io.Discard)
	return out.String(), err
}

// generatedRoot writes the fixture's files into a new root.
func generatedRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	if _, err := abigen(t, "-include", "testdata/include", "-version", "fixture 1", "-root", root); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestWrite(t *testing.T) {
	root := generatedRoot(t)
	files, err := generateFrom(t, "testdata/include", fixtureList(t), "fixture 1")
	must(t, err)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		must(t, err)
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	// A second run only mends what is amiss: it touches no file by hand.
	abi := filepath.Join(root, "some/abi")
	for name, text := range map[string]string{
		"zold.go":  generated + "package abi\n",
		"zhand.go": "package abi\n",
		"zfix.go":  "damaged",
	} {
		must(t, os.WriteFile(filepath.Join(abi, name), []byte(text), 0o666))
	}
	out, err := abigen(t, "-include", "testdata/include", "-version", "fixture 1", "-root", root)
	must(t, err)
	if want := "some/abi/zold.go removed\nsome/abi/zfix.go\n"; out != want {
		t.Errorf("it says %q, want %q", out, want)
	}
	if _, err := os.Stat(filepath.Join(abi, "zold.go")); !os.IsNotExist(err) {
		t.Errorf("zold.go is still there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(abi, "zhand.go")); err != nil {
		t.Errorf("zhand.go: %v", err)
	}
}

// TestCheckSameVersion damages files that must be what abigen writes.
func TestCheckSameVersion(t *testing.T) {
	tests := []struct {
		name   string
		damage func(t *testing.T, abi string)
		want   string
	}{
		{"untouched", func(t *testing.T, abi string) {}, ""},
		{"comment", func(t *testing.T, abi string) {
			edit(t, filepath.Join(abi, "zfix.go"), "// enum fix_kind\n", "// enum fix_kinds\n")
		}, "some/abi/zfix.go: line 22 is not what abigen writes\n"},
		{"first line", func(t *testing.T, abi string) {
			edit(t, filepath.Join(abi, "zfix.go"), "// Code", "// No code")
		}, "some/abi/zfix.go: line 1 is not what abigen writes\n"},
		{"cut short", func(t *testing.T, abi string) {
			must(t, os.Truncate(filepath.Join(abi, "zabi.go"), 300))
		}, "some/abi/zabi.go: line "},
		{"missing", func(t *testing.T, abi string) {
			must(t, os.Remove(filepath.Join(abi, "zbase.go")))
		}, "some/abi/zbase.go: open "},
		{"left over", func(t *testing.T, abi string) {
			must(t, os.WriteFile(filepath.Join(abi, "zold.go"), []byte(generated), 0o666))
		}, "some/abi/zold.go: nothing in the allow-list generates it\n"},
		{"package missing", func(t *testing.T, abi string) {
			must(t, os.RemoveAll(abi))
		}, "some/abi/zabi.go: open "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := generatedRoot(t)
			tt.damage(t, filepath.Join(root, "some/abi"))
			out, err := abigen(t, "-include", "testdata/include", "-version", "fixture 1", "-root", root, "-check")
			if tt.want == "" {
				if err != nil || out != "" {
					t.Errorf("error %v, output %q, want none", err, out)
				}
				return
			}
			if err == nil || !strings.HasPrefix(out, tt.want) {
				t.Errorf("error %v, output %q, want %q at its start", err, out, tt.want)
			}
		})
	}
}

// otherVersions are changes to the headers, and what -check says about them.
var otherVersions = []struct {
	name   string
	oldnew []string
	want   string // output
	bad    string // error
}{
	{
		"same content", nil,
		"", "",
	}, {
		"new enumerator", []string{"	FIX_OTHER = 7,", "	FIX_OTHER = 7,\n	FIX_NEW,"},
		"fixture 2 has 1 additions\n", "",
	}, {
		"count moves", []string{"	FIX_KIND_MAX", "	FIX_KIND_ELEVEN,\n	FIX_KIND_MAX"},
		"fixture 2 has 1 additions\n", "",
	}, {
		"field in place of a reserved one", []string{"	__u8 reserved;\n", "	__u8 sl;\n"},
		"fixture 2 has 1 additions\n", "",
	}, {
		"member of a union", []string{"		__u32 invalidate_rkey;\n", "		__u32 invalidate_rkey;\n		__u32 tag;\n"},
		"fixture 2 has 1 additions\n", "",
	}, {
		"value of a constant", []string{"	FIX_OTHER = 7,", "	FIX_OTHER = 8,"},
		"some/abi/zfix.go: FIX_OTHER: is 7, and 8 in fixture 2\n", "disagree in 1 places",
	}, {
		"value of a macro", []string{"FIX_VERSION 3", "FIX_VERSION (-3)"},
		"FIX_VERSION: is 3, and -3 in fixture 2\n", "disagree in ",
	}, {
		"constant gone", []string{"	FIX_KIND_SAME = FIX_KIND_ONE,\n", ""},
		"some/abi/zfix.go: FIX_KIND_SAME: is 1, and is gone in fixture 2\n", "disagree in 1 places",
	}, {
		"field moves", []string{"	__u8 tfc_pad;\n", "	__u8 tfc_pad;\n	__u64 wedge;\n"},
		"Plain.Kind: is uint32 at 88, and uint32 at 96 in fixture 2\n", "disagree in ",
	}, {
		"first field moves", []string{"struct fix_old_tail {\n", "struct fix_old_tail {\n	__u32 wedge;\n"},
		"OldTail.Handle: is uint32 at 0, and uint32 at 4 in fixture 2\n", "disagree in 3 places",
	}, {
		"size", []string{"	__u32 lkey;\n", "	__u32 lkey;\n	__u64 more;\n"},
		"unsafe.Sizeof(SGE{}): is 16, and 24 in fixture 2\n", "disagree in 1 places",
	}, {
		"field gone", []string{"	__u32 lkey;\n", "	__u32 reserved;\n"},
		"some/abi/zfix.go: SGE.LKey: is uint32 at 12, and is gone in fixture 2\n", "disagree in 1 places",
	}, {
		"sign", []string{"	__s32 fd;\n", "	__u32 fd;\n"},
		"some/abi/zfix.go: Plain.FD: is int32 at 4, and uint32 at 4 in fixture 2\n", "disagree in 1 places",
	}, {
		"byte order", []string{"		__be32 imm_data;\n", "		__u32 imm_data;\n"},
		"func (*WREx) ImmData: is func() *Be32 ", "disagree in 1 places",
	}, {
		"tail moves", []string{"	__u16 count;\n	__u16 odd[];", "	__u16 count;\n	__u32 grown;\n	__u16 odd[];"},
		"func (*Tail) TailOdd: is ", "disagree in 1 places",
	},
}

// TestCheckOtherVersion has newer headers. Additions are fine; what is there
// must stay.
func TestCheckOtherVersion(t *testing.T) {
	root := generatedRoot(t)
	for _, tt := range otherVersions {
		t.Run(tt.name, func(t *testing.T) {
			dir := fixtureHeaders(t, tt.oldnew...)
			out, err := abigen(t, "-include", dir, "-version", "fixture 2", "-root", root, "-check")
			if tt.bad == "" {
				if err != nil || out != tt.want {
					t.Errorf("error %v, output %q, want %q", err, out, tt.want)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.bad) {
				t.Errorf("error %v, want %q in it", err, tt.bad)
			}
			if !strings.Contains(out, tt.want) {
				t.Errorf("output %q, want %q in it", out, tt.want)
			}
		})
	}

	t.Run("no Go", func(t *testing.T) {
		root := generatedRoot(t)
		edit(t, filepath.Join(root, "some/abi/zbase.go"), "package abi", "package")
		out, err := abigen(t, "-include", "testdata/include", "-version", "fixture 2", "-root", root, "-check")
		if err == nil || !strings.Contains(out, "zbase.go:") {
			t.Errorf("error %v, output %q", err, out)
		}
	})
}

// edit replaces a text that must be in a file.
func edit(t *testing.T, name, old, text string) {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	if !bytes.Contains(b, []byte(old)) {
		t.Fatalf("%s: no %q", name, old)
	}
	must(t, os.WriteFile(name, bytes.Replace(b, []byte(old), []byte(text), 1), 0o666))
}

func TestRunErrors(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{}, "-include is missing"},
		{[]string{"-include", "testdata/include", "-version", "1", "more"}, `unexpected argument "more"`},
		{[]string{"-include", "testdata/include"}, "name it with -version"},
		{[]string{"-include", "testdata/include", "-version", "1, 2"}, "allowed: a text without commas"},
		{[]string{"-include", "testdata/nope", "-version", "1"}, "testdata/nope: not a directory"},
		{[]string{"-include", "testdata/include", "-version", "1", "-list", "testdata/nope"}, "testdata/nope"},
		{[]string{"-include", "testdata/include", "-version", "1", "-gcc", "no-such-gcc"}, "no-such-gcc"},
		{[]string{"-nope"}, "flag provided but not defined"},
	} {
		_, err := abigen(t, append([]string{"-root", t.TempDir()}, tt.args...)...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: error %v, want %q in it", tt.args, err, tt.want)
		}
	}
}

func TestPackageVersion(t *testing.T) {
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := io.WriteString(w, "linux (7.2.13-1) unstable; urgency=medium\n\n  * Long ago.\n"+strings.Repeat("x", 1000)); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	var empty bytes.Buffer
	must(t, gzip.NewWriter(&empty).Close())
	for _, tt := range []struct {
		name    string
		content []byte
		want    string
		err     string
	}{
		{"good", z.Bytes(), "linux-libc-dev 7.2.13-1", ""},
		{"missing", nil, "", "no such file"},
		{"not compressed", []byte("linux (7.2.13-1) unstable"), "", "invalid header"},
		{"damaged", z.Bytes()[:20], "", "unexpected EOF"},
		{"empty", empty.Bytes(), "", "no version in the first line"},
	} {
		dir := t.TempDir()
		doc := filepath.Join(dir, "share", "doc", "linux-libc-dev")
		must(t, os.MkdirAll(doc, 0o777))
		must(t, os.MkdirAll(filepath.Join(dir, "include"), 0o777))
		if tt.content != nil {
			must(t, os.WriteFile(filepath.Join(doc, "changelog.Debian.gz"), tt.content, 0o666))
		}
		got, err := packageVersion(filepath.Join(dir, "include"))
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v, want %q and error %q", tt.name, got, err, tt.want, tt.err)
		}
	}
}

// TestNotedVersion has the file that vmrun writes beside an unpacked package.
func TestNotedVersion(t *testing.T) {
	for _, tt := range []struct{ content, want, err string }{
		{`["gcc=12", "linux-libc-dev=7.2.13-1"]`, "linux-libc-dev 7.2.13-1", ""},
		{`["linux-libc=7"]`, "", "has no linux-libc-dev"},
		{`["linux-libc-dev="]`, "", "has no linux-libc-dev"},
		{`{`, "", "unexpected end of JSON"},
		{`{"a": 1}`, "", "cannot unmarshal"},
	} {
		top := t.TempDir()
		dir := filepath.Join(top, "root", "usr", "include")
		must(t, os.MkdirAll(dir, 0o777))
		must(t, os.WriteFile(filepath.Join(top, "packages.json"), []byte(tt.content), 0o666))
		got, err := packageVersion(dir)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v, want %q and error %q", tt.content, got, err, tt.want, tt.err)
		}
	}
}

func TestFirstDifference(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"a\nb\n", "a\nb\n", 0},
		{"a\nb\n", "a\nc\n", 2},
		{"a\nb\n", "a\nb", 3},
		{"a\nb", "a\n", 2},
		{"", "a", 1},
	} {
		if got := firstDifference([]byte(tt.a), []byte(tt.b)); got != tt.want {
			t.Errorf("firstDifference(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestSourceVersion(t *testing.T) {
	for _, tt := range []struct {
		src, want string
		ok        bool
	}{
		{generated + source("a.h, b.h", "linux-libc-dev 6.1.2-3"), "linux-libc-dev 6.1.2-3", true},
		{generated + "// Source: ", "", false},
		{generated + "// Source: a.h.", "", false},
		{generated + "package abi\n", "", false},
		{generated, "", false},
		{source("a.h", "1"), "", false},
		{"", "", false},
	} {
		got, ok := sourceVersion([]byte(tt.src))
		if got != tt.want || ok != tt.ok {
			t.Errorf("sourceVersion(%q) = %q, %t, want %q, %t", tt.src, got, ok, tt.want, tt.ok)
		}
	}
}
