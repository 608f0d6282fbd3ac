//go:build !linux

package kernel

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// CharDevice is a [Device] behind a character device of the kernel, which only Linux has.
type CharDevice struct {
	Device
	f  *os.File
	fd uintptr
}

// CharOptions are the properties of a [CharDevice].
type CharOptions struct {
	DriverID uint32 // DriverID is the number of the kernel's driver (enum rdma_driver_id).
	Software bool   // Software says that the device is one in software.
}

// NewCharDevice fails.
func NewCharDevice(*os.File, CharOptions) (*CharDevice, error) {
	return nil, fmt.Errorf("devices of the kernel need Linux; use a software device (package uverbs/soft): %w", errors.ErrUnsupported)
}

// writeCall and writeCallShort are for a CharDevice, so they are never called.
func writeCall(uintptr, []byte) syscall.Errno { return syscall.ENOSYS }

func writeCallShort(uintptr, *byte, uint8) syscall.Errno { return syscall.ENOSYS }

func (*CharDevice) issueWrite([]byte, bool) syscall.Errno { return syscall.ENOSYS }

// char returns the device itself.
func (d *CharDevice) char() *CharDevice { return d }
