//go:build linux

package memory

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

var page = os.Getpagesize()

// allRemote are the rights of an MR for anything but windows.
const allRemote = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic

// newTable returns a table whose keys have the low bits 1, 2, 3 and so on.
func newTable() *Table {
	n := uint32(0)
	t := NewTable(func() uint32 { n++; return n })
	return t
}

// addr returns the address of the first byte.
func addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// mapped returns pages of memory outside the Go heap.
func mapped(t testing.TB, pages int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	must(t, err)
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// protect changes the protection of whole pages.
func protect(t testing.TB, b []byte, prot int) {
	t.Helper()
	must(t, unix.Mprotect(b, prot))
}

// unmap unmaps pages and maps what nobody can access there, so that nothing else gets the addresses.
func unmap(t testing.TB, b []byte) {
	t.Helper()
	a, _, errno := unix.Syscall6(unix.SYS_MMAP, uintptr(addr(b)), uintptr(len(b)), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED, ^uintptr(0), 0)
	if errno != 0 || uint64(a) != addr(b) {
		t.Fatal(errno)
	}
}

// file returns a shared mapping of a file of so many pages.
func file(t testing.TB, pages int) (*os.File, []byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(int64(pages*page)))
	b, err := unix.Mmap(int(f.Fd()), 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	t.Cleanup(func() { unix.Munmap(b) })
	return f, b
}

// register registers memory in PD 1, at its own address.
func register(t testing.TB, table *Table, b []byte, access Access) *MR {
	t.Helper()
	m, errno := table.RegMR(1, addr(b), uint64(len(b)), addr(b), access)
	if errno != 0 {
		t.Fatalf("RegMR: %v", errno)
	}
	return m
}

// wantErrno compares an errno.
func wantErrno(t testing.TB, what string, got, want syscall.Errno) {
	t.Helper()
	if got != want {
		t.Errorf("%s: errno %d (%v), want %d (%v)", what, got, got, want, want)
	}
}

// wantFault compares a fault.
func wantFault(t testing.TB, what string, got, want Fault) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
