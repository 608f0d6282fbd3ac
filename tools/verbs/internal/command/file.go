package command

import (
	"context"
	"fmt"
	"io"
	"os"
)

// maxFile is the maximum length of a file that ReadFile reads.
const maxFile = 16 << 20

// Open opens a file that the user names. The wait for the writer of a named pipe, and what is read of it, end with
// the context.
func (c *Command) Open(name string) (*os.File, error) {
	type opened struct {
		f   *os.File
		err error
	}
	done := make(chan opened, 1)
	go func() {
		f, err := os.Open(name)
		done <- opened{f, err}
	}()
	select {
	case o := <-done:
		if o.err == nil {
			context.AfterFunc(c.ctx, func() { o.f.Close() })
		}
		return o.f, o.err
	case <-c.ctx.Done():
		return nil, fmt.Errorf("open %s: %w", name, context.Cause(c.ctx))
	}
}

// ReadFile reads a file that the user names, of up to 16 MiB.
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
