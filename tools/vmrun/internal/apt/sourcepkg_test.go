package apt

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeAptSource stands in for apt-get: it has one source package, y, and does what the variable FAKE says.
const fakeAptSource = `#!/bin/sh
echo "$FAKE $*" >> "$FAKEDIR/calls"
case "$*" in
*update) exit 0;;
*" --print-uris --tar-only source y")
	[ "$FAKE" = nohash ] && SUM=MD5Sum:00
	[ "$FAKE" = native ] && NAME=y_1.tar.gz
	echo "'http://mirror.test/$NAME' $NAME $SIZE $SUM";;
*" --download-only --tar-only source y")
	[ "$FAKE" = native ] && NAME=y_1.tar.gz
	if [ "$FAKE" = wrong ]; then head -c "$SIZE" /dev/zero > "$NAME"; else cp "$FAKEDIR/y.tar.gz" "$NAME"; fi;;
*) echo "E: unexpected: $*" >&2; exit 1;;
esac
`

// withSource makes the source package of a store's archive.
func withSource(t *testing.T) *Store {
	t.Helper()
	s := fakeStore(t)
	dir := os.Getenv("FAKEDIR")
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range map[string]string{"y-1/src/y.c": "int y;\n", "../outside": "no"} {
		must(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
		fmt.Fprint(w, text)
	}
	must(t, errors.Join(w.Close(), z.Close()))
	sum := sha256.Sum256(b.Bytes())
	t.Setenv("SIZE", fmt.Sprint(b.Len()))
	t.Setenv("SUM", "SHA256:"+hex.EncodeToString(sum[:]))
	t.Setenv("NAME", "y_1.orig.tar.gz")
	for name, content := range map[string][]byte{"y.tar.gz": b.Bytes(), "apt-get": []byte(fakeAptSource)} {
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o755))
	}
	return s
}

var sourceY = SourceRequest{Entry: "y", Suite: "testing", Package: "y"}

// TestSource: a source package is fetched once, checked and unpacked, and the request may change the tree.
func TestSource(t *testing.T) {
	s := withSource(t)
	r := sourceY
	r.Finish = func(root string) error {
		return os.Rename(filepath.Join(root, "y-1/src/y.c"), filepath.Join(root, "z.c"))
	}
	for range 2 {
		root, err := s.Source(t.Context(), r)
		must(t, err)
		if d := cmp.Diff(map[string]string{"z.c": "int y;\n", "outside": "no"}, listing(t, root)); d != "" {
			t.Error(d)
		}
	}
	if n := calls(t, `--download-only`); n != 1 {
		t.Errorf("the source was fetched %d times, want once", n)
	}
	sources, err := os.ReadFile(filepath.Join(s.Cache.Path("apt-testing-source"), "debian.sources"))
	if err != nil || !strings.Contains(string(sources), "Types: deb-src\n") {
		t.Errorf("apt's sources are %q, %v", sources, err)
	}
}

// TestSourceErrors: what is wrong with a source package is an error, and nothing stays in the cache.
func TestSourceErrors(t *testing.T) {
	for fake, want := range map[string]string{"nohash": "apt gave no SHA256", "wrong": "the package index says", "native": "has no upstream source"} {
		t.Run(fake, func(t *testing.T) {
			s := withSource(t)
			t.Setenv("FAKE", fake)
			if root, err := s.Source(t.Context(), sourceY); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q, %v, want %q", root, err, want)
			}
		})
	}
	s, no := withSource(t), errors.New("no compiler")
	r := sourceY
	r.Check = func() error { return no }
	if _, err := s.Source(t.Context(), r); !errors.Is(err, no) || calls(t, ".") != 0 {
		t.Errorf("%v, after %d calls of apt", err, calls(t, "."))
	}
}
