package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/tools/verbs/internal/pingpong"
)

// TestSoftPort4791Taken: where UDP port 4791 is taken on all addresses, as by rdma_rxe, two processes with
// GOVERBS_SOFT=auto find each other all the same, and the doctor says what their port is. A device that was made
// then is found by the doctor when the port is free again.
func TestSoftPort4791Taken(t *testing.T) {
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	testenv.NeedsRights(t, "a network namespace", unix.Unshare(unix.CLONE_NEWNET))
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatal(err)
	}
	var taken []*net.UDPConn
	for network, ip := range map[string]net.IP{"udp4": net.IPv4zero, "udp6": net.IPv6unspecified} {
		c, err := net.ListenUDP(network, &net.UDPAddr{IP: ip, Port: 4791})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		taken = append(taken, c)
	}
	port := fmt.Sprint(freeTCP(t))
	args := []string{"pingpong", "--events", "--iterations", "20", "--size", "10000", "--port", port, "--json"}
	server := softCommand(t, "auto", args...)
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	text, err := retry(t, func() (string, error) { return softRun(t, "auto", append(args, "127.0.0.1")...) })
	if serr := server.Wait(); err != nil || serr != nil {
		t.Fatalf("client: %v\n%s\nserver: %v\n%s", err, text, serr, out.String())
	}
	var r pingpong.Result
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.Iterations != 20 {
		t.Errorf("the result is %+v, %v", r, err)
	}
	if text, err := softRun(t, "auto", "doctor", "soft0"); err != nil || !strings.Contains(text, "programs on this host reach it at 127.0.0.1:14791") {
		t.Errorf("the doctor says %v\n%s", err, text)
	}
	old, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 14791})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	for _, c := range taken {
		c.Close()
	}
	const stranded = "a device at 127.0.0.2:14791"
	if text, _ := softRun(t, "auto", "doctor", "soft0"); !strings.Contains(text, stranded) {
		t.Errorf("the doctor has not found the device:\n%s", text)
	}
	old.Close()
	if text, _ := softRun(t, "auto", "doctor", "soft0"); strings.Contains(text, stranded) {
		t.Errorf("the doctor has found a device, and there is none:\n%s", text)
	}
}
