// Package kmod builds kernel modules that Debian's kernels do not have, but Debian's source of a
// kernel does: siw, which is soft iWARP, and efa, the driver of AWS's EFA cards.
//
// A module is compiled with this system's gcc and make against the headers and the
// helper programs (modpost, objtool, ...) of the very build of the kernel, all from the
// archive and unpacked beside each other. Three things there expect to be installed on a
// system of the kernel's own release, and are put right in the unpacked tree:
//
//   - Makefiles name /usr/src.
//   - The helper programs want the C library of that release. A script in place of each
//     starts it with the dynamic loader and the libraries that come along.
//   - The kernel's configuration says what the gcc that compiled it is capable of, which is gcc-14
//     for 6.12 and gcc-16 for 7.2, and Makefiles and headers believe it. Options that this system's
//     gcc refuses are taken out of the configuration; none of them changes the layout of a struct.
//     Which gcc it must be, only the packages' dependencies say; the kernel has no plugins of gcc
//     turned on that would.
package kmod

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/ulikunitz/xz"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
	"github.com/goverbs/goverbs/tools/vmrun/internal/kernel"
)

// Module is a kernel module that can be built.
type Module struct {
	Name   string // Name of the module
	dir    string // dir is where its source is in a kernel's
	config string // config is the option that builds it
}

// The modules.
var (
	Siw = &Module{Name: "siw", dir: "drivers/infiniband/sw/siw/", config: "CONFIG_RDMA_SIW"}
	EFA = &Module{Name: "efa", dir: "drivers/infiniband/hw/efa/", config: "CONFIG_INFINIBAND_EFA"}
)

// All are the modules that can be built.
var All = []*Module{Siw, EFA}

// parts are the packages that the build needs, of all that the headers depend on: not their
// compiler, nor the kernel.
var parts = regexp.MustCompile(`^(linux-(headers|kbuild|source)-.*|libc6|libelf1.*|zlib1g|libzstd1)$`)

// Build gives the file with the module for one of Debian's kernels, from the cache if it is
// there. Where the kernel has the module, as one of one's own may, there is nothing to do
// and no file.
func (m *Module) Build(ctx context.Context, store *apt.Store, k *kernel.Kernel, arch string) (string, error) {
	if k.Modules.Has(m.Name) {
		return "", nil
	}
	if k.ID == "" {
		return "", fmt.Errorf("the kernel has no module %s, which is built for Debian's kernels only: "+
			"build it with %s=m, and see -modules", m.Name, m.config)
	}
	dir, err := store.Get(ctx, apt.Request{
		Entry: m.Name + "-" + k.ID, Suite: k.Suite, Arch: arch,
		Check:    func() error { return tools(arch) },
		Packages: packages(k), Deps: true, Only: parts,
		Finish: func(root string) error { return m.build(ctx, store, k, root) },
	})
	if err != nil {
		hint := ""
		if strings.Contains(err.Error(), "was not found") || strings.Contains(err.Error(), "Unable to locate") {
			hint = " (the archive may have a newer kernel by now: -update fetches it)"
		}
		return "", fmt.Errorf("module %s for Linux %s: %w%s", m.Name, k.Modules.Release(), err, hint)
	}
	return filepath.Join(dir, m.Name+".ko"), nil
}

// tools finds out before anything is fetched whether a module can be built here.
func tools(arch string) error {
	if arch != runtime.GOARCH {
		return fmt.Errorf("it is built with this machine's compiler, so the guest must be %s too, not %s", runtime.GOARCH, arch)
	}
	var missing []string
	for _, tool := range []string{"gcc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = append(missing, tool)
		}
	}
	if missing != nil {
		return fmt.Errorf("it has to be built, and %s is not installed (as root: apt-get install gcc make)", strings.Join(missing, " and "))
	}
	return nil
}

// series matches the first two numbers of a release: 7.3 of 7.3-amd64 and of 7.3.1+deb14-amd64.
var series = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?`)

// packages names what is needed, of the kernel's very version. The source package goes by
// the first two numbers of it.
func packages(k *kernel.Kernel) []string {
	release := k.Modules.Release()
	return []string{"linux-headers-" + release + "=" + k.Version, "linux-source-" + series.FindString(release) + "=" + k.Version}
}

// build makes the module of what is unpacked below root, and leaves nothing else there.
func (m *Module) build(ctx context.Context, store *apt.Store, k *kernel.Kernel, root string) (err error) {
	end := store.Progress.Work("module "+m.Name+" for Linux "+k.Modules.Release(), "building", "built")
	defer func() { end(err) }()
	headers := filepath.Join(root, "usr/src/linux-headers-"+k.Modules.Release())
	dir := filepath.Join(root, m.Name)
	if err := m.source(root, dir); err != nil {
		return err
	}
	if err := relocate(root, headers); err != nil {
		return err
	}
	if err := wrapAll(root); err != nil {
		return err
	}
	if err := suit(ctx, headers); err != nil {
		return err
	}
	if err := m.compile(ctx, headers, dir); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, m.Name+".ko"), filepath.Join(root, "../"+m.Name+".ko")); err != nil {
		return err
	}
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(root, "../"+m.Name+".ko"), filepath.Join(root, m.Name+".ko"))
}

// source takes the module's source out of the kernel's into dir.
func (m *Module) source(root, dir string) error {
	found, err := filepath.Glob(filepath.Join(root, "usr/src/linux-source-*.tar.xz"))
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("%d files linux-source-*.tar.xz instead of one", len(found))
	}
	f, err := os.Open(found[0])
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := xz.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return fmt.Errorf("%s: %w", path.Base(found[0]), err)
	}
	if err := m.untar(r, dir); err != nil {
		return fmt.Errorf("%s: %w", path.Base(found[0]), err)
	}
	return nil
}

// untar takes the module's source out of a kernel's. It stops behind it, in the middle.
func (m *Module) untar(r io.Reader, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	files := 0
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		here := err == nil && strings.Contains(h.Name, "/"+m.dir)
		if !here && (err != nil || files > 0) {
			break
		}
		if !here || h.Typeflag != tar.TypeReg {
			continue
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, path.Base(h.Name)), b, 0o644); err != nil {
			return err
		}
		files++
	}
	if files == 0 {
		return errors.New("no " + m.dir + " in it")
	}
	return nil
}

// relocate has the headers' Makefile name the tree in root.
func relocate(root, headers string) error {
	file := filepath.Join(headers, "Makefile")
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, bytes.ReplaceAll(b, []byte("/usr/src/"), []byte(root+"/usr/src/")), 0o644)
}

// wrapAll puts a script in place of each helper program that starts it with the libraries
// in root. Those from before Debian 12, whose loader could not, run on any system of now.
func wrapAll(root string) error {
	loaders, err := filepath.Glob(filepath.Join(root, "usr/lib/*/ld-linux*.so.*"))
	if err != nil {
		return err
	}
	if len(loaders) != 1 {
		return fmt.Errorf("%d dynamic loaders in the packages instead of one", len(loaders))
	}
	loader, err := os.ReadFile(loaders[0])
	if err != nil || !bytes.Contains(loader, []byte("--argv0")) {
		return err
	}
	kbuild, err := filepath.Glob(filepath.Join(root, "usr/lib/linux-kbuild-*"))
	if err != nil {
		return err
	}
	if len(kbuild) != 1 {
		return fmt.Errorf("%d directories linux-kbuild-* instead of one", len(kbuild))
	}
	var programs []string
	err = filepath.WalkDir(kbuild[0], func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		is, err := isProgram(p)
		if is {
			programs = append(programs, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, p := range programs {
		// objtool finds another program beside itself by its own name.
		script := fmt.Sprintf("#!/bin/sh\nexec %s --argv0 \"$0\" --library-path %s %s \"$@\"\n",
			quote(loaders[0]), quote(filepath.Dir(loaders[0])), quote(p+".elf"))
		if err := os.Rename(p, p+".elf"); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(script), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func isProgram(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Mode()&0o100 == 0 {
		return false, err
	}
	magic := make([]byte, 4)
	if _, err := io.ReadFull(f, magic); err != nil {
		return false, nil // too short
	}
	return string(magic) == "\x7fELF", nil
}

// quote writes a word for the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// abilities are what a configuration says of a compiler and newer ones alone have, with
// what a compiler that has it accepts: a flag, or a program.
var abilities = []struct{ config, flag, code string }{
	{"CC_HAS_MIN_FUNCTION_ALIGNMENT", "-fmin-function-alignment=16", ""},
	{"CC_HAS_COUNTED_BY", "", "struct s { int n; char a[] __attribute__((__counted_by__(n))); };"},
	{"CC_HAS_COUNTED_BY_PTR", "", "struct s { int n; char *a __attribute__((__counted_by__(n))); };"},
	{"CC_HAS_ASSUME", "", "void f(int x) { __attribute__((__assume__(x > 0))); }"},
	{"CC_HAS_MULTIDIMENSIONAL_NONSTRING", "", `char s[][4] __attribute__((__nonstring__)) = { "1234" };`},
}

// suit takes out of the configuration what gcc cannot do.
func suit(ctx context.Context, headers string) error {
	for _, a := range abilities {
		args := []string{"-Werror", "-x", "c", "-c", "-o", os.DevNull, "-"}
		if a.flag != "" {
			args = append([]string{a.flag}, args...)
		}
		cmd := exec.CommandContext(ctx, "gcc", args...)
		cmd.Stdin, cmd.Env = strings.NewReader(a.code), environ()
		err := cmd.Run()
		var exit *exec.ExitError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &exit):
		case err != nil:
			return err
		default:
			continue
		}
		for _, file := range []string{"include/config/auto.conf", "include/generated/autoconf.h"} {
			if err := without(filepath.Join(headers, file), a.config); err != nil {
				return err
			}
		}
	}
	return nil
}

// without removes the lines that set a name from a file of the configuration.
func without(file, config string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var out []byte
	sets := regexp.MustCompile(`^(#define )?CONFIG_` + config + `[= ]`)
	for line := range bytes.Lines(b) {
		if !sets.Match(line) {
			out = append(out, line...)
		}
	}
	return os.WriteFile(file, out, 0o644)
}

// environ leaves out what a make around us or the caller's own builds would say.
func environ() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LC_ALL=C", "TMPDIR=" + os.TempDir()}
}

// compile runs make. It builds without debug information, which would need pahole.
func (m *Module) compile(ctx context.Context, headers, dir string) error {
	cmd := exec.CommandContext(ctx, "make", "-C", headers, "-j"+strconv.Itoa(runtime.NumCPU()), "M="+dir, "CC=gcc",
		m.config+"=m", "CONFIG_DEBUG_INFO=", "CONFIG_DEBUG_INFO_BTF=", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
	cmd.Env = environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("make: %w:\n%s", err, last(out, 25))
	}
	return nil
}

// last gives the last lines of what make said.
func last(out []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
