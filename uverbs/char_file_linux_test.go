package uverbs

import (
	"errors"
	"io/fs"
	"testing"
)

// TestOpenFileMissing: the error names the file.
func TestOpenFileMissing(t *testing.T) {
	i := &DeviceInfo{CharDev: "/nowhere/uverbs9"}
	_, err := i.openFile()
	var path *fs.PathError
	if !errors.As(err, &path) || path.Path != i.CharDev || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want that %s does not exist", err, i.CharDev)
	}
}
