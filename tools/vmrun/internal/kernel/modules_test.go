package kernel

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// fakeModule makes an ELF file with a .modinfo section of the given items.
func fakeModule(items ...string) []byte {
	const ehdr, shdr = 64, 64
	info := strings.Join(items, "\x00") + "\x00"
	names := "\x00.modinfo\x00.shstrtab\x00"
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(b, 1)  // ET_REL
	b = le.AppendUint16(b, 62) // EM_X86_64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint64(b, 0)
	b = le.AppendUint64(b, uint64(ehdr+len(info)+len(names))) // section headers
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{ehdr, 0, 0, shdr, 3, 2} {
		b = le.AppendUint16(b, v)
	}
	b = append(b, info+names...)
	section := func(name, typ uint32, off, size int) {
		b = le.AppendUint32(b, name)
		b = le.AppendUint32(b, typ)
		b = le.AppendUint64(b, 0)
		b = le.AppendUint64(b, 0)
		b = le.AppendUint64(b, uint64(off))
		b = le.AppendUint64(b, uint64(size))
		b = append(b, make([]byte, 24)...)
	}
	section(0, 0, 0, 0)
	section(1, 1, ehdr, len(info))
	section(10, 3, ehdr+len(info), len(names))
	return b
}

func compress(t *testing.T, suffix string, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch suffix {
	case ".xz":
		w, err = xz.NewWriter(&out)
	case ".gz":
		w = gzip.NewWriter(&out)
	case ".zst":
		w, err = zstd.NewWriter(&out)
	default:
		return b
	}
	must(t, err)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	return out.Bytes()
}

// write puts a file below dir.
func write(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	p := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(p), 0o755))
	must(t, os.WriteFile(p, b, 0o644))
}

// fakeTree makes the modules of a kernel 9.9.
func fakeTree(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "lib/modules/9.9")
	for name, items := range map[string][]string{
		"kernel/net/rdma_rxe.ko.xz":    {"license=GPL", "depends=ib_uverbs,udp-tunnel,ib_core", "name=rdma_rxe"},
		"kernel/core/ib_uverbs.ko.gz":  {"depends=ib_core"},
		"kernel/core/ib_core.ko.zst":   {"depends="},
		"kernel/net/udp-tunnel.ko":     {"depends=", "softdep=pre: crc32c no-such post: veth"},
		"kernel/crypto/crc32c.ko":      {"depends="},
		"kernel/a.ko":                  {"depends=b"},
		"kernel/b.ko":                  {"depends=a"},
		"kernel/lost.ko":               {"depends=nowhere"},
		"kernel/veth.ko":               {"depends="},
		"kernel/drivers/virtio/vpm.ko": {"depends=ipv6"},
	} {
		write(t, dir, name, compress(t, filepath.Ext(strings.TrimSuffix(name, ".ko")), fakeModule(items...)))
	}
	write(t, dir, "modules.builtin", []byte("kernel/net/ipv6/ipv6.ko\nkernel/crypto/crc32-generic.ko\n"))
	write(t, dir, "modules.order", nil)
	write(t, dir, "kernel/broken.ko", []byte("no ELF file"))
	write(t, dir, "kernel/short.ko.xz", []byte("\xfd7zXZ\x00"))
	write(t, dir, "kernel/noinfo.ko", bytes.Replace(fakeModule(), []byte(".modinfo"), []byte(".modinfx"), 1))
	return root
}

func names(mods []*Module) []string {
	var all []string
	for _, m := range mods {
		all = append(all, m.Name)
	}
	return all
}

func TestResolve(t *testing.T) {
	m, err := OpenModules(fakeTree(t))
	must(t, err)
	if m.Release() != "9.9" {
		t.Errorf("release %q", m.Release())
	}
	for _, tt := range []struct {
		ask  []string
		want []string
	}{
		{[]string{"rdma_rxe"}, []string{"ib_core", "ib_uverbs", "crc32c", "udp_tunnel", "rdma_rxe"}},
		{[]string{"rdma-rxe", "ib_core", "veth"}, []string{"ib_core", "ib_uverbs", "crc32c", "udp_tunnel", "rdma_rxe", "veth"}},
		{[]string{"ipv6", "crc32_generic", "vpm"}, []string{"vpm"}},
		{[]string{"absent?", "veth"}, []string{"veth"}},
		{[]string{"a"}, []string{"b", "a"}}, // a circle must end
		{nil, nil},
	} {
		mods, err := m.Resolve(tt.ask...)
		if err != nil {
			t.Errorf("%q: %v", tt.ask, err)
		}
		if d := cmp.Diff(tt.want, names(mods)); d != "" {
			t.Errorf("%q: %s", tt.ask, d)
		}
	}
	mods, err := m.Resolve("rdma_rxe")
	must(t, err)
	rxe := mods[len(mods)-1]
	if rxe.Path != "kernel/net/rdma_rxe.ko" || !bytes.HasPrefix(rxe.Image, []byte("\x7fELF")) {
		t.Errorf("path %q, image begins % x", rxe.Path, rxe.Image[:4])
	}
}

func TestResolveErrors(t *testing.T) {
	m, err := OpenModules(fakeTree(t))
	must(t, err)
	for _, tt := range []struct {
		name, says string
		noModule   bool
	}{
		{"absent", "absent", true},
		{"lost", "lost needs no such module: nowhere", true},
		{"lost?", "", true},
		{"broken", "broken.ko", false},
		{"broken?", "broken.ko", false},
		{"short", "short.ko.xz", false},
		{"noinfo", "not a kernel module", false},
	} {
		_, err := m.Resolve(tt.name)
		if tt.says == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.says) || errors.Is(err, ErrNoModule) != tt.noModule {
			t.Errorf("%s: %v, want %q in it", tt.name, err, tt.says)
		}
	}
}

func TestOpenModules(t *testing.T) {
	root := fakeTree(t)
	for _, dir := range []string{root, filepath.Join(root, "lib/modules"), filepath.Join(root, "lib/modules/9.9")} {
		if m, err := OpenModules(dir); err != nil || m.Release() != "9.9" {
			t.Errorf("%s: %v", dir, err)
		}
	}
	write(t, root, "lib/modules/9.10/modules.order", nil)
	if _, err := OpenModules(root); err == nil || !strings.Contains(err.Error(), "2 kernels") {
		t.Errorf("two kernels: %v", err)
	}
	if _, err := OpenModules(t.TempDir()); err == nil {
		t.Error("an empty directory was taken")
	}
	// Without modules everything must be built in, and is taken to be.
	m, err := OpenModules("")
	must(t, err)
	if mods, err := m.Resolve("rdma_rxe"); len(mods) != 0 || err != nil {
		t.Errorf("no modules: %v, %v", mods, err)
	}
}

// A module that is elsewhere is one of the kernel's from then on.
func TestAdd(t *testing.T) {
	m, err := OpenModules(fakeTree(t))
	must(t, err)
	for name, want := range map[string]bool{"rdma_rxe": true, "udp_tunnel": true, "ipv6": true, "soft_iw": false} {
		if m.Has(name) != want {
			t.Errorf("Has(%s) is %v", name, !want)
		}
	}
	dir := t.TempDir()
	write(t, dir, "soft-iw.ko", fakeModule("depends=ib_core", "softdep=pre: crc32c"))
	write(t, dir, "bad.ko", []byte("no ELF file"))
	must(t, m.Add(filepath.Join(dir, "soft-iw.ko")))
	mods, err := m.Resolve("soft_iw")
	must(t, err)
	if d := cmp.Diff([]string{"crc32c", "ib_core", "soft_iw"}, names(mods)); d != "" {
		t.Error(d)
	}
	if p := mods[2].Path; p != "updates/soft-iw.ko" {
		t.Errorf("path %s", p)
	}
	for _, bad := range []string{"bad.ko", "none.ko", "bad.ko.xz", "x"} {
		if err := m.Add(filepath.Join(dir, bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	if none, err := OpenModules(""); err != nil || !none.Has("anything") {
		t.Errorf("a kernel without modules: %v", err)
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
