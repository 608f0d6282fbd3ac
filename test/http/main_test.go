package main

import (
	"os"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// TestGet: a client with a device gets a file by RDMA, and one without by TCP.
func TestGet(t *testing.T) {
	server := program.Self(t, testenv.SoftAddr(0), "serve", testenv.SoftAddr(0)+":0", ".")
	where := program.Server(t, server, "listening on ", ", RDMA: true")
	want, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	for device, network := range map[string]string{testenv.SoftAddr(1): "rdma+tcp", "": "tcp"} {
		client := program.Self(t, device, "get", "http://"+where+"/main.go")
		var says strings.Builder
		client.Stderr = &says
		got, err := client.Output()
		line, why, _ := strings.Cut(says.String(), "\n")
		if err != nil || string(got) != string(want) || line != "connected to "+where+" by "+network || strings.HasPrefix(why, "not by RDMA: ") != (network == "tcp") {
			t.Errorf("device %q: %v, %d of %d bytes, %s", device, err, len(got), len(want), says.String())
		}
	}
}
