package control

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// The output and the log of the subnet manager that vmrun has started.
const (
	smOutput = "/tmp/opensm.out"
	smLog    = "/tmp/opensm.log"
)

// TestSubnetManager has opensm rule both cards, and rdma-core's programs see what it has made of them.
func TestSubnetManager(t *testing.T) {
	testenv.Boot(t, "GOVERBS_SM", "fabric/cards")
	for i, card := range []string{first, second} {
		for name, want := range map[string]string{
			"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "100 Gb/sec (4X EDR)", "lid": "0x" + strconv.Itoa(i+1), "sm_lid": "0x1", "lid_mask_count": "0",
		} {
			if got := attribute(t, card, "ports/1/"+name); got != want {
				t.Errorf("%s: %s is %q, want %q", card, name, got, want)
			}
		}
	}
	const isSM = "IsSM\n"
	for _, tt := range []struct {
		line       []string
		want, lack []string
	}{
		{[]string{"ibstat", first}, []string{"State: Active", "Physical state: LinkUp", "Rate: 100", "Base lid: 1", "SM lid: 1"}, nil},
		{[]string{"smpquery", "-C", first, "-D", "portinfo", "0", "1"}, []string{isSM, "IsExtendedSpeedsSupported", "LinkSpeedExtActive:..............25.78125 Gbps", "VLCap:...........................VL0-3"}, nil},
		{[]string{"smpquery", "-C", first, "-D", "portinfo", "0,1", "1"}, []string{"Lid:.............................2", "LinkState:.......................Active"}, []string{isSM}},
		{[]string{"smpquery", "-C", first, "guidinfo", "2"}, []string{strings.ReplaceAll(attribute(t, second, "node_guid"), ":", "")}, nil},
		{[]string{"smpquery", "-C", first, "sl2vl", "2"}, []string{"| 0|"}, nil},
		{[]string{"smpquery", "-C", first, "mepi", "2", "1"}, []string{"LinkSpeedActive:.................0x00"}, nil},
		{[]string{"iblinkinfo", "-C", first}, []string{"4X      25.78125 Gbps Active/  LinkUp"}, []string{"Could be", "warn", "status"}},
		{[]string{"ibnetdiscover", "-C", first}, []string{"Ca\t1 ", "lid 2 lmc 0", "4xEDR"}, []string{"warn", "status"}},
		{[]string{"sminfo", "-C", first}, []string{"sm lid 1 ", "SMINFO_MASTER"}, nil},
		{[]string{"saquery", "-C", first, "NR"}, []string{"goverbs ConnectX model card 0", "goverbs ConnectX model card 1"}, nil},
		{[]string{"ibportstate", "-C", first, "2", "1", "query"}, []string{"LinkSpeedExtActive:..............25.78125 Gbps"}, []string{"warn"}},
	} {
		out := program.Launch(t, tt.line...).Wait(t)
		for _, want := range tt.want {
			if !strings.Contains(strings.ReplaceAll(out, " | ", "|"), want) && !strings.Contains(out, want) {
				t.Errorf("%s says nothing of %q:\n%s", tt.line, want, out)
			}
		}
		for _, lack := range tt.lack {
			if strings.Contains(out, lack) {
				t.Errorf("%s says %q:\n%s", tt.line, lack, out)
			}
		}
	}
	// An agent that is not there answers with a status, which is no failure of a command.
	if out := fails(t, "vendstat", "-C", first, "-N", "2"); !strings.Contains(out, "vendstat: iberror: failed") || strings.Contains(out, "timed out") {
		t.Errorf("vendstat says %q", out)
	}
	for name, want := range map[string]string{smOutput: "Entering MASTER state", smLog: "OpenSM"} { // the log is behind
		b, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(b), want) || strings.Contains(string(b), "ERR") {
			t.Errorf("%s, %v:\n%s", name, err, b)
		}
	}
}

// counterOf finds a counter in what perfquery prints.
func counterOf(t *testing.T, out, name string) uint64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `:\.+(\d+)$`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("perfquery does not say %s:\n%s", name, out)
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	must(t, err)
	return n
}

// TestPortCounters: sysfs and perfquery show the same counters of a port, and perfquery can reset its own.
func TestPortCounters(t *testing.T) {
	testenv.Boot(t, "GOVERBS_SM", "fabric/cards")
	const packets, words = "PortXmitPkts", "PortXmitData"
	sysfs := func(name string) uint64 {
		t.Helper()
		n, err := strconv.ParseUint(attribute(t, second, "ports/1/counters/"+name), 10, 64)
		must(t, err)
		return n
	}
	for name, counter := range map[string]string{packets: "port_xmit_packets", words: "port_xmit_data", "PortRcvPkts": "port_rcv_packets", "PortRcvData": "port_rcv_data",
		"PortMulticastXmitPkts": "multicast_xmit_packets", "PortUnicastRcvPkts": "unicast_rcv_packets"} {
		before := sysfs(counter)
		got := counterOf(t, program.Launch(t, "perfquery", "-C", first, "-x", "2", "1").Wait(t), name)
		if after := sysfs(counter); got < before || got > after || got == 0 {
			t.Errorf("%s is %d, want %d to %d", name, got, before, after)
		}
	}
	// A datagram of management has 256 bytes, and at least 32 of headers.
	out := program.Launch(t, "perfquery", "-C", first, "-x", "2", "1").Wait(t)
	n, w := counterOf(t, out, packets), counterOf(t, out, words)
	for range 3 {
		program.Launch(t, "perfquery", "-C", first, "-x", "2", "1").Wait(t)
	}
	out = program.Launch(t, "perfquery", "-C", first, "-x", "2", "1").Wait(t)
	if dn, dw := counterOf(t, out, packets)-n, counterOf(t, out, words)-w; dn < 8 || dw < 8*288/4 {
		t.Errorf("four more runs of perfquery sent %d packets with %d words", dn, dw)
	}
	all := counterOf(t, out, packets)
	program.Launch(t, "perfquery", "-C", first, "-R", "2", "1").Wait(t)
	if got := counterOf(t, program.Launch(t, "perfquery", "-C", first, "2", "1").Wait(t), packets); got == 0 || got >= all/2 {
		t.Errorf("%d packets after a reset, %d before", got, all)
	}
	if got := counterOf(t, program.Launch(t, "perfquery", "-C", first, "-x", "2", "1").Wait(t), packets); got <= all {
		t.Errorf("the reset of one attribute has reset the other: %d packets, %d before", got, all)
	}
}

// TestPortReset has ibportstate change a port's width, which is in force when the link comes up again. The subnet
// manager then activates the port. It sets the speed itself.
func TestPortReset(t *testing.T) {
	testenv.Boot(t, "GOVERBS_SM", "fabric/cards")
	program.Launch(t, "ibportstate", "-C", first, "2", "1", "width", "1").Wait(t)
	if got, want := attribute(t, second, "ports/1/rate"), "100 Gb/sec (4X EDR)"; got != want {
		t.Errorf("the rate is %q before the link is reset, want %q", got, want)
	}
	program.Launch(t, "ibportstate", "-C", first, "2", "1", "reset").Wait(t)
	wait := func(name, want string) {
		t.Helper()
		for end := time.Now().Add(program.Patience); attribute(t, second, "ports/1/"+name) != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is %q, want %q", name, attribute(t, second, "ports/1/"+name), want)
			}
		}
	}
	wait("rate", "25 Gb/sec (1X EDR)")
	wait("state", "4: ACTIVE")
}
