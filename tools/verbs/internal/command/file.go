package command

import (
	"context"
	"fmt"
	"io"
	"os"
)

// maxFile is the maximum length of a file that ReadFile reads, in bytes: twice that of the longest report of a test.
const maxFile = 64 << 20

// Open opens a file that the user names. The wait for the writer of a named pipe, and what is read of it, end with
// the context.
func (c *Command) Open(name string) (*os.File, error) {
	var f *os.File
	var err error
	done := make(chan bool)
	go func() {
		f, err = os.Open(name)
		close(done)
	}()
	select {
	case <-done:
		context.AfterFunc(c.ctx, func() { f.Close() })
		return f, err
	case <-c.ctx.Done():
		return nil, fmt.Errorf("open %s: %w", name, context.Cause(c.ctx))
	}
}

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
