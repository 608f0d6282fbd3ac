//go:build !linux

package mmio

import (
	"errors"
	"fmt"
	"syscall"
)

// errLinuxOnly is the error of operations that need Linux.
var errLinuxOnly = fmt.Errorf("devices of the kernel, huge pages and dma-buf heaps need Linux: %w", errors.ErrUnsupported)

// coverFlags are the flags for memory that nobody uses.
const coverFlags = 0

// mapShared fails: files are mapped for devices of the kernel only.
func mapShared(uintptr, uint64, int, bool) ([]byte, error) { return nil, errLinuxOnly }

// mapHuge fails.
func mapHuge(int, int) ([]byte, error) { return nil, errLinuxOnly }

// allocHeap fails.
func allocHeap(string, int) (uintptr, error) { return 0, errLinuxOnly }

// prefer fails as on a kernel without NUMA.
func prefer([]byte, int) error { return syscall.ENOSYS }
