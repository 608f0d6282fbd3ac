package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// errorIs checks which error a call returned.
var errorIs = testenv.ErrorIs

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// portOf opens a port that is closed at the end of the test.
func portOf(t *testing.T, s *subnet.Subnet, node string) *umad.Port {
	t.Helper()
	p, err := openPort(s, node, 1)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func agent(t *testing.T, p *umad.Port, o umad.AgentOptions) *umad.Agent {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 5 * time.Second
	}
	a, err := p.Register(o)
	must(t, err)
	t.Cleanup(func() { a.Close() })
	return a
}

// directed asks for an attribute by directed route.
func directed(t *testing.T, a *umad.Agent, answer mad.Attribute, modifier uint32, route ...uint8) error {
	t.Helper()
	p, err := mad.NewDirectedSMP(mad.MethodGet, answer.ID(), modifier, route...)
	must(t, err)
	return a.Query(context.Background(), umad.Addr{}, p, answer)
}

// walk finds the nodes of a subnet by directed routes, and returns their descriptions by GUID.
func walk(t *testing.T, a *umad.Agent) map[ib.GUID]string {
	t.Helper()
	found := map[ib.GUID]string{}
	routes := [][]uint8{nil}
	for ; len(routes) > 0; routes = routes[1:] {
		route := routes[0]
		var info mad.NodeInfo
		if err := directed(t, a, &info, 0, route...); err != nil {
			t.Fatalf("route %d: %v", route, err)
		}
		if found[info.NodeGUID] != "" {
			continue
		}
		var d mad.NodeDescription
		must(t, directed(t, a, &d, 0, route...))
		found[info.NodeGUID] = d.NodeString
		if info.NodeType != ib.NodeSwitch && len(route) > 0 {
			continue
		}
		for i := range info.NumPorts {
			var p mad.PortInfo
			must(t, directed(t, a, &p, uint32(i)+1, route...))
			if p.PortPhysicalState == ib.PhysLinkUp {
				routes = append(routes, append(append([]uint8(nil), route...), i+1))
			}
		}
	}
	return found
}

// TestWalk finds every node of subnets of different sizes by directed routes.
func TestWalk(t *testing.T) {
	for word, want := range map[string]int{"fattree:10": 11, "fattree:100": 100 + 6 + 3, "ring:7": 14} {
		t.Run(word, func(t *testing.T) {
			s, p := open(t, word, "host1")
			found := walk(t, agent(t, p, umad.AgentOptions{Class: mad.ClassSubnDirected}))
			if len(found) != want || want != len(s.Topology().Nodes) {
				t.Errorf("%d nodes were found, want %d", len(found), want)
			}
			for _, n := range s.Topology().Nodes {
				if found[ib.GUID(n.GUID)] != n.Description {
					t.Errorf("node %q has the description %q", n.Description, found[ib.GUID(n.GUID)])
				}
			}
		})
	}
}

// lidBy asks the port with a LID for its LID.
func lidBy(t *testing.T, a *umad.Agent, lid uint16) (uint16, error) {
	t.Helper()
	var p mad.PortInfo
	err := a.Query(context.Background(), umad.Addr{LID: lid}, mad.NewSMP(mad.MethodGet, mad.AttrPortInfo, 0), &p)
	return p.LID, err
}

// TestLIDs reaches every port by its LID.
func TestLIDs(t *testing.T) {
	s, p := open(t, "fattree:40", "host1")
	a := agent(t, p, umad.AgentOptions{Class: mad.ClassSubnLID})
	for lid := 1; lid <= len(s.Topology().Nodes); lid++ {
		if got, err := lidBy(t, a, uint16(lid)); err != nil || int(got) != lid {
			t.Errorf("the port with LID %d says %d (%v)", lid, got, err)
		}
	}
	short := agent(t, p, umad.AgentOptions{Class: mad.ClassSubnLID, Timeout: 10 * time.Millisecond, Tries: 2})
	var timeout *umad.TimeoutError
	if _, err := lidBy(t, short, 4711); !errors.As(err, &timeout) {
		t.Errorf("LID 4711: %v, want a time-out", err)
	}
}

// TestMixedRoute takes a route that begins with a LID, as ibportstate does, and one that ends with one.
func TestMixedRoute(t *testing.T) {
	s, p := open(t, "line:4", "host1")
	a := agent(t, p, umad.AgentOptions{Class: mad.ClassSubnDirected})
	own, far := lidByName(s, "host1"), lidByName(s, "switch4")
	var d mad.NodeDescription
	for _, c := range []struct {
		route []uint8
		want  string
	}{{nil, "switch4"}, {[]uint8{1}, "host4"}, {[]uint8{3}, "switch3"}, {[]uint8{3, 3, 1}, "host2"}} {
		req, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrNodeDescription, 0, c.route...)
		must(t, err)
		req.SMP.DrSLID = own
		if err := a.Query(context.Background(), umad.Addr{LID: far}, req, &d); err != nil || d.NodeString != c.want {
			t.Errorf("LID %d and route %d lead to %q (%v), want %q", far, c.route, d.NodeString, err, c.want)
		}
	}
	req, err := mad.NewDirectedSMP(mad.MethodGet, mad.AttrNodeDescription, 0, 1, 2)
	must(t, err)
	req.SMP.DrDLID = lidByName(s, "host3")
	if err := a.Query(context.Background(), umad.Addr{}, req, &d); err != nil || d.NodeString != "host3" {
		t.Errorf("a route that ends with the LID of host3 leads to %q (%v)", d.NodeString, err)
	}
}

// lidByName returns the LID that Assign gives: LIDs are in the order of the topology.
func lidByName(s *subnet.Subnet, name string) uint16 {
	for i, n := range s.Topology().Nodes {
		if n.Description == name {
			return uint16(i + 1)
		}
	}
	return 0
}

// TestPerf counts what crosses a switch, and resets it.
func TestPerf(t *testing.T) {
	s, p := open(t, "line:2", "host1")
	a := agent(t, p, umad.AgentOptions{Class: mad.ClassPerf})
	to := umad.Addr{LID: lidByName(s, "switch1")}
	counters := func(m mad.Method, selected uint16) (c mad.PortCounters) {
		t.Helper()
		req := mad.NewPerf(m, mad.AttrPortCounters)
		must(t, req.Put(&mad.PortCounters{PortSelect: 1, CounterSelect: selected}))
		must(t, a.Query(context.Background(), to, req, &c))
		return c
	}
	counters(mad.MethodSet, 0xffff)
	before := counters(mad.MethodGet, 0)
	after := counters(mad.MethodGet, 0)
	if rcv, xmit := after.PortRcvPkts-before.PortRcvPkts, after.PortXmitPkts-before.PortXmitPkts; rcv != 1 || xmit != 1 {
		t.Errorf("a request and an answer: %d packets were received and %d sent", rcv, xmit)
	}
	if before.PortRcvPkts != 1 || before.PortRcvData != 72 {
		t.Errorf("after a reset and one request, %d packets were received and %d words", before.PortRcvPkts, before.PortRcvData)
	}
	var e mad.PortCountersExtended
	req := mad.NewPerf(mad.MethodGet, mad.AttrPortCountersExtended)
	must(t, req.Put(&mad.PortCountersExtended{PortSelect: 1}))
	if err := a.Query(context.Background(), to, req, &e); err != nil || e.PortUnicastRcvPkts != e.PortRcvPkts || e.PortRcvPkts < 4 {
		t.Errorf("extended counters %+v (%v)", e, err)
	}
}

// TestPing is answered by an adapter without a guest, and by an agent if there is one.
func TestPing(t *testing.T) {
	const oui = 0x1405
	s, p := open(t, "line:3", "host1")
	a := agent(t, p, umad.AgentOptions{Class: 0x32, OUI: oui})
	ping := func(node string) string {
		t.Helper()
		answer, err := a.Do(context.Background(), umad.Addr{LID: lidByName(s, node)}, mad.NewVendor(0x32, oui, mad.MethodGet, 0))
		must(t, err)
		text, _, _ := strings.Cut(string(answer.Data), "\x00")
		return text
	}
	if got := ping("host3"); got != "host3.(none)" {
		t.Errorf("host3 answers %q", got)
	}
	server := agent(t, portOf(t, s, "host2"), umad.AgentOptions{Class: 0x32, OUI: oui, Methods: []mad.Method{mad.MethodGet}})
	go server.Serve(context.Background(), func(req *mad.Packet, from umad.Addr) *mad.Packet {
		r := req.Reply()
		r.Data = fmt.Appendf(nil, "hello LID %d", from.LID)
		return r
	})
	if got, want := ping("host2"), fmt.Sprintf("hello LID %d", lidByName(s, "host1")); got != want {
		t.Errorf("host2 answers %q, want %q", got, want)
	}
	agent(t, portOf(t, s, "host3"), umad.AgentOptions{Class: 0x32, OUI: oui, Methods: []mad.Method{mad.MethodSet}})
	if got := ping("host3"); got != "host3.(none)" {
		t.Errorf("an agent that serves another method: host3 answers %q", got)
	}
	var st *mad.StatusError
	if _, err := a.Do(context.Background(), umad.Addr{LID: lidByName(s, "host3")}, mad.NewVendor(0x33, oui, mad.MethodGet, 0)); !errors.As(err, &st) {
		t.Errorf("a class that nobody serves: %v, want a status", err)
	}
}

// manager is an endpoint that counts traps, and keeps the last one.
type manager struct {
	traps int
	last  *subnet.Packet
}

func (m *manager) LinkChanged(bool) {}

func (m *manager) Receive(p *subnet.Packet) bool {
	if method(p.MAD) != mad.MethodTrap {
		return false
	}
	m.traps, m.last = m.traps+1, p
	return true
}

// TestTrapRepress opens port 0 of a switch, whose agent still learns that its trap has arrived.
func TestTrapRepress(t *testing.T) {
	top, err := subnet.Parse("line:2")
	must(t, err)
	var timers []func()
	s := subnet.New(top, subnet.Config{After: func(_ time.Duration, fn func()) { timers = append(timers, fn) }})
	must(t, s.Assign("host1", 1))
	pass := func() {
		due := timers
		timers = nil
		for _, fn := range due {
			fn()
		}
	}
	p, err := openPort(s, "switch1", 0)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	m := &manager{}
	at, err := s.Attach("host1", 1, m, subnet.AttachOptions{})
	must(t, err)
	must(t, s.SetLink("switch1", 2, false))
	if pass(); m.traps != 2 {
		t.Fatalf("%d traps, want 2", m.traps)
	}
	b := slices.Clone(m.last.MAD)
	b[3] = byte(mad.MethodTrapRepress)
	at.Send(&subnet.Packet{SLID: m.last.DLID, DLID: m.last.SLID, VL15: true, MAD: b})
	if pass(); m.traps != 2 {
		t.Errorf("%d traps after the last one was repressed", m.traps-2)
	}
}

// TestServeSA serves subnet administration at a port, with a table that is longer than a packet.
func TestServeSA(t *testing.T) {
	s, p := open(t, "line:2", "host1")
	server := agent(t, portOf(t, s, "host2"), umad.AgentOptions{Class: mad.ClassSA, Methods: []mad.Method{mad.MethodGet, mad.MethodGetTable}})
	go server.Serve(context.Background(), func(req *mad.Packet, _ umad.Addr) *mad.Packet {
		r := req.Reply()
		r.RMPP = mad.RMPPHeader{Version: 1, Type: 1, Flags: mad.RMPPActive | mad.RMPPFirst | mad.RMPPLast}
		r.SA.AttributeOffset = 14
		r.Data = make([]byte, 5*112)
		return r
	})
	a := agent(t, p, umad.AgentOptions{Class: mad.ClassSA})
	req, err := mad.NewSA(mad.MethodGetTable, &mad.NodeRecord{}, 0)
	must(t, err)
	answer, err := a.Do(context.Background(), umad.Addr{LID: lidByName(s, "host2")}, req)
	if err != nil || len(answer.Data) != 5*112 {
		t.Fatalf("answer %v, %v", answer, err)
	}
}

// TestHostile replaces the agents of a switch.
func TestHostile(t *testing.T) {
	s, p := open(t, "line:3", "host1")
	a := agent(t, p, umad.AgentOptions{Class: mad.ClassSubnDirected, Timeout: 20 * time.Millisecond, Tries: 1})
	var info mad.NodeInfo
	must(t, s.Intercept("switch2", subnet.Silent))
	var timeout *umad.TimeoutError
	if err := directed(t, a, &info, 0, 1, 2); !errors.As(err, &timeout) {
		t.Errorf("a silent switch: %v, want a time-out", err)
	}
	if err := directed(t, a, &info, 0, 1, 2, 2); err != nil {
		t.Errorf("the switch behind the silent one: %v", err)
	}
	s.Intercept("switch2", func(p *subnet.Packet) ([]*subnet.Packet, bool) {
		return []*subnet.Packet{subnet.Reply(p, 0x1c)}, true
	})
	var st *mad.StatusError
	if err := directed(t, a, &info, 0, 1, 2); !errors.As(err, &st) {
		t.Errorf("a switch that refuses: %v, want a status", err)
	}
	s.Intercept("switch2", func(p *subnet.Packet) ([]*subnet.Packet, bool) {
		r := subnet.Reply(p, 0)
		r.MAD[15] ^= 0xff // of the transaction ID
		return []*subnet.Packet{r}, true
	})
	if err := directed(t, a, &info, 0, 1, 2); !errors.As(err, &timeout) {
		t.Errorf("another transaction: %v, want a time-out", err)
	}
	s.Intercept("switch2", nil)
	if err := directed(t, a, &info, 0, 1, 2); err != nil {
		t.Errorf("a switch that is well again: %v", err)
	}
}

// TestClose ends calls, and lets others have the port.
func TestClose(t *testing.T) {
	s, p := open(t, "line:2", "host1")
	errorIs(t, second(openPort(s, "host1", 1)), subnet.ErrAttached, "a second port")
	a := agent(t, p, umad.AgentOptions{Class: mad.ClassSubnDirected, Methods: []mad.Method{mad.MethodTrap}})
	failed := make(chan error)
	go func() {
		_, _, err := a.Receive(context.Background())
		failed <- err
	}()
	must(t, p.Close())
	errorIs(t, <-failed, os.ErrClosed, "Receive")
	portOf(t, s, "host1")
	for node, number := range map[string]int{"nobody": 1, "host2": 2, "switch1": 1} {
		if _, err := openPort(s, node, number); err == nil {
			t.Errorf("port %d of %q can be opened", number, node)
		}
	}
}
