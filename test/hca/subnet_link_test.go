package hca

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
	"github.com/goverbs/goverbs/test/hca/subnet"
)

// newPlugged makes a card in the place of a node in a line of two switches, to which the adapter "alone" without a link
// is added.
func newPlugged(t *testing.T, node string, prepare func(*subnet.Subnet)) (*manager, *subnet.Subnet) {
	t.Helper()
	top, err := subnet.Line(2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := top.Add(subnet.CA, "alone", 1); err != nil {
		t.Fatal(err)
	}
	return newPluggedIn(t, top, node, prepare)
}

// newPluggedIn makes a card in the place of a node of a topology.
func newPluggedIn(t *testing.T, top *subnet.Topology, node string, prepare func(*subnet.Subnet)) (*manager, *subnet.Subnet) {
	t.Helper()
	// The subnet needs a fabric, and the card the subnet.
	var s *subnet.Subnet
	v := newDriverPrepared(t, Config{Mode: IB, Managed: true, Node: node}, func(f *engine.Fabric, c *Config) {
		s = NewSubnet(top, f, 1)
		f.Do(func() { prepare(s) })
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

// asker is an endpoint that takes answers.
type asker struct {
	t   *testing.T
	f   *engine.Fabric
	at  *subnet.Attachment
	got []*subnet.Packet
}

func (a *asker) LinkChanged(bool) {}

func (a *asker) Receive(p *subnet.Packet) bool {
	if p.MAD[madMethod] != methodGetResp {
		return false
	}
	a.got = append(a.got, p)
	return true
}

// newAsker attaches an asker to a node.
func newAsker(t *testing.T, s *subnet.Subnet, f *engine.Fabric, node string) *asker {
	t.Helper()
	a := &asker{t: t, f: f}
	var err error
	if f.Do(func() { a.at, err = s.Attach(node, 1, a, subnet.AttachOptions{}) }); err != nil {
		t.Fatal(err)
	}
	return a
}

// portInfo makes a request for PortInfo of a port by directed route, and returns the answer's data and status. The data
// is nil if there is no answer.
func (a *asker) portInfo(method byte, port uint32, data []byte, route ...byte) (b []byte, status uint16) {
	a.t.Helper()
	m := make([]byte, prm.MADSize)
	m[madBase], m[madClass], m[madClassVer], m[madMethod] = 1, classDirected, 1, method
	be.PutUint16(m[madAttr:], attrPortInfo)
	be.PutUint32(m[madModifier:], port)
	m[7] = byte(len(route))                      // hop count
	copy(m[32:], []byte{0xff, 0xff, 0xff, 0xff}) // LIDs at the ends of the route
	copy(m[129:], route)
	copy(m[madData:], data)
	a.got = nil
	a.f.Do(func() {
		a.at.Send(&subnet.Packet{SLID: subnet.LIDPermissive, DLID: subnet.LIDPermissive, VL15: true, MAD: m})
	})
	switch len(a.got) {
	case 0:
		return nil, 0
	case 1:
		r := a.got[0].MAD
		return r[madData:][:subnetBytes], be.Uint16(r[madStatus:]) &^ statusDirected
	}
	a.t.Fatalf("%d answers", len(a.got))
	return nil, 0
}

// TestPlugged: a card in a subnet has the GUIDs of its place, and the link that the subnet has
// there.
func TestPlugged(t *testing.T) {
	m, s := newPlugged(t, "host1", func(*subnet.Subnet) {})
	far := newAsker(t, s, m.fabric, "host2")
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
	// From host2, switch2 is at port 1, and switch1 at its port 3.
	answers := func(what string, want bool, route ...byte) {
		t.Helper()
		if b, _ := far.portInfo(methodGet, 1, nil, route...); (b != nil) != want {
			t.Errorf("%s: route %d is answered: %v", what, route, b != nil)
		}
	}
	bench("subnet-loss switch1 2 1", "")
	answers("all packets are lost", false, 1, 3)
	bench("subnet-loss switch1 2 0", "")
	answers("no packet is lost", true, 1, 3)
	bench("subnet-loss switch1 2 1.5", "1.5 is not from 0 to 1")
	bench("subnet-rate switch1 2 1x SDR", "")
	b, _ := far.portInfo(methodGet, 3, nil, 1)
	m.wantFields("the other end of a slow link", b, setting{piWidthActive, width1X}, setting{piSpeedActive, speedSDR}, setting{piExtActive, 0})
	bench("subnet-rate switch1 2 3x SDR", `"3x" is none of any, 1x, 2x, 4x`)
	bench("subnet-agents switch2 silent", "")
	answers("switch2 is silent", false, 1)
	answers("switch2 is silent", true, 1, 3)
	bench("subnet-agents switch2 well", "")
	answers("switch2 is well", true, 1)
	bench("subnet-agents switch3 silent", `subnet: node "switch3" does not exist`)
	before := linkDowned(m, s)
	m.setPort(statusOK, 0, setting{piState, portDown})
	if m.eventually(portInit, physLinkUp); linkDowned(m, s) != before+1 {
		t.Errorf("a manager takes the link down, and the other end saw it %d times, want once", linkDowned(m, s)-before)
	}
	m.setPort(statusOK, 0, setting{piPhys, physOff})
	bench("subnet-link switch1 1 up", "")
	m.eventually(portDown, physOff)
	m.setPort(statusOK, 0, setting{piPhys, physPolling})
	m.eventually(portInit, physLinkUp)
	m.violations(0)
}

// sameRate waits until a card and the port of switch1 at the other end of its link have a width and speed, and are up.
func sameRate(m *manager, far *asker, width, speed, ext uint64) {
	m.t.Helper()
	want := []setting{{piWidthActive, width}, {piSpeedActive, speed}, {piExtActive, ext}, {piState, portInit}}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b := m.portInfo()
		if !slices.ContainsFunc(want, func(x setting) bool { return x.f.Get(b) != x.v }) {
			break
		}
	}
	m.wantFields("the card", m.portInfo(), want...)
	b, _ := far.portInfo(methodGet, 1, nil, 1, 3) // from host2, switch1 is at port 3 of switch2
	m.wantFields("the switch", b, want...)
}

// linkDowned returns how often switch1 saw the link of host1 go down.
func linkDowned(m *manager, s *subnet.Subnet) (n uint64) {
	m.t.Helper()
	var err error
	m.fabric.Do(func() { n, err = s.Counter("switch1", 1, subnet.LinkDowned) })
	if err != nil {
		m.t.Fatal(err)
	}
	return n
}

// TestPluggedRate: a card and the other end of its link have the same width and speed, whether the cable
// or the settings of one end limit them, from the next training on.
func TestPluggedRate(t *testing.T) {
	m, s := newPlugged(t, "host1", func(*subnet.Subnet) {})
	far := newAsker(t, s, m.fabric, "host2")
	sameRate(m, far, width4X, speedQDR, extEDR)
	for _, c := range []struct {
		cable             string
		enable            []setting
		width, speed, ext uint64
		downs             uint64 // how often the link goes down
	}{
		{"subnet-rate switch1 1 1x SDR", nil, width1X, speedSDR, 0, 1},
		{"subnet-rate host1 1 4x FDR", nil, width4X, speedQDR, extFDR, 1},
		{"", []setting{{piWidthEnabled, width1X}, {piExtEnabled, extOff}}, width4X, speedQDR, extFDR, 0}, // not trained yet
		{"subnet-rate host1 1 any any", nil, width1X, speedQDR, 0, 1},
		{"", []setting{{piWidthEnabled, widthAll}, {piExtEnabled, extAll}, {piState, portDown}}, width4X, speedQDR, extEDR, 1},
		{"", []setting{{piExtEnabled, extFDR}, {piPhys, physPolling}}, width4X, speedQDR, extFDR, 1},
	} {
		before := linkDowned(m, s)
		if c.cable != "" {
			if _, err := m.d.Bench(c.cable); err != nil {
				t.Fatal(err)
			}
		}
		if c.enable != nil {
			m.setPort(statusOK, 0, c.enable...)
		}
		sameRate(m, far, c.width, c.speed, c.ext)
		if n := linkDowned(m, s) - before; n != c.downs {
			t.Errorf("%q, %v: the link went down %d times, want %d", c.cable, c.enable, n, c.downs)
		}
	}
	m.violations(0)
}

// TestPluggedPlace: the topology limits the link of a card, and so does the card what the topology has.
func TestPluggedPlace(t *testing.T) {
	for _, c := range []struct {
		width             subnet.Width
		speed             subnet.Speed
		wantWidth, s, ext uint64
	}{{subnet.Width1X, subnet.FDR, width1X, speedQDR, extFDR}, {subnet.Width12X, subnet.HDR, width4X, speedQDR, extEDR}, {subnet.Width4X, subnet.DDR, width4X, speedDDR, 0}} {
		top, err := subnet.Line(2)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []*subnet.Port{&top.Node("host1").Ports[1], &top.Node("switch1").Ports[1]} {
			p.Width, p.Speed = c.width, c.speed
		}
		m, s := newPluggedIn(t, top, "host1", func(*subnet.Subnet) {})
		far := newAsker(t, s, m.fabric, "host2")
		sameRate(m, far, c.wantWidth, c.s, c.ext)
		if own, other := m.d.eng.PortCounts().LinkDowned, linkDowned(m, s); own != 0 || other != 0 {
			t.Errorf("%v %v: the card has seen its link go down %d times, and the switch %d times, want never", c.width, c.speed, own, other)
		}
		m.setPort(statusOK, 0, setting{piState, portDown})
		sameRate(m, far, c.wantWidth, c.s, c.ext)
	}
}

// TestPluggedDisabled: a card that is disabled while its link is down and comes back notices that when it is enabled.
func TestPluggedDisabled(t *testing.T) {
	m, s := newPlugged(t, "host1", func(*subnet.Subnet) {})
	link := func(up bool) {
		t.Helper()
		m.fabric.Do(func() {
			if err := s.SetLink("switch1", 1, up); err != nil {
				t.Error(err)
			}
		})
	}
	link(false)
	m.eventually(portDown, physPolling)
	m.setPort(statusOK, 0, setting{piPhys, physOff})
	link(true)
	m.wantFields("enabled with the link", m.setPort(statusOK, 0, setting{piPhys, physPolling}), setting{piState, portInit}, setting{piPhys, physLinkUp})
	link(false)
	m.eventually(portDown, physPolling)
	m.setPort(statusOK, 0, setting{piPhys, physOff})
	m.wantFields("enabled without the link", m.setPort(statusOK, 0, setting{piPhys, physPolling}), setting{piState, portDown}, setting{piPhys, physPolling})
	link(true)
	m.eventually(portInit, physLinkUp)
}

// TestPluggedDown: a card whose link is down, or whose place has no link, is down from the start.
func TestPluggedDown(t *testing.T) {
	down := []setting{{piState, portDown}, {piPhys, physPolling}}
	m, _ := newPlugged(t, "host1", func(s *subnet.Subnet) {
		if err := s.SetLink("host1", 1, false); err != nil {
			t.Error(err)
		}
	})
	m.wantFields("a link that is down", m.portInfo(), down...)
	if n := m.d.eng.PortCounts().LinkDowned; n != 0 {
		t.Errorf("the link went down %d times", n)
	}
	if err := m.d.SetLink(true); err != nil {
		t.Error(err)
	}
	m.eventually(portInit, physLinkUp)
	m, _ = newPlugged(t, "alone", func(*subnet.Subnet) {})
	m.wantFields("no link", m.portInfo(), down...)
	for _, command := range []string{"link up", "link down"} {
		if _, err := m.d.Bench(command); err == nil || !strings.Contains(err.Error(), `node "alone" has no link`) {
			t.Errorf("%s: error %v", command, err)
		}
	}
	m.wantFields("no link", m.setPort(statusOK, 0, setting{piPhys, physPolling}), down...)
}

// TestSamePortInfo: a card and the subnet's adapters accept the same values of PortInfo.
func TestSamePortInfo(t *testing.T) {
	for _, c := range portInfoValues {
		m, s := newPlugged(t, "host1", func(*subnet.Subnet) {})
		m.setPort(c.status, 0, c.v...)
		a := newAsker(t, s, m.fabric, "host2")
		b, _ := a.portInfo(methodGet, 1, nil)
		b = slices.Clone(b)
		apply(b, []setting{{piState, portNoChange}, {piPhys, physNoChange}, {piLID, 7}, {piSMLID, 3}})
		apply(b, c.v)
		if _, status := a.portInfo(methodSet, 1, b); status != c.status {
			t.Errorf("fields at bit %d set to %d: an adapter of the subnet has status %#x, want %#x", c.v[0].f.Off, c.v[0].v, status, c.status)
		}
	}
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
