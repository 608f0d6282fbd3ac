package hca

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/subnet"
)

// newPlugged makes a card in the place of host1 of a line of two switches.
func newPlugged(t *testing.T) (*manager, *subnet.Subnet) {
	t.Helper()
	top, err := subnet.Line(2)
	if err != nil {
		t.Fatal(err)
	}
	// The subnet needs a fabric, and the card the subnet.
	var s *subnet.Subnet
	v := newDriverPrepared(t, Config{Mode: IB, Managed: true, Node: "host1"}, func(f *engine.Fabric, c *Config) {
		s = NewSubnet(top, f, 1)
		c.Subnet = s
	})
	t.Cleanup(v.d.Close)
	v.bringUp()
	return &manager{driver: v}, s
}

// eventually waits until the port is in a state: the card learns of its link a little later.
func (m *manager) eventually(state, phys uint64) {
	m.t.Helper()
	var b []byte
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if b = m.portInfo(); piState.Get(b) == state && piPhys.Get(b) == phys {
			return
		}
	}
	m.t.Errorf("the port is in state %d, %d, want %d, %d", piState.Get(b), piPhys.Get(b), state, phys)
}

// TestPlugged: a card in a subnet has the GUIDs of its place, and its link is that of the subnet.
func TestPlugged(t *testing.T) {
	m, s := newPlugged(t)
	n := s.Topology().Node("host1")
	info := m.ask(statusOK, request{class: classSubnet, method: methodGet, attr: attrNodeInfo})
	if be.Uint64(info[12:]) != n.GUID || be.Uint64(info[20:]) != n.Ports[1].GUID || be.Uint64(info[4:]) != n.SystemGUID {
		t.Errorf("the GUIDs are % x, want those of %+v", info[4:28], n)
	}
	if d := m.ask(statusOK, request{class: classSubnet, method: methodGet, attr: attrNodeDesc}); !strings.HasPrefix(string(d), "host1\x00") {
		t.Errorf("the description is %q", d[:64])
	}
	bench := func(command, want string) {
		t.Helper()
		if _, err := m.d.Bench(command); fmt.Sprint(err) != want && !(want == "" && err == nil) {
			t.Errorf("%s: error %v, want %q", command, err, want)
		}
	}
	m.eventually(portInit, physLinkUp)
	bench("subnet-link switch1 1 down", "")
	m.eventually(portDown, physPolling)
	bench("subnet-link switch1 1 up", "")
	m.eventually(portInit, physLinkUp)
	bench("link down", "")
	m.eventually(portDown, physPolling)
	bench("link up", "")
	m.eventually(portInit, physLinkUp)
	bench("subnet-link switch1 9 down", `subnet: port 9 of node "switch1", allowed: 0 to 8`)
	bench("subnet-loss switch1 2 0.5", "")
	bench("subnet-loss switch1 2 1.5", "1.5 is not from 0 to 1")
	bench("subnet-rate switch1 2 1x SDR", "")
	bench("subnet-rate switch1 2 3x SDR", `"3x" is none of any, 1x, 2x, 4x`)
	bench("subnet-agents switch2 silent", "")
	bench("subnet-agents switch3 silent", `subnet: node "switch3" does not exist`)
	downs := func() uint64 {
		n, err := s.Counter("switch1", 1, subnet.LinkDowned)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := downs()
	m.setPort(statusOK, 0, setting{piState, portDown})
	if m.eventually(portInit, physLinkUp); downs() != before+1 {
		t.Errorf("a manager takes the link down, and the other end saw it %d times, want once", downs()-before)
	}
	m.setPort(statusOK, 0, setting{piPhys, physOff})
	s.SetLink("switch1", 1, true)
	m.eventually(portDown, physOff)
	m.setPort(statusOK, 0, setting{piPhys, physPolling})
	m.eventually(portInit, physLinkUp)
	m.violations(0)
}

// TestPluggedRefused: a card must be managed, and have a place of its own.
func TestPluggedRefused(t *testing.T) {
	top, err := subnet.Line(2)
	if err != nil {
		t.Fatal(err)
	}
	f := engine.NewFabric(engine.FabricConfig{Manual: true})
	defer f.Close()
	s := NewSubnet(top, f, 1)
	memory := &driver{mem: make([]byte, ramSize)}
	make := func(node string, managed bool) (*Device, error) {
		return New(Config{Name: "card", Mode: IB, Managed: managed, Memory: memory, Fabric: f, Subnet: s, Node: node})
	}
	d, err := make("host1", true)
	if err != nil {
		t.Fatal(err)
	}
	for node, managed := range map[string]bool{"host1": true, "host2": false, "host3": true, "switch1": true} {
		if _, err := make(node, managed); err == nil {
			t.Errorf("a card at %s, managed %v", node, managed)
		}
	}
	d.Close()
	if d, err = make("host1", true); err != nil {
		t.Errorf("after the other one is gone: %v", err)
	} else {
		d.Close()
	}
}

// TestPlaces: cards take the places that are called so, or else the first ones.
func TestPlaces(t *testing.T) {
	read := func(text string) *subnet.Topology {
		t.Helper()
		top, err := subnet.Read(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return top
	}
	const usual = "Switch 8 \"s\"\nCa 2 \"two\"\nCa 1 \"a\"\nCa 1 \"H-0000000000000007\" # \"card1\"\nCa 1 \"b\"\n"
	for _, c := range []struct {
		text  string
		cards int
		want  []string
	}{
		{usual, 0, nil},
		{strings.ReplaceAll(usual, "card1", "c"), 2, []string{"a", "H-0000000000000007"}},
		{strings.ReplaceAll(usual, "card1", "c"), 4, nil},
		{usual, 2, nil}, // card0 has no place
		{usual + "Ca 1 \"card0\"\n", 2, []string{"card0", "H-0000000000000007"}},
		{usual + "Ca 2 \"card0\"\n", 2, nil}, // two ports
	} {
		got, err := Places(read(c.text), c.cards)
		if !slices.Equal(got, c.want) || (err == nil) != (len(c.want) == c.cards) {
			t.Errorf("%d cards in %q: %q (%v), want %q", c.cards, c.text, got, err, c.want)
		}
	}
}
