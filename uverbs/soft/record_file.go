package soft

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// createRecord creates the file of a record, or empties one that exists. Records have the data and the keys of
// programs: only their owner can read them, and a link or the file of another user in their place is refused. A
// named pipe of this user and a device such as /dev/null are written as they are.
func createRecord(name string) (_ *os.File, err error) {
	refuse := func(err error) error { return &fs.PathError{Op: "create", Path: name, Err: err} }
	if info, err := os.Lstat(name); err == nil { // before open, which waits for the reader of a pipe
		if err := checkRecord(info); err != nil {
			return nil, refuse(err)
		}
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = checkRecord(info)
	}
	if err == nil && info.Mode().IsRegular() {
		err = errors.Join(f.Chmod(0o600), f.Truncate(0))
	}
	if err != nil {
		return nil, errors.Join(refuse(err), f.Close())
	}
	return f, nil
}

// checkRecord refuses a file that is no place for a record.
func checkRecord(info fs.FileInfo) error {
	owner, links := ownerOf(info)
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		return errors.New("it is a symbolic link, which is not followed")
	case mode&fs.ModeCharDevice != 0:
	case !mode.IsRegular() && mode&fs.ModeNamedPipe == 0:
		return fmt.Errorf("its type is %s, allowed: a regular file, a named pipe, a character device", mode.Type())
	case owner != os.Geteuid():
		return fmt.Errorf("it belongs to user %d, allowed: user %d", owner, os.Geteuid())
	case mode.IsRegular() && links > 1:
		return fmt.Errorf("the file has %d names, allowed: 1", links)
	}
	return nil
}
