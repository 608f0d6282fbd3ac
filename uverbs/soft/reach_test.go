package soft

import (
	"net"
	"runtime"
	"testing"
)

// TestNetwork: a device tells its UDP address and counts what arrives there.
func TestNetwork(t *testing.T) {
	alone := newDevice(t, Options{})
	if n := alone.Network(); n != (NetworkInfo{}) {
		t.Errorf("a device without a socket has %+v", n)
	}
	d := newDevice(t, Options{Auto: true, Port: freePort(t)})
	n := d.Network()
	if n.Local.Addr() != d.Addr() || n.ReceiveBuffer <= 0 || n.WantedBuffer <= 0 || n.Received != 0 {
		t.Errorf("%s: %+v", d.Addr(), n)
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(n.Local))
	must(t, err)
	defer c.Close()
	for _, size := range []int{1, 4, 100} { // too short, and without an ICRC
		if _, err := c.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	for d.Network().Received < 3 {
		runtime.Gosched() // until the test's time is over
	}
	counted := map[string]uint64{}
	for _, c := range (listed{d}).Counters(1) {
		counted[c.Name] = c.Value
	}
	if counted["udp_rx_short"] != 2 || counted["udp_rx_bad_icrc"] != 1 {
		t.Errorf("the counters are %v", counted)
	}
}

func TestByName(t *testing.T) {
	d := newDevice(t, Options{Name: "byname"})
	if got := ByName("byname"); got != d {
		t.Errorf("got %v", got)
	}
	if got := ByName("nobody"); got != nil {
		t.Errorf("got %v", got)
	}
	must(t, d.Close())
	if got := ByName("byname"); got != nil {
		t.Errorf("after it was closed: %v", got)
	}
}
