package kernel

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Modules knows the modules of one kernel. Dependencies are read from the
// modules themselves, so no depmod need have run. It is for one goroutine.
type Modules struct {
	dir     string
	files   map[string]string // by name: file below dir
	builtin map[string]bool
	loaded  map[string]*Module
}

// Module is one module, uncompressed.
type Module struct {
	Name  string // Name is as in /proc/modules.
	Path  string // Path is below the modules directory, without a compression suffix.
	Image []byte // Image is the ELF file.

	depends []string
	softpre []string
}

// ErrNoModule is returned for a name that the kernel has neither as a module
// nor built in.
var ErrNoModule = errors.New("no such module")

// OpenModules reads which modules there are in dir: a directory
// lib/modules/VERSION, or one that has exactly one such directory below it.
func OpenModules(dir string) (*Modules, error) {
	m := &Modules{files: map[string]string{}, builtin: map[string]bool{}, loaded: map[string]*Module{}}
	if dir == "" {
		return m, nil
	}
	dir, err := modulesDir(dir)
	if err != nil {
		return nil, err
	}
	m.dir = dir
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, ok := moduleName(d.Name()); ok && !d.IsDir() {
			rel, err := filepath.Rel(dir, p)
			if err != nil {
				return err
			}
			m.files[name] = rel
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		if name, ok := moduleName(path.Base(strings.TrimSpace(line))); ok {
			m.builtin[name] = true
		}
	}
	return m, nil
}

// Release is the kernel's name for itself and the name of its modules' directory; empty if it has
// no modules.
func (m *Modules) Release() string {
	if m.dir == "" {
		return ""
	}
	return filepath.Base(m.dir)
}

// Has reports whether there is a module of that name, built in or not, as far as is known:
// a kernel without modules counts as having all of them.
func (m *Modules) Has(name string) bool {
	_, ok := m.files[name]
	return ok || m.builtin[name] || m.dir == ""
}

// Add adds a module that is elsewhere, as NAME.ko.
func (m *Modules) Add(file string) error {
	name, ok := moduleName(filepath.Base(file))
	if !ok || path.Ext(file) != ".ko" {
		return fmt.Errorf("%s is not the name of a module", file)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	mod := &Module{Name: name, Image: b, Path: path.Join("updates", filepath.Base(file))}
	if err := mod.parseInfo(); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	m.loaded[name] = mod
	return nil
}

func modulesDir(dir string) (string, error) {
	for _, probe := range []string{"kernel", "modules.order", "modules.builtin"} {
		if _, err := os.Stat(filepath.Join(dir, probe)); err == nil {
			return dir, nil
		}
	}
	for _, pattern := range []string{"*", "lib/modules/*", "usr/lib/modules/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern, "modules.order"))
		if err != nil {
			return "", err
		}
		if len(found) == 1 {
			return filepath.Dir(found[0]), nil
		}
		if len(found) > 1 {
			return "", fmt.Errorf("modules directory %s holds %d kernels' modules: name one of them", dir, len(found))
		}
	}
	return "", fmt.Errorf("modules directory %s: neither it nor a lib/modules/VERSION below it has a file modules.order", dir)
}

// moduleName gives the name of the module in a file x-y.ko or x-y.ko.xz: x_y.
func moduleName(file string) (string, bool) {
	for _, suffix := range []string{".ko", ".ko.xz", ".ko.zst", ".ko.gz"} {
		if name, ok := strings.CutSuffix(file, suffix); ok {
			return strings.ReplaceAll(name, "-", "_"), true
		}
	}
	return "", false
}

// Resolve gives the named modules and all that they depend on, in load order.
// Built-in ones are left out. A trailing "?" makes a name optional.
func (m *Modules) Resolve(names ...string) ([]*Module, error) {
	var order []*Module
	seen := map[string]bool{}
	for _, n := range names {
		n, optional := strings.CutSuffix(n, "?")
		err := m.visit(strings.ReplaceAll(n, "-", "_"), seen, &order)
		if optional && errors.Is(err, ErrNoModule) {
			continue
		}
		if err != nil {
			return nil, err
		}
	}
	return order, nil
}

func (m *Modules) visit(name string, seen map[string]bool, order *[]*Module) error {
	if seen[name] || m.builtin[name] {
		return nil
	}
	if m.dir == "" {
		return nil // a kernel without modules has all it needs built in
	}
	seen[name] = true
	mod, err := m.load(name)
	if err != nil {
		return err
	}
	for _, d := range mod.softpre {
		if err := m.visit(d, seen, order); err != nil && !errors.Is(err, ErrNoModule) {
			return err
		}
	}
	for _, d := range mod.depends {
		if err := m.visit(d, seen, order); err != nil {
			return fmt.Errorf("%s needs %w", name, err)
		}
	}
	*order = append(*order, mod)
	return nil
}

func (m *Modules) load(name string) (*Module, error) {
	if mod := m.loaded[name]; mod != nil {
		return mod, nil
	}
	file, ok := m.files[name]
	if !ok {
		return nil, fmt.Errorf("%w: %s in %s", ErrNoModule, name, m.dir)
	}
	b, err := readModule(filepath.Join(m.dir, file))
	if err != nil {
		return nil, err
	}
	mod := &Module{Name: name, Image: b}
	mod.Path = strings.TrimSuffix(file, path.Ext(file))
	if path.Ext(file) == ".ko" {
		mod.Path = file
	}
	if err := mod.parseInfo(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	m.loaded[name] = mod
	return mod, nil
}

func readModule(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	switch filepath.Ext(file) {
	case ".xz":
		r, err = xz.NewReader(f)
	case ".gz":
		r, err = gzip.NewReader(f)
	case ".zst":
		var d *zstd.Decoder
		if d, err = zstd.NewReader(f); err == nil {
			defer d.Close()
			r = d
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return b, nil
}

// parseInfo reads the .modinfo section: strings key=value, each ended by NUL.
func (mod *Module) parseInfo() error {
	f, err := elf.NewFile(bytes.NewReader(mod.Image))
	if err != nil {
		return err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return errors.New("no section .modinfo: not a kernel module")
	}
	b, err := s.Data()
	if err != nil {
		return err
	}
	for item := range strings.SplitSeq(string(b), "\x00") {
		key, value, _ := strings.Cut(item, "=")
		value = strings.ReplaceAll(value, "-", "_")
		switch key {
		case "depends":
			mod.depends = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		case "softdep":
			if pre, ok := strings.CutPrefix(value, "pre:"); ok {
				pre, _, _ = strings.Cut(pre, "post:")
				mod.softpre = append(mod.softpre, strings.Fields(pre)...)
			}
		}
	}
	return nil
}
