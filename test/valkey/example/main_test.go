package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/goverbs/goverbs/cm/valkey"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// These variables make the test binary the program, or a server at the address that is the value.
const (
	mainEnv   = "GOVERBS_TEST_GOREDIS"
	serverEnv = "GOVERBS_TEST_GOREDIS_SERVER"
)

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	if address := os.Getenv(serverEnv); address != "" {
		log.Fatal(serve(address))
	}
	os.Exit(m.Run())
}

// serve is a server that accepts RDMA.
func serve(address string) error {
	l, err := valkey.Listen(context.Background(), address, valkey.ListenOptions{})
	if err != nil {
		return err
	}
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		up, err := net.Dial("tcp", m.Addr())
		if err != nil {
			return err
		}
		go io.Copy(struct{ io.Writer }{up}, c)
		go io.Copy(c, struct{ io.Reader }{up})
	}
}

// command returns this program with a software device at an address, or without one.
func command(t *testing.T, device, variable string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), variable, "GOVERBS_SOFT="+device)
	return cmd
}

// TestRun: the program sets a value and reads it back by RDMA, and says what is wrong if there is no RDMA.
func TestRun(t *testing.T) {
	server := command(t, testenv.SoftAddr(0), serverEnv+"="+testenv.SoftAddr(0)+":0")
	server.Stderr = os.Stderr
	where := program.Server(t, server, "listening on ", "")
	for device, want := range map[string]string{testenv.SoftAddr(1): "answer is 42\n", "": "RDMA"} {
		got, err := command(t, device, mainEnv+"=1", where, "answer", "42").CombinedOutput()
		if (err == nil) != (device != "") || !strings.Contains(string(got), want) {
			t.Errorf("device %q: %v, it prints %q, want %q", device, err, got, want)
		}
	}
}
