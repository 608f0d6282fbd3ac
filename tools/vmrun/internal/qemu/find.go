package qemu

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
)

// Program is a QEMU that can be run.
type Program struct {
	Argv []string // Argv is the command and its first arguments.
}

// target is what differs from one architecture to the other.
type target struct {
	binary  string // name of the program
	pkg     string // Debian's package with it
	multi   string // Debian's name for the directory with libraries, as a host
	loader  string // the dynamic loader in there
	machine []string
	// vfioMachine is the machine whose memory is shared with the players of its devices.
	vfioMachine []string
	tcgCPU      string
	console     string
}

var targets = map[string]target{
	"amd64": {
		binary: "qemu-system-x86_64", pkg: "qemu-system-x86",
		multi: "x86_64-linux-gnu", loader: "ld-linux-x86-64.so.2",
		// Clearing and copying by bytes, which is fast in a processor, is emulated byte by byte;
		// without these the kernel does it by words. Addresses of 57 bits make a card's key of all memory
		// of a process 512 times as long, which Linux asks for all the same.
		machine: []string{"-machine", "pc,vmport=off"}, vfioMachine: []string{"-machine", "q35,vmport=off,memory-backend=mem"}, tcgCPU: "max,-erms,-fsrm,-la57", console: "ttyS0",
	},
	"arm64": {
		binary: "qemu-system-aarch64", pkg: "qemu-system-arm",
		multi: "aarch64-linux-gnu", loader: "ld-linux-aarch64.so.1",
		// The real algorithm for pointer authentication is slow to emulate.
		machine: []string{"-machine", "virt"}, vfioMachine: []string{"-machine", "virt,memory-backend=mem"}, tcgCPU: "max,pauth-impdef=on", console: "ttyAMA0",
	},
}

// Arches lists the architectures a guest can have.
func Arches() []string { return []string{"amd64", "arm64"} }

// suite is where QEMU is taken from if it is not installed.
const suite = "bookworm"

// Find gives a QEMU for guests of arch: the one installed, or one unpacked into
// the cache, which needs no rights. own, if not empty, is the path of the
// caller's.
func Find(ctx context.Context, store *apt.Store, arch, own string) (*Program, error) {
	t, ok := targets[arch]
	if !ok {
		return nil, fmt.Errorf("architecture %q; known are %v", arch, Arches())
	}
	if own == "" {
		own = t.binary
	}
	path, err := exec.LookPath(own)
	if err == nil {
		return &Program{Argv: []string{path}}, nil
	}
	if own != t.binary {
		return nil, err
	}
	p, err := fetch(ctx, store, arch, suite, "qemu-"+arch+"-on-"+runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("%s is not installed (as root: apt-get install %s) and can't be fetched: %w", t.binary, t.pkg, err)
	}
	return p, nil
}

// vfioSuites are where a QEMU that has vfio-user-pci is looked for: it came with 11.0, and a
// release of Debian keeps the QEMU that it began with.
var vfioSuites = []string{"testing", "sid"}

// FindVFIO gives a QEMU that can have PCI devices which other processes play. The one that is
// installed is taken if it can.
func FindVFIO(ctx context.Context, store *apt.Store, arch, own string) (*Program, error) {
	t, ok := targets[arch]
	if !ok {
		return nil, fmt.Errorf("architecture %q; known are %v", arch, Arches())
	}
	path, err := exec.LookPath(cmp.Or(own, t.binary))
	if err == nil {
		p := &Program{Argv: []string{path}}
		if err = p.CheckVFIO(ctx); err == nil {
			return p, nil
		}
	}
	if own != "" {
		return nil, err
	}
	for _, suite := range vfioSuites {
		p, ferr := fetch(ctx, store, arch, suite, "qemu-"+arch+"-on-"+runtime.GOARCH+"-"+suite)
		if ferr == nil {
			ferr = p.CheckVFIO(ctx)
		}
		if ferr == nil {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, ferr
		}
		err = errors.Join(err, ferr)
	}
	return nil, fmt.Errorf("no QEMU with vfio-user-pci: %w", err)
}

// CheckVFIO returns an error if this QEMU does not support devices that other processes play.
func (p *Program) CheckVFIO(ctx context.Context) error {
	argv := append(append([]string{}, p.Argv...), "-device", "help")
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("QEMU -device help: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if !strings.Contains(string(out), `"vfio-user-pci"`) {
		return fmt.Errorf("QEMU %s has no device vfio-user-pci", p.Argv[len(p.Argv)-1])
	}
	return nil
}

// fetch unpacks a suite's QEMU into the cache.
func fetch(ctx context.Context, store *apt.Store, arch, suite, entry string) (*Program, error) {
	t := targets[arch]
	host, ok := targets[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("there is no ready-made QEMU for hosts of %s", runtime.GOARCH)
	}
	root, err := store.Get(ctx, apt.Request{
		Entry: entry,
		Suite: suite, Arch: runtime.GOARCH, Packages: []string{t.pkg}, Deps: true,
		Finish: func(root string) error { return placeLoader(root, host) },
	})
	if err != nil {
		return nil, err
	}
	argv := []string{filepath.Join(root, loaderPath), "--library-path", filepath.Join(root, "usr/lib", host.multi), filepath.Join(root, "usr/bin", t.binary)}
	for _, data := range []string{"usr/share/qemu", "usr/share/seabios"} {
		argv = append(argv, "-L", filepath.Join(root, data))
	}
	return &Program{Argv: argv}, nil
}

// loaderPath is where the unpacked tree has a copy of its dynamic loader. QEMU
// looks for its plug-ins, the emulator itself among them, relative to the
// directory of /proc/self/exe, and that is the loader if the loader is what was
// started. So the loader must stand where QEMU does.
const loaderPath = "usr/bin/vmrun-ld.so"

func placeLoader(root string, host target) error {
	src, err := os.Open(filepath.Join(root, "usr/lib", host.multi, host.loader))
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(filepath.Join(root, loaderPath), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}
