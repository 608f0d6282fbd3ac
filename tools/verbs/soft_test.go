package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// commandEnv makes the test binary the command: GOVERBS_SOFT is read once in a process.
const commandEnv = "GOVERBS_TEST_VERBS"

func TestMain(m *testing.M) {
	if os.Getenv(commandEnv) == "" {
		os.Exit(m.Run())
	}
	main()
}

// softCommand returns the command with devices in software.
func softCommand(t *testing.T, devices string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), commandEnv+"=1", "GOVERBS_SOFT="+devices)
	return cmd
}

// softRun runs the command with devices in software, and returns what it prints.
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

// TestSoftDevices: a device in software is listed as what it is, with and without JSON.
func TestSoftDevices(t *testing.T) {
	out, err := softRun(t, "local,name=left 192.0.2.7", "devices")
	words := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{
		"left ", " rxe, in software roce 1 yes",
		`192.0.2.7 0000:0000:0000:0000 rxe, in software roce 0 no: environment variable GOVERBS_SOFT: device "192.0.2.7"`,
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

// TestSoftInfo: info has the attributes of a device in software.
func TestSoftInfo(t *testing.T) {
	out, err := softRun(t, "local,name=left,mtu=1024,qps=77", "info", "left")
	words := strings.Join(strings.Fields(out), " ")
	for _, want := range []string{"device: left driver: rxe, in software", "max_qp: 77", "active_mtu: 1024 (3)", "127.0.0.1, RoCE v2"} {
		if err != nil || !strings.Contains(words, want) {
			t.Errorf("there is no %q: %v\n%s", want, err, out)
		}
	}
}

// TestSoftKernelOnly: the commands that ask the kernel say that the device is not there.
func TestSoftKernelOnly(t *testing.T) {
	out, err := softRun(t, "local,name=left", "res", "left")
	if err == nil || !strings.Contains(out, "left is a device in software inside this process") || strings.Contains(out, "modprobe") {
		t.Errorf("verbs res left: %v\n%s", err, out)
	}
}

// TestSoftStat: stat lists the counters of a device in software, with and without its name.
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

// TestSoftNoDevice: only without any device the hints say how to get one.
func TestSoftNoDevice(t *testing.T) {
	none := !kernelHasDevices()
	for _, args := range []string{"devices", "info", "doctor"} {
		if out, _ := softRun(t, "", strings.Fields(args)...); strings.Contains(out, "GOVERBS_SOFT=auto") != none {
			t.Errorf("verbs %s, no device of the kernel: %t; the hint is there or not:\n%s", args, none, out)
		}
	}
}

// TestSoftDoctor: the doctor is content with a device in software, and says nothing about the kernel's
// modules.
func TestSoftDoctor(t *testing.T) {
	device := fmt.Sprintf("auto:%d,name=left", freeUDP(t))
	out, err := softCommand(t, device, "doctor", "--json", "left").Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var d diagnosis
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	if !d.Works || !strings.HasPrefix(d.Verdict, "RDMA works: a ping-pong went through on left") {
		t.Errorf("works is %t: %s", d.Works, d.Verdict)
	}
	ids := map[string]level{}
	for _, f := range d.Findings {
		ids[f.ID] = f.Level
		if strings.HasPrefix(f.ID, "module") || f.ID == "rdma_cm" || f.ID == "memlock" || f.ID == "chardev" {
			t.Errorf("a finding about the kernel: %+v", f)
		}
	}
	for id, want := range map[string]level{
		"device": levelOK, "address": levelInfo, "register": levelOK, "port": levelOK, "mtu": levelOK, "gid": levelOK, "loopback": levelOK, "cm": levelOK, "firewall": levelOK,
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

// softPatient is a machine whose only device is in software, on an address that other hosts reach.
func softPatient(t *testing.T) (patient, *softFacts) {
	p := healthy(t)
	*p.info = uverbs.DeviceInfo{Name: "soft0", Driver: "rxe", Protocol: "roce", Ports: 1, InProcess: true}
	facts := &softFacts{
		setting: "10.1.0.1", hostAddrs: []string{"10.1.0.1 of eth0"},
		NetworkInfo: soft.NetworkInfo{Local: netip.MustParseAddrPort("10.1.0.1:4791"), ReceiveBuffer: 8 << 20, WantedBuffer: 8 << 20},
	}
	p.devices = func() ([]netlinkrdma.Device, error) { return nil, syscall.EPROTONOSUPPORT }
	p.cmDev = func() (netlinkrdma.CharDev, error) { return netlinkrdma.CharDev{}, syscall.EPROTONOSUPPORT }
	p.uverbsDev = func(netlinkrdma.Device) (netlinkrdma.CharDev, error) {
		return netlinkrdma.CharDev{}, syscall.EPROTONOSUPPORT
	}
	p.soft = func(string) softFacts { return *facts }
	p.probeSoft = func(context.Context, string) (bool, error) { return true, nil }
	p.connect = func(context.Context, string) (string, error) { return "connection from here to there", nil }
	return p, facts
}

// TestSoftFindings: each machine has its finding.
func TestSoftFindings(t *testing.T) {
	buffer := func(n int) func(patient, *softFacts) {
		return func(p patient, f *softFacts) {
			f.ReceiveBuffer, f.Overflows = n, 12
			p.files["proc/sys/net/core/rmem_max"] = charFile(0, 0, 0, 0)
			p.files["proc/sys/net/core/rmem_max"].Mode, p.files["proc/sys/net/core/rmem_max"].Data = 0o444, []byte("212992\n")
		}
	}
	datagram := func(arrived bool, err error) func(patient, *softFacts) {
		return func(p patient, _ *softFacts) {
			p.probeSoft = func(context.Context, string) (bool, error) { return arrived, err }
			p.files["proc/modules"].Data = []byte("nf_tables 1 0 - Live 0x0\nip_tables 1 0 - Live 0x0\n")
		}
	}
	at := func(addr string) func(patient, *softFacts) {
		return func(_ patient, f *softFacts) { f.Local = netip.MustParseAddrPort(addr) }
	}
	for _, c := range []struct {
		name  string
		ill   func(patient, *softFacts)
		works bool
		id    string
		level level
		words []string
	}{
		{"healthy", func(patient, *softFacts) {}, true, "device", levelOK, []string{"in software, inside this process", `GOVERBS_SOFT="10.1.0.1"`, "needs no module"}},
		{"reached by others", func(patient, *softFacts) {}, true, "address", levelOK, []string{"other hosts reach it at 10.1.0.1:4791", "10.1.0.1 of eth0", "packets of RoCE v1 are no UDP"}},
		{"loopback address", at("127.0.0.2:4791"), true, "address", levelInfo, []string{"other hosts do not", "GOVERBS_SOFT=ADDRESS"}},
		{"other port", at("10.1.0.1:4792"), true, "address", levelOK, []string{"sends to port 4792", "(4791)"}},
		{"port where 4791 is taken", at("127.0.0.1:14791"), true, "address", levelInfo, []string{"sends to port 14791", "such as by rdma_rxe", "reach it at 127.0.0.1:14791"}},
		{"a device with the other port", func(p patient, f *softFacts) {
			at("127.0.0.1:4791")(p, f)
			f.stranded = netip.MustParseAddrPort("127.0.0.2:14791")
		}, true, "address", levelWarning, []string{"a device at 127.0.0.2:14791", "while port 4791 was taken", "start the program"}},
		{"no socket", func(_ patient, f *softFacts) { f.NetworkInfo = soft.NetworkInfo{} }, true, "address", levelInfo, []string{"only this process", "GOVERBS_SOFT=auto"}},
		{"whole buffer", func(patient, *softFacts) {}, true, "receive_buffer", levelOK, []string{"8 MiB"}},
		{"small buffer", buffer(425984), true, "receive_buffer", levelWarning, []string{"416 KiB is too small", "1056 KiB", "212992 bytes", "so far since the buffer was full: 12", "sysctl net.core.rmem_max=4194304"}},
		{"half a buffer", buffer(4 << 20), true, "receive_buffer", levelInfo, []string{"for the packets of 3 QPs", "sysctl net.core.rmem_max=4194304"}},
		{"no firewall", func(patient, *softFacts) {}, true, "firewall", levelInfo, []string{"must do so from peers", "NAT", "udp dport 4791 accept"}},
		{"no firewall on loopback", at("127.0.0.2:4791"), true, "firewall", levelOK, []string{"UDP to 127.0.0.2:4791 gets through"}},
		{"firewall that forbids", datagram(false, syscall.EPERM), true, "firewall", levelWarning, []string{"forbids UDP to port 4791", "filter output udp dport 4791 accept", `"nft list ruleset"`, `"iptables -S"`}},
		{"firewall that drops", datagram(false, nil), true, "firewall", levelWarning, []string{"drops UDP to port 4791", "did not arrive within 1s", "filter input udp dport 4791 accept"}},
		{"connection", func(patient, *softFacts) {}, true, "cm", levelOK, []string{"connection from here to there", "needs no rdma_ucm"}},
		{"no connection", func(p patient, _ *softFacts) {
			p.connect = func(context.Context, string) (string, error) { return "connection", syscall.ECONNREFUSED }
		}, true, "cm", levelWarning, []string{"programs with package cm need", "connection refused"}},
		{"no route", datagram(false, syscall.ENETUNREACH), true, "firewall", levelWarning, []string{"no datagram can be sent"}},
		{"cannot be made", func(p patient, _ *softFacts) { p.info.Err = errors.New("the reason") }, false, "device", levelError, []string{"cannot be made", "the reason", "GOVERBS_SOFT=auto", "10.1.0.1 of eth0"}},
		{"cannot be opened", func(p patient, _ *softFacts) {
			p.machine.probe = func(string) (probe, error) { return probe{}, syscall.EIO }
		}, false, "open", levelError, []string{"input/output error"}},
		{"listed", func(patient, *softFacts) {}, true, "devices", levelOK, []string{"1 of 1 device can be used: soft0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, facts := softPatient(t)
			c.ill(p, facts)
			d := examine(t.Context(), p.machine, nil)
			if d.Works != c.works {
				t.Errorf("works is %t: %s", d.Works, d.Verdict)
			}
			found := false
			for _, f := range d.Findings {
				text := strings.Join(append(append([]string{f.Title}, f.Evidence...), f.Fix...), "\n")
				if strings.Contains(text, "modprobe") {
					t.Errorf("finding %s is about modules:\n%s", f.ID, text)
				}
				if f.ID != c.id {
					continue
				}
				found = true
				if f.Level != c.level {
					t.Errorf("level is %s, want %s: %+v", f.Level, c.level, f)
				}
				for _, w := range c.words {
					if !strings.Contains(text, w) {
						t.Errorf("the finding does not say %q:\n%s", w, text)
					}
				}
			}
			if !found {
				t.Errorf("there is no finding %s: %+v", c.id, d)
			}
		})
	}
}

// TestSoftBeside: with devices of the kernel, a device in software is one more.
func TestSoftBeside(t *testing.T) {
	p, _ := softPatient(t)
	own := *p.info
	h := healthy(t)
	h.infos = func() ([]uverbs.DeviceInfo, error) { return []uverbs.DeviceInfo{fakeInfo, own}, nil }
	h.soft, h.probeSoft, h.connect = p.soft, p.probeSoft, p.connect
	d := examine(t.Context(), h.machine, nil)
	ids := map[string]bool{}
	for _, f := range d.Findings {
		ids[f.ID+" "+f.Device] = true
	}
	if !d.Works || !ids["module.ib_core "] || !ids["chardev rxe0"] || ids["chardev soft0"] || !ids["address soft0"] || !ids["firewall "] || !ids["firewall soft0"] {
		t.Errorf("%s: the findings are %v", d.Verdict, ids)
	}
	for _, f := range examine(t.Context(), h.machine, []string{"soft0"}).Findings {
		if strings.HasPrefix(f.ID, "module") || f.Device == "rxe0" {
			t.Errorf("a finding of soft0 alone is %+v", f)
		}
	}
}

// TestSoftProbe: a datagram to a device arrives, and a device that is closed takes none.
func TestSoftProbe(t *testing.T) {
	d, err := soft.New(soft.Options{Auto: true, Port: uint16(freeUDP(t)), Name: "probed"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if arrived, err := liveProbe(t.Context(), "probed"); !arrived || err != nil {
		t.Errorf("it arrived: %t, %v", arrived, err)
	}
	if f := liveSoft("probed"); f.Local.Addr() != d.Addr() {
		t.Errorf("the facts are %+v", f)
	}
	if _, err := liveProbe(t.Context(), "nobody"); err == nil {
		t.Error("nobody got a datagram")
	}
}

// TestSoftPingpong: two processes exchange messages over their devices, with each type of ping-pong that
// the devices support.
func TestSoftPingpong(t *testing.T) {
	for _, typ := range pingpongTypes {
		if typ == typeXRC {
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
			var r result
			qps := map[bool]int{false: 1, true: 16}[typ == typeSRQ]
			if err := json.Unmarshal([]byte(text), &r); err != nil || r.Iterations != 20 || r.QPs != qps || r.Bytes != int64(2*20*size) || r.Local.GID == r.Remote.GID {
				t.Errorf("the result is %+v, %v", r, err)
			}
		})
	}
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
			var r result
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
	device := fmt.Sprintf("auto:%d", freeUDP(t))
	port := fmt.Sprint(freeTCP(t))
	server := softCommand(t, device, "perf", "serve", "--port", port)
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
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
	server.Process.Signal(syscall.SIGTERM)
	if err := server.Wait(); err != nil {
		t.Errorf("server: %v", err)
	}
	if t.Failed() {
		t.Logf("server:\n%s", out.String())
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
		if text, err := softRun(t, devices, "rping", "-c", "-a", "192.0.2.7"); err == nil || strings.Contains(text, want) != none {
			t.Errorf("with GOVERBS_SOFT=%q, no device of the kernel: %t: %v\n%s", devices, none, err, text)
		}
	}
}

// TestSoftPerfCM: perf connects by package cm.
func TestSoftPerfCM(t *testing.T) {
	udp, port := freeUDP(t), fmt.Sprint(freeTCP(t))
	server := softCommand(t, fmt.Sprintf("127.0.0.2:%d", udp), "perf", "serve", "--port", port)
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	text, err := retry(t, func() (string, error) {
		return softRun(t, fmt.Sprintf("127.0.0.3:%d", udp), "perf", "send-lat", "--cm", "--events", "--iterations", "20", "--port", port, "127.0.0.2")
	})
	server.Process.Signal(syscall.SIGTERM)
	if serr := server.Wait(); err != nil || serr != nil {
		t.Errorf("client: %v\n%s\nserver: %v\n%s", err, text, serr, out.String())
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
