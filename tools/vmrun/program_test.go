package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/tools/vmrun/internal/initramfs"
)

func TestSplitPrograms(t *testing.T) {
	for _, tt := range []struct {
		args string
		want [][]string
	}{
		{"a -x --", [][]string{{"a", "-x", "--"}}},
		{"a 1 --- b --- c 2", [][]string{{"a", "1"}, {"b"}, {"c", "2"}}},
		{"", nil}, {"---", nil}, {"a ---", nil}, {"--- a", nil}, {"a --- --- b", nil},
	} {
		got, err := splitPrograms(strings.Fields(tt.args))
		if (err == nil) != (tt.want != nil) {
			t.Errorf("%q: %v", tt.args, err)
		}
		if d := cmp.Diff(tt.want, got); d != "" && tt.want != nil {
			t.Errorf("%q: %s", tt.args, d)
		}
	}
}

// elfFile makes the header of a program, with an interpreter if one is named.
func elfFile(machine uint16, interp string) []byte {
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, machine)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint64(b, 64) // program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	phnum := uint16(0)
	if interp != "" {
		phnum = 1
	}
	for _, v := range []uint16{64, 56, phnum, 64, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	if interp != "" {
		b = le.AppendUint32(b, 3) // PT_INTERP
		b = le.AppendUint32(b, 4)
		for _, v := range []uint64{120, 0, 0, uint64(len(interp) + 1), uint64(len(interp) + 1), 1} {
			b = le.AppendUint64(b, v)
		}
		b = append(b, interp...)
		b = append(b, 0)
	}
	return b
}

const (
	amd64, arm64, riscv = 62, 183, 243
	loader              = "/lib64/ld-linux-x86-64.so.2"
)

func TestAddProgram(t *testing.T) {
	cwd := t.TempDir()
	t.Chdir(cwd)
	for name, b := range map[string][]byte{
		"static": elfFile(amd64, ""), "dynamic": elfFile(amd64, loader), "arm": elfFile(arm64, ""), "riscv": elfFile(riscv, ""),
		"script": []byte("#!/bin/sh -e\n"), "badscript": []byte("#!/usr/bin/perl\n"), "text": []byte("hello"), "empty": nil,
	} {
		must(t, os.WriteFile(name, b, 0o755))
	}
	must(t, os.WriteFile("plain", elfFile(amd64, ""), 0o644))
	for _, tt := range []struct {
		name, path, says string
	}{
		{"./static", filepath.Join(cwd, "static"), ""},
		{filepath.Join(cwd, "static"), filepath.Join(cwd, "static"), ""},
		{"static", filepath.Join(cwd, "static"), ""},
		{"none", "", "neither on this machine nor in the guest"},
		{"ls", "", "neither on this machine nor in the guest"},
		{"./dynamic", "", "needs " + loader + ", which the guest does not have: build it with CGO_ENABLED=0"},
		{"./arm", "", "is for arm64, the guest is amd64"},
		{"./riscv", "", "is for EM_RISCV, the guest is amd64"},
		{"./script", filepath.Join(cwd, "script"), ""},
		{"./badscript", "", "needs /usr/bin/perl"},
		{"./text", "", "neither an ELF file nor a script"},
		{"./empty", "", "neither an ELF file nor a script"},
		{"./plain", "", "not an executable file"},
		{"./none", "", "neither on this machine nor in the guest"},
		{cwd, "", "not an executable file"},
		{"tool", "/usr/bin/tool", ""},
		{"/bin/tool", "/bin/tool", ""},
		{"/usr/bin/dyntool", "", "needs " + loader},
	} {
		tree := initramfs.New()
		tree.AddBase()
		tree.AddBytes("/bin/sh", elfFile(amd64, ""), 0o755)
		tree.AddBytes("/usr/bin/tool", elfFile(amd64, ""), 0o755)
		tree.AddBytes("/usr/bin/dyntool", elfFile(amd64, loader), 0o755)
		p, err := addProgram(tree, []string{tt.name, "arg"}, cwd, "amd64")
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, want %q in it", tt.name, err, tt.says)
			}
			continue
		}
		if err != nil || p.Path != tt.path {
			t.Errorf("%s: %+v, %v; want %s", tt.name, p, err, tt.path)
			continue
		}
		if d := cmp.Diff([]string{tt.name, "arg"}, p.Args); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
		if f, err := tree.Open(p.Path); err != nil {
			t.Errorf("%s: not in the guest: %v", tt.name, err)
		} else {
			f.Close()
		}
	}
}

// With the loader in the guest, a dynamic program is as good as another.
func TestDynamicWithLoader(t *testing.T) {
	tree := initramfs.New()
	tree.AddBase()
	tree.AddBytes("/usr/bin/dyntool", elfFile(amd64, loader), 0o755)
	tree.AddBytes("/lib/x86_64-linux-gnu/ld.so", nil, 0o755)
	tree.AddLink(loader, "/lib/x86_64-linux-gnu/ld.so")
	if _, err := addProgram(tree, []string{"dyntool"}, "/", "amd64"); err != nil {
		t.Error(err)
	}
}

func TestAddShell(t *testing.T) {
	tree := initramfs.New()
	tree.AddBase()
	addShell(tree)
	if _, err := tree.Open("/bin/sh"); err == nil {
		t.Error("a shell from nowhere")
	}
	tree.AddBytes("/usr/bin/dash", []byte("dash"), 0o755)
	addShell(tree)
	f, err := tree.Open("/bin/sh")
	must(t, err)
	f.Close()
}

func TestHashSource(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		key, err := hashSource(dir)
		must(t, err)
		return key
	}
	first := put("a.go", "package a")
	if put("a_test.go", "package a") != first || put("notes.md", "x") != first {
		t.Error("the key changes with files that are not built")
	}
	if put("a.go", "package b") == first || put("b.go", "package b") == put("go.mod", "module b") {
		t.Error("the key does not change with the source")
	}
}

func TestFindSource(t *testing.T) {
	dir := t.TempDir()
	src, below := filepath.Join(dir, "tools/vmrun"), filepath.Join(dir, "test/a/b")
	for _, d := range []string{src, below} {
		must(t, os.MkdirAll(d, 0o755))
	}
	mod := filepath.Join(src, "go.mod")
	must(t, os.WriteFile(mod, []byte("module example.test/tools/vmrun\n"), 0o644))
	if got := findSource(below); got != "" {
		t.Errorf("another project's: %s", got)
	}
	must(t, os.WriteFile(mod, []byte(modulePath+"\ngo 1.26\n"), 0o644))
	if got := findSource(below); got != src {
		t.Errorf("found %q, want %s", got, src)
	}
	// The constant must be this module's own first line.
	if got, err := sourceDir(); err != nil || !isSource(got) || !isSource(".") {
		t.Errorf("own source: %q, %v", got, err)
	}
}
