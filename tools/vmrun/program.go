package main

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
	"github.com/goverbs/goverbs/tools/vmrun/internal/initramfs"
)

// separator stands between two programs on the command line.
const separator = "---"

// splitPrograms splits the arguments into programs with their arguments.
func splitPrograms(args []string) ([][]string, error) {
	var progs [][]string
	for {
		i := slices.Index(args, separator)
		one := args
		if i >= 0 {
			one = args[:i]
		}
		if len(one) == 0 {
			return nil, errors.New("no program named; see vmrun --help")
		}
		progs = append(progs, one)
		if i < 0 {
			return progs, nil
		}
		args = args[i+1:]
	}
}

var guestPATH = []string{"/usr/local/bin", "/usr/sbin", "/usr/bin"}

// addProgram puts a program of the host into the tree, unless the tree has one of
// that name already (from -with or -file), and gives what the guest shall run. A
// name without a slash is looked for in the guest's PATH and then in the working
// directory, never in the host's PATH.
func addProgram(t *initramfs.Tree, args []string, cwd string, arch string) (guest.Program, error) {
	name := args[0]
	p := guest.Program{Args: args}
	if p.Path = findInTree(t, name, cwd); p.Path != "" {
		return p, checkProgram(t, p.Path, arch)
	}
	host, err := filepath.Abs(name)
	if err != nil {
		return p, err
	}
	st, err := os.Stat(host)
	if errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("program %s: neither on this machine nor in the guest (-with and -file put things there)", name)
	}
	if err != nil {
		return p, err
	}
	if !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
		return p, fmt.Errorf("program %s: not an executable file", name)
	}
	p.Path = guestPath(host)
	if err := t.AddHost(p.Path, host); err != nil {
		return p, err
	}
	return p, checkProgram(t, p.Path, arch)
}

func findInTree(t *initramfs.Tree, name, cwd string) string {
	var candidates []string
	switch {
	case path.IsAbs(name):
		candidates = []string{name}
	case strings.ContainsRune(name, '/'):
		candidates = []string{path.Join(guestPath(cwd), name)}
	default:
		for _, dir := range guestPATH {
			candidates = append(candidates, path.Join(dir, name))
		}
	}
	for _, c := range candidates {
		if f, err := t.Open(c); err == nil {
			f.Close()
			return c
		}
	}
	return ""
}

var elfMachines = map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}

// checkProgram finds out before the boot what the guest's kernel would answer
// with "exec format error" or "no such file or directory".
func checkProgram(t *initramfs.Tree, name, arch string) error {
	f, err := t.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(bufio.NewReader(f))
	if err != nil {
		return err
	}
	if line, ok := strings.CutPrefix(string(b[:min(len(b), 256)]), "#!"); ok {
		line, _, _ = strings.Cut(line, "\n")
		return checkInterpreter(t, name, strings.Fields(line), "-with a package that has it")
	}
	ef, err := elf.NewFile(strings.NewReader(string(b)))
	if err != nil {
		return fmt.Errorf("program %s: neither an ELF file nor a script: %w", name, err)
	}
	is, known := elfMachines[ef.Machine]
	if !known {
		is = ef.Machine.String()
	}
	if is != arch {
		return fmt.Errorf("program %s is for %s, the guest is %s: build it with GOARCH=%s, or see -arch", name, is, arch, arch)
	}
	for _, ph := range ef.Progs {
		if ph.Type != elf.PT_INTERP {
			continue
		}
		interp, err := io.ReadAll(ph.Open())
		if err != nil {
			return fmt.Errorf("program %s: %w", name, err)
		}
		return checkInterpreter(t, name, []string{strings.TrimRight(string(interp), "\x00")}, "build it with CGO_ENABLED=0")
	}
	return nil
}

func checkInterpreter(t *initramfs.Tree, name string, interp []string, remedy string) error {
	if len(interp) == 0 {
		return nil
	}
	f, err := t.Open(interp[0])
	if err != nil {
		return fmt.Errorf("program %s needs %s, which the guest does not have: %s", name, interp[0], remedy)
	}
	return f.Close()
}
