//go:build !linux

package uverbs

import "os"

// hasInput returns true, as devices of the kernel are on Linux only.
func hasInput(*os.File) bool { return true }
