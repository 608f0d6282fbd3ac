package kmod

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/ulikunitz/xz"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
	"github.com/goverbs/goverbs/tools/vmrun/internal/cache"
	"github.com/goverbs/goverbs/tools/vmrun/internal/kernel"
	"github.com/goverbs/goverbs/tools/vmrun/internal/progress"
)

// write makes a file with its directories.
func write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(name), 0o755))
	must(t, os.WriteFile(name, []byte(text), mode))
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	must(t, err)
	return string(b)
}

// modules gives those of a kernel that has the named ones.
func modules(t *testing.T, release string, names ...string) *kernel.Modules {
	t.Helper()
	dir := filepath.Join(t.TempDir(), release)
	write(t, filepath.Join(dir, "modules.order"), "", 0o644)
	for _, n := range names {
		write(t, filepath.Join(dir, "kernel", n+".ko"), "", 0o644)
	}
	m, err := kernel.OpenModules(dir)
	must(t, err)
	return m
}

// A build that cannot succeed is refused before anything is fetched.
func TestBuildRefuses(t *testing.T) {
	dir, err := cache.Open(t.TempDir(), t.Logf)
	must(t, err)
	store := &apt.Store{Cache: dir, Progress: progress.New(os.Stderr), Logf: t.Logf}
	debians := &kernel.Kernel{ID: "9.9", Suite: "sid", Version: "9.9-1", Modules: modules(t, "9.9.9-1-amd64")}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	t.Setenv("PATH", t.TempDir())
	for _, tt := range []struct {
		k    *kernel.Kernel
		arch string
		says string
	}{
		{&kernel.Kernel{Modules: modules(t, "9.9", "siw")}, runtime.GOARCH, ""},
		{&kernel.Kernel{Modules: modules(t, "9.9")}, runtime.GOARCH, "CONFIG_RDMA_SIW=m"},
		{debians, runtime.GOARCH, "gcc and make is not installed (as root: apt-get install gcc make)"},
		{debians, other, "the guest must be " + runtime.GOARCH + " too, not " + other},
	} {
		file, err := Siw.Build(t.Context(), store, tt.k, tt.arch)
		if file != "" || (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q, %v; want %q", file, err, tt.says)
		}
	}
}

func TestPackages(t *testing.T) {
	for _, tt := range []struct{ release, version, want string }{
		{"6.1.0-56-amd64", "6.1.192-2", "linux-headers-6.1.0-56-amd64=6.1.192-2 linux-source-6.1=6.1.192-2"},
		{"7.3-amd64", "7.3~rc7-1~exp1", "linux-headers-7.3-amd64=7.3~rc7-1~exp1 linux-source-7.3=7.3~rc7-1~exp1"},
		{"7.2.13+deb14-amd64", "7.2.13-1", "linux-headers-7.2.13+deb14-amd64=7.2.13-1 linux-source-7.2=7.2.13-1"},
	} {
		got := strings.Join(packages(&kernel.Kernel{Version: tt.version, Modules: modules(t, tt.release)}), " ")
		if got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
	var got []string
	for _, p := range []string{"linux-headers-6.1.0-56-common", "linux-kbuild-6.1", "linux-source-7.2", "linux-image-6.1.0-56-amd64", "libc6", "libelf1t64", "libelf1", "libssl3", "zlib1g", "libzstd1", "gcc-14", "libc6-dev"} {
		if parts.MatchString(p) {
			got = append(got, p)
		}
	}
	want := []string{"linux-headers-6.1.0-56-common", "linux-kbuild-6.1", "linux-source-7.2", "libc6", "libelf1t64", "libelf1", "zlib1g", "libzstd1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// archive gives a tar with the named files, whose text is their name.
func archive(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range names {
		h := &tar.Header{Name: n, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(n))}
		if strings.HasSuffix(n, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		must(t, w.WriteHeader(h))
		if h.Size > 0 {
			if _, err := w.Write([]byte(n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	must(t, w.Close())
	return b.Bytes()
}

func TestSource(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "siw")
	if err := Siw.source(root, dir); err == nil {
		t.Error("no source was taken")
	}
	var b bytes.Buffer
	w, err := xz.NewWriter(&b)
	must(t, err)
	siw := "linux-source-9.9/" + Siw.dir
	if _, err := w.Write(archive(t, "linux-source-9.9/drivers/infiniband/sw/rxe/rxe.c", siw, siw+"Makefile", siw+"siw_cm.c", "linux-source-9.9/drivers/x.c")); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	write(t, filepath.Join(root, "usr/src/linux-source-9.9.tar.xz"), b.String(), 0o644)
	must(t, Siw.source(root, dir))
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 || read(t, filepath.Join(dir, "siw_cm.c")) != siw+"siw_cm.c" {
		t.Errorf("%v, %v", files, err)
	}
	// An archive that is cut off, and one without the module.
	whole := archive(t, siw+"Makefile")
	if err := Siw.untar(bytes.NewReader(whole[:530]), filepath.Join(root, "a")); err == nil {
		t.Error("half an archive was taken")
	}
	if err := Siw.untar(bytes.NewReader(archive(t, "linux-source-9.9/x")), filepath.Join(root, "b")); err == nil || !strings.Contains(err.Error(), Siw.dir) {
		t.Errorf("an archive without the module: %v", err)
	}
}

func TestRelocate(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "Makefile"), "KBUILD_OUTPUT=/usr/src/a\ninclude /usr/src/b/Makefile\n", 0o644)
	must(t, relocate("/root", root))
	if got := read(t, filepath.Join(root, "Makefile")); got != "KBUILD_OUTPUT=/root/usr/src/a\ninclude /root/usr/src/b/Makefile\n" {
		t.Error(got)
	}
}

// Programs are started with the loader that came along and learn the name by which they were
// called. Scripts stay what they are.
func TestWrapAll(t *testing.T) {
	root := filepath.Join(t.TempDir(), "it's")
	loader, scripts := filepath.Join(root, "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), filepath.Join(root, "usr/lib/linux-kbuild-9.9/scripts")
	write(t, loader, "#!/bin/sh\n# --argv0\necho \"$@\"\n", 0o755)
	write(t, filepath.Join(scripts, "mod/modpost"), "\x7fELF", 0o755)
	write(t, filepath.Join(scripts, "ld-version.sh"), "#!/bin/sh\n", 0o755)
	write(t, filepath.Join(scripts, "data"), "\x7fELF", 0o644)
	write(t, filepath.Join(scripts, "empty"), "", 0o755)
	must(t, wrapAll(root))
	prog := filepath.Join(scripts, "mod/modpost")
	out, err := exec.Command(prog, "-m", "a b").CombinedOutput()
	if want := "--argv0 " + prog + " --library-path " + filepath.Dir(loader) + " " + prog + ".elf -m a b\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
	for _, untouched := range []string{"ld-version.sh", "data", "empty"} {
		if _, err := os.Stat(filepath.Join(scripts, untouched+".elf")); err == nil {
			t.Errorf("%s was taken for a program", untouched)
		}
	}
	// A loader that is too old leaves all as it is.
	write(t, loader, "#!/bin/sh\n", 0o755)
	if err := wrapAll(root); err != nil || strings.Contains(read(t, prog), ".elf.elf") {
		t.Errorf("wrapped twice, %v", err)
	}
	must(t, os.Remove(loader))
	if err := wrapAll(root); err == nil {
		t.Error("no loader was missed")
	}
}

// fakeTool puts a script in place of gcc or make.
func fakeTool(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, name), "#!/bin/sh\n"+script+"\n", 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// Only options that gcc does not support are taken out of the configuration.
func TestSuit(t *testing.T) {
	headers := t.TempDir()
	conf, header := filepath.Join(headers, "include/config/auto.conf"), filepath.Join(headers, "include/generated/autoconf.h")
	write(t, conf, "CONFIG_A=y\nCONFIG_CC_HAS_COUNTED_BY=y\nCONFIG_CC_HAS_COUNTED_BY_PTR=y\nCONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=y\n", 0o644)
	write(t, header, "#define CONFIG_A 1\n#define CONFIG_CC_HAS_COUNTED_BY 1\n#define CONFIG_CC_HAS_COUNTED_BY_PTR 1\n", 0o644)
	fakeTool(t, "gcc", `case "$*$(cat)" in *alignment*|*"char a[]"*) exit 1;; esac`)
	must(t, suit(t.Context(), headers))
	if got := read(t, conf); got != "CONFIG_A=y\nCONFIG_CC_HAS_COUNTED_BY_PTR=y\n" {
		t.Error(got)
	}
	if got := read(t, header); got != "#define CONFIG_A 1\n#define CONFIG_CC_HAS_COUNTED_BY_PTR 1\n" {
		t.Error(got)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped")
	cancel(stop)
	if err := suit(ctx, headers); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
}

// The end of what make said is in the error, and of what is around us make learns nothing.
func TestCompile(t *testing.T) {
	t.Setenv("MAKEFLAGS", "-n")
	t.Setenv("ARCH", "riscv")
	fakeTool(t, "make", `[ -z "$MAKEFLAGS$ARCH" ] || exit 3; case "$*" in *"M=/src CC=gcc CONFIG_RDMA_SIW=m"*) exit 0;; esac; i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; done; exit 2`)
	if err := Siw.compile(t.Context(), "/headers", "/src"); err != nil {
		t.Error(err)
	}
	if err := EFA.compile(t.Context(), "/headers", "/src"); err == nil {
		t.Error("efa was built as siw")
	}
	err := Siw.compile(t.Context(), "/headers", "/other")
	if err == nil || !strings.Contains(err.Error(), "exit status 2:\nline 16\n") || !strings.HasSuffix(err.Error(), "line 40") {
		t.Errorf("%v", err)
	}
}

// must fails a test on an error.
func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}
