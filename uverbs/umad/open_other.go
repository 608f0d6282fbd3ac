//go:build !linux

package umad

import (
	"errors"
	"fmt"
	"os"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// openFile fails: only Linux has the device.
func openFile(netlinkrdma.CharDev) (Transport, error) {
	return nil, fmt.Errorf("devices of the kernel need Linux: %w", errors.ErrUnsupported)
}

// openNode fails too.
func openNode(netlinkrdma.CharDev, string) (*os.File, error) {
	return nil, fmt.Errorf("devices of the kernel need Linux: %w", errors.ErrUnsupported)
}
