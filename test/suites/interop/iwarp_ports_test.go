package interop

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// TestPortsTaken has TCP hold every third of the few ports that the connection manager may choose,
// which does not ask TCP: on iWARP the program that gets one takes another.
func TestPortsTaken(t *testing.T) {
	testenv.Guest(t)
	testenv.Needs(t, "iWARP", "siw")
	const (
		file        = "/proc/sys/net/ipv4/ip_local_port_range"
		first, last = 47000, 47029
		rounds      = 4
	)
	before, err := os.ReadFile(file)
	must(t, err)
	t.Cleanup(func() {
		if err := os.WriteFile(file, before, 0); err != nil {
			t.Error(err)
		}
	})
	must(t, os.WriteFile(file, []byte(strconv.Itoa(first)+" "+strconv.Itoa(last)), 0))
	for port := first; port <= last; port += 3 {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		must(t, err)
		defer l.Close()
	}
	verbs := os.Getenv(VerbsEnv)
	run := func(t *testing.T, line ...string) {
		t.Helper()
		if out, err := exec.CommandContext(timed(t), line[0], line[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	t.Run("perf", func(t *testing.T) {
		_, port := perfServe(t)
		for range rounds {
			run(t, perfLine(port, "send-lat", "-n", "1")...)
		}
	})
	t.Run("perftest", func(t *testing.T) {
		for range rounds {
			perftestPair{test: "send-bw", cm: true, theirs: "-F -n 5", ours: "-n 5"}.play(t)
		}
	})
	t.Run("rping", func(t *testing.T) {
		number, port := cmPort()
		server := program.Launch(t, verbs, "rping", "-s", "-P", "-a", ServerAddr, "-p", port)
		serving(t, server, netlinkrdma.PortSpaceTCP, number)
		for range 2 * rounds {
			run(t, verbs, "rping", "-c", "-C", "1", "-a", ServerAddr, "-p", port)
		}
	})
	t.Run("doctor", func(t *testing.T) {
		for range rounds {
			run(t, verbs, "doctor", dev0)
		}
	})
}
