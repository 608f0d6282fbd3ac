package rstream

import (
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/test/testenv"
)

// lastField finds the time per transfer, in microseconds, in what rstream prints.
var lastField = regexp.MustCompile(`custom.*\s([0-9.]+)\s*$`)

// rstreamMost is a limit of the ratios that BenchmarkRstream prints.
const rstreamMost = "GOVERBS_RSTREAM_MOST"

// BenchmarkRstream runs rstream's client against rstream's server and against ours in turn, and prints
// the median of the ratios of our times to its.
func BenchmarkRstream(b *testing.B) {
	testenv.Guest(b)
	for _, r := range []transfer{{size: 64, count: 1, iterations: 500}, {size: 1 << 20, count: 10, iterations: 1}} {
		b.Run(fmt.Sprintf("%d bytes", r.size), func(b *testing.B) {
			var ratios []float64
			for i := 0; b.Loop(); i++ {
				ours := measure(b, r, true, strconv.Itoa(7700+2*i%200))
				theirs := measure(b, r, false, strconv.Itoa(7701+2*i%200))
				ratios = append(ratios, ours/theirs)
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "x-rstream")
			testenv.Limit(b, rstreamMost, ratios[len(ratios)/2], 1)
			b.ReportMetric(0, "ns/op") // it is the time of both
		})
	}
}

// measure returns the time of a transfer with our server or with rstream's.
func measure(b *testing.B, r transfer, ours bool, port string) float64 {
	b.Helper()
	options := strings.Fields(fmt.Sprintf("-T b -p %s -S %d -C %d -I %d", port, r.size, r.count, r.iterations))
	served := make(chan error, 1)
	if ours {
		l, err := rsocket.Listen(b.Context(), net.JoinHostPort(address(), port), rsocket.ListenOptions{Options: rsocket.Options{RecvBuffer: 1 << 19, SendBuffer: 1 << 19}})
		if err != nil {
			b.Fatal(err)
		}
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err == nil {
				err = r.run(c, false)
				c.Close()
			}
			served <- err
		}()
	} else {
		server := exec.CommandContext(b.Context(), "rstream", append([]string{"-b", address()}, options...)...)
		if err := server.Start(); err != nil {
			b.Fatal(err)
		}
		go func() { served <- server.Wait() }()
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // until the server listens
		out, err := exec.CommandContext(b.Context(), "rstream", append([]string{"-s", address()}, options...)...).CombinedOutput()
		if m := lastField.FindSubmatch(out); err == nil && m != nil {
			if err := <-served; err != nil {
				b.Fatal(err)
			}
			us, _ := strconv.ParseFloat(string(m[1]), 64)
			return us
		}
		if time.Now().After(end) {
			b.Fatalf("rstream: %v: %s", err, out)
		}
	}
}
