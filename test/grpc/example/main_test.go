package main

import (
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// TestCheck: a client with a device calls the server by RDMA, and one without by TCP.
func TestCheck(t *testing.T) {
	server := program.Self(t, testenv.SoftAddr(0), "serve", testenv.SoftAddr(0)+":0")
	where := program.Server(t, server, "listening on ", ", RDMA: true")
	for device, network := range map[string]string{testenv.SoftAddr(1): "rdma+tcp", "": "tcp"} {
		got, err := program.Self(t, device, "check", where).CombinedOutput()
		if want := "connected by " + network + "\nSERVING\n"; err != nil || string(got) != want {
			t.Errorf("device %q: %v, it prints %q, want %q", device, err, got, want)
		}
	}
}
