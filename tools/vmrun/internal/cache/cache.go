// Package cache keeps directories that are made once and then only read. An
// entry appears whole or not at all, whatever interrupts its making, and two
// processes never make the same one at the same time.
package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is the directory of a cache. It is safe for concurrent use, also by other
// processes.
type Dir struct {
	path string
	logf func(format string, args ...any)
}

// Open returns the cache in path, which is made if need be. logf is told when
// another process is waited for.
func Open(path string, logf func(format string, args ...any)) (*Dir, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	return &Dir{path: path, logf: logf}, nil
}

// Path gives the path of an entry, whether it is there or not.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

// Has reports whether the entry is there.
func (d *Dir) Has(name string) bool {
	_, err := os.Stat(d.Path(name))
	return err == nil
}

// Lock locks the name for this process until unlock is called.
func (d *Dir) Lock(ctx context.Context, name string) (unlock func(), err error) {
	file := d.Path(name + ".lock")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for start, said := time.Now(), false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// Closing lets go of the lock; the file stays, since another
			// process may hold it open already.
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, err)
		}
		if !said && time.Since(start) > 2*time.Second {
			d.logf("waiting for another vmrun, which holds %s", file)
			said = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, context.Cause(ctx))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Make returns the path of an entry, and makes it if it is not there or if
// renew is set. The function fill is given the path of a file or directory that
// does not exist yet and creates it; only if it succeeds does the entry come to
// be, and an older one goes away.
func (d *Dir) Make(ctx context.Context, name string, renew bool, fill func(tmp string) error) (string, error) {
	path := d.Path(name)
	if !renew && d.Has(name) {
		return path, nil
	}
	unlock, err := d.Lock(ctx, name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if !renew && d.Has(name) {
		return path, nil // made by the one that was waited for
	}
	tmp := path + ".tmp"
	if err := os.RemoveAll(tmp); err != nil { // what an interrupted one left
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := fill(tmp); err != nil {
		return "", err
	}
	if err := settle(tmp); err != nil {
		return "", err
	}
	old := path + ".old"
	if err := os.RemoveAll(old); err != nil {
		return "", err
	}
	if err := os.Rename(path, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	defer os.RemoveAll(old)
	return path, os.Rename(tmp, path)
}

// settle waits until the bytes are on the disk, lest a power cut leave an entry
// with empty files.
func settle(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
