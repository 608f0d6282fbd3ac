package uverbs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSysfsPKey(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "rxe0/ports/2/pkeys")
	must(t, os.MkdirAll(dir, 0o777))
	for name, text := range map[string]string{"0": "0xffff\n", "1": "0x7001\n", "2": "0x10000\n", "3": ""} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
	}
	for index, want := range []uint16{0xffff, 0x7001} {
		if got, err := sysfsPKey(root, "rxe0", 2, index); got != want || err != nil {
			t.Errorf("key %d is %#x, %v, want %#x", index, got, err, want)
		}
	}
	read := func(index int) (uint16, error) { return sysfsPKey(root, "rxe0", 2, index) }
	for want, pkey := range []uint16{0xffff, 0x7001} {
		if got, err := pkeyIndex(read, "rxe0", 2, 2, pkey); got != want || err != nil {
			t.Errorf("key %#x is at %d, %v, want %d", pkey, got, err, want)
		}
	}
	if _, err := pkeyIndex(read, "rxe0", 2, 2, 0xf001); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "0xf001 is not among its 2") {
		t.Errorf("a key that is not there: %v", err)
	}
	if i, err := pkeyIndex(read, "rxe0", 2, 4, 0xf001); i != 0 || err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "key 2 of port 2") {
		t.Errorf("a table with a key that cannot be read: %d, %v", i, err)
	}
	for _, index := range []int{2, 3} {
		if _, err := sysfsPKey(root, "rxe0", 2, index); err == nil || !strings.Contains(err.Error(), "of port 2") {
			t.Errorf("key %d: %v", index, err)
		}
	}
	if _, err := sysfsPKey(root, "rxe0", 1, 0); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "sysfs") {
		t.Errorf("nothing there: %v", err)
	}
}

func TestQueryPKeyRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	k.port.PKeyTblLen = 1
	for _, index := range []int{-1, 1} {
		_, err := d.QueryPKey(1, index)
		if arg, ok := errors.AsType[*ArgError](err); !ok || arg.Allowed != "0 to 0" {
			t.Errorf("index %d: %v", index, err)
		}
	}
	must(t, d.Close())
	errorIs(t, second(d.QueryPKey(1, 0)), os.ErrClosed, "after Close")
}
