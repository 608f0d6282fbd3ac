package qemu

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
	"github.com/goverbs/goverbs/tools/vmrun/internal/cache"
	"github.com/goverbs/goverbs/tools/vmrun/internal/progress"
)

func TestArgs(t *testing.T) {
	for _, tt := range []struct {
		o    Options
		want []string
		not  []string
	}{
		{Options{Arch: "amd64", Accel: "tcg", CPUs: 2, MemMiB: 1024, Kernel: "/k", Append: []string{"a=b"}, Extra: []string{"-s"}},
			[]string{"-accel tcg -cpu max,-erms,-fsrm,-la57 ", "-smp 2 -m 1024M", "-kernel /k -initrd /proc/self/fd/3", "console=ttyS0 quiet", " tsc=reliable ", " a=b ", "fd=4", "-nic none"}, []string{"virt "}},
		{Options{Arch: "amd64", Accel: "tcg", CPUs: 1, ICount: true}, []string{" -icount shift=0,sleep=off ", " tsc_early_khz=1000000 "}, nil},
		{Options{Arch: "amd64", Accel: "tcg", CPUs: 1, ICount: true, Cards: []*os.File{os.Stdin}}, []string{" -icount shift=0,sleep=on "}, nil},
		{Options{Arch: "amd64", Accel: "kvm", CPUs: 1, MemMiB: 512}, []string{"-accel kvm -cpu host "}, []string{"-cpu max"}},
		{Options{Arch: "arm64", Accel: "tcg", CPUs: 1, MemMiB: 512}, []string{"-machine virt", "-cpu max,pauth-impdef=on", "console=ttyAMA0"}, []string{"ttyS0", "tsc="}},
	} {
		args, err := Args(tt.o)
		must(t, err)
		line := strings.Join(args, " ") + " "
		for _, w := range tt.want {
			if !strings.Contains(line, w) {
				t.Errorf("%+v: no %q in %s", tt.o, w, line)
			}
		}
		for _, n := range tt.not {
			if strings.Contains(line, n) {
				t.Errorf("%+v: %q in %s", tt.o, n, line)
			}
		}
	}
	args, err := Args(Options{Arch: "amd64", Extra: []string{"-one", "-two"}})
	if err != nil || strings.Join(args[len(args)-2:], " ") != "-one -two" {
		t.Errorf("extra arguments: %v, %v", args, err)
	}
	for _, tt := range []struct {
		o    Options
		want []string
	}{
		{Options{Arch: "amd64", MemMiB: 512, Cards: []*os.File{os.Stdin, os.Stdin}}, []string{
			"-machine q35,vmport=off,memory-backend=mem -object memory-backend-memfd,id=mem,size=512M,share=on,seal=on ", "/proc/self/fd/5\"}}", "/proc/self/fd/6\"}}", " iomem=relaxed", `{"driver":"vfio-user-pci","socket":{"type":"unix",`}},
		{Options{Arch: "amd64", Cards: []*os.File{os.Stdin}, Links: []*os.File{os.Stdin}}, []string{"local.str=5", "/proc/self/fd/6\"}}"}},
		{Options{Arch: "amd64", Cards: []*os.File{os.Stdin}, Links: []*os.File{os.Stdin, os.Stdin}}, []string{
			"id=link0,local.type=fd,local.str=5 ", "id=link1,local.type=fd,local.str=6 ", "e1000e,netdev=hub,", "hubport,id=hub,hubid=0 ",
			"hubport,id=port0,hubid=0,netdev=link0 ", "hubport,id=port1,hubid=0,netdev=link1 ", "/proc/self/fd/7\"}}"}},
	} {
		args, err := Args(tt.o)
		for _, w := range tt.want {
			if line := strings.Join(args, " ") + " "; err != nil || !strings.Contains(line, w) {
				t.Errorf("cards: no %q in %s, %v", w, line, err)
			}
		}
	}
	args, err = Args(Options{Arch: "amd64", Links: []*os.File{os.Stdin}, MAC: "02:00:00:00:01:01"})
	if line := strings.Join(args, " "); err != nil || !strings.Contains(line, "-netdev dgram,id=link0,local.type=fd,local.str=5 -device e1000e,netdev=link0,romfile=,mac=02:00:00:00:01:01") {
		t.Errorf("with a link: %s, %v", line, err)
	}
	if _, err := Args(Options{Arch: "s390x"}); err == nil || !strings.Contains(err.Error(), "amd64 arm64") {
		t.Errorf("unknown architecture: %v", err)
	}
}

// fake makes a program that stands in for QEMU.
func fake(t *testing.T, script string) *Program {
	t.Helper()
	p := filepath.Join(t.TempDir(), "qemu")
	must(t, os.WriteFile(p, []byte("#!/bin/sh\n"+script), 0o755))
	return &Program{Argv: []string{p}}
}

func initrd(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "initrd"))
	must(t, err)
	if _, err := f.WriteString("the initramfs"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestTSC: what the counter is said to count in a millisecond is what it counts in one.
func TestTSC(t *testing.T) {
	khz := tscKHz()
	if !hasTSC {
		if khz != 0 {
			t.Errorf("%d kHz of no counter", khz)
		}
		return
	}
	from, c0 := stamp()
	time.Sleep(30 * time.Millisecond)
	to, c1 := stamp()
	if got := float64(c1-c0) / float64(to.Sub(from)) * 1e6; got < 0.99*float64(khz) || got > 1.01*float64(khz) {
		t.Errorf("%.0f kHz, and %d before", got, khz)
	}
}

func TestStart(t *testing.T) {
	var console bytes.Buffer
	p := fake(t, `cat /proc/self/fd/3; echo from the port >&4; head -1 <&4; echo a warning >&2; exit 3`)
	m, err := p.Start(t.Context(), Options{Arch: "amd64", Initrd: initrd(t), Console: &console})
	must(t, err)
	b := make([]byte, 100)
	n, err := m.Port.Read(b)
	if err != nil || string(b[:n]) != "from the port\n" {
		t.Errorf("port: %q, %v", b[:n], err)
	}
	if _, err := m.Port.WriteString("to the port\n"); err != nil {
		t.Error(err)
	}
	<-m.Done
	m.Kill() // of one that is gone already
	if got := console.String(); got != "the initramfsto the port\n" {
		t.Errorf("console: %q", got)
	}
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "exit status 3: a warning") {
		t.Errorf("Err: %v", err)
	}
}

func TestKill(t *testing.T) {
	m, err := fake(t, "exec sleep 1000").Start(t.Context(), Options{Arch: "amd64", Initrd: initrd(t)})
	must(t, err)
	m.Kill()
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Err: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	m, err = fake(t, "exec sleep 1000").Start(ctx, Options{Arch: "amd64", Initrd: initrd(t)})
	must(t, err)
	cancel()
	select {
	case <-m.Done:
	case <-time.After(10 * time.Second):
		t.Error("the end of the context did not end QEMU")
	}
}

func TestStartErrors(t *testing.T) {
	p := &Program{Argv: []string{"/nonexistent"}}
	if _, err := p.Start(t.Context(), Options{Arch: "amd64", Initrd: initrd(t)}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
	if _, err := p.Start(t.Context(), Options{Arch: "s390x"}); err == nil {
		t.Error("an unknown architecture was taken")
	}
}

func TestTailForgets(t *testing.T) {
	var tl tail
	for range 100 {
		if _, err := tl.Write(bytes.Repeat([]byte("x"), 4096)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tl.Write([]byte("the end")); err != nil {
		t.Fatal(err)
	}
	if s := tl.String(); len(s) > 1<<17 || !strings.HasSuffix(s, "the end") {
		t.Errorf("%d bytes kept", len(s))
	}
}

func TestCPUHas(t *testing.T) {
	const info = "processor : 0\nflags\t\t: fpu vme vmx_lookalike svm\nvmx flags : vnmi\n\nprocessor : 1\nflags : fpu vmx\n"
	for flag, want := range map[string]bool{"svm": true, "vmx": false, "fpu": true, "vnmi": false} {
		if got := cpuHas(info, flag); got != want {
			t.Errorf("%s: %v", flag, got)
		}
	}
	if cpuHas("", "vmx") {
		t.Error("nothing has vmx")
	}
}

func TestKVMOtherArch(t *testing.T) {
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if ok, why := KVM(other); ok || !strings.Contains(why, other) {
		t.Errorf("KVM for %s: %v, %q", other, ok, why)
	}
}

func store(t *testing.T) *apt.Store {
	t.Helper()
	c, err := cache.Open(t.TempDir(), t.Logf)
	must(t, err)
	return &apt.Store{Cache: c, Progress: progress.New(&bytes.Buffer{}), Logf: t.Logf, Etc: t.TempDir()}
}

func TestFind(t *testing.T) {
	s := store(t)
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	// Neither installed, nor a place to fetch it from: both ways out are named.
	_, err := Find(t.Context(), s, "arm64", "")
	if !errors.Is(err, apt.ErrNoApt) || !strings.Contains(err.Error(), "qemu-system-aarch64 is not installed (as root: apt-get install qemu-system-arm)") {
		t.Errorf("no QEMU: %v", err)
	}
	installed := filepath.Join(dir, "qemu-system-aarch64")
	must(t, os.WriteFile(installed, nil, 0o755))
	if p, err := Find(t.Context(), s, "arm64", ""); err != nil || len(p.Argv) != 1 || p.Argv[0] != installed {
		t.Errorf("installed: %+v, %v", p, err)
	}
	own := filepath.Join(t.TempDir(), "my-qemu")
	if _, err := Find(t.Context(), s, "amd64", own); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("one's own that is not there: %v", err)
	}
	must(t, os.WriteFile(own, nil, 0o755))
	if p, err := Find(t.Context(), s, "amd64", own); err != nil || p.Argv[0] != own {
		t.Errorf("one's own: %+v, %v", p, err)
	}
	if _, err := Find(t.Context(), s, "s390x", ""); err == nil {
		t.Error("an unknown architecture was taken")
	}
}

// The unpacked QEMU is started by its own loader, which must stand beside it.
func TestFindUnpacked(t *testing.T) {
	host, ok := targets[runtime.GOARCH]
	if !ok {
		t.Fatalf("no QEMU for hosts of %s", runtime.GOARCH)
	}
	s := store(t)
	t.Setenv("PATH", t.TempDir())
	root := filepath.Join(s.Cache.Path("qemu-amd64-on-"+runtime.GOARCH), "root")
	libs := filepath.Join(root, "usr/lib", host.multi)
	for _, d := range []string{libs, filepath.Join(root, "usr/bin")} {
		must(t, os.MkdirAll(d, 0o755))
	}
	if err := placeLoader(root, host); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a loader: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(libs, host.loader), []byte("loader"), 0o755))
	must(t, placeLoader(root, host))
	p, err := Find(t.Context(), s, "amd64", "")
	must(t, err)
	if b, err := os.ReadFile(p.Argv[0]); err != nil || string(b) != "loader" || filepath.Dir(p.Argv[0]) != filepath.Join(root, "usr/bin") {
		t.Errorf("%s: %q, %v", p.Argv[0], b, err)
	}
	want := "--library-path " + libs + " " + root + "/usr/bin/qemu-system-x86_64 -L " + root + "/usr/share/qemu"
	if got := strings.Join(p.Argv[1:], " "); !strings.HasPrefix(got, want) {
		t.Errorf("arguments %s", got)
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
