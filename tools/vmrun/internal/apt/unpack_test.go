package apt

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func tarball(t testing.TB, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		body := []byte("content of " + h.Name)
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(body))
		}
		must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(body); err != nil {
				t.Fatal(err)
			}
		}
	}
	must(t, w.Close())
	return &out
}

// listing gives the files below dir, with the targets of links.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if d.Type() == fs.ModeSymlink {
			target, err := os.Readlink(p)
			all[rel] = "-> " + target
			return err
		}
		b, err := os.ReadFile(p)
		all[rel] = string(b)
		return err
	})
	must(t, err)
	return all
}

func TestUntar(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	must(t, mergeUsr(root))
	in := tarball(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./lib/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "./lib/x.so.1", Typeflag: tar.TypeReg, Mode: 0o644},
		tar.Header{Name: "./lib/x.so", Typeflag: tar.TypeSymlink, Linkname: "x.so.1"},
		tar.Header{Name: "./usr/bin/prog", Typeflag: tar.TypeReg, Mode: 0o4755},
		tar.Header{Name: "./bin/same", Typeflag: tar.TypeLink, Linkname: "./usr/bin/prog"},
		tar.Header{Name: "./bin", Typeflag: tar.TypeSymlink, Linkname: "elsewhere"},
		tar.Header{Name: "./usr/share/doc/x/copyright", Typeflag: tar.TypeReg, Mode: 0o644},
		tar.Header{Name: "./usr/share/doc/rdma-core/tests/x.py", Typeflag: tar.TypeReg, Mode: 0o644},
		tar.Header{Name: "./usr/lib/modules/9/kernel/sound/s.ko", Typeflag: tar.TypeReg, Mode: 0o644},
		tar.Header{Name: "./dev/null", Typeflag: tar.TypeChar, Mode: 0o666},
		tar.Header{Name: "./lib/x.so.1", Typeflag: tar.TypeReg, Mode: 0o644}, // a second package's
	)
	must(t, untar(in, root, regexp.MustCompile(`/kernel/sound/`)))
	want := map[string]string{
		"bin": "-> usr/bin", "sbin": "-> usr/sbin", "lib": "-> usr/lib", "lib64": "-> usr/lib64",
		"usr/lib/x.so.1": "content of ./lib/x.so.1", "usr/lib/x.so": "-> x.so.1",
		"usr/share/doc/rdma-core/tests/x.py": "content of ./usr/share/doc/rdma-core/tests/x.py",
		"usr/bin/prog":                       "content of ./usr/bin/prog", "usr/bin/same": "content of ./usr/bin/prog",
	}
	if d := cmp.Diff(want, listing(t, dir)); d != "" {
		t.Error(d)
	}
}

// An archive can't write outside of where it is unpacked.
func TestUntarEscapes(t *testing.T) {
	outer := t.TempDir()
	must(t, os.Mkdir(filepath.Join(outer, "in"), 0o755))
	root, err := os.OpenRoot(filepath.Join(outer, "in"))
	must(t, err)
	defer root.Close()
	for _, in := range []*bytes.Buffer{
		tarball(t, tar.Header{Name: "../../../evil", Typeflag: tar.TypeReg, Mode: 0o644}),
		tarball(t, tar.Header{Name: "up", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "up/evil", Typeflag: tar.TypeReg, Mode: 0o644}),
		tarball(t, tar.Header{Name: "abs", Typeflag: tar.TypeSymlink, Linkname: outer}, tar.Header{Name: "abs/evil", Typeflag: tar.TypeReg, Mode: 0o644}),
		tarball(t, tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"}),
	} {
		_ = untar(in, root, nil) // an error or a file inside: both will do
	}
	entries, err := os.ReadDir(outer)
	if err != nil || len(entries) != 1 {
		t.Errorf("outside of the root: %v, %v", entries, err)
	}
}

func TestUntarCut(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	must(t, err)
	defer root.Close()
	in := tarball(t, tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644})
	in.Truncate(520)
	if err := untar(in, root, nil); err == nil {
		t.Error("half an archive was taken")
	}
}

// FuzzUntar unpacks anything into a folder. Nothing is written beside it, links with a name in use
// replace it, and every file that is unpacked can be read and written by its owner.
func FuzzUntar(f *testing.F) {
	f.Add([]byte{})
	for _, headers := range [][]tar.Header{
		{{Name: "./lib/x.so.1", Typeflag: tar.TypeReg, Mode: 0o644}, {Name: "./lib/x.so", Typeflag: tar.TypeSymlink, Linkname: "x.so.1"}},
		{{Name: "../../evil", Typeflag: tar.TypeReg}, {Name: "/etc/passwd", Typeflag: tar.TypeReg, Mode: 0o4777}},
		{{Name: "up", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "up/evil", Typeflag: tar.TypeReg}},
		{{Name: "a", Typeflag: tar.TypeReg}, {Name: "b", Typeflag: tar.TypeLink, Linkname: "../a"}, {Name: "b/c", Typeflag: tar.TypeDir}},
		{{Name: "d", Typeflag: tar.TypeDir}, {Name: "d/e", Typeflag: tar.TypeFifo}, {Name: "d", Typeflag: tar.TypeReg}},
	} {
		f.Add(tarball(f, headers...).Bytes())
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		// The sizes in an archive may be larger than its content: a file with holes.
		total := int64(0)
		for tr := tar.NewReader(bytes.NewReader(archive)); ; {
			h, err := tr.Next()
			if err != nil {
				break
			}
			if total += h.Size; h.Size > 1<<20 || total > 1<<20 {
				return
			}
		}
		outer := t.TempDir()
		in := filepath.Join(outer, "in")
		must(t, errors.Join(os.Mkdir(in, 0o755), os.WriteFile(filepath.Join(outer, "kept"), []byte("kept"), 0o600)))
		root, err := os.OpenRoot(in)
		must(t, err)
		defer root.Close()
		must(t, mergeUsr(root))
		unpackErr := untar(bytes.NewReader(archive), root, nil)
		entries, err := os.ReadDir(outer)
		if err != nil || len(entries) != 2 {
			t.Errorf("beside the folder: %v, %v (%v)", entries, err, unpackErr)
		}
		if b, err := os.ReadFile(filepath.Join(outer, "kept")); err != nil || string(b) != "kept" {
			t.Errorf("a file beside the folder is %q, %v (%v)", b, err, unpackErr)
		}
		err = filepath.WalkDir(in, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			switch mode := info.Mode(); {
			case mode.IsRegular() && (mode&0o600 != 0o600 || mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0), !mode.IsRegular() && !mode.IsDir() && mode.Type() != fs.ModeSymlink:
				t.Errorf("%s has mode %s", p, mode)
			case mode.Type() == fs.ModeSymlink && filepath.Dir(p) == in && slices.Contains(topLinks, d.Name()):
				if to, err := os.Readlink(p); err != nil || to != "usr/"+d.Name() {
					t.Errorf("%s leads to %q, %v", p, to, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
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
