package exporter

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// probesEnv is 1 in the boot of the suite probes: four hosts on one Ethernet.
const probesEnv = "GOVERBS_PROBES"

// endPort is where host 1 listens until the test ends.
const endPort = "7100"

// hostAddress returns the address of a host.
func hostAddress(host int) string { return fmt.Sprint("10.2.0.", host) }

// netem has this host lose or hold back what it sends to another one.
func netem(t *testing.T, words string) {
	t.Helper()
	if out, err := exec.Command("vmlink", append([]string{"netem"}, strings.Fields(words)...)...).CombinedOutput(); err != nil {
		t.Fatalf("vmlink netem %s: %v: %s", words, err, out)
	}
}

// TestProbes: an exporter on each of four hosts probes the others. Prometheus names the link that loses 0.1 % of what
// one end sends, and the one that takes 2 ms more, within two minutes; and no other link, and none before.
func TestProbes(t *testing.T) {
	testenv.Boot(t, probesEnv, "probes")
	host, hosts := testenv.Fleet(t, 4)
	var all, targets []string
	for h := 1; h <= hosts; h++ {
		all, targets = append(all, hostAddress(h)), append(targets, hostAddress(h)+":9879")
	}
	cmd, _ := serveOn(t, ":9879", "--doctor-interval", "0", "--watch-interval", "0", "--events=false", "--processes=false",
		"--probe", strings.Join(all, ","), "--probe-rate", "125", "--probe-paths", "1")
	if host != 1 {
		for patience := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
			c, err := net.Dial("tcp4", net.JoinHostPort(hostAddress(1), endPort))
			if err == nil {
				io.Copy(io.Discard, c)
				return
			}
			if time.Now().After(patience) {
				t.Fatal(err)
			}
		}
	}
	l, err := net.Listen("tcp4", ":"+endPort)
	must(t, err)
	defer l.Close()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range hosts - 1 {
		c, err := l.Accept()
		must(t, err)
		conns = append(conns, c)
	}
	p := launch(t, targets...)
	p.becomes(t, `count(rdma_probe_up == 1)`, is(float64(hosts*(hosts-1)*2)))
	settle, used := time.Now(), cpu(t, cmd.Process.Pid)
	time.Sleep(150 * time.Second) // the windows of the rules are full of what is usual
	t.Logf("the exporter takes %.2f %% of a processor", 100*float64(cpu(t, cmd.Process.Pid)-used)/float64(time.Since(settle)))
	for _, expr := range []string{`rdma:probe_latency:quantile2m`, `rdma:probe_lost:increase2m`, `rdma:probe_sent:increase2m`, `rdma_probe_lost_total > 0`} {
		for _, s := range p.query(t, expr) {
			t.Logf("%s: %v %g", expr, s.labels, s.value)
		}
	}
	const alerts = `ALERTS{alertname=~"RDMAProbe.*", alertstate="firing"}`
	if firing := p.query(t, alerts); len(firing) > 0 {
		t.Errorf("without a fault: %+v", firing)
	}
	for _, c := range []struct {
		to           int
		fault, alert string
	}{{2, "loss 0.1%", "RDMAProbeLoss"}, {3, "delay 2ms", "RDMAProbeLatency"}} {
		netem(t, "to "+hostAddress(c.to)+" "+c.fault)
		defer netem(t, "off")
		begun := time.Now()
		ours := func(s series) bool {
			a, b := strings.TrimSuffix(s.labels["instance"], ":9879"), s.labels["address"]
			return a == hostAddress(1) && b == hostAddress(c.to) || a == hostAddress(c.to) && b == hostAddress(1)
		}
		named := false
		for ; !named && time.Since(begun) < 2*time.Minute; time.Sleep(time.Second) {
			for _, s := range p.query(t, alerts) {
				named = named || ours(s) && s.labels["alertname"] == c.alert && s.labels["device"] != "" && s.labels["peer"] != ""
			}
		}
		t.Logf("%s: after %v", c.fault, time.Since(begun).Round(time.Second))
		if !named {
			t.Errorf("%s to %s: no %s within two minutes: %+v", c.fault, hostAddress(c.to), c.alert, p.query(t, `{__name__=~"rdma:probe.*"}`))
		}
		for _, s := range p.query(t, alerts) {
			if !ours(s) {
				t.Errorf("%s to %s: the alert %v names another link", c.fault, hostAddress(c.to), s.labels)
			}
		}
		netem(t, "off")
		p.patiently(t, "count("+alerts+") or vector(0)", is(0), 3*time.Minute)
	}
}
