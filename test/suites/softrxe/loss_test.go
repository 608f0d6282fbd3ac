package softrxe

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
)

// lossy makes the software device lose one packet in 100, in each direction. At its end the test fails if
// no packet was lost.
func lossy(t *testing.T, software place) place {
	t.Helper()
	dir := t.TempDir()
	trace := filepath.Join(dir, "packets.txt")
	// The user nobody writes the file, in a folder of root.
	must(t, os.WriteFile(trace, nil, 0o600), os.Chown(trace, nobody, nobody), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755))
	t.Cleanup(func() {
		b, err := os.ReadFile(trace)
		must(t, err)
		lost := strings.Count(string(b), ": lost (")
		t.Logf("%d of %d packets were lost", lost, strings.Count(string(b), "\n"))
		if lost == 0 {
			t.Error("no packet was lost")
		}
	})
	software.options = fmt.Sprintf(",faults=(loss=1%%,seed=7),trace=(%s)", trace)
	return software
}

// TestPLossPerf runs each test of verbs perf over RC with the received data compared, while packets are
// lost.
func TestPLossPerf(t *testing.T) {
	eachFamily(t, func(t *testing.T, rxe, software place) {
		eachRole(t, rxe, software, func(t *testing.T, server, client place) {
			if server.soft {
				server = lossy(t, server)
			}
			port := perfServe(t, server)
			for _, op := range operations {
				if !server.answers(t, op.name) {
					continue
				}
				t.Run(op.name, func(t *testing.T) {
					client := client
					if client.soft {
						client = lossy(t, client)
					}
					n := 20
					if strings.HasPrefix(op.name, "atomic") {
						n = 500 // one packet each
					}
					perf(t, client, server.addr, port, op.name, "rc", n)
				})
			}
		})
	})
}

// TestCMLossRping plays rping with rdma-core's on the kernel's device while packets are lost, also those of
// the connection manager.
func TestCMLossRping(t *testing.T) {
	cmTest(t, func(t *testing.T, server, client place, addr netip.AddrPort, _ string) {
		if server.soft {
			server = lossy(t, server)
		} else {
			client = lossy(t, client)
		}
		s, c := rping(t, server, client, addr, []string{"-v", "-S", "10000"}, []string{"-C", "40", "-V"})
		for _, p := range []*program.Program{c, s} {
			if n := strings.Count(p.Wait(t), "rdma-ping-"); n != 40 {
				t.Errorf("%s shows %d pings, want 40", p.Name, n)
			}
		}
	})
}
