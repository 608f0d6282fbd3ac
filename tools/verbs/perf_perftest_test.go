package main

import (
	"bytes"
	"encoding/json"
	"math"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/perftest"
)

// TestPerftestOptions: what perftest cannot do is refused before anything is opened.
func TestPerftestOptions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"send-lat", "HOST is missing"},
		{"send-lat --perftest -D 5s", "--duration is 5s, but perftest counts messages: give --iterations"},
		{"send-lat --perftest --warmup 3", "--warmup is 3, allowed with --perftest: 0"},
		{"send-lat --perftest --verify", "--verify is true, allowed with --perftest: false"},
		{"send-lat --perftest -s 2,4", "--size has 2 sizes, allowed with --perftest: 1, or --all"},
		{"write-bw --perftest --cm --type uc", "no connections of type uc"},
		{"read-bw --perftest -n 4", "--iterations is 4, allowed with --perftest: 5 and more"},
		{"send-lat --perftest --plot x.svg", "--plot: with --perftest latency is the client's to measure"},
		{"write-lat --perftest --dmabuf x HOST", "--dmabuf: the memory is not the program's to look at, which --verify and write-lat do"},
		{"send-lat --perftest --cm -t ud --dmabuf x HOST", "--dmabuf and --use-dm with --perftest --cm: datagrams begin with one that this program writes"},
		{"send-bw --perftest --cm -t ud --both --use-dm HOST", "--dmabuf and --use-dm with --perftest --cm: datagrams begin with one that this program writes"},
		{"send-bw --perftest --cpu 5000 HOST", "--cpu is 5000, allowed: 0 to 1023"},
	} {
		_, err := run(t, append([]string{"perf"}, strings.Fields(c.args)...)...)
		if exitStatus(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("perf %s: status %d, %v, want %q", c.args, exitStatus(err), err, c.want)
		}
	}
	for _, test := range perfTests {
		c := perf.Default(test.op, test.metric)
		out, err := run(t, "perf", c.Name(), "--help")
		if want := "the peer is perftest's ib_" + test.op + "_" + test.metric + ","; err != nil || !strings.Contains(out, want) {
			t.Errorf("the help of %s does not say %q: %v", c.Name(), want, err)
		}
	}
}

// TestPerftestNobody: where nobody serves, the error names the program that should.
func TestPerftestNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = run(t, "perf", "send-bw", "--perftest", "127.0.0.1", "-p", port)
	if want := "send-bw: no perftest server at 127.0.0.1:" + port + " (ib_send_bw)"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestPerftestTell: what a peer reports becomes a result.
func TestPerftestTell(t *testing.T) {
	c := perf.Default(perf.Write, perf.BW)
	c.Iterations = 1000
	theirs := perftest.Report{Size: 65536, Iterations: 1000, Average: 1, Rate: 0.002} // 2000 messages per second
	for _, both := range []bool{false, true} {
		c.Both = both
		e := &perftestEnd{o: &perfOptions{config: c}, server: true, test: perftest.Test{Op: perftest.Write, Both: both}}
		messages, rate := int64(1000), 2000.0
		if both {
			e.runs = []*perf.Run{{Sent: 1000, AllSent: 1000, Took: 1e9}} // 1000 messages per second
			messages, rate = 2000, 3000
		}
		e.addReports([]perftest.Report{theirs})
		if len(e.report.Results) != 1 {
			t.Fatalf("%+v", e.report.Results)
		}
		r := e.report.Results[0]
		if r.Size != 65536 || r.Iterations != messages || r.Lost != 0 || math.Abs(r.Bandwidth.MessagesPerSecond-rate) > 1e-3 || math.Abs(r.Bandwidth.MiBPerSecond-rate/16) > 1e-3 {
			t.Errorf("both=%v: %+v, %+v", both, r, r.Bandwidth)
		}
		b, err := json.Marshal(e.report)
		if err != nil || bytes.Contains(b, []byte("perftest")) {
			t.Errorf("%s: %v", b, err)
		}
	}
	zero := &perftestEnd{o: &perfOptions{config: c}, server: true}
	zero.addReports([]perftest.Report{{Size: 64, Iterations: 5}}) // a rate of 0 divides nothing
	if r := zero.report.Results; len(r) != 1 || r[0].Bandwidth.MessagesPerSecond != 0 {
		t.Errorf("%+v", r)
	}
	zero.addReports([]perftest.Report{{Size: 64, Iterations: 5, Rate: 5e-324}}) // the least rate takes no time that is negative
	if r := zero.report.Results; len(r) != 2 || r[1].Seconds <= 0 {
		t.Errorf("%+v", r)
	}
}

// TestPerftestPlace: a server sends to the client's host, to the address that its user gives, and nowhere else.
func TestPerftestPlace(t *testing.T) {
	for _, c := range []struct{ at, from, data, want string }{
		{"192.0.2.1", "192.0.2.1", "", ""},
		{"192.0.2.9", "192.0.2.1", "", "its messages are to go to 192.0.2.9, allowed: [192.0.2.1]: give --data-addr"},
		{"192.0.2.9", "192.0.2.1", "192.0.2.8", "allowed: [192.0.2.1 192.0.2.8]"},
		{"192.0.2.9", "192.0.2.1", "192.0.2.9", ""},
		{"fe80::2", "2001:db8::1", "fe80::2%eth0", ""},
		{"fe80::2", "fe80::1", "", "its messages are to go to fe80::2"},
		{"127.0.0.2", "127.0.0.1", "", ""},
		{"127.0.0.2", "192.0.2.1", "", "its messages are to go to 127.0.0.2"},
		{"192.0.2.9", "127.0.0.1", "", "its messages are to go to 192.0.2.9"},
	} {
		err := placed(netip.MustParseAddr(c.at), netip.MustParseAddr(c.from), c.data)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for args, want := range map[string]string{
		"--data-addr x --perftest":              `--data-addr is "x", allowed: an IP address`,
		"--data-addr 192.0.2.1":                 "HOST is missing",
		"--data-addr 192.0.2.1 127.0.0.1":       "allowed: only for the server of --perftest",
		"--data-addr 192.0.2.1 --perftest host": "allowed: only for the server of --perftest",
	} {
		if _, err := run(t, append([]string{"perf", "write-lat"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
