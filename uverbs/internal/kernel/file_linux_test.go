package kernel

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// TestDupFile: the copy is a file of its own that other programs do not inherit, and where there is no
// room for it the error says so.
func TestDupFile(t *testing.T) {
	f, err := os.Open("/dev/null")
	must(t, err)
	dup, err := DupFile(f)
	must(t, err)
	if dup.Fd() == f.Fd() || dup.Name() != f.Name() {
		t.Errorf("%s with descriptor %d of %s with %d", dup.Name(), dup.Fd(), f.Name(), f.Fd())
	}
	var limit syscall.Rlimit
	must(t, errors.Join(dup.Close(), syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)))
	few := limit
	few.Cur = uint64(f.Fd()) // which is below the limit no more, so that no descriptor is
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	none, err := DupFile(f)
	if back := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); back != nil {
		t.Fatal(back)
	}
	if !errors.Is(err, syscall.EMFILE) || none != nil {
		t.Errorf("without room for a descriptor: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := DupFile(f); !errors.Is(err, os.ErrClosed) {
		t.Errorf("of a closed file: %v", err)
	}
}
