package soft

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// createRecord creates the file of a record, or empties one that exists. Records have the data and the keys of
// programs, so only their owner can read them, and a symbolic link in their place is not followed.
func createRecord(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|noFollow, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		err = &fs.PathError{Op: "create", Path: name, Err: errors.New("it is a symbolic link, which is not followed")}
	}
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return f, err // such as a pipe
	}
	if err := f.Chmod(0o600); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
