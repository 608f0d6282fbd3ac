package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/tools/metrics"
)

// metricLine is a line of METRICS.md with a metric or, further to the right, a label.
var metricLine = regexp.MustCompile(`^ {4}( {2})?([a-z][a-z_]*)( +(gauge|counter|histogram), \S.*| +\S.*)?$`)

// documentedMetrics returns what METRICS.md describes: a line for each metric, with its type and labels.
func documentedMetrics() (all []string) {
	reference, _, _ := strings.Cut(metricsHelp, "\n## Prometheus\n")
	for line := range strings.Lines(reference) {
		m := metricLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		switch {
		case m == nil:
		case m[1] == "":
			all = append(all, m[2]+" "+m[4]+":")
		default:
			all[len(all)-1] += " " + m[2]
		}
	}
	return all
}

// TestMetricsDocumented: METRICS.md describes the metrics with their types and labels, in their order.
func TestMetricsDocumented(t *testing.T) {
	var want []string
	for _, f := range metrics.Families() {
		want = append(want, strings.Join(append([]string{f.Name, string(f.Type) + ":"}, f.Labels...), " "))
	}
	if diff := cmp.Diff(documentedMetrics(), want); diff != "" {
		t.Errorf("metrics (-METRICS.md +package metrics):\n%s", diff)
	}
	for line := range strings.Lines(metricsHelp) {
		if n := len(strings.TrimRight(line, "\n")); n > 104 {
			t.Errorf("METRICS.md: %d columns: %s", n, line)
		}
	}
}

// TestMetricsExamples: the expressions of METRICS.md and of the alerts are about metrics that there are.
func TestMetricsExamples(t *testing.T) {
	_, examples, _ := strings.Cut(metricsHelp, "\n## Prometheus\n")
	rules, err := os.ReadFile("../metrics/rules.yml")
	testenv.Must(t, err)
	names := regexp.MustCompile(`\brdma_[a-z_]+`).FindAllString(examples+string(rules), -1)
	if len(names) < 6 {
		t.Errorf("there are %d names in the examples", len(names))
	}
	for _, name := range names {
		if !slices.ContainsFunc(metrics.Families(), func(f metrics.Family) bool { return f.Name == strings.TrimSuffix(name, "_bucket") }) {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// TestKubernetes: the manifest uses flags that there are.
func TestKubernetes(t *testing.T) {
	manifest, err := os.ReadFile("../metrics/kubernetes.yml")
	testenv.Must(t, err)
	help, err := run(t, "exporter", "--help")
	testenv.Must(t, err)
	flags := regexp.MustCompile(`--[a-z-]+[a-z]`).FindAllString(string(manifest), -1)
	if len(flags) < 3 {
		t.Errorf("the manifest has the flags %q", flags)
	}
	for _, f := range flags {
		if !strings.Contains(help, f+" ") {
			t.Errorf("there is no flag %s", f)
		}
	}
}

// TestExporterUsage: a wrong argument is named, with those that are right.
func TestExporterUsage(t *testing.T) {
	device := fmt.Sprintf("127.0.0.1:%d,name=left", freeUDP(t))
	const address = `allowed: HOST:PORT or :PORT with a port from 0 to 65535, such as 127.0.0.1:9879 or :9879`
	for args, want := range map[string]string{
		"--listen 9879":                      `--listen is "9879", ` + address,
		"--listen localhost:http":            `--listen is "localhost:http", ` + address,
		"--listen :65536":                    `--listen is ":65536", ` + address,
		"--listen http://x:1":                `--listen is "http://x:1", ` + address,
		"--doctor-interval -1s":              "--doctor-interval is -1s, allowed: 0 (no checks), 1s and more",
		"--doctor-interval 500ms":            "--doctor-interval is 500ms, allowed: 0 (no checks), 1s and more",
		"--doctor-interval often":            `--doctor-interval is "often", allowed: a time such as 10s or 200ms`,
		"--watch-interval 0 --watch-state x": `--watch-state is "x", allowed: only with a --watch-interval that is not 0`,
		"--watch-interval 1ms":               "--watch-interval is 1ms, allowed: 1s to 720h0m0s",
		"--once --watch-interval 5s":         "--watch-interval is 5s, allowed with --once: only with a --watch-state",
		"--once --listen :9879":              "--once prints the metrics and listens nowhere, so --listen is not allowed with it",
		"--probe two,a:0":                    `--probe is "a:0", allowed: HOST, HOST:PORT, [IPv6]:PORT or @FILE, with a port from 1 to 65535`,
		"--probe @/nowhere":                  "probe: peers: open /nowhere: no such file or directory",
		"--probe a --probe-rate 1001":        "--probe-rate is 1001, allowed: 1 to 1000",
		"--probe a --probe-rate 0":           "--probe-rate is 0, allowed: 1 to 1000",
		"--probe a --probe-paths 17":         "--probe-paths is 17, allowed: 1 to 16",
		"--probe a --probe-listen 9879":      `--probe-listen is "9879", allowed: IP:PORT or :PORT with a port from 1 to 65535, such as :9879`,
		"--probe a --probe-allow 10.0.0.0":   `--probe-allow is "10.0.0.0", allowed: networks such as 10.0.0.0/8`,
		"--probe-rate 5":                     "--probe-rate is 5, allowed: only with --probe",
		"--probe-listen :1 --probe-paths 1":  "--probe-paths is 1, allowed: only with --probe",
		"--probe-allow 10.0.0.0/8":           "--probe-allow is 10.0.0.0/8, allowed: only with --probe or --probe-listen, and not with none",
		"--once --probe a":                   "--probe is a, allowed: only without --once",
		"--events=maybe":                     `--events is "maybe", allowed: true, false`,
		"--once right":                       `the device is "right", allowed: left`,
		"--once left right":                  `the device is "right", allowed: left`,
	} {
		wants(t, device, args, 2, "verbs: "+want)
	}
	l := listen(t)
	wants(t, device, "--listen "+l.Addr().String(), 1, "verbs: exporter: another program listens on "+l.Addr().String()+", choose another address with --listen")
	wants(t, device, "--listen 192.0.2.1:0", 1, "verbs: exporter: --listen 192.0.2.1:0: ")
}

// wants checks the exit status of "verbs exporter" and what it says.
func wants(t *testing.T, device, args string, status int, text string) {
	t.Helper()
	out, err := softRun(t, device, append([]string{"exporter"}, strings.Fields(args)...)...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != status || !strings.Contains(out, text) {
		t.Errorf("verbs exporter %s: %v, want %d and %q:\n%s", args, err, status, text, out)
	}
}

// TestExporterOnce: the metrics of the named device, named twice, are printed once.
func TestExporterOnce(t *testing.T) {
	port := freeUDP(t)
	devices := fmt.Sprintf("127.0.0.1:%d,name=left 127.0.0.2:%d,name=right", port, port)
	out, err := softRun(t, devices, "exporter", "--once", "left", "left", "--doctor-interval", "0")
	if err != nil || strings.Count(out, "\nrdma_port_state{device=\"left\",port=\"1\"} 4\n") != 1 || !strings.Contains(out, `netdev="lo"`) || strings.Contains(out, "right") || strings.Contains(out, "rdma_doctor") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = softRun(t, devices, "exporter", "--once")
	if err != nil || !strings.Contains(out, "\nrdma_port_state{device=\"right\",port=\"1\"} 4\n") || !strings.Contains(out, "\nrdma_doctor_works 1\n") ||
		!strings.Contains(out, "\nrdma_doctor_finding_level{code=\"loopback\",device=\"right\",port=\"\"} 0\n") || strings.Contains(out, `code="cm"`) {
		t.Errorf("%v\n%s", err, out)
	}
}

// startExporter starts the exporter, and returns it with the URL of its metrics.
func startExporter(t *testing.T, device string, args ...string) (cmd *exec.Cmd, url string) {
	t.Helper()
	cmd = softCommand(t, device, append([]string{"exporter", "--listen", "127.0.0.1:0"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	first, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(first), "metrics are at ")
	if !ok {
		t.Fatalf("it prints %q, %v", first, err)
	}
	return cmd, url
}

// TestExporterProbe: an exporter probes another one, whose answers it times on each path, and both end when they are
// interrupted.
func TestExporterProbe(t *testing.T) {
	port := freeUDP(t)
	left, url := startExporter(t, fmt.Sprintf("127.0.0.1:%d,name=left", port), "--doctor-interval", "0", "--probe", "127.0.0.2,localhost", "--probe-rate", "20", "--probe-paths", "2", "--probe-listen", "none")
	right, _ := startExporter(t, fmt.Sprintf("127.0.0.2:%d,name=right", port), "--doctor-interval", "0", "--probe-listen", "127.0.0.2:9879", "--probe-allow", "127.0.0.0/24")
	var missing []string
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		r, err := http.Get(url)
		testenv.Must(t, err)
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		testenv.Must(t, err)
		missing = nil
		for _, path := range []string{"0", "1"} {
			for _, transport := range []string{"UD", "RC"} {
				labels := fmt.Sprintf(`{device="left",peer="127.0.0.2",address="127.0.0.2",path=%q,transport=%q`, path, transport)
				for _, want := range []string{`rdma_probe_up` + labels + `} 1`, `rdma_probe_latency_seconds_count` + labels + `} [1-9]`} {
					if !regexp.MustCompile("(?m)^" + strings.ReplaceAll(want, "{", `\{`)).Match(text) {
						missing = append(missing, want)
					}
				}
			}
		}
		if strings.Contains(string(text), `peer="localhost"`) {
			t.Fatal("it probes its own host")
		}
		if len(missing) == 0 {
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("there is no %q:\n%s", missing, text)
		}
	}
	for _, cmd := range []*exec.Cmd{left, right} {
		cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("interrupted: %v", err)
		}
	}
}

// TestExporterServe: the exporter is scraped by an HTTP client, and ends when it is interrupted.
func TestExporterServe(t *testing.T) {
	cmd, url := startExporter(t, fmt.Sprintf("127.0.0.1:%d,name=left", freeUDP(t)), "--doctor-interval", "1h")
	get := func(url string) (string, *http.Response) {
		t.Helper()
		r, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text), r
	}
	if text, r := get(strings.TrimSuffix(url, "metrics")); r.StatusCode != 200 || !strings.Contains(text, `href="/metrics"`) {
		t.Errorf("/: %s\n%s", r.Status, text)
	}
	var text string
	for begun := time.Now(); !strings.Contains(text, "\nrdma_doctor_works 1\n"); { // the findings come later
		var r *http.Response
		if text, r = get(url); r.StatusCode != 200 || r.Header.Get("Content-Type") != metrics.ContentType {
			t.Fatalf("%s: %s %q\n%s", url, r.Status, r.Header, text)
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("there are no findings:\n%s", text)
		}
		time.Sleep(10 * time.Millisecond)
	}
	for _, want := range []string{`rdma_port_state{device="left",port="1"} 4`, `rdma_events_total{device="left",port="1",event="PORT_ERR"} 0`, `rdma_exporter_collector_success{collector="links",device="left"} 1`} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("there is no %s:\n%s", want, text)
		}
	}
	cmd.Process.Signal(os.Interrupt)
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	if conn, err := net.Dial("tcp", strings.Split(url, "/")[2]); err == nil {
		conn.Close()
		t.Error("it still listens")
	}
}

// TestHelpMetrics: a topic of the help describes the metrics.
func TestHelpMetrics(t *testing.T) {
	out, err := run(t, "help", "metrics")
	if err != nil || out != metricsHelp {
		t.Errorf("verbs help metrics: %v\n%s", err, out)
	}
}
