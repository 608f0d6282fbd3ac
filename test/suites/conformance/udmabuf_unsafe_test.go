package conformance

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// udmabuf makes a dma-buf of a memfd's memory, or returns nil if the kernel cannot.
func udmabuf(t *testing.T, memory *os.File, size uint64) *os.File {
	t.Helper()
	dev, err := os.OpenFile("/dev/udmabuf", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must(t, err)
	defer dev.Close()
	req := struct { // struct udmabuf_create (linux/udmabuf.h)
		memfd, flags uint32
		offset, size uint64
	}{memfd: uint32(memory.Fd()), flags: 1, size: size}
	const create = 0x40187542 // UDMABUF_CREATE
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), create, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		t.Fatalf("make a dma-buf: %v", errno)
	}
	return os.NewFile(fd, "dma-buf")
}
