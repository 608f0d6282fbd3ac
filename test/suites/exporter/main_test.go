package exporter

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// must fails a test on an error.
var must = testenv.Must

// bootEnv is 1 in the boots of the suite exporter.
const bootEnv = "GOVERBS_EXPORTER"

// holdEnv has this program hold objects of a device: its name and the number of QPs.
const holdEnv = "GOVERBS_HOLD"

func TestMain(m *testing.M) {
	if what := os.Getenv(holdEnv); what != "" {
		if err := hold(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": "", "siw": "", "mlx5": ""}))
}

// registered is the length of the MR that a holder has.
const registered = 1 << 20

// hold makes QPs and an MR, says so, and keeps them until its standard input ends.
func hold(what string) error {
	name, text, _ := strings.Cut(what, " ")
	n, err := strconv.Atoi(text)
	if err != nil {
		return err
	}
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	if err != nil {
		return err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	buf, err := uverbs.AllocBuffer(registered, uverbs.BufferOptions{})
	if err != nil {
		return err
	}
	if _, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}); err != nil {
		return err
	}
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 16})
	if err != nil {
		return err
	}
	for range n {
		if _, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// holder starts a process in a network namespace of its own that holds QPs, and returns its number.
func holder(tb testing.TB, device string, qps int) int {
	tb.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", holdEnv, device, qps))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(tb, err)
	out, err := cmd.StdoutPipe()
	must(tb, err)
	must(tb, cmd.Start())
	tb.Cleanup(func() { in.Close(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		tb.Fatalf("the process that holds QPs says %q, %v", line, err)
	}
	return cmd.Process.Pid
}

// verbs runs a command and returns what it prints.
func verbs(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), os.Getenv("VERBS"), args...).Output()
	if err != nil {
		t.Fatalf("verbs %q: %v\n%s", args, err, out)
	}
	return out
}

// verbsJSON runs a command with --json and reads what it prints.
func verbsJSON(t *testing.T, v any, args ...string) {
	t.Helper()
	out := verbs(t, append(args, "--json")...)
	if err := json.Unmarshal(out, v); err != nil {
		t.Fatalf("verbs %q: %v\n%s", args, err, out)
	}
}

// serve starts the exporter and returns it, with its address.
func serve(tb testing.TB, args ...string) (cmd *exec.Cmd, address string) {
	tb.Helper()
	return serveOn(tb, "127.0.0.1:0", args...)
}

// serveOn starts the exporter on an address.
func serveOn(tb testing.TB, listen string, args ...string) (cmd *exec.Cmd, address string) {
	tb.Helper()
	cmd = exec.Command(os.Getenv("VERBS"), append([]string{"exporter", "--listen", listen}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(tb, err)
	must(tb, cmd.Start())
	tb.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			tb.Errorf("the exporter ends with %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	address, ok := strings.CutPrefix(line, "metrics are at http://")
	address, ok2 := strings.CutSuffix(address, "/metrics\n")
	if !ok || !ok2 {
		tb.Fatalf("the exporter says %q, %v", line, err)
	}
	return cmd, address
}

// scrape returns the metrics.
func scrape(tb testing.TB, address string) string {
	tb.Helper()
	r, err := http.Get("http://" + address + "/metrics")
	must(tb, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 200 {
		tb.Fatalf("%s, %v\n%s", r.Status, err, text)
	}
	return string(text)
}

// prometheus is a server that scrapes exporters, each second if there is one.
type prometheus struct{ url string }

// launch starts it.
func launch(t *testing.T, exporters ...string) prometheus {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	rules, err := filepath.Abs("rules.yml")
	must(t, err)
	text := fmt.Sprintf("global: {evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n  - job_name: rdma\n    scrape_interval: 1s\n    scrape_timeout: 1s\n    static_configs:\n      - targets: [%s]\n", rules, strings.Join(exporters, ", "))
	if testenv.Slow() || len(exporters) > 1 {
		text = strings.ReplaceAll(text, ": 1s", ": 4s")
	}
	must(t, os.WriteFile(config, []byte(text), 0o644))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	address := l.Addr().String()
	l.Close()
	p := program.Launch(t, "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	p.KeepRunning()
	s := prometheus{"http://" + address}
	p.Until(t, "it is ready", func() bool {
		r, err := http.Get(s.url + "/-/ready")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == 200
	})
	return s
}

// series is a time series of a query's result, with its value.
type series struct {
	labels map[string]string
	value  float64
}

// query asks for the value of an expression now.
func (p prometheus) query(t *testing.T, expr string) (all []series) {
	t.Helper()
	r, err := http.Get(p.url + "/api/v1/query?query=" + url.QueryEscape(expr))
	must(t, err)
	defer r.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || answer.Status != "success" {
		t.Fatalf("%s: %v, %s", expr, err, answer.Error)
	}
	for _, s := range answer.Data.Result {
		v, err := strconv.ParseFloat(s.Value[1].(string), 64)
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		all = append(all, series{s.Metric, v})
	}
	return all
}

// one returns the value of an expression that has one series.
func (p prometheus) one(t *testing.T, expr string) (v float64, ok bool) {
	t.Helper()
	if all := p.query(t, expr); len(all) == 1 {
		return all[0].value, true
	}
	return 0, false
}

// becomes waits until an expression has one series with a value that is right.
func (p prometheus) becomes(t *testing.T, expr string, right func(float64) bool) {
	t.Helper()
	p.patiently(t, expr, right, program.Patience)
}

// patiently is becomes with another patience.
func (p prometheus) patiently(t *testing.T, expr string, right func(float64) bool, patience time.Duration) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(300 * time.Millisecond) {
		v, ok := p.one(t, expr)
		if ok && right(v) {
			return
		}
		if time.Since(begun) > patience {
			t.Errorf("%s is %v (%v): %+v", expr, v, ok, p.query(t, expr))
			return
		}
	}
}

// is returns a function that compares.
func is(want float64) func(float64) bool { return func(v float64) bool { return v == want } }
