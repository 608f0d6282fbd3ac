package initramfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"
)

// item is a file as the kernel will unpack it.
type item struct {
	Mode    cpio.FileMode
	Content string
}

// unpack reads an archive back, and checks what the kernel wants of its order.
func unpack(t *testing.T, b []byte) map[string]item {
	t.Helper()
	items := map[string]item{}
	r := cpio.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return items
		}
		must(t, err)
		if dir := filepath.Dir(h.Name); dir != "." && items[dir].Mode&cpio.TypeDir == 0 {
			t.Errorf("%s comes before its directory", h.Name)
		}
		content, err := io.ReadAll(r)
		must(t, err)
		if h.Linkname != "" {
			content = []byte(h.Linkname)
		}
		items[h.Name] = item{h.Mode, string(content)}
	}
}

func written(t *testing.T, tree *Tree) map[string]item {
	t.Helper()
	var out bytes.Buffer
	must(t, tree.Write(&out))
	if out.Len()%512 != 0 {
		t.Errorf("%d bytes: the next archive would not be aligned", out.Len())
	}
	return unpack(t, out.Bytes())
}

func TestWrite(t *testing.T) {
	host := filepath.Join(t.TempDir(), "prog")
	must(t, os.WriteFile(host, []byte("#!"), 0o755))
	tree := New()
	tree.AddBytes("/a/b/config", []byte("text"), 0o640)
	tree.AddBytes("/empty", nil, 0o644)
	tree.AddLink("/link", "a/b")
	tree.AddDir("/tmp/x", 0o700)
	must(t, tree.AddHost("/bin/prog", host))
	want := map[string]item{
		"a": {cpio.TypeDir | 0o755, ""}, "a/b": {cpio.TypeDir | 0o755, ""}, "a/b/config": {cpio.TypeReg | 0o640, "text"},
		"empty": {cpio.TypeReg | 0o644, ""}, "link": {cpio.TypeSymlink | 0o777, "a/b"},
		"tmp": {cpio.TypeDir | 0o755, ""}, "tmp/x": {cpio.TypeDir | 0o700, ""},
		"usr": {cpio.TypeDir | 0o755, ""}, "usr/bin": {cpio.TypeDir | 0o755, ""}, "usr/bin/prog": {cpio.TypeReg | 0o755, "#!"},
	}
	if d := cmp.Diff(want, written(t, tree)); d != "" {
		t.Error(d)
	}
}

func TestBase(t *testing.T) {
	tree := New()
	tree.AddBase()
	got := written(t, tree)
	for name, want := range map[string]item{
		"lib64": {cpio.TypeSymlink | 0o777, "usr/lib64"}, "usr/lib64": {cpio.TypeDir | 0o755, ""},
		"tmp": {cpio.TypeDir | cpio.ModeSticky | 0o777, ""}, "root": {cpio.TypeDir | 0o700, ""}, "proc": {cpio.TypeDir | 0o755, ""},
	} {
		if got[name] != want {
			t.Errorf("%s is %+v, want %+v", name, got[name], want)
		}
	}
	if !strings.HasPrefix(got["etc/passwd"].Content, "root:x:0:0:") {
		t.Errorf("passwd is %q", got["etc/passwd"].Content)
	}
}

func TestAddHostDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"lib/x.so.1": "so", "etc/conf": "c"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o750))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	must(t, os.Symlink("x.so.1", filepath.Join(dir, "lib/x.so")))
	must(t, os.Symlink(dir, dir+".link"))
	tree := New()
	tree.AddBase()
	must(t, tree.AddHost("/", dir+".link"))
	got := written(t, tree)
	for name, want := range map[string]item{
		"lib": {cpio.TypeSymlink | 0o777, "usr/lib"}, "usr/lib/x.so.1": {cpio.TypeReg | 0o600, "so"},
		"usr/lib/x.so": {cpio.TypeSymlink | 0o777, "x.so.1"}, "etc/conf": {cpio.TypeReg | 0o600, "c"},
	} {
		if got[name] != want {
			t.Errorf("%s is %+v, want %+v", name, got[name], want)
		}
	}
	if err := tree.AddHost("/x", filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestOpenFollowsLinks(t *testing.T) {
	tree := New()
	tree.AddBase()
	tree.AddBytes("/lib/x86_64-linux-gnu/ld.so", []byte("loader"), 0o755)
	tree.AddLink("/lib64/ld-linux.so.2", "/lib/x86_64-linux-gnu/ld.so")
	tree.AddLink("/usr/bin/sh", "dash")
	tree.AddBytes("/bin/dash", []byte("shell"), 0o755)
	tree.AddLink("/loop", "loop")
	for p, want := range map[string]string{
		"/lib64/ld-linux.so.2": "loader", "/bin/sh": "shell", "/usr/bin/../bin/dash": "shell", "/usr/lib/x86_64-linux-gnu/ld.so": "loader",
	} {
		f, err := tree.Open(p)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		if b, err := io.ReadAll(f); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
	for _, p := range []string{"/loop", "/usr", "/none", "/bin/none"} {
		if _, err := tree.Open(p); err == nil {
			t.Errorf("%s was opened", p)
		}
	}
	if _, err := tree.Open("/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
}

func TestClean(t *testing.T) {
	for p, want := range map[string]string{
		"/": "/", "": "/", "/bin": "/bin", "/bin/sh": "/usr/bin/sh", "lib/x/../y": "/usr/lib/y", "/library/x": "/library/x",
		"/../../sbin/init": "/usr/sbin/init", "/usr/bin/x": "/usr/bin/x",
	} {
		if got := Clean(p); got != want {
			t.Errorf("%q: %q, want %q", p, got, want)
		}
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
