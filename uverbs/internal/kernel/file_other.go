//go:build !linux

package kernel

import (
	"errors"
	"os"
)

// DupFile fails, since only devices of Linux have files.
func DupFile(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }
