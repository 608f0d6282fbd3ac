package uverbs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestBufferOptionsRefused(t *testing.T) {
	for field, o := range map[string]BufferOptions{
		"HugePageSize": {HugePageSize: 3 << 20},
		"NUMANode":     {NUMANode: new(-1)},
	} {
		var arg *ArgError
		if _, err := AllocBuffer(1, o); !errors.As(err, &arg) || arg.Field != field {
			t.Errorf("%+v: %v, want an ArgError about %s", o, err, field)
		}
	}
	for _, o := range []BufferOptions{{HugePages: true}, {HugePageSize: 2 << 20}, {NUMANode: new(0)}} {
		var arg *ArgError
		o.Heap = "system"
		if _, err := AllocBuffer(1, o); !errors.As(err, &arg) || arg.Field != "Heap" {
			t.Errorf("%+v: %v, want an ArgError about Heap", o, err)
		}
	}
	if _, err := AllocBuffer(1, BufferOptions{HugePageSize: -1}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("negative page size: %v", err)
	}
}

// TestHugeHint plays sysfs.
func TestHugeHint(t *testing.T) {
	dir := t.TempDir()
	if got := hugePageSizes(dir + "/none"); !strings.Contains(got, "none") {
		t.Errorf("sizes are %q", got)
	}
	if got := hugeHint(dir, 1, 2<<20); got != "" {
		t.Errorf("hint is %q", got)
	}
	for _, size := range []string{"hugepages-1048576kB", "hugepages-2048kB", "other"} {
		must(t, os.Mkdir(filepath.Join(dir, size), 0o700))
	}
	for name, text := range map[string]string{"nr_hugepages": "10\n", "free_hugepages": "7\n", "resv_hugepages": "4\n"} {
		must(t, os.WriteFile(filepath.Join(dir, "hugepages-2048kB", name), []byte(text), 0o600))
	}
	if got, want := hugePageSizes(dir), "the sizes of this machine, 1073741824 and 2097152"; got != want {
		t.Errorf("sizes are %q, want %q", got, want)
	}
	want := ": 5 pages are needed, and of 10 only 3 are free and not reserved; reserve more (echo 12 > " + dir + "/hugepages-2048kB/nr_hugepages)"
	if got := hugeHint(dir, 8<<20+1, 2<<20); got != want {
		t.Errorf("hint is %q, want %q", got, want)
	}
}
