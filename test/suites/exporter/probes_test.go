package exporter

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/tools/metrics"
	"github.com/goverbs/goverbs/tools/probe"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Of the boots of the suite probes: 1 where four hosts are on one Ethernet, and where one host has four software
// devices.
const (
	probesEnv     = "GOVERBS_PROBES"
	probesSoftEnv = "GOVERBS_PROBES_SOFT"
)

// fleet is four hosts that probe each other, as the first of them and Prometheus see them.
type fleet struct {
	p         prometheus
	instances []string
	addresses []string
	impair    func(to int, fault string) // what the first host sends to another one is lost or late; "" ends it
	loss      string                     // which the rate of the probes shows within two minutes
}

// check checks that alerts name the link that loses a little of what one end sends, and the one that takes 2 ms more,
// within two minutes; that the same alert names no other link; and that there is none before.
func (f *fleet) check(t *testing.T) {
	n := len(f.instances)
	f.p.patiently(t, "count(rdma_probe_up == 1)", is(float64(n*(n-1)*2)), 3*time.Minute)
	time.Sleep(150 * time.Second) // the windows of the rules are full of what is usual
	usual := 0.0
	for _, s := range f.p.query(t, `rdma:probe_latency:quantile2m{quantile="0.5"}`) {
		usual = max(usual, s.value)
	}
	delay := max(2*time.Millisecond, time.Duration(4*usual*1e9).Truncate(time.Millisecond)) // where a machine has too few processors for its VMs
	t.Logf("the longest median is %.3f ms", usual*1e3)
	for _, c := range []struct {
		to           int
		fault, alert string
	}{{1, "loss " + f.loss, "RDMAProbeLoss"}, {2, fmt.Sprint("delay ", delay), "RDMAProbeLatency"}} {
		ours := func(s series) bool {
			is := func(a, b int) bool {
				return s.labels["instance"] == f.instances[a] && s.labels["address"] == f.addresses[b]
			}
			return (is(0, c.to) || is(c.to, 0)) && s.labels["device"] != "" && s.labels["peer"] == s.labels["address"]
		}
		firing := func() []series {
			return f.p.query(t, fmt.Sprintf("ALERTS{alertname=%q, alertstate=%q}", c.alert, "firing"))
		}
		if before := firing(); len(before) > 0 {
			t.Errorf("before %s: %+v", c.fault, before)
		}
		f.impair(c.to, c.fault)
		begun := time.Now()
		named := false
		for ; !named && time.Since(begun) < 2*time.Minute; time.Sleep(time.Second) {
			for _, s := range firing() {
				if named = true; !ours(s) {
					t.Errorf("%s: the alert names another link: %v", c.fault, s.labels)
				}
			}
		}
		t.Logf("%s: after %v: %+v", c.fault, time.Since(begun).Round(time.Second), firing())
		if !named {
			t.Errorf("%s: no %s within two minutes: %+v", c.fault, c.alert, f.p.query(t, `{__name__=~"rdma:probe.*"}`))
		}
		f.impair(c.to, "")
	}
}

// TestProbesSoft: four hosts in this process, which are software devices. 15 of the 15,000 datagrams of two minutes are
// lost.
func TestProbesSoft(t *testing.T) {
	testenv.Boot(t, probesSoftEnv, "probes/soft")
	const hosts = 4
	f := fleet{loss: "0.1%"}
	var devices []*soft.Device
	for i := range 1 + hosts {
		dev, err := soft.New(soft.Options{})
		must(t, err)
		defer dev.Close()
		if i == 0 {
			continue // 127.0.0.1 is an address of this host, which is no peer
		}
		devices, f.addresses = append(devices, dev), append(f.addresses, dev.Addr().String())
	}
	for i, dev := range devices {
		o := probe.Options{Source: dev.Addr(), Listen: netip.AddrPortFrom(dev.Addr(), probe.Port).String(), Rate: 125, Paths: 1}
		for j, a := range f.addresses {
			if i != j {
				o.Peers = append(o.Peers, a)
			}
		}
		p, err := probe.New(o)
		must(t, err)
		done := make(chan error, 1)
		go func() { done <- p.Run(t.Context()) }()
		t.Cleanup(func() { must(t, <-done) })
		c := metrics.New(metrics.Options{Probe: p, NoProcesses: true})
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", metrics.ContentType)
			c.WriteTo(w)
		}))
		t.Cleanup(s.Close)
		f.instances = append(f.instances, strings.TrimPrefix(s.URL, "http://"))
	}
	f.p = launch(t, f.instances...)
	f.impair = func(to int, fault string) {
		if fault != "" {
			fault = "seed=1,direction=sent,class=send|read|response,peer=" + f.addresses[to] + "," + strings.Replace(fault, " ", "=", 1)
		}
		faults, err := soft.ParseFaults(fault)
		must(t, err)
		must(t, devices[0].SetFaults(faults))
	}
	f.check(t)
}

// endPort is where host 1 listens until the test ends.
const endPort = "7100"

// TestProbes: an exporter on each of four hosts. They are VMs on few processors, so they send less than those of
// TestProbesSoft, and lose more: 30 of the 3,000 datagrams of two minutes.
func TestProbes(t *testing.T) {
	testenv.Boot(t, probesEnv, "probes/hosts")
	host, hosts := testenv.Fleet(t, 4)
	f := fleet{loss: "1%"}
	for h := 1; h <= hosts; h++ {
		a := fmt.Sprint("10.2.0.", h)
		f.addresses, f.instances = append(f.addresses, a), append(f.instances, a+":9879")
	}
	cmd, _ := serveOn(t, ":9879", "--doctor-interval", "0", "--watch-interval", "0", "--events=false", "--processes=false",
		"--probe", strings.Join(f.addresses, ","), "--probe-rate", "25", "--probe-paths", "1")
	if host != 1 {
		for patience := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
			c, err := net.Dial("tcp4", net.JoinHostPort(f.addresses[0], endPort))
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
	for range hosts - 1 {
		c, err := l.Accept()
		must(t, err)
		defer c.Close()
	}
	f.p = launch(t, f.instances...)
	f.impair = func(to int, fault string) {
		words := "off"
		if fault != "" {
			words = "to " + f.addresses[to] + " " + fault
		}
		if out, err := exec.Command("vmlink", append([]string{"netem"}, strings.Fields(words)...)...).CombinedOutput(); err != nil {
			t.Errorf("vmlink netem %s: %v: %s", words, err, out)
		}
	}
	begun, used := time.Now(), cpu(t, cmd.Process.Pid)
	f.check(t)
	t.Logf("the exporter takes %.2f %% of a processor", 100*float64(cpu(t, cmd.Process.Pid)-used)/float64(time.Since(begun)))
}
