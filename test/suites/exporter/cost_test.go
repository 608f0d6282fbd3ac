package exporter

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// interval is the time between scrapes for which the cost is given.
const interval = 5 * time.Second

// cpu returns the time for which the threads of a process have run.
func cpu(b testing.TB, pid int) time.Duration {
	b.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		b.Fatalf("the process has no threads: %v", err)
	}
	var sum, ns int64
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // it has ended
		}
		if _, err := fmt.Sscan(string(text), &ns); err != nil {
			b.Fatal(err)
		}
		sum += ns
	}
	return time.Duration(sum)
}

// BenchmarkExporter measures what the exporter costs on a host where one process has 1,000 QPs: the time of a
// processor for a scrape, and the part of one core at a scrape each 5 s, with the second in which it looks for new
// devices and the checks of the doctor each minute. With "vmrun -icount" an instruction is a nanosecond.
func BenchmarkExporter(b *testing.B) {
	testenv.Boot(b, bootEnv, "exporter/cost")
	const many = 1000
	holder(b, rig.Devices[0], many)
	cmd, address := serve(b, "--doctor-interval", "0")
	pid := cmd.Process.Pid
	text := scrape(b, address)
	if want := fmt.Sprintf(`rdma_device_qps{device=%q,transport="RC",state="RESET"} %d`, rig.Devices[0], many); !strings.Contains(text, want) {
		b.Fatalf("there is no %s:\n%s", want, text)
	}
	time.Sleep(time.Second)
	begun, before := time.Now(), cpu(b, pid)
	time.Sleep(2 * interval)
	idle := float64(cpu(b, pid)-before) / float64(time.Since(begun))
	before = cpu(b, pid)
	begun = time.Now()
	for b.Loop() {
		scrape(b, address)
	}
	busy := float64(cpu(b, pid)-before) - idle*float64(time.Since(begun))
	each := busy / float64(b.N)
	checks := doctor(b)
	percent := 100*(each/float64(interval)+idle) + checks
	b.ReportMetric(checks, "%-doctor")
	b.ReportMetric(each/1e6, "ms-cpu/scrape")
	b.ReportMetric(100*idle, "%-idle")
	b.ReportMetric(percent, "%-of-a-core")
	testenv.Limit(b, "GOVERBS_EXPORTER_MOST", percent, 1)
}

// BenchmarkTop measures what "verbs top" costs on such a host at one refresh a second. With "vmrun -icount" an
// instruction is a nanosecond.
func BenchmarkTop(b *testing.B) {
	testenv.Boot(b, bootEnv, "exporter/cost")
	holder(b, rig.Devices[0], 1000)
	cmd := exec.Command(os.Getenv("VERBS"), "top", "--interval", "1s")
	out, err := cmd.StdoutPipe()
	must(b, err)
	must(b, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Signal(os.Interrupt)
	lines := bufio.NewScanner(out)
	screen := func() { // waits for the next one
		for lines.Scan() && !strings.HasPrefix(lines.Text(), "verbs top ") {
		}
		if !strings.Contains(lines.Text(), " 1002 QPs") { // with those of the kernel
			b.Fatalf("verbs top prints %q (%v), want 1000 QPs", lines.Text(), lines.Err())
		}
	}
	screen()
	before, begun := cpu(b, cmd.Process.Pid), time.Now()
	for b.Loop() {
		screen()
	}
	used := float64(cpu(b, cmd.Process.Pid) - before)
	b.ReportMetric(used/1e6/float64(b.N), "ms-cpu/refresh")
	percent := 100 * used / float64(time.Since(begun))
	b.ReportMetric(percent, "%-of-a-core")
	testenv.Limit(b, "GOVERBS_TOP_MOST", percent, 1)
}

// BenchmarkStart measures the time from the start of verbs to its first output, in milliseconds. With "vmrun -icount" an
// instruction, also of the kernel, is a nanosecond.
func BenchmarkStart(b *testing.B) {
	testenv.Boot(b, bootEnv, "exporter/cost")
	for _, command := range []string{"devices", "status", "res"} {
		b.Run(command, func(b *testing.B) {
			var sum time.Duration
			for b.Loop() {
				cmd := exec.Command(os.Getenv("VERBS"), command)
				out, err := cmd.StdoutPipe()
				if err != nil {
					b.Fatal(err)
				}
				begun := time.Now()
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
					b.Fatal(err)
				}
				sum += time.Since(begun)
				io.Copy(io.Discard, out)
				if err := cmd.Wait(); err != nil {
					b.Fatal(err)
				}
			}
			ms := float64(sum.Microseconds()) / 1e3 / float64(b.N)
			b.ReportMetric(ms, "ms-to-output")
			testenv.Limit(b, "GOVERBS_START_MOST", ms, 1)
		})
	}
}

// doctor returns the part of one core, in percent, that the checks of the doctor take each minute.
func doctor(b *testing.B) float64 {
	b.Helper()
	cmd, address := serve(b, "--doctor-interval", "1h", "--events=false")
	scrapes := 0
	for text := ""; !strings.Contains(text, "rdma_doctor_works"); scrapes++ {
		time.Sleep(time.Second)
		text = scrape(b, address)
	}
	all := cpu(b, cmd.Process.Pid)
	scrape(b, address)
	scrape(b, address)
	each := (cpu(b, cmd.Process.Pid) - all) / 2
	return 100 * float64(all-time.Duration(scrapes)*each) / float64(time.Minute)
}
