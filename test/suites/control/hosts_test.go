package control

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// own is a host's address by its number.
var own = map[int]string{1: "10.2.0.1", 2: "10.2.0.2"}

// TestHosts plays between two machines whose cards are on one fabric: host 1 serves.
func TestHosts(t *testing.T) {
	host, peer := testenv.Hosts(t)
	ethernet := attribute(t, first, "ports/1/link_layer") == "Ethernet"
	options := []string{"-d", first}
	if ethernet {
		options = append(options, "-g", gidIndex(t, first, own[host]))
	} else if testenv.CardIs("grh-required") {
		options = append(options, "-g", "0")
	}
	lines := [][]string{{"ibv_rc_pingpong", "-n", "200"}, {"ibv_uc_pingpong", "-n", "100"}, {"ibv_ud_pingpong", "-n", "100"}, {"ibv_srq_pingpong", "-n", "200"}, {"ibv_rc_pingpong", "-n", "200", "-e"}}
	for i := range lines {
		lines[i] = append(lines[i], options...)
	}
	if ethernet {
		lines = append(lines, []string{"rping", "-C", "20", "-a", own[1]}, []string{"ucmatose", "-C", "5"})
	}
	for _, line := range lines {
		t.Run(line[0], func(t *testing.T) {
			if host == 1 {
				serve(t, line)
			} else {
				visit(t, line, peer)
			}
		})
	}
	t.Run("tcp", func(t *testing.T) { tcp(t, host, peer) })
}

// serve is the server's side of a program.
func serve(t *testing.T, line []string) {
	t.Helper()
	if line[0] == "rping" {
		line = append(line, "-s")
	}
	program.Launch(t, line...).Wait(t)
}

// visit is the client's side. The server may not be there yet.
func visit(t *testing.T, line []string, peer string) {
	t.Helper()
	switch line[0] {
	case "rping":
		line = append(line, "-c")
	case "ucmatose":
		line = append(line, "-s", peer)
	default:
		line = append(line, peer)
	}
	for deadline := time.Now().Add(program.Patience); ; time.Sleep(50 * time.Millisecond) {
		out, err := exec.CommandContext(t.Context(), line[0], line[1:]...).CombinedOutput()
		if err = program.End(err, string(out)); err == nil {
			return
		}
		early := bytes.Contains(out, []byte("Couldn't connect")) || bytes.Contains(out, []byte("onnection refused")) || bytes.Contains(out, []byte("REJECTED")) || bytes.Contains(out, []byte("event: RDMA_CM_EVENT"))
		if !early || time.Now().After(deadline) {
			t.Fatalf("%s: %v\n%s", strings.Join(line, " "), err, out)
		}
	}
}

// tcp sends a lot over the network devices of the cards, on Ethernet, which then have to cut it
// in pieces, or over the link that there is besides.
func tcp(t *testing.T, host int, peer string) {
	data := bytes.Repeat([]byte("goverbs"), 1<<18)
	want := sha256.Sum256(data)
	if host == 1 {
		l, err := net.Listen("tcp", ":9999")
		must(t, err)
		defer l.Close()
		c, err := l.Accept()
		must(t, err)
		defer c.Close()
		got, err := io.ReadAll(c)
		if err != nil || sha256.Sum256(got) != want {
			t.Errorf("%d bytes have arrived, not as they were sent: %v", len(got), err)
		}
		return
	}
	for deadline := time.Now().Add(program.Patience); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", net.JoinHostPort(peer, "9999"))
		if err != nil {
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
			continue
		}
		if _, err := c.Write(data); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		return
	}
}
