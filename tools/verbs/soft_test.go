package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/health"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/tools/verbs/internal/pingpong"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// commandEnv makes the test binary the command: GOVERBS_SOFT is read once in a process.
const commandEnv = "GOVERBS_TEST_VERBS"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) == "" {
		os.Exit(m.Run())
	}
	main()
}

// softCommand returns the command with software devices.
func softCommand(t *testing.T, devices string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), commandEnv+"=1", "GOVERBS_SOFT="+devices)
	return cmd
}

// softRun runs the command with software devices, and returns what it prints.
func softRun(t *testing.T, devices string, args ...string) (string, error) {
	t.Helper()
	out, err := softCommand(t, devices, args...).CombinedOutput()
	return string(out), err
}

// kernelHasDevices reports whether the kernel has devices, which some commands show beside ours.
func kernelHasDevices() bool {
	devs, err := netlinkrdma.Devices()
	return err == nil && len(devs) > 0
}

// freeUDP returns a UDP port that nobody uses on any address.
func freeUDP(t *testing.T) int {
	t.Helper()
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port
}

// TestSoftDevices: a software device is listed as what it is, with and without JSON.
func TestSoftDevices(t *testing.T) {
	out, err := softRun(t, "local,name=left 192.0.2.7", "devices")
	words := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"left ", " rxe, in software roce 1 yes",
		`192.0.2.7 - rxe, in software roce 0 no: environment variable GOVERBS_SOFT: device "192.0.2.7"`,
	} {
		if err != nil || !strings.Contains(words, want) {
			t.Errorf("there is no %q: %v\n%s", want, err, out)
		}
	}
	out, err = softRun(t, "local,name=left", "devices", "--json")
	if err != nil || !strings.Contains(out, `"in_process": true`) || strings.Contains(out, "char_dev") {
		t.Errorf("JSON: %v\n%s", err, out)
	}
}

// TestSoftInfo: info has the attributes of a software device.
func TestSoftInfo(t *testing.T) {
	out, err := softRun(t, "local,name=left,mtu=1024,qps=77", "info", "left")
	words := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{"device: left driver: rxe, in software", "max_qp: 77", "active_mtu: 1024 (3)", "127.0.0.1, RoCE v2"} {
		if err != nil || !strings.Contains(words, want) {
			t.Errorf("there is no %q: %v\n%s", want, err, out)
		}
	}
}

// TestInfoPort: with DEV/PORT, info shows that port only, and refuses one that the device does not have.
func TestInfoPort(t *testing.T) {
	for _, c := range []struct {
		only, count int
		want        []int
	}{{0, 3, []int{1, 2, 3}}, {1, 3, []int{1}}, {2, 3, []int{2}}, {3, 3, []int{3}}, {0, 1, []int{1}}, {0, 0, nil}} {
		if got, err := portsShown(c.only, c.count); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("port %d of %d: %v, %v, want %v", c.only, c.count, got, err, c.want)
		}
	}
	out, err := softRun(t, "local,name=left local,name=right", "info", "--json", "right/1")
	var rows []struct {
		Device string
		Ports  []struct{ Port int }
	}
	if err := errors.Join(err, json.Unmarshal([]byte(out), &rows)); err != nil || len(rows) != 1 || rows[0].Device != "right" || len(rows[0].Ports) != 1 || rows[0].Ports[0].Port != 1 {
		t.Errorf("verbs info right/1: %v, %+v\n%s", err, rows, out)
	}
	cmd := softCommand(t, "local,name=left", "info", "left/2")
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "the port is 2, allowed: 1 to 1") {
		t.Errorf("verbs info left/2: %v\n%s", cmd.ProcessState, out)
	}
}

// TestSoftKernelOnly: the commands that ask the kernel say that the device is not there.
func TestSoftKernelOnly(t *testing.T) {
	out, err := softRun(t, "local,name=left", "res", "left")
	if err == nil || !strings.Contains(out, "left is a software device inside this process") || strings.Contains(out, "modprobe") {
		t.Errorf("verbs res left: %v\n%s", err, out)
	}
}

// TestSoftStat: stat lists the counters of a software device, with and without its name.
func TestSoftStat(t *testing.T) {
	for _, args := range []string{"stat --json left", "stat --json"} {
		out, err := softRun(t, fmt.Sprintf("auto:%d,name=left local,name=right", freeUDP(t)), strings.Fields(args)...)
		var reports []statReport
		if err := errors.Join(err, json.Unmarshal([]byte(out), &reports)); err != nil {
			t.Fatalf("verbs %s: %v\n%s", args, err, out)
		}
		named := map[string]bool{}
		for _, r := range reports {
			named[r.Device] = true
			if r.Device != "left" {
				continue
			}
			for _, name := range []string{"sent_pkts", "rx_unknown_qp", "udp_rx_bad_icrc"} {
				if r.Port != 1 || !slices.ContainsFunc(r.Counters, func(c counterRow) bool { return c.Name == name }) {
					t.Errorf("verbs %s: no %s of port 1: %+v", args, name, r)
				}
			}
		}
		if !named["left"] || named["right"] != !strings.Contains(args, "left") {
			t.Errorf("verbs %s shows the devices %v", args, named)
		}
	}
	if out, err := softRun(t, "local,name=left", "stat", "nobody"); err == nil {
		t.Errorf("stat of a device that is not there:\n%s", out)
	}
}

// TestSoftFailed: no command says that there is no device, or another reason, when that of the environment cannot be made.
func TestSoftFailed(t *testing.T) {
	const reason = `environment variable GOVERBS_SOFT: device "nosuch0"`
	all := []string{"devices", "doctor", "info nosuch0", "status nosuch0", "res nosuch0", "stat nosuch0"}
	if !kernelHasDevices() { // which a command without the name of a device would show, or open
		all = append(all, "info", "status", "res", "stat", "pingpong", "rping -s")
	}
	for _, args := range all {
		if out, _ := softRun(t, "nosuch0", strings.Fields(args)...); !strings.Contains(out, reason) {
			t.Errorf("verbs %s:\n%s", args, out)
		}
	}
}

// TestSoftNoDevice: only without any device the hints say how to get one.
func TestSoftNoDevice(t *testing.T) {
	none := !kernelHasDevices()
	for _, args := range []string{"devices", "info", "doctor"} {
		if out, _ := softRun(t, "", strings.Fields(args)...); strings.Contains(out, "GOVERBS_SOFT=auto") != none {
			t.Errorf("verbs %s, no device of the kernel: %t; the hint is there or not:\n%s", args, none, out)
		}
	}
}

// TestSoftDoctor: the doctor is content with a software device, and says nothing about the kernel's
// modules.
func TestSoftDoctor(t *testing.T) {
	device := fmt.Sprintf("auto:%d,name=left", freeUDP(t))
	out, err := softCommand(t, device, "doctor", "--json", "left").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var d health.Report
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	if !d.Works || !strings.HasPrefix(d.Verdict, "RDMA works: a ping-pong went through on left") {
		t.Errorf("works is %t: %s", d.Works, d.Verdict)
	}
	ids := map[health.Code]health.Level{}
	for _, f := range d.Findings {
		ids[f.Code] = f.Level
		if strings.HasPrefix(string(f.Code), "module") || f.Code == "rdma_cm" || f.Code == "memlock" || f.Code == "chardev" {
			t.Errorf("a finding about the kernel: %+v", f)
		}
	}
	for id, want := range map[health.Code]health.Level{
		"device": health.LevelOK, "address": health.LevelInfo, "register": health.LevelOK, "port": health.LevelOK, "mtu": health.LevelOK, "gid": health.LevelOK, "loopback": health.LevelOK, "cm": health.LevelOK, "firewall": health.LevelOK,
	} {
		if ids[id] != want {
			t.Errorf("finding %s is %q, want %s\n%s", id, ids[id], want, out)
		}
	}
	text, err := softRun(t, "192.0.2.7", "doctor", "192.0.2.7")
	if err == nil || !strings.Contains(text, "GOVERBS_SOFT=auto chooses an address that is free") || !strings.Contains(text, "must be an address of this host") || strings.Contains(text, "modprobe") {
		t.Errorf("a device that cannot be made: %v\n%s", err, text)
	}
}

// TestSoftPingpong: two processes exchange messages over their devices, with each type of ping-pong that
// the devices support.
func TestSoftPingpong(t *testing.T) {
	for _, typ := range pingpong.Types {
		if typ == pingpong.TypeXRC || typ == perf.SRD {
			continue
		}
		t.Run(typ, func(t *testing.T) {
			device := fmt.Sprintf("auto:%d", freeUDP(t))
			port := fmt.Sprint(freeTCP(t))
			size := 10000
			if typ == perf.UD {
				size = 1000
			}
			args := []string{"pingpong", "--type", typ, "--events", "--iterations", "20", "--size", fmt.Sprint(size), "--port", port, "--json"}
			server := softCommand(t, device, append(args, "--verify")...)
			var out bytes.Buffer
			server.Stdout, server.Stderr = &out, &out
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			text, err := retry(t, func() (string, error) { return softRun(t, device, append(args, "127.0.0.1")...) })
			if serr := server.Wait(); err != nil || serr != nil {
				t.Fatalf("client: %v\n%s\nserver: %v\n%s", err, text, serr, out.String())
			}
			var r pingpong.Result
			qps := map[bool]int{false: 1, true: 16}[typ == pingpong.TypeSRQ]
			if err := json.Unmarshal([]byte(text), &r); err != nil || r.Iterations != 20 || r.QPs != qps || r.Bytes != int64(2*20*size) || r.Local.GID == r.Remote.GID {
				t.Errorf("the result is %+v, %v", r, err)
			}
		})
	}
}

// TestSoftPingpongAddress: a server without --dev uses the device that has the address at which the client
// has found it, and a client of another address the first one.
func TestSoftPingpongAddress(t *testing.T) {
	udp := freeUDP(t)
	for at, want := range map[string]string{"127.76.1.1": "127.76.1.1", "127.76.1.2": "127.76.1.2", "127.76.1.3": "127.76.1.1"} {
		args := []string{"pingpong", "--events", "--iterations", "20", "--port", fmt.Sprint(freeTCP(t)), "--json"}
		server := softCommand(t, fmt.Sprintf("127.76.1.1:%d 127.76.1.2:%d", udp, udp), args...)
		var out bytes.Buffer
		server.Stdout, server.Stderr = &out, &out
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		text, err := retry(t, func() (string, error) { return softRun(t, fmt.Sprintf("127.76.2.1:%d", udp), append(args, at)...) })
		if serr := server.Wait(); err != nil || serr != nil {
			t.Fatalf("client: %v\n%s\nserver: %v\n%s", err, text, serr, out.String())
		}
		var r pingpong.Result
		if err := json.Unmarshal([]byte(text), &r); err != nil || gidAddr(t, r.Remote.GID) != want || gidAddr(t, r.Local.GID) != "127.76.2.1" {
			t.Errorf("to %s, want device of %s: %v\n%s", at, want, err, text)
		}
	}
}

// gidAddr returns the IP address of a GID.
func gidAddr(t *testing.T, text string) string {
	t.Helper()
	gid, err := ib.ParseGID(text)
	if err != nil {
		t.Fatal(err)
	}
	return gid.Addr().String()
}

// TestSoftManyProcesses: eight servers at once have devices of their own on one port, and eight clients at once
// reach them.
func TestSoftManyProcesses(t *testing.T) {
	device := fmt.Sprintf("auto:%d", freeUDP(t))
	var ports [8]string
	for i := range ports {
		ports[i] = fmt.Sprint(freeTCP(t))
	}
	line := func(port string) []string {
		return []string{"pingpong", "--events", "--verify", "--iterations", "20", "--size", "10000", "--port", port, "--json"}
	}
	var group sync.WaitGroup
	for _, port := range ports {
		group.Go(func() {
			if out, err := softRun(t, device, line(port)...); err != nil {
				t.Errorf("server: %v\n%s", err, out)
			}
		})
	}
	for _, port := range ports { // a server that listens has its device, and a stranger does not end it
		c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
		for errors.Is(err, syscall.ECONNREFUSED) && t.Context().Err() == nil {
			c, err = net.Dial("tcp", net.JoinHostPort("127.0.0.1", port))
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	var servers sync.Map // by GID
	for _, port := range ports {
		group.Go(func() {
			out, err := softRun(t, device, append(line(port), "127.0.0.1")...)
			var r pingpong.Result
			if err := errors.Join(err, json.Unmarshal([]byte(out), &r)); err != nil || r.Iterations != 20 {
				t.Errorf("client: %v\n%s", err, out)
			}
			if _, twice := servers.Swap(r.Remote.GID, true); twice {
				t.Errorf("two servers have GID %s", r.Remote.GID)
			}
		})
	}
	group.Wait()
}

// TestSoftPingpongXRC: without XRC the error names the device and what it does not support.
func TestSoftPingpongXRC(t *testing.T) {
	out, err := softRun(t, fmt.Sprintf("auto:%d", freeUDP(t)), "pingpong", "--type", "xrc")
	if want := "OPEN_XRCD not supported by driver rxe: soft0"; err == nil || !strings.Contains(out, want) {
		t.Errorf("%v, want %q\n%s", err, want, out)
	}
}

// TestSoftPingpongCaps: memory and time stamps that the device does not have are refused before anything is sent:
// no server listens. The error names the device and what it does not support.
func TestSoftPingpongCaps(t *testing.T) {
	for flags, what := range map[string]string{
		"--dm": "memory of the device (--dm)", "--ts": "time stamps of completions (--ts)",
		"--odp --type uc": "on-demand paging (--odp, --iodp) with --type uc", "--iodp": "implicit on-demand paging (--iodp)",
	} {
		args := append([]string{"pingpong", "--port", fmt.Sprint(freeTCP(t)), "127.0.0.1"}, strings.Fields(flags)...)
		out, err := softRun(t, fmt.Sprintf("auto:%d", freeUDP(t)), args...)
		if want := what + " not supported by driver rxe: soft0"; err == nil || !strings.Contains(out, want) {
			t.Errorf("%v, want %q\n%s", err, want, out)
		}
	}
}

// TestSoftPingpongSizes: sides with different numbers of queue pairs notice it.
func TestSoftPingpongSizes(t *testing.T) {
	device, port := fmt.Sprintf("auto:%d", freeUDP(t)), fmt.Sprint(freeTCP(t))
	args := []string{"pingpong", "--type", "srq", "--port", port, "--num-qp"}
	server := softCommand(t, device, append(args, "3")...)
	var log bytes.Buffer
	server.Stderr = &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	out, err := retry(t, func() (string, error) { return softRun(t, device, append(args, "2", "127.0.0.1")...) })
	if err == nil {
		t.Errorf("two and three queue pairs are played with:\n%s", out)
	}
	server.Process.Kill()
	server.Wait()
	if want := "the peer has 2 queue pairs, expected 3: give both sides the same --num-qp"; !strings.Contains(log.String(), want) {
		t.Errorf("the server does not say %q:\n%s", want, log.String())
	}
}

// TestSoftPingpongDatagram: a message of a UD queue pair is one packet.
func TestSoftPingpongDatagram(t *testing.T) {
	out, err := softRun(t, fmt.Sprintf("auto:%d,mtu=1024", freeUDP(t)), "pingpong", "--type", "ud", "--size", "1025")
	if want := "--size is 1025, allowed: 1 to 1024, the MTU of soft0"; err == nil || !strings.Contains(out, want) {
		t.Errorf("%v, want %q\n%s", err, want, out)
	}
}

// TestSoftStrangers: servers that end with their client go on waiting after a stranger that says something else,
// one that hangs up, and one that says nothing.
func TestSoftStrangers(t *testing.T) {
	for _, command := range []string{"pingpong --events --iterations 20 --size 100", "perf send-lat --perftest --events --iterations 20 --size 100"} {
		t.Run(strings.Fields(command)[0], func(t *testing.T) {
			device := fmt.Sprintf("auto:%d", freeUDP(t))
			port := fmt.Sprint(freeTCP(t))
			args := append(strings.Fields(command), "--port", port)
			server := softCommand(t, device, args...)
			var out bytes.Buffer
			server.Stdout, server.Stderr = &out, &out
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			address := net.JoinHostPort("127.0.0.1", port)
			silent, err := net.Dial("tcp", address)
			for errors.Is(err, syscall.ECONNREFUSED) { // the server does not listen yet
				silent, err = net.Dial("tcp", address)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
			for _, says := range []string{"", "GET / HTTP/1.1\r\nHost: a-host-with-a-name-of-some-length\r\n\r\n"} {
				c, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				io.WriteString(c, says)
				c.(*net.TCPConn).CloseWrite()
				if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Error(err)
				}
				c.Close()
			}
			text, err := softRun(t, device, append(args, "127.0.0.1")...)
			if serr := server.Wait(); err != nil || serr != nil {
				t.Errorf("client: %v\n%s\nserver: %v", err, text, serr)
			}
			if n := strings.Count(out.String(), " is not the client: "); n != 2 || !strings.Contains(out.String(), `"GET / HTTP/1.1`) {
				t.Errorf("the server has reported %d strangers:\n%s", n, out.String())
			}
		})
	}
}

// TestSoftPerf: all tests of perf go through between two processes.
func TestSoftPerf(t *testing.T) {
	device, port := softServe(t)
	for _, test := range []string{"send-lat", "send-bw", "write-lat", "write-bw", "read-lat", "read-bw", "atomic-lat", "atomic-bw"} {
		args := []string{"perf", test, "--verify", "--iterations", "20", "--port", port, "127.0.0.1"}
		if test != "write-lat" { // which polls memory
			args = append(args, "--events")
		}
		text, err := retry(t, func() (string, error) { return softRun(t, device, args...) })
		if err != nil {
			t.Errorf("%s: %v\n%s", test, err, text)
		}
	}
}

// softServe starts a server of perf in another process, and returns its devices and port.
func softServe(t *testing.T, more ...string) (device, port string) {
	t.Helper()
	device = fmt.Sprintf("auto:%d", freeUDP(t))
	return device, softServeOn(t, device, more...)
}

// softServeOn starts one with these devices, which must end well when the test does.
func softServeOn(t *testing.T, device string, more ...string) (port string) {
	t.Helper()
	port = fmt.Sprint(freeTCP(t))
	server := softCommand(t, device, append([]string{"perf", "serve", "--port", port}, more...)...)
	server.Cancel, server.WaitDelay = func() error { return server.Process.Signal(syscall.SIGTERM) }, 30*time.Second
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the context of the test has ended the server
		if err := server.Wait(); !server.ProcessState.Success() {
			t.Errorf("server: %v", err)
		}
		if t.Failed() {
			t.Logf("server:\n%s", out.String())
		}
	})
	return port
}

// TestSoftPerfNumbers: no message of 2 MiB takes less time than its bytes can, though the processors are busy, and
// the server's process is seen to work in tests in which only its device has something to do.
func TestSoftPerfNumbers(t *testing.T) {
	device, port := softServe(t)
	busy, end := context.WithCancel(t.Context())
	defer end()
	for range 2 {
		go func() {
			for busy.Err() == nil {
			}
		}()
	}
	const size, fastest = 2 << 20, 20e9 // bytes per second, of memory that is copied several times
	for _, test := range []string{"read-lat", "send-lat", "write-bw"} {
		args := []string{"perf", test, "--size", fmt.Sprint(size), "--iterations", "50", "--json", "--port", port, "127.0.0.1"}
		text, err := retry(t, func() (string, error) { return softRun(t, device, args...) })
		var r perf.Report
		if err := errors.Join(err, json.Unmarshal([]byte(text), &r)); err != nil {
			t.Fatalf("%s: %v\n%s", test, err, text)
		}
		s := r.Results[0]
		if least := 1e6 * size / fastest; s.Latency != nil && s.Latency.Min < least {
			t.Errorf("%s: the fastest message has taken %.1f µs, less than %.1f", test, s.Latency.Min, least)
		}
		if s.ServerCPU <= 0 {
			t.Errorf("%s: the server has used no processor", test)
		}
	}
}

// TestSoftPerfInterrupted: the sizes that are finished are printed and drawn when a test is interrupted, and the
// document is whole.
func TestSoftPerfInterrupted(t *testing.T) {
	device, port := softServe(t)
	picture := filepath.Join(t.TempDir(), "picture.svg")
	for patience := time.Second; ; patience *= 2 { // until a size is finished by then
		client := softCommand(t, device, "perf", "write-bw", "--all", "--duration", "1s", "--json", "--plot", picture, "--port", port, "127.0.0.1")
		var out, log bytes.Buffer
		client.Stdout, client.Stderr = &out, &log
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(patience, func() { client.Process.Signal(os.Interrupt) })
		err := client.Wait()
		if err == nil {
			t.Fatal("the test was not interrupted")
		}
		if out.Len() == 0 && patience < 16*time.Second {
			continue
		}
		var r perf.Report
		if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Results) == 0 || r.Results[0].Size != 2 || r.Results[0].Bandwidth == nil {
			t.Errorf("%v, the report is %q\n%s", err, out.String(), log.String())
		}
		if b, err := os.ReadFile(picture); err != nil || !bytes.HasPrefix(b, []byte("<svg")) {
			t.Errorf("the picture is %.100q: %v", b, err)
		}
		return
	}
}

// TestSoftPerfPlot: results with a time line are drawn again, with what they differ by; what cannot be drawn leaves
// the file as it is.
func TestSoftPerfPlot(t *testing.T) {
	device, port := softServe(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"a.json", "b.json"} {
		args := []string{"perf", "write-bw", "-e", "--duration", "300ms", "--timeline", "50ms", "--json", "--plot", file("run.svg"), "--port", port, "127.0.0.1"}
		text, err := retry(t, func() (string, error) { return softRun(t, device, args...) })
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		out := []byte(text)
		var r perf.Report
		if err := json.Unmarshal(out, &r); err != nil || r.Time.IsZero() || len(r.Results[0].Timeline) == 0 {
			t.Fatalf("%v: %s", err, out)
		}
		total := int64(0)
		for _, s := range r.Results[0].Timeline {
			if total += s.Messages; s.Down {
				t.Errorf("the port was down: %+v", s)
			}
		}
		if total < r.Results[0].Iterations {
			t.Errorf("the time line has %d messages, want at least %d", total, r.Results[0].Iterations)
		}
		if err := os.WriteFile(file(name), out, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for picture, c := range map[string]struct {
		args []string
		want string // in the picture, or of the error
	}{
		"run.svg":   {nil, ">seconds since the traffic began<"},
		"time.svg":  {[]string{file("a.json"), file("b.json")}, " on average (b.json)<"},
		"sizes.svg": {[]string{"--kind", "sizes", file("a.json"), file("b.json")}, ">% more than the first report<"},
		"none.svg":  {[]string{"--kind", "latency", file("a.json")}, "--kind is latency, allowed: sizes, time; write-bw measures bandwidth"},
		"gone.svg":  {[]string{file("nosuch.json")}, "nosuch.json: no such file"},
	} {
		if c.args != nil {
			_, err := run(t, append([]string{"perf", "plot", "-o", file(picture)}, c.args...)...)
			if err != nil {
				if _, serr := os.Stat(file(picture)); !strings.Contains(err.Error(), c.want) || serr == nil {
					t.Errorf("%s: %v, want %q; the file: %v", picture, err, c.want, serr)
				}
				continue
			}
		}
		if b, err := os.ReadFile(file(picture)); err != nil || !strings.Contains(string(b), c.want) {
			t.Errorf("%s: %v, want %q in %s", picture, err, c.want, b)
		}
	}
}

// TestSoftPerfDC: a device without DC or XRC is reported before the peer is told of the test.
func TestSoftPerfDC(t *testing.T) {
	device := fmt.Sprintf("auto:%d", freeUDP(t))
	for _, more := range [][]string{nil, {"--perftest"}} {
		typ, want := "dc", "--type dc: soft0: uverbs: QP type DCI not supported by driver"
		if more != nil {
			typ, want = "xrc", "--type xrc: soft0: uverbs: OPEN_XRCD not supported by driver"
		}
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		heard := make(chan string, 1)
		go func() { // a server that greets the client of its kind, and says nothing else
			c, err := l.Accept()
			if err != nil {
				heard <- err.Error()
				return
			}
			defer c.Close()
			if more == nil {
				var greeting [256]byte // both sides have the same
				n, _ := c.Read(greeting[:])
				c.Write(greeting[:n])
			}
			b, _ := io.ReadAll(c)
			heard <- string(b)
		}()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		text, err := softRun(t, device, append(append([]string{"perf", "send-lat", "-t", typ, "--port", port}, more...), "127.0.0.1")...)
		if err == nil || !strings.Contains(text, want) {
			t.Errorf("%v: %v\n%s", more, err, text)
		}
		// The server of this program hears that the client has ended.
		got := <-heard
		if n := strings.Count(got, `"kind":`); more == nil && (n != 1 || !strings.Contains(got, `"kind":"error"`)) || more != nil && got != "" {
			t.Errorf("%v: the peer has heard %q", more, got)
		}
	}
}

// TestSoftRping: rping goes through between two processes, and says why there is no device.
func TestSoftRping(t *testing.T) {
	udp, port := freeUDP(t), fmt.Sprint(freeTCP(t))
	at := fmt.Sprintf("127.0.0.2:%d", udp)
	server := softCommand(t, at, "rping", "-s", "-a", "127.0.0.2", "-p", port, "-C", "5")
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	text, err := retry(t, func() (string, error) {
		return softRun(t, fmt.Sprintf("127.0.0.3:%d", udp), "rping", "-c", "-a", "127.0.0.2", "-p", port, "-C", "5", "-V")
	})
	if err != nil {
		server.Process.Kill()
	}
	if serr := server.Wait(); err != nil || serr != nil || !strings.Contains(text, "5 pings") {
		t.Errorf("client: %v\n%s\nserver: %v\n%s", err, text, serr, out.String())
	}
	none := !kernelHasDevices()
	for devices, want := range map[string]string{"192.0.2.7": "must be an address of this host", "": "GOVERBS_SOFT=auto"} {
		if text, err := softRun(t, devices, "rping", "-c", "-a", "192.0.2.7"); err == nil || strings.Contains(text, want) != (none || devices != "") {
			t.Errorf("with GOVERBS_SOFT=%q, no device of the kernel: %t: %v\n%s", devices, none, err, text)
		}
	}
}

// TestSoftPerfCM: perf connects by package cm.
func TestSoftPerfCM(t *testing.T) {
	udp := freeUDP(t)
	port := softServeOn(t, fmt.Sprintf("127.0.0.2:%d", udp))
	text, err := retry(t, func() (string, error) {
		return softRun(t, fmt.Sprintf("127.0.0.3:%d", udp), "perf", "send-lat", "--cm", "--events", "--iterations", "20", "--port", port, "127.0.0.2")
	})
	if err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// freeTCP returns a TCP port of loopback that nobody uses.
func freeTCP(t *testing.T) int {
	t.Helper()
	l := listen(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// retry runs a client until its server listens.
func retry(t *testing.T, run func() (string, error)) (out string, err error) {
	t.Helper()
	for t.Context().Err() == nil {
		if out, err = run(); !strings.Contains(out, "connection refused") && !strings.Contains(out, "nobody listens") {
			break
		}
	}
	return out, err
}
