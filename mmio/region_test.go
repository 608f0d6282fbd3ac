package mmio

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
)

// errorIs checks which error a call returned.
var errorIs = testenv.ErrorIs

// must fails a test on an error.
var must = testenv.Must

// file returns an open file of two pages, the first of 'a', the second of 'b'.
func file(t *testing.T) *os.File {
	t.Helper()
	page := os.Getpagesize()
	path := filepath.Join(t.TempDir(), "device")
	must(t, os.WriteFile(path, append(bytes.Repeat([]byte{'a'}, page), bytes.Repeat([]byte{'b'}, page)...), 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestMapIsSharedWithTheFile(t *testing.T) {
	f := file(t)
	page := os.Getpagesize()
	r, err := Map(f, uint64(page), page)
	must(t, err)
	defer r.Close()
	b := r.Bytes()
	if len(b) != page || cap(b) != page || b[0] != 'b' || b[page-1] != 'b' {
		t.Fatalf("mapped %d bytes (capacity %d) from %q to %q, want the %d of the second page", len(b), cap(b), b[0], b[len(b)-1], page)
	}
	b[7] = 'x'
	var got [1]byte
	if _, err := f.ReadAt(got[:], int64(page)+7); err != nil || got[0] != 'x' {
		t.Fatalf("the file has %q after a store of 'x' to the mapping: %v", got, err)
	}
	if _, err := f.WriteAt([]byte{'y'}, int64(page)+8); err != nil || b[8] != 'y' {
		t.Fatalf("the mapping has %q after a write of 'y' to the file: %v", b[8], err)
	}
}

func TestMapOutlivesTheFile(t *testing.T) {
	f := file(t)
	r, err := Map(f, 0, os.Getpagesize())
	must(t, err)
	must(t, f.Close())
	if got := r.Bytes()[0]; got != 'a' {
		t.Errorf("first byte %q, want 'a'", got)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestMapErrors(t *testing.T) {
	f := file(t)
	closed := file(t)
	closed.Close()
	readOnly, err := os.Open(f.Name())
	must(t, err)
	defer readOnly.Close()
	page := os.Getpagesize()
	for _, tc := range []struct {
		name   string
		f      *os.File
		offset uint64
		size   int
		want   error
		says   string
	}{
		{"no file", nil, 0, page, os.ErrInvalid, "nil"},
		{"closed file", closed, 0, page, os.ErrClosed, "device"},
		{"read-only file", readOnly, 0, page, unix.EACCES, "device"},
		{"size zero", f, 0, 0, unix.EINVAL, "size: got 0"},
		{"size negative", f, 0, -1, unix.EINVAL, "size: got -1"},
		{"size beyond the address space", f, 0, math.MaxInt, unix.ENOMEM, "device"},
		{"offset inside a page", f, 1, page, unix.EINVAL, "offset: got 0x1"},
		{"offset with the top bit", f, 1 << 63, page, unix.EINVAL, "offset: got 0x8000000000000000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := Map(tc.f, tc.offset, tc.size)
			if r != nil || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Map(%#x, %d) = %v, %v; want an error that is %v and says %q", tc.offset, tc.size, r, err, tc.want, tc.says)
			}
		})
	}
}

func TestCloseUnmapsOnce(t *testing.T) {
	f := file(t)
	r, err := Map(f, 0, os.Getpagesize())
	must(t, err)
	b := r.Bytes()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := r.Bytes(); got != nil {
		t.Errorf("%d bytes after Close, want none", len(got))
	}
	// The pages are gone: touching them is the fault that a ring would have.
	if !faults(&b[0]) {
		t.Error("the memory is still mapped after Close")
	}
}

// faults says whether reading *p raises SIGSEGV.
func faults(p *byte) (fault bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { fault = recover() != nil }()
	_ = *(*byte)(unsafe.Pointer(p)) + 1
	sink = *p
	return false
}

var sink byte

func TestMapRacingCloseOfTheFile(t *testing.T) {
	for range 200 {
		f := file(t)
		var wg sync.WaitGroup
		wg.Go(func() { f.Close() })
		r, err := Map(f, 0, os.Getpagesize())
		wg.Wait()
		switch {
		case err == nil:
			if r.Bytes()[0] != 'a' {
				t.Fatal("mapped something that is not the file")
			}
			r.Close()
		case !errors.Is(err, os.ErrClosed):
			t.Fatalf("Map of a file being closed: %v, want success or os.ErrClosed", err)
		}
	}
}

func TestMapAnonymous(t *testing.T) {
	for _, size := range []int{1, 4095, 4096, 1 << 20} {
		r, err := MapAnonymous(size, false)
		must(t, err)
		b := r.Bytes()
		if len(b) != size || cap(b) != size {
			t.Errorf("asked for %d bytes, got %d (capacity %d)", size, len(b), cap(b))
		}
		if a := uintptr(unsafe.Pointer(&b[0])); a%uintptr(os.Getpagesize()) != 0 {
			t.Errorf("%d bytes start at %#x, which is not the start of a page", size, a)
		}
		if i := bytes.IndexFunc(b, func(r rune) bool { return r != 0 }); i >= 0 {
			t.Errorf("byte %d is not zero", i)
		}
		b[size-1] = 1
		if err := r.Close(); err != nil {
			t.Errorf("closing %d bytes: %v", size, err)
		}
	}
}

func TestMapAnonymousHuge(t *testing.T) {
	r, err := MapAnonymous(4097, true)
	if err != nil {
		// Without reserved huge pages the kernel says so, and we say where.
		if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "nr_hugepages") {
			t.Fatalf("without huge pages: %v, want ENOMEM with the place to reserve them", err)
		}
		return
	}
	if b := r.Bytes(); len(b) != 4097 || uintptr(unsafe.Pointer(&b[0]))%hugePageSize != 0 {
		t.Errorf("%d bytes at %p, want 4097 at a multiple of %#x", len(b), &b[0], hugePageSize)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestBytesEndWhereAsked is about a mapping that was rounded up to huge pages,
// which most machines do not have: append must not reach the rest.
func TestBytesEndWhereAsked(t *testing.T) {
	r := &Region{mem: make([]byte, 64), n: 10}
	if b := r.Bytes(); len(b) != 10 || cap(b) != 10 {
		t.Errorf("%d bytes (capacity %d), want 10", len(b), cap(b))
	}
}

func TestMapAnonymousErrors(t *testing.T) {
	for _, size := range []int{-1, 0, math.MaxInt} {
		if r, err := MapAnonymous(size, false); r != nil || !errors.Is(err, unix.EINVAL) {
			t.Errorf("MapAnonymous(%d) = %v, %v; want EINVAL", size, r, err)
		}
	}
	if r, err := MapAnonymous(1<<60, false); r != nil || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("MapAnonymous(1<<60) = %v, %v; want ENOMEM", r, err)
	}
}

func TestMapHugeErrors(t *testing.T) {
	for _, c := range []struct{ size, page int }{{1, 0}, {1, -1}, {1, 3 << 20}, {0, 2 << 20}, {-1, 2 << 20}, {math.MaxInt, 2 << 20}, {1, 4096}} {
		if r, err := MapHuge(c.size, c.page); r != nil || !errors.Is(err, unix.EINVAL) {
			t.Errorf("MapHuge(%d, %d) = %v, %v; want EINVAL", c.size, c.page, r, err)
		}
	}
	if r, err := MapHuge(1<<60, 2<<20); r != nil || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("MapHuge(1<<60) = %v, %v; want ENOMEM", r, err)
	}
}

func TestPrefer(t *testing.T) {
	r, err := MapAnonymous(3*os.Getpagesize(), false)
	must(t, err)
	if err := r.Prefer(0); errors.Is(err, unix.ENOSYS) {
		t.Log("the kernel knows of no nodes")
	} else if err != nil {
		t.Error(err)
	} else {
		b, err := os.ReadFile("/proc/self/numa_maps")
		must(t, err)
		if line := fmt.Sprintf("%x prefer:0", &r.Bytes()[0]); !bytes.Contains(b, []byte(strings.TrimPrefix(line, "0x"))) {
			t.Errorf("no line %q in\n%s", line, b)
		}
		// Node 64 is the first bit of the mask's second word.
		for _, node := range []int{64, 1023} {
			errorIs(t, r.Prefer(node), unix.EINVAL, "node %d", node)
		}
	}
	for _, node := range []int{-1, 1024, math.MaxInt} {
		errorIs(t, r.Prefer(node), unix.EINVAL, "node %d", node)
	}
	must(t, r.Close())
	errorIs(t, r.Prefer(0), os.ErrClosed, "a closed region")
}

// TestRetire: the memory of a region that is retired is not the device's any more, can still
// be read and written, and no other mapping takes its place before the region is collected.
func TestRetire(t *testing.T) {
	f := file(t)
	page := os.Getpagesize()
	r, err := Map(f, 0, 2*page)
	must(t, err)
	mem := r.Bytes()
	must(t, errors.Join(r.Retire(), r.Retire(), r.Close()))
	if r.Bytes() != nil || !bytes.Equal(mem, make([]byte, 2*page)) {
		t.Errorf("Bytes is not nil, or the memory is not zeroed")
	}
	mem[0], mem[page] = 'x', 'x'
	var got [1]byte
	if _, err := f.ReadAt(got[:], 0); err != nil || got[0] != 'a' {
		t.Errorf("the file has %q after a store to retired memory, want 'a': %v", got, err)
	}
	end := uintptr(unsafe.Pointer(&mem[0])) + uintptr(len(mem))
	for range 100 {
		n, err := Map(f, 0, page)
		must(t, err)
		defer n.Close()
		if at := uintptr(unsafe.Pointer(&n.Bytes()[0])); at >= end-uintptr(len(mem)) && at < end {
			t.Fatalf("a mapping is at %#x, which is retired memory", at)
		}
	}
	runtime.KeepAlive(r)
	isMapped := func() bool {
		var resident [1]byte
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(page), uintptr(unsafe.Pointer(&resident[0])))
		return errno == 0
	}
	if !isMapped() {
		t.Error("the memory is unmapped while somebody has the region")
	}
	r = nil
	for n := 0; isMapped(); n++ {
		if n == 100 {
			t.Fatal("the memory is still mapped after the region was collected")
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}

// TestRetireAll: neighbours are retired by one mapping, which stays while one of them is there; others, nil
// and closed ones each by themselves.
func TestRetireAll(t *testing.T) {
	page := os.Getpagesize()
	var mem []byte
	pair := func() (a, b *Region) {
		var err error
		if mem, err = mapPrivate(2 * page); err != nil {
			t.Fatal(err)
		}
		mem[0], mem[page] = 'a', 'b'
		return &Region{mem: mem[:page:page], n: page}, &Region{mem: mem[page:], n: page}
	}
	isMapped := func() bool {
		var resident [2]byte
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(2*page), uintptr(unsafe.Pointer(&resident[0])))
		return errno == 0
	}
	a, b := pair()
	must(t, errors.Join(RetireAll(b, a), RetireAll(a, b), a.Close()))
	if a.Bytes() != nil || b.Bytes() != nil || !bytes.Equal(mem, make([]byte, 2*page)) || a.owner == nil || a.owner != b.owner {
		t.Errorf("not retired together: %+v, %+v", a, b)
	}
	a = nil
	for range 3 {
		runtime.GC()
	}
	if time.Sleep(10 * time.Millisecond); !isMapped() {
		t.Error("the memory is unmapped while somebody has one of the regions")
	}
	mem[page] = 'x'
	runtime.KeepAlive(b)
	b = nil
	for n := 0; isMapped(); n++ {
		if n == 100 {
			t.Fatal("the memory is still mapped after both regions were collected")
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	a, b = pair()
	if err := errors.Join(a.Retire(), RetireAll(a, b), RetireAll(nil, b), RetireAll(b, b), RetireAll()); err != nil || a.Bytes() != nil || b.Bytes() != nil {
		t.Errorf("one was retired before: %v", err)
	}
	if a, b = pair(); a.owner != nil || b.owner != nil {
		t.Fatal("new regions have owners")
	}
	b.borrowed = true
	if err := RetireAll(a, b); err != nil || a.Bytes() != nil || b.Bytes() != nil || a.owner != nil || mem[0] != 0 || mem[page] != 'b' {
		t.Errorf("one is borrowed: %v, %q, %q", err, mem[0], mem[page])
	}
}

// TestCloseRefused: memory that the kernel does not unmap is an error. It refuses an address that is
// not at the beginning of a page.
func TestCloseRefused(t *testing.T) {
	r := &Region{mem: make([]byte, 2*os.Getpagesize())[1:]}
	if uintptr(unsafe.Pointer(&r.mem[0]))%uintptr(os.Getpagesize()) == 0 {
		r.mem = r.mem[1:]
	}
	errorIs(t, r.Close(), unix.EINVAL, "Close")
	if err := r.Close(); err != nil {
		t.Errorf("Close once more: %v", err)
	}
}

// TestGoMemory: a region of the Go heap shares its memory, which outlives it.
func TestGoMemory(t *testing.T) {
	for name, end := range map[string]func(*Region) error{"Close": (*Region).Close, "Retire": (*Region).Retire} {
		mem := make([]byte, 100, 200)
		r := GoMemory(mem)
		b := r.Bytes()
		if len(b) != 100 || cap(b) != 100 || &b[0] != &mem[0] {
			t.Fatalf("Bytes has %d bytes (capacity %d), want the 100 of the slice", len(b), cap(b))
		}
		errorIs(t, r.Prefer(0), unix.EINVAL, "Prefer")
		b[99] = 'x'
		if err := errors.Join(end(r), end(r)); err != nil || r.Bytes() != nil {
			t.Errorf("%s: %v, then Bytes is not nil: %v", name, err, r.Bytes() != nil)
		}
		runtime.GC()
		if mem[0] = 'y'; b[0] != 'y' || mem[99] != 'x' {
			t.Errorf("after %s the memory is not what it was", name)
		}
	}
}

// TestBorrow: the owner of borrowed memory is not collected before the region.
func TestBorrow(t *testing.T) {
	o := new([100]byte)
	gone := make(chan bool)
	runtime.AddCleanup(o, func(gone chan bool) { close(gone) }, gone)
	r := Borrow(make([]byte, 10), o)
	o = nil
	if err := r.Retire(); err != nil || r.Bytes() != nil {
		t.Fatalf("Retire: %v; Bytes is not nil: %v", err, r.Bytes() != nil)
	}
	for range 3 {
		runtime.GC()
	}
	select {
	case <-gone:
		t.Error("the owner is collected before the region")
	default:
	}
	runtime.KeepAlive(r)
	r = nil
	runtime.GC()
	<-gone
}
