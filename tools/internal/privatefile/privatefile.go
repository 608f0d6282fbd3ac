// Package privatefile creates the files that programs of this module write on request: records, captures and results.
// They may hold the memory and the keys of others, so only their owner can read them, and a link that somebody has
// put in their place is not followed.
package privatefile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Create creates a file with mode 0600, or empties one that exists. That one must be a regular file of this user with
// one name, and gets the same mode. A device such as /dev/null and a named pipe of this user or of root are written
// as they are. Everything else is refused: a symbolic link, such as /dev/stdout, and the file of another user.
func Create(name string) (_ *os.File, err error) {
	if err := Check(name); err != nil { // before open, which waits for the reader of a pipe
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|noFollow, 0o600)
	if err != nil {
		return nil, cmp.Or(Check(name), err)
	}
	if err := take(f); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "create", Path: name, Err: err}, f.Close())
	}
	return f, nil
}

// CreateNew creates a file as Create does, but refuses a regular file that has something in it.
func CreateNew(name string) (*os.File, error) {
	if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fmt.Errorf("%w and has %d bytes", fs.ErrExist, info.Size())}
	}
	return Create(name)
}

// Check returns the error with which Create refuses a file that exists, if it does.
func Check(name string) error {
	info, err := os.Lstat(name)
	if err != nil {
		return nil // Create makes it, or says why not
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		err = errors.New("it is a symbolic link, which is not followed: give the name of the file itself")
	} else {
		err = check(info, os.Geteuid())
	}
	if err != nil {
		return &fs.PathError{Op: "create", Path: name, Err: err}
	}
	return nil
}

// take checks a file that is open, and empties it.
func take(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := check(info, os.Geteuid()); err != nil || !info.Mode().IsRegular() {
		return err
	}
	if err := f.Chmod(0o600); err != nil {
		return err
	}
	return f.Truncate(0)
}

// check refuses a file that this user may not write to.
func check(info fs.FileInfo, user int) error {
	owner, links := ownerOf(info)
	switch mode := info.Mode(); {
	case mode&fs.ModeCharDevice != 0:
		return nil
	case mode&fs.ModeNamedPipe != 0 && (owner == user || owner == 0):
		return nil
	case mode&fs.ModeNamedPipe != 0:
		return fmt.Errorf("it is a named pipe of user %d, allowed: of user %d or 0", owner, user)
	case !mode.IsRegular():
		return fmt.Errorf("its type is %s, allowed: a regular file, a named pipe, a character device", mode.Type())
	case owner != user:
		return fmt.Errorf("it is a file of user %d, allowed: of user %d: remove it first", owner, user)
	case links > 1:
		return fmt.Errorf("the file has %d names, allowed: 1: remove this one first", links)
	}
	return nil
}
