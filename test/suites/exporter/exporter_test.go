package exporter

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/test/testenv"
)

const step = "exporter"

var rig = testenv.TheRig()

// qps is how many QPs are held.
const qps = 20

// TestPrometheus: what Prometheus has scraped is what the other commands of verbs say, also after a device was
// deleted and added while it scraped.
func TestPrometheus(t *testing.T) {
	testenv.Boot(t, bootEnv, step)
	pid := holder(t, rig.Devices[0], qps)
	_, address := serve(t, "--doctor-interval", "1h", "--watch-interval", "1s")
	p := launch(t, address)
	p.becomes(t, "rdma_doctor_works", is(1)) // after it nothing changes by itself
	t.Run("ports", func(t *testing.T) { comparePorts(t, p) })
	t.Run("objects", func(t *testing.T) { compareObjects(t, p) })
	t.Run("process", func(t *testing.T) { compareProcess(t, p, pid) })
	t.Run("findings", func(t *testing.T) { compareFindings(t, p) })
	t.Run("dashboard", func(t *testing.T) { evaluate(t, p) })
	t.Run("never reads", func(t *testing.T) { neverRead(t, p, address) })
	t.Run("flaps", func(t *testing.T) { flap(t, p) })
	t.Run("vanishes", func(t *testing.T) { vanish(t, p) })
	// On a busy machine a scrape may take longer than Prometheus waits.
	if failed := p.query(t, "count_over_time((up == 0 and scrape_duration_seconds < 0.9)[10m:1s])"); len(failed) > 0 {
		t.Errorf("scrapes failed: %+v", failed)
	}
	if failed := p.query(t, "min_over_time(rdma_exporter_collector_success[10m]) == 0"); len(failed) > 0 {
		t.Errorf("parts failed: %+v", failed)
	}
}

// comparePorts compares with "verbs status" and "verbs stat".
func comparePorts(t *testing.T, p prometheus) {
	var status []struct {
		Device    string
		Port      int
		State     string
		RateGbps  float64 `json:"rate_gbps"`
		Width     float64
		LinkLayer string `json:"link_layer"`
		Netdev    string
		MTU       float64
	}
	verbsJSON(t, &status, "status")
	if len(status) < 2 {
		t.Fatalf("there are %d ports", len(status))
	}
	for _, s := range status {
		labels := fmt.Sprintf(`{device=%q,port="%d"}`, s.Device, s.Port)
		p.becomes(t, "rdma_port_state"+labels, is(map[string]float64{"ACTIVE": 4, "DOWN": 1}[s.State]))
		p.becomes(t, "rdma_port_rate_bytes_per_second"+labels, is(s.RateGbps*1e9/8))
		p.becomes(t, "rdma_port_lanes"+labels, is(s.Width))
		p.becomes(t, "rdma_port_mtu_bytes"+labels, is(s.MTU))
		p.becomes(t, fmt.Sprintf("rdma_port_info{device=%q,netdev=%q,link_layer=%q}", s.Device, s.Netdev, s.LinkLayer), is(1))
	}
	var stat []struct {
		Device   string
		Port     int
		Counters []struct {
			Name  string
			Value float64
		}
	}
	verbsJSON(t, &stat, "stat")
	counters := 0
	for _, s := range stat {
		for _, c := range s.Counters {
			counters++
			p.becomes(t, fmt.Sprintf(`rdma_port_counters_total{device=%q,port="%d",counter=%q}`, s.Device, s.Port, c.Name), is(c.Value))
		}
		if rig.Driver == "rxe" && strings.HasPrefix(s.Device, "rxe") { // the doctor has played ping-pong
			p.becomes(t, fmt.Sprintf(`rdma_port_counters_total{device=%q,counter="sent_pkts"}`, s.Device), func(v float64) bool { return v > 0 })
		}
	}
	if counters < 10 {
		t.Errorf("there are %d counters", counters)
	}
}

// listsContexts reports whether the kernel lists contexts.
func listsContexts(t *testing.T) bool {
	v := testenv.Kernel(t)
	return v[0] > 5 || v[1] >= 13
}

// compareObjects compares with "verbs res". Both look when the other does not.
func compareObjects(t *testing.T, p prometheus) {
	var res []struct {
		Device string
		Counts map[string]float64
	}
	verbsJSON(t, &res, "res")
	for _, r := range res {
		for name, n := range r.Counts {
			p.becomes(t, fmt.Sprintf("rdma_device_objects{device=%q,type=%q}", r.Device, strings.TrimSuffix(name, "s")), is(n))
			if name != "cm_ids" && (name != "contexts" || listsContexts(t)) {
				p.becomes(t, fmt.Sprintf("sum(rdma_process_objects{device=%q,type=%q}) or vector(0)", r.Device, strings.TrimSuffix(name, "s")), is(n))
			}
		}
		p.becomes(t, fmt.Sprintf("sum(rdma_device_qps{device=%q}) or vector(0)", r.Device), is(r.Counts["qps"]))
	}
}

// compareProcess compares with what is known of the process that holds QPs.
func compareProcess(t *testing.T, p prometheus, pid int) {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	must(t, err)
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	must(t, err)
	own, _ := os.Readlink("/proc/self/ns/net")
	if own == link {
		t.Fatal("it is in this network namespace")
	}
	owner := fmt.Sprintf(`{device=%q,process=%q,pid="%d",netns=%q`, rig.Devices[0], strings.TrimSpace(string(comm)), pid, strings.Trim(link, "net:[]"))
	counts := map[string]float64{"qp": qps, "cq": 1, "pd": 1, "mr": 1}
	if listsContexts(t) {
		counts["context"] = 1
	}
	for typ, n := range counts {
		p.becomes(t, fmt.Sprintf("rdma_process_objects%s,type=%q}", owner, typ), is(n))
	}
	p.becomes(t, "rdma_process_registered_bytes"+owner+"}", is(registered))
	p.becomes(t, fmt.Sprintf(`rdma_device_qps{device=%q,transport="RC",state="RESET"}`, rig.Devices[0]), is(qps))
}

// compareFindings compares with "verbs doctor", which makes connections, too.
func compareFindings(t *testing.T, p prometheus) {
	var report struct {
		Findings []struct {
			ID, Device, Level string
			Port              int
		}
	}
	verbsJSON(t, &report, "doctor")
	for _, f := range report.Findings {
		if f.ID == "cm" {
			continue
		}
		port := ""
		if f.Port > 0 {
			port = fmt.Sprint(f.Port)
		}
		level := float64(slices.Index([]string{"ok", "info", "warning", "error"}, f.Level))
		p.becomes(t, fmt.Sprintf("rdma_doctor_finding_level{code=%q,device=%q,port=%q}", f.ID, f.Device, port), func(v float64) bool { return v >= level })
	}
	p.becomes(t, "time() - rdma_doctor_last_run_timestamp_seconds", func(v float64) bool { return v > 0 && v < 600 })
}

// evaluate evaluates the expressions of the dashboard.
func evaluate(t *testing.T, p prometheus) {
	text, err := os.ReadFile("dashboard.json")
	must(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(text, &dashboard))
	empty := []string{"Received", "Transmitted", "Counters of errors", "Events", "Findings of the doctor", "Findings of the watch", "Failures",
		"Loss of pairs", "Latency of pairs, median", "Lost probes by path and cause", "Latency of pairs, 99 %", "Peers that answer", "Probes of other hosts"} // on a host without failures
	values := strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$device", ".*", "$counter", ".*")
	shown := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			expr := values.Replace(target.Expr)
			if !slices.Contains(empty, panel.Title) { // one slow scrape leaves all empty until the next
				p.becomes(t, "count("+expr+")", func(v float64) bool { return v > 0 })
			}
			shown += len(p.query(t, expr))
		}
	}
	if shown < 50 {
		t.Errorf("the dashboard shows %d series", shown)
	}
}

// neverRead opens connections that ask and never read, and connections that ask nothing. Prometheus scrapes on.
func neverRead(t *testing.T, p prometheus, address string) {
	for i := range 20 {
		conn, err := net.Dial("tcp", address)
		must(t, err)
		defer conn.Close()
		conn.(*net.TCPConn).SetReadBuffer(1)
		if i%2 == 0 {
			io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
		}
	}
	begun := time.Now()
	p.becomes(t, "timestamp(up == 1)", func(v float64) bool { return v > float64(begun.Unix()+5) })
}

// setLink takes a network interface up or down.
func setLink(t *testing.T, netdev string, set func(netlink.Link) error) {
	t.Helper()
	link, err := netlink.LinkByName(netdev)
	must(t, err)
	must(t, set(link))
}

// flap takes a port down and up again: it is an error first, and a warning afterwards.
func flap(t *testing.T, p prometheus) {
	level := fmt.Sprintf(`rdma_watch_finding_level{code="link",device=%q,port="1"}`, rig.Devices[1])
	p.becomes(t, fmt.Sprintf("count(%s) or vector(0)", level), is(0))
	setLink(t, rig.Netdevs[1], netlink.LinkSetDown)
	p.becomes(t, level, is(3))
	alert := fmt.Sprintf(`ALERTS{alertname=%%q,device=%q,port="1"}`, rig.Devices[1])
	p.becomes(t, fmt.Sprintf(alert, "RDMAPortDown"), is(1))
	setLink(t, rig.Netdevs[1], netlink.LinkSetUp)
	p.becomes(t, level, is(2))
	p.becomes(t, fmt.Sprintf(alert, "RDMALinkChanges"), is(1))
	p.becomes(t, fmt.Sprintf("count("+alert+") or vector(0)", "RDMAPortDown"), is(0))
}

// vanish deletes a device while it is scraped, and adds it again.
func vanish(t *testing.T, p prometheus) {
	testenv.Needs(t, "links", "rxe", "siw")
	name := rig.Devices[1]
	verbs(t, "link", "delete", name)
	p.becomes(t, fmt.Sprintf("count(rdma_port_state{device=%q}) or vector(0)", name), is(0))
	p.becomes(t, fmt.Sprintf("rdma_port_state{device=%q}", rig.Devices[0]), is(4))
	gone := fmt.Sprintf(`rdma_watch_finding_level{code="device_gone",device=%q}`, name)
	p.becomes(t, gone, is(3))
	p.becomes(t, fmt.Sprintf(`rdma_events_total{device=%q,event="UNREGISTER"}`, name), is(1))
	verbs(t, "link", "add", name, "type", rig.Driver, "netdev", rig.Netdevs[1])
	p.becomes(t, fmt.Sprintf("rdma_port_state{device=%q}", name), is(4))
	p.becomes(t, fmt.Sprintf(`rdma_events_total{device=%q,event="REGISTER"}`, name), is(1))
	p.becomes(t, fmt.Sprintf("count(%s) or vector(0)", gone), is(0))
}

// TestPromtool: Prometheus' own checks of the metrics and of the alerts have no complaint.
func TestPromtool(t *testing.T) {
	testenv.Boot(t, bootEnv, step)
	holder(t, rig.Devices[0], 3)
	cmd := exec.CommandContext(t.Context(), "promtool", "check", "metrics")
	cmd.Stdin = strings.NewReader(string(verbs(t, "exporter", "--once")))
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "promtool", "check", "rules", "--lint=all", "--lint-fatal", "rules.yml").CombinedOutput(); err != nil {
		t.Errorf("promtool check rules: %v\n%s", err, out)
	}
}

// TestProbeAlerts: the latency of a probe that is a few times the usual one is an alert from 20 us on, and the
// latency of the slowest of 100 probes from 50 us on.
func TestProbeAlerts(t *testing.T) {
	testenv.Boot(t, bootEnv, step)
	rules, err := filepath.Abs("rules.yml")
	must(t, err)
	tests := fmt.Sprintf("rule_files: [%q]\ntests:\n", rules)
	for _, c := range []struct{ usual, later, latency, tail int }{ // in us, and whether there are alerts
		{3, 3, 0, 0}, {3, 12, 0, 0}, {3, 24, 1, 0}, {3, 100, 1, 1}, {100, 100, 0, 0}, {100, 200, 0, 0}, {100, 800, 1, 1},
	} {
		tests += "- interval: 30s\n  input_series:\n"
		for le := 1; le <= 2048; le *= 2 { // 5 probes in each 30 s, for 30 minutes and then for 10
			values := "0+5x80"
			switch {
			case le < c.usual && le < c.later:
				values = "0+0x80"
			case le < c.later:
				values = "0+5x60 300+0x19"
			}
			bound := fmt.Sprint(float64(le) * 1e-6)
			if le == 2048 {
				bound = "+Inf"
			}
			tests += fmt.Sprintf("  - {series: 'rdma_probe_latency_seconds_bucket{transport=\"RC\", instance=\"a\", address=\"b\", path=\"0\", le=\"%s\"}', values: '%s'}\n", bound, values)
		}
		tests += "  promql_expr_test:\n"
		for alert, want := range map[string]int{"RDMAProbeLatency": c.latency, "RDMAProbeTail": c.tail} {
			tests += fmt.Sprintf("  - {expr: 'count(ALERTS{alertname=\"%s\", alertstate=\"firing\"}) or vector(0)', eval_time: 40m, exp_samples: [{value: %d}]}\n", alert, want)
		}
	}
	file := filepath.Join(t.TempDir(), "tests.yml")
	must(t, os.WriteFile(file, []byte(tests), 0o600))
	if out, err := exec.CommandContext(t.Context(), "promtool", "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool test rules: %v\n%s\n%s", err, out, tests)
	}
}

// TestDocumented: the exporter serves exactly the metrics and labels of "verbs help metrics".
func TestDocumented(t *testing.T) {
	testenv.Boot(t, bootEnv, step)
	holder(t, rig.Devices[0], 3)
	reference, _, _ := strings.Cut(string(verbs(t, "help", "metrics")), "\n## Prometheus\n")
	documented := map[string][]string{}
	name := ""
	for _, m := range regexp.MustCompile(`(?m)^ {4}( {2})?([a-z][a-z_]*)( |$)`).FindAllStringSubmatch(reference, -1) {
		if m[1] == "" {
			name = m[2]
			documented[name] = nil
		} else {
			documented[name] = append(documented[name], m[2])
		}
	}
	_, address := serve(t, "--watch-interval", "1s")
	var text string
	has := func(what string) {
		for begun := time.Now(); !strings.Contains(text, what); text = scrape(t, address) {
			if time.Since(begun) > time.Minute {
				t.Fatalf("there is no %s", what)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	has("rdma_doctor_works 1")
	setLink(t, rig.Netdevs[1], netlink.LinkSetDown)
	t.Cleanup(func() { setLink(t, rig.Netdevs[1], netlink.LinkSetUp) })
	has("rdma_watch_finding_level")
	served := map[string]bool{}
	label := regexp.MustCompile(`[{,]([a-z_]+)="`)
	for _, m := range regexp.MustCompile(`(?m)^(rdma_[a-z_]+)(\{.*\})? `).FindAllStringSubmatch(text, -1) {
		served[m[1]] = true
		var labels []string
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, l[1])
		}
		if want, ok := documented[m[1]]; !ok || !slices.Equal(labels, want) {
			t.Errorf("%s has the labels %q, documented (%v): %q", m[1], labels, ok, want)
		}
	}
	absent := []string{"rdma_exporter_errors_total"} // without a failure
	if os.Getenv(testenv.MixedEnv) == "" {           // soft RoCE counts no bytes
		absent = append(absent, "rdma_port_received_bytes_total", "rdma_port_transmitted_bytes_total")
	}
	for name := range documented {
		if strings.HasPrefix(name, "rdma_probe_") { // with --probe only, see TestProbes
			continue
		}
		if served[name] == slices.Contains(absent, name) {
			t.Errorf("%s is served: %v %s", name, served[name], regexp.MustCompile("(?m)^"+name+".*").FindString(text))
		}
	}
}
