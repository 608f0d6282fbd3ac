package main

import (
	"context"
	"errors"
	"io"
	"testing"
)

// TestWithin: a read that does not end ends with the context, and the result of one that does is what it returns.
func TestWithin(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	go w.Write([]byte("12"))
	b := make([]byte, 4)
	read := func() (int, error) { return r.Read(b) }
	if n, err := within(ctx, read); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	ended := errors.New("interrupted")
	cancel(ended)
	if _, err := within(ctx, read); err != ended {
		t.Errorf("%v, want %v", err, ended)
	}
}
