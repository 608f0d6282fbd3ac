//go:build !linux

package rdmacm

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// openHere fails: only Linux has the device.
func openHere(netlinkrdma.CharDev, string) (*file, error) {
	return nil, fmt.Errorf("devices of the kernel need Linux; use a software device (package uverbs/soft): %w", errors.ErrUnsupported)
}

// writeKernel and writeNoSignals are for a file of the kernel, so they are never called.
func (f *file) writeKernel(uintptr, rawCommand, uintptr) syscall.Errno { return syscall.ENOSYS }

func writeNoSignals(int, rawCommand) syscall.Errno { return syscall.ENOSYS }
