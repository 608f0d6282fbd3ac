package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain makes the test binary a process of the demo.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-role") {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestDemo runs the demo in short.
func TestDemo(t *testing.T) {
	var out bytes.Buffer
	if err := demo(t.Context(), &out, time.Millisecond); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"ping-pong, SEND     64", "ping-pong, SEND   4096", "RDMA WRITE  65536", "messages, cm.Conn   4096", "stream, cm.Stream  65536"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %q in\n%s", want, out.String())
		}
	}
}
