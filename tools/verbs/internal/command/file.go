package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxFile is the maximum length of a file that ReadFile reads, in bytes: twice that of the longest report of a test.
const maxFile = 64 << 20

// Open opens a file that the user names. The wait for the writer of a named pipe, and what is read of it, end with
// the context.
func (c *Command) Open(name string) (io.ReadCloser, error) {
	var f *os.File
	var err error
	done := make(chan bool)
	go func() {
		f, err = os.Open(name)
		close(done)
	}()
	select {
	case <-done:
		if err != nil {
			return nil, err
		}
		context.AfterFunc(c.ctx, func() { f.Close() })
		return file{c.ctx, f}, nil
	case <-c.ctx.Done():
		return nil, fmt.Errorf("open %s: %w", name, context.Cause(c.ctx))
	}
}

// file is a file that is closed when the context ends.
type file struct {
	ctx context.Context
	f   *os.File
}

// Read implements [io.Reader]. The error is the context's if it has ended.
func (f file) Read(b []byte) (int, error) {
	n, err := f.f.Read(b)
	if errors.Is(err, os.ErrClosed) && f.ctx.Err() != nil {
		err = fmt.Errorf("read %s: %w", f.f.Name(), context.Cause(f.ctx))
	}
	return n, err
}

// Close implements [io.Closer].
func (f file) Close() error { return f.f.Close() }

// ReadFile reads a file that the user names, of up to 64 MiB.
func (c *Command) ReadFile(name string) ([]byte, error) {
	f, err := c.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if len(text) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", name, maxFile)
	}
	return text, err
}
