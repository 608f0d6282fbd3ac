//go:build !linux

package soft

import (
	"errors"
	"os"
)

// openWaker fails: only Linux has an eventfd.
func openWaker() (*os.File, error) { return nil, errors.ErrUnsupported }
