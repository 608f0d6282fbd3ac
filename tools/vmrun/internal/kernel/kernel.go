// Package kernel finds kernels, by name among Debian's or by path, and their
// modules.
package kernel

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
)

// Kernel is a kernel ready to boot.
type Kernel struct {
	Image   string   // Image is the path of the file that QEMU loads.
	Modules *Modules // Modules knows its modules.
	ID      string   // ID names this kernel's build in the cache; empty for one given by path.
	Suite   string   // Suite is the release of Debian that has it; empty for one given by path.
	Version string   // Version is the version of its packages; empty for one given by path.
}

// source says in which Debian suite a kernel is found, and which flavour of it.
type source struct{ name, suite, flavour string }

// sources are the kernels that have names. The flavours are for arm64 alone.
var sources = []source{
	{"5.10", "bullseye", ""},
	{"6.1", "bookworm", ""},
	{"6.12", "trixie", ""},
	{"latest", "sid", ""},
	{"latest-16k", "sid", "-16k"}, // pages of 16 KiB
	{"next", "experimental", ""},
}

// Names lists the kernels that can be named.
func Names() []string {
	var names []string
	for _, s := range sources {
		names = append(names, s.name)
	}
	return names
}

// parts are the packages that hold a kernel: an image, or since 7.x a binary and
// its modules, and a base with the list of what is built in, each with the
// version in its name.
var parts = regexp.MustCompile(`^linux-(image|binary|modules|base)-[0-9]`)

// leftOut holds no drivers that a guest without a screen has a use for, and
// half of the bytes.
var leftOut = regexp.MustCompile(`^usr/lib/modules/[^/]+/kernel/(sound|drivers/(gpu|media|staging|iio|hid|input))/`)

// Fetch gives a kernel by name, from the cache if it is there.
func Fetch(ctx context.Context, store *apt.Store, name, arch string) (*Kernel, error) {
	i := slices.IndexFunc(sources, func(s source) bool { return s.name == name })
	if i < 0 {
		return nil, fmt.Errorf("kernel %q: neither a file nor one of %s", name, strings.Join(Names(), ", "))
	}
	dir, err := store.Get(ctx, apt.Request{
		Entry: "kernel-" + name + "-" + arch,
		Suite: sources[i].suite, Arch: arch,
		Packages: []string{"linux-image-" + arch + sources[i].flavour},
		Deps:     true, Only: parts, Skip: leftOut,
	})
	if err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	k, err := open(dir)
	if err != nil {
		return nil, err
	}
	k.Suite = sources[i].suite
	return k, nil
}

// open finds the image and the modules in an unpacked package.
func open(root string) (*Kernel, error) {
	found, err := filepath.Glob(filepath.Join(root, "usr/lib/modules/*"))
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%s/usr/lib/modules has %d entries instead of one", root, len(found))
	}
	release := filepath.Base(found[0])
	// Another build of the same release has other package versions.
	b, err := os.ReadFile(filepath.Join(root, "../packages.json"))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	version, err := versionOf(b, release)
	if err != nil {
		return nil, err
	}
	mods, err := OpenModules(found[0])
	if err != nil {
		return nil, err
	}
	for _, image := range []string{filepath.Join(found[0], "vmlinuz"), filepath.Join(root, "boot/vmlinuz-"+release)} {
		if _, err := os.Stat(image); err == nil {
			return &Kernel{Image: image, Modules: mods, Version: version, ID: release + "-" + hex.EncodeToString(sum[:4])}, nil
		}
	}
	return nil, fmt.Errorf("no vmlinuz for %s below %s", release, root)
}

// versionOf finds the version of a kernel's packages in the list of them, NAME=VERSION as JSON.
func versionOf(list []byte, release string) (string, error) {
	var specs []string
	if err := json.Unmarshal(list, &specs); err != nil {
		return "", fmt.Errorf("packages.json of Linux %s: %w", release, err)
	}
	for _, spec := range specs {
		if name, version, ok := strings.Cut(spec, "="); ok && strings.HasSuffix(name, "-"+release) {
			return version, nil
		}
	}
	return "", fmt.Errorf("none of the packages %s is Linux %s", strings.Join(specs, ", "), release)
}

// Local gives a kernel of one's own. Without modules, all that is needed must be
// built in.
func Local(image, modules, arch string) (*Kernel, error) {
	if st, err := os.Stat(image); err != nil {
		return nil, err
	} else if st.IsDir() {
		return nil, fmt.Errorf("kernel %s is a directory; -kernel takes the image (bzImage, Image)", image)
	}
	if err := checkImage(image, arch); err != nil {
		return nil, err
	}
	mods, err := OpenModules(modules)
	if err != nil {
		return nil, err
	}
	return &Kernel{Image: image, Modules: mods}, nil
}

// checkImage refuses an image that plainly is for another machine.
func checkImage(image, arch string) error {
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, 0x210)
	if _, err := f.ReadAt(head, 0); err != nil {
		return fmt.Errorf("kernel %s: too short for a kernel image: %w", image, err)
	}
	is := ""
	switch {
	case string(head[0x202:0x206]) == "HdrS":
		is = "amd64"
	case string(head[0x38:0x3c]) == "ARM\x64":
		is = "arm64"
	case string(head[:4]) == elf.ELFMAG && head[18] == byte(elf.EM_X86_64):
		return errors.New("kernel " + image + " is an ELF file; use arch/x86/boot/bzImage of the kernel's tree")
	}
	if is != "" && is != arch {
		return fmt.Errorf("kernel %s is for %s, the guest is %s: see -arch", image, is, arch)
	}
	return nil
}
