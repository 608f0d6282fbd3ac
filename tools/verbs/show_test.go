package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// TestShow: the words with which iproute2's rdma shows devices, ports and counters show the same here, and the
// commands that show without them still do.
func TestShow(t *testing.T) {
	const device = "local,name=left local,name=right"
	for _, c := range []struct {
		args       string
		has, lacks string
	}{
		{"link", "left/1 ", ""},
		{"link show", "right/1 ", ""},
		{"link list", "right/1 ", ""},
		{"link show left", "left/1 ", "right"},
		{"link show left/1", "left/1 ", "right"},
		{"link show --json", `"device": "left"`, ""},
		{"dev", "right ", ""},
		{"dev show", "left ", ""},
		{"dev show right", "right ", "left"},
		{"stat show", "left/1\n", ""},
		{"stat show right", "right/1\n", "left"},
		{"statistic show link right/1", "right/1\n", "left"},
		{"stat right/1", "right/1\n", "left"},
	} {
		out, err := softRun(t, device, strings.Fields(c.args)...)
		if err != nil || !strings.Contains(out, c.has) || c.lacks != "" && strings.Contains(out, c.lacks) {
			t.Errorf("verbs %s: %v\n%s", c.args, err, out)
		}
	}
	for args, want := range map[string]string{
		"link show nosuch0":       `the device is "nosuch0", allowed: `,
		"link show left/2":        "the port is 2, allowed: 1 to 1",
		"stat left/7":             "the port is 7, allowed: 1 to 1",
		"dev show nosuch0":        `the device is "nosuch0", allowed: `,
		"stat enabel":             "did you mean verbs stat enable?",
		"stat mr mrn x":           `mrn is "x", allowed: 0 to 4294967295`,
		"stat mr left mrn":        "mrn has no value; usage: verbs stat mr",
		"stat mr left mrn 1 2":    `a word of verbs stat mr is "2", allowed: mrn`,
		"stat mr left pid 1":      `a word of verbs stat mr is "pid", allowed: mrn`,
		"stat mr left":            "left is a software device inside this process",
		"stat show mr right":      "right is a software device inside this process",
		"statistic mr show right": "right is a software device inside this process",
		"stat auto left/1 type":   "left is a software device inside this process, which has just made it: the kernel cannot change it",
		"dev set left name x":     "left is a software device inside this process",
		"dev delete left":         "left is a software device inside this process",
		"link delete left":        "left is a software device inside this process",
	} {
		if out, err := softRun(t, device, strings.Fields(args)...); err == nil || !strings.Contains(out, want) {
			t.Errorf("verbs %s: %v, want %q\n%s", args, err, want, out)
		}
	}
	if devs, _ := netlinkrdma.Devices(); len(devs) > 0 {
		return // of the kernel
	}
	for args, want := range map[string]string{
		"ib links":  `it has no management datagrams (MADs); "verbs status" shows its ports`,
		"ib status": `it has no management datagrams (MADs); "verbs status" shows its ports`,
		"stat mr":   `the kernel knows none of its objects; "verbs stat" shows its counters`,
		"res frmr":  "the kernel knows none of its objects",
		"cdi":       "it has no files, and needs none in a container",
	} {
		want = "left is a software device inside this process, which has just made it: " + want
		if out, err := softRun(t, device, strings.Fields(args)...); err == nil || !strings.Contains(out, want) {
			t.Errorf("verbs %s: %v, want %q\n%s", args, err, want, out)
		}
	}
}

// TestResWords: the arguments of "rdma resource show" are a device, a kind and filters.
func TestResWords(t *testing.T) {
	for args, want := range map[string]string{
		"":                                 "[]  []",
		"rxe0":                             "[rxe0]  []",
		"show":                             "[]  []",
		"show rxe0":                        "[rxe0]  []",
		"show qp":                          "[] qp []",
		"show qp link rxe0/2":              "[rxe0] qp [port=2]",
		"show link rxe0/2":                 "[rxe0]  [port=2]",
		"show mr dev rxe0 pid 7":           "[rxe0] mr [pid=7]",
		"list cm_id rxe0/1 state LISTEN":   "[rxe0] cm_id [port=1 state=LISTEN]",
		"show qp lqpn 5-9 state RTS":       "[] qp [lqpn=5-9 state=RTS]",
		"show qp link rxe0 type RC pid 77": "[rxe0] qp [type=RC pid=77]",
	} {
		dev, _, kind, filters, err := resWords(newRes(), strings.Fields(args))
		if got := fmt.Sprint(dev, " ", kind, " ", filters); err != nil || got != want {
			t.Errorf("res %s: %q, %v, want %q", args, got, err, want)
		}
	}
	for args, want := range map[string]string{
		"a b":                 `the arguments of verbs res are "a b"`,
		"show a b":            `the kind of objects is "a"`,
		"show qp link rxe0/x": `the port of "rxe0/x" is "x"`,
		"show mr link rxe0/7": `the port of "rxe0/7" is 7, allowed: none, as objects of the kind mr have no port; those of cm_id, qp have one`,
	} {
		if out, err := run(t, append([]string{"res"}, strings.Fields(args)...)...); exitStatus(err) != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("res %s: %v, want %q\n%s", args, err, want, out)
		}
	}
}

// TestPerfServeNoDevice: a server says at its start that it has no device.
func TestPerfServeNoDevice(t *testing.T) {
	server := softCommand(t, "local", "perf", "serve", "--dev", "nosuch0", "--listen", "127.0.0.1", "-p", fmt.Sprint(freeTCP(t)))
	log, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	lines, said := bufio.NewScanner(log), ""
	for range 2 {
		lines.Scan()
		said += lines.Text() + "\n"
	}
	if !strings.Contains(said, "verbs: no test can run now: ") || !strings.Contains(said, "nosuch0") {
		t.Errorf("the server says:\n%s", said)
	}
	server.Process.Signal(os.Interrupt)
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
}

// TestSoftDoctorPeer: a doctor connects to the doctor of another process, and fails without one.
func TestSoftDoctorPeer(t *testing.T) {
	udp := freeUDP(t)
	here, there := fmt.Sprintf("127.0.0.3:%d", udp), fmt.Sprintf("127.0.0.2:%d", udp)
	server := softCommand(t, there, "doctor", "--serve", "--listen", "127.0.0.2", "-p", "7175")
	log, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(log)
	lines.Scan()
	if diff := cmp.Diff("serving on 127.0.0.2:7175", lines.Text()); diff != "" {
		t.Errorf("the server says (-want +got):\n%s", diff)
	}
	if out, err := softRun(t, here, "doctor", "-v", "--peer", "127.0.0.2"); err != nil || !strings.Contains(out, "; it connects to 127.0.0.2\n") {
		t.Errorf("to a doctor: %v\n%s", err, out)
	}
	out, err := softRun(t, here, "doctor", "-v", "--peer", "127.0.0.2:7176")
	if err == nil || !strings.Contains(out, "fix: on 127.0.0.2:7176: verbs doctor --serve") || !strings.Contains(out, "nobody listens on this port") {
		t.Errorf("to nobody: %v\n%s", err, out)
	}
	server.Process.Signal(os.Interrupt)
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
}
