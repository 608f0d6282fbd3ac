package mesh

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
)

// TestRounds: each pair meets once, and no host twice in a round.
func TestRounds(t *testing.T) {
	for hosts := 2; hosts <= 9; hosts++ {
		met := map[[2]int]int{}
		all := rounds(hosts)
		for _, round := range all {
			busy := map[int]bool{}
			for _, p := range round {
				if busy[p[0]] || busy[p[1]] || p[0] >= p[1] {
					t.Errorf("%d hosts: a round has %v", hosts, round)
				}
				busy[p[0]], busy[p[1]] = true, true
				met[p]++
			}
		}
		if want := hosts - 1 + hosts%2; len(all) != want || len(met) != hosts*(hosts-1)/2 {
			t.Errorf("%d hosts: %d rounds with %d pairs, want %d rounds", hosts, len(all), len(met), want)
		}
		for p, n := range met {
			if n != 1 {
				t.Errorf("%d hosts: %v meet %d times", hosts, p, n)
			}
		}
	}
}

// TestParseHost: hosts have a name or an address, and may have a port.
func TestParseHost(t *testing.T) {
	for text, want := range map[string]string{
		"node1": "node1 18517", "node1:7": "node1 7", "10.0.0.1": "10.0.0.1 18517", "10.0.0.1:65535": "10.0.0.1 65535",
		"fd00::1": "fd00::1 18517", "[fd00::1]": "fd00::1 18517", "[fd00::1]:9": "fd00::1 9",
	} {
		if h, err := ParseHost(text); err != nil || fmt.Sprint(h.Addr, " ", h.Port) != want || h.Name != text {
			t.Errorf("%q is %+v, %v, want %s", text, h, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "a host is", ":7": "a host is", "a b": "a host is", "a\x1b[31m": "a host is", strings.Repeat("a", 254): "a host is",
		"a:0": `the port of "a:0" is "0", allowed: 1 to 65535`, "a:65536": "allowed: 1 to 65535", "a:x": "allowed: 1 to 65535", "a:": "allowed: 1 to 65535",
	} {
		if _, err := ParseHost(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestThresholds: thresholds that make no sense are refused by name.
func TestThresholds(t *testing.T) {
	good := Thresholds{MaxLoss: 0.1, LatencyRatio: 3, BandwidthRatio: 0.5}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Thresholds){
		"--latency-ratio is 1, allowed: above 1":                 func(t *Thresholds) { t.LatencyRatio = 1 },
		"--latency-ratio is NaN":                                 func(t *Thresholds) { t.LatencyRatio = math.NaN() },
		"--latency-ratio is +Inf":                                func(t *Thresholds) { t.LatencyRatio = math.Inf(1) },
		"--bandwidth-ratio is 1, allowed: 0 to less than 1":      func(t *Thresholds) { t.BandwidthRatio = 1 },
		"--bandwidth-ratio is -0.1":                              func(t *Thresholds) { t.BandwidthRatio = -0.1 },
		"--max-loss is 100, allowed: 0 to less than 100":         func(t *Thresholds) { t.MaxLoss = 100 },
		"--min-bandwidth is +Inf":                                func(t *Thresholds) { t.MinBandwidth = math.Inf(1) },
		"--max-p99 is 5 µs, allowed: --max-latency and more, wh": func(t *Thresholds) { t.MaxLatency, t.MaxP99 = 6, 5 },
	} {
		bad := good
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// fleet returns a report of hosts a, b and so on, in which a function makes measurements bad.
func fleet(hosts int, rails []string, labels []int, bad func(m *Measurement) string) *Report {
	r := &Report{Thresholds: Thresholds{MaxLoss: 0.1, LatencyRatio: 3, BandwidthRatio: 0.5}}
	for i := range hosts {
		r.Hosts = append(r.Hosts, HostReport{Name: string(rune('a' + i))})
	}
	for _, rail := range rails {
		for from := range hosts {
			for to := range hosts {
				for _, label := range labels {
					if from == to {
						continue
					}
					bw := 100.0
					m := Measurement{From: r.Hosts[from].Name, To: r.Hosts[to].Name, Rail: rail, Type: "rc", FlowLabel: label, from: from, to: to,
						Latency: &Latency{Min: 1, Median: 2 + float64(from)/10, P99: 5, P999: 6, Max: 9}, Bandwidth: &bw}
					switch bad(&m) {
					case "latency":
						m.Latency.Median = 50
					case "bandwidth":
						bw = 10
					case "loss":
						m.Loss = 1
					case "failed":
						m.Latency, m.Bandwidth, m.Errors = nil, nil, []string{"send-lat: no route", "send-bw: no route"}
					}
					r.Measurements = append(r.Measurements, m)
				}
			}
		}
	}
	r.judge()
	r.Findings = r.findings()
	r.OK = len(r.Findings) == 0
	return r
}

// TestCause: the finding is the largest thing that explains all of its bad measurements.
func TestCause(t *testing.T) {
	is := func(m *Measurement, a, b string) bool { return m.From == a && m.To == b || m.From == b && m.To == a }
	when := func(kind string, ok func(m *Measurement) bool) func(*Measurement) string {
		return func(m *Measurement) string {
			if ok(m) {
				return kind
			}
			return ""
		}
	}
	one, two := []string{"r0"}, []string{"r0", "r1"}
	for name, c := range map[string]struct {
		hosts  int
		rails  []string
		labels []int
		bad    func(m *Measurement) string
		want   []string
	}{
		"nothing": {4, two, []int{0}, when("", func(*Measurement) bool { return false }), nil},
		"a link": {4, one, []int{0}, when("latency", func(m *Measurement) bool { return is(m, "b", "c") }),
			[]string{`link between "b" and "c" on r0: latency`}},
		"a direction": {4, one, []int{0}, when("loss", func(m *Measurement) bool { return m.From == "c" && m.To == "b" }),
			[]string{`link between "b" and "c" on r0, only c -> b: loss`}},
		"a link on all rails": {4, two, []int{0}, when("bandwidth", func(m *Measurement) bool { return is(m, "a", "d") }),
			[]string{`link between "a" and "d": bandwidth`}},
		"a path": {4, one, []int{1, 2, 3}, when("bandwidth", func(m *Measurement) bool { return is(m, "a", "d") && m.FlowLabel == 2 }),
			[]string{`path with flow labels [2] of the link between "a" and "d" on r0: bandwidth`}},
		"a port": {4, two, []int{0}, when("latency", func(m *Measurement) bool { return m.Rail == "r1" && (m.From == "b" || m.To == "b") }),
			[]string{`device r1 of host "b": latency`}},
		"a host": {4, two, []int{0}, when("failed", func(m *Measurement) bool { return m.From == "b" || m.To == "b" }),
			[]string{`host "b": failed`}},
		"a host with one rail": {4, one, []int{0}, when("latency", func(m *Measurement) bool { return m.From == "b" || m.To == "b" }),
			[]string{`host "b": latency`}},
		"a rail": {4, two, []int{0}, when("latency", func(m *Measurement) bool { return m.Rail == "r1" }),
			[]string{`rail r1, on every link: latency`}},
		"everything": {4, one, []int{0}, when("failed", func(*Measurement) bool { return true }),
			[]string{`every link of the fleet: failed`}},
		"two of two hosts": {2, one, []int{0}, when("loss", func(*Measurement) bool { return true }),
			[]string{`link between "a" and "b" on r0: loss`}},
		"two hosts of five": {5, one, []int{0}, when("loss", func(m *Measurement) bool { return m.From <= "b" || m.To <= "b" }),
			[]string{`host "a": loss`, `host "b": loss`}},
		"two links of a host": {4, one, []int{0}, when("loss", func(m *Measurement) bool { return is(m, "a", "b") || is(m, "a", "c") }),
			[]string{`link between "a" and "b" on r0: loss`, `link between "a" and "c" on r0: loss`}},
		"a host and a link": {5, one, []int{0}, when("loss", func(m *Measurement) bool { return m.From == "a" || m.To == "a" || is(m, "c", "d") }),
			[]string{`host "a": loss`, `link between "c" and "d" on r0: loss`}},
	} {
		r := fleet(c.hosts, c.rails, c.labels, c.bad)
		var got []string
		for i := range r.Findings {
			got = append(got, r.Findings[i].String())
			if n := len(r.Findings[i].Evidence); n == 0 || n > 8 {
				t.Errorf("%s: %d lines of evidence", name, n)
			}
		}
		if !slices.Equal(got, c.want) || r.OK != (c.want == nil) {
			t.Errorf("%s: found %q, ok %v, want %q", name, got, r.OK, c.want)
		}
	}
}

// TestAbsolute: absolute thresholds find what the whole fleet has in common.
func TestAbsolute(t *testing.T) {
	for kind, set := range map[string]func(*Thresholds){
		"latency": func(t *Thresholds) { t.MaxLatency = 2.05 }, "p99": func(t *Thresholds) { t.MaxP99 = 4 },
		"bandwidth": func(t *Thresholds) { t.MinBandwidth = 101 },
	} {
		r := fleet(3, []string{"r0"}, []int{0}, func(*Measurement) string { return "" })
		set(&r.Thresholds)
		r.judge()
		if f := r.findings(); len(f) == 0 || !slices.Equal(f[0].Problems, []string{kind}) {
			t.Errorf("%s: %+v", kind, f)
		}
	}
}

// TestBetter: the better values of a repeated measurement count.
func TestBetter(t *testing.T) {
	low, high := 10.0, 20.0
	m := Measurement{Errors: []string{"send-lat: x"}, Bandwidth: &low, Loss: 2}
	m.better(&Measurement{Latency: &Latency{Median: 5}, Bandwidth: &high, Loss: 3})
	if m.Latency.Median != 5 || *m.Bandwidth != 20 || m.Loss != 2 || m.Errors != nil || m.Repeated != 1 {
		t.Errorf("%+v", m)
	}
	m.better(&Measurement{Latency: &Latency{Median: 6}, Errors: []string{"send-bw: x"}})
	if m.Latency.Median != 5 || *m.Bandwidth != 20 || m.Errors != nil || m.Repeated != 2 {
		t.Errorf("%+v", m)
	}
}

// TestPrint: bad values are marked, and have a colour only if colours are on.
func TestPrint(t *testing.T) {
	r := fleet(3, []string{"r0"}, []int{0}, func(m *Measurement) string {
		if m.From == "a" && m.To == "b" {
			return "bandwidth"
		}
		return ""
	})
	var plainText, colour bytes.Buffer
	for out, colours := range map[*bytes.Buffer]bool{&plainText: false, &colour: true} {
		text := terminal.New(out).Text()
		text.Colours = colours
		if err := r.Print(text); err != nil {
			t.Fatal(err)
		}
	}
	if s := plainText.String(); strings.Count(s, "10.000!") != 1 || strings.Count(s, "!") != 1 || strings.Contains(s, "\x1b") || !strings.Contains(s, "allowed: from 50.000 Gb/s") {
		t.Errorf("%s", s)
	}
	if s := colour.String(); strings.Count(s, string(terminal.Red)) != 2 || !strings.Contains(s, string(terminal.Green)) {
		t.Errorf("%q", s)
	}
}

// TestHTML: the page refers to nothing outside, and names of hosts cannot break it.
func TestHTML(t *testing.T) {
	r := fleet(3, []string{"r0"}, []int{0}, func(m *Measurement) string { return map[bool]string{true: "failed"}[m.From == "b"] })
	const evil = `<script>alert("1")</script>`
	for i := range r.Measurements {
		m := &r.Measurements[i]
		m.From = strings.Replace(m.From, "b", evil, 1)
		m.Errors = append(m.Errors, evil)
	}
	r.Hosts[1].Name = evil
	r.judge()
	r.Findings = r.findings()
	var b bytes.Buffer
	if err := r.HTML(&b); err != nil {
		t.Fatal(err)
	}
	s := b.String()
	for _, bad := range []string{"<script", "src=", "href=", "url(", "http:", "https:", "NaN"} {
		if strings.Contains(s, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if strings.Count(s, "<tr>") != 2*4 || strings.Count(s, "<td") != 2*9 || !strings.Contains(s, "&lt;script&gt;") || !strings.Contains(s, `class="bad"`) {
		t.Errorf("the page is\n%s", s)
	}
}
