package main

import (
	"net"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// TestPlay plays between two software devices.
func TestPlay(t *testing.T) {
	a, b := net.Pipe()
	end := make(chan error)
	for i, stream := range []net.Conn{a, b} {
		dev, err := uverbs.Open(soft.NewT(t, soft.Options{}).Name(), uverbs.OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer stream.Close() // wakes the other end after an error
			end <- play(t.Context(), dev, stream, i == 0)
		}()
	}
	for range 2 {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
}
