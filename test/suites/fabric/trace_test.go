package fabric_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// lidOf returns the LID of a node.
func lidOf(t testing.TB, f *fabric.Fabric, name string) uint16 {
	t.Helper()
	n := nodeOf(f, name)
	if n == nil || n.Ports[0].LID() == 0 {
		t.Fatalf("%s was not found, or has no LID", name)
	}
	return n.Ports[0].LID()
}

// nodeOf returns a node by its description, or nil.
func nodeOf(f *fabric.Fabric, name string) *fabric.Node {
	for _, n := range f.Nodes {
		if n.Description == name {
			return n
		}
	}
	return nil
}

// text writes a route as "from out-in node ...".
func text(r *fabric.Route) string {
	s := r.From.Description
	for _, h := range r.Hops {
		s += fmt.Sprintf(" %d-%d %s", h.Out, h.Info.LocalPortNum, h.Description)
	}
	return s
}

// set changes an attribute of a node by an SMP.
func set(t testing.TB, p *umad.Port, path []uint8, modifier uint32, a mad.Attribute, change func()) {
	t.Helper()
	agent, err := p.Register(umad.AgentOptions{Class: mad.ClassSubnDirected})
	must(t, err)
	defer agent.Close()
	req, err := mad.NewDirectedSMP(mad.MethodGet, a.ID(), modifier, path...)
	must(t, err, agent.Query(t.Context(), umad.Addr{}, req, a))
	change()
	req.Method = mad.MethodSet
	must(t, req.Put(a))
	_, err = agent.Do(t.Context(), umad.Addr{}, req)
	must(t, err)
}

// TestTrace: the route between two ports follows the forwarding tables, whatever the ends are.
func TestTrace(t *testing.T) {
	_, p := open(t, "line:4", "host1")
	f := discover(t, p, fabric.Options{})
	for _, c := range []struct{ from, to, want string }{
		{"", "host4", "host1 1-1 switch1 2-3 switch2 2-3 switch3 2-3 switch4 1-1 host4"},
		{"host1", "host1", "host1"},
		{"host3", "host2", "host3 1-1 switch3 3-2 switch2 1-1 host2"},
		{"host4", "host1", "host4 1-1 switch4 3-2 switch3 3-2 switch2 3-2 switch1 1-1 host1"},
		{"switch2", "host4", "switch2 2-3 switch3 2-3 switch4 1-1 host4"},
		{"host2", "switch4", "host2 1-1 switch2 2-3 switch3 2-3 switch4"},
	} {
		var from uint16
		if c.from != "" {
			from = lidOf(t, f, c.from)
		}
		r, err := fabric.Trace(t.Context(), p, from, lidOf(t, f, c.to), fabric.Options{})
		if err != nil || text(r) != c.want {
			t.Errorf("from %s to %s: %v, want %s", c.from, c.to, err, c.want)
		}
		if to := r.To(); to.LID != lidOf(t, f, c.to) {
			t.Errorf("the route ends at LID %d", to.LID)
		}
	}
}

// TestTraceErrors: a route that does not come to its target ends with the reason and the place, and the
// part before is there.
func TestTraceErrors(t *testing.T) {
	for name, c := range map[string]struct {
		port   uint8 // in the table of switch2 for host4
		reason error
		at     string // the whole place
	}{
		"dropped":    {255, fabric.ErrNoRoute, `switch "switch2", entered by port 3: `},
		"down":       {5, fabric.ErrPortDown, `switch "switch2", entered by port 3, would leave by port 5: `},
		"bad":        {9, fabric.ErrBadPort, `switch "switch2", entered by port 3, would leave by port 9: `},
		"management": {0, fabric.ErrBadPort, `switch "switch2", entered by port 3, would leave by port 0: `},
		"loop":       {3, fabric.ErrLoop, `switch "switch1", entered by port 2, would leave by port 2: `},
		"wrong host": {1, fabric.ErrWrongEnd, `CA "host2", entered by port 1: `},
	} {
		_, p := open(t, "line:4", "host1")
		f := discover(t, p, fabric.Options{})
		to := lidOf(t, f, "host4")
		var block mad.LinearForwardingTable
		set(t, p, nodeOf(f, "switch2").Path, uint32(to/64), &block, func() { block.Port[to%64] = c.port })
		r, err := fabric.Trace(t.Context(), p, 0, to, fabric.Options{})
		var e *fabric.RouteError
		if !errors.Is(err, c.reason) || !errors.As(err, &e) || e.LID != to || r == nil || err.Error() != fmt.Sprintf("fabric: the route to LID %d ends at %s%v", to, c.at, c.reason) || r.From.Description != "host1" {
			t.Errorf("%s: %v", name, err)
		}
		p.Close()
	}
	_, p := open(t, "line:70", "host1")
	f := discover(t, p, fabric.Options{})
	if _, err := fabric.Trace(t.Context(), p, 0, f.Nodes[len(f.Nodes)-1].Ports[0].LID(), fabric.Options{}); err != nil {
		t.Errorf("the longest route that there can be: %v", err)
	}
	var far uint16
	for lid := uint16(1); lid < 200 && far == 0; lid++ {
		if f.PortByLID(lid) == nil {
			if _, err := fabric.Trace(t.Context(), p, 0, lid, fabric.Options{}); errors.Is(err, fabric.ErrTooLong) {
				far = lid
			}
		}
	}
	if far == 0 {
		t.Error("no route is too long on a line of 70 switches")
	}
	if _, err := fabric.Trace(t.Context(), p, 0xb000, 1, fabric.Options{}); !errors.Is(err, fabric.ErrNoRoute) || !strings.Contains(err.Error(), "on the way to the source") {
		t.Errorf("a source that does not exist: %v", err)
	}
}

// TestTraceMulticast: packets of a group come to its members and to nobody else.
func TestTraceMulticast(t *testing.T) {
	s, p := open(t, "fattree:40", "host1")
	must(t, s.AssignGroup(0xc001, "host1", "host20", "host40"))
	f := discover(t, p, fabric.Options{})
	for _, from := range []string{"host1", "host20"} {
		r, err := fabric.TraceMulticast(t.Context(), p, lidOf(t, f, from), lidOf(t, f, "host40"), 0xc001, fabric.Options{})
		if err != nil || !strings.HasPrefix(text(r), from+" 1-") || !strings.HasSuffix(text(r), "-1 host40") || len(r.Hops) != 4 {
			t.Errorf("from %s: %v, %v", from, r, err)
		}
	}
	for want, lids := range map[error][2]uint16{fabric.ErrNoRoute: {lidOf(t, f, "host39"), 0xc001}, errMLID: {lidOf(t, f, "host40"), 0xbfff}} {
		_, err := fabric.TraceMulticast(t.Context(), p, 0, lids[0], lids[1], fabric.Options{})
		if !errors.Is(err, want) && (err == nil || !strings.Contains(err.Error(), want.Error())) {
			t.Errorf("%v: %v, want %v", lids, err, want)
		}
	}
	errorIs(t, second(fabric.TraceMulticast(t.Context(), p, 0, lidOf(t, f, "host40"), 0xfffe, fabric.Options{})), fabric.ErrNoRoute, "a group that no table has")
}

// errMLID is the text of the error for a LID that is none of a group.
var errMLID = errors.New("the multicast LID is 0xbfff, allowed: 0xc000 to 0xfffe")

// TestCheck: a subnet without faults has no findings, and each fault has one.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric)
		o     fabric.CheckOptions
		want  []string // kind and a part of the text
	}{
		"none": {},
		"width": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			must(t, s.LimitLink("host3", 1, subnet.Width1X, subnet.EDR), s.Assign("host1", 1))
		}, fabric.CheckOptions{}, []string{"width 1X to"}},
		"speed": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			must(t, s.LimitLink("host3", 1, subnet.Width4X, subnet.QDR), s.Assign("host1", 1))
		}, fabric.CheckOptions{}, []string{"speed QDR to"}},
		"counter": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			must(t, s.AddCounter("host3", 1, subnet.SymbolErrors, 10))
		}, fabric.CheckOptions{},
			[]string{"counter SymbolErrorCounter is 10, the threshold is 10"}},
		"fewer errors": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			must(t, s.AddCounter("host3", 1, subnet.SymbolErrors, 9))
		}, fabric.CheckOptions{}, nil},
		"own threshold": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			must(t, s.AddCounter("host3", 1, subnet.SymbolErrors, 9))
		},
			fabric.CheckOptions{Thresholds: map[string]uint64{"SymbolErrorCounter": 9}}, []string{"counter SymbolErrorCounter is 9"}},
		"ignored": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			must(t, s.AddCounter("host3", 1, subnet.SymbolErrors, 99))
		},
			fabric.CheckOptions{Thresholds: map[string]uint64{"SymbolErrorCounter": 0}}, nil},
		"no counters": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			must(t, s.AddCounter("host3", 1, subnet.SymbolErrors, 99))
		}, fabric.CheckOptions{NoCounters: true}, nil},
		"state": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			must(t, s.SetLink("host3", 1, false), s.SetLink("host3", 1, true))
		}, fabric.CheckOptions{NoRoutes: true},
			[]string{"state state INIT", "state state INIT"}},
		"route": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			lid := lidOf(t, f, "host5")
			var block mad.LinearForwardingTable
			set(t, p, nodeOf(f, "leaf2").Path, 0, &block, func() { block.Port[lid] = 255 })
		}, fabric.CheckOptions{}, []string{"route 2 ports of adapters cannot reach LID"}},
		"no routes": {func(t *testing.T, s *subnet.Subnet, p *umad.Port, f *fabric.Fabric) {
			lid := lidOf(t, f, "host5")
			var block mad.LinearForwardingTable
			set(t, p, nodeOf(f, "leaf2").Path, 0, &block, func() { block.Port[lid] = 255 })
		}, fabric.CheckOptions{NoRoutes: true}, nil},
	} {
		s, p := open(t, "fattree:20", "host1")
		if c.fault != nil {
			c.fault(t, s, p, discover(t, p, fabric.Options{}))
		}
		c.o.Timeout = 5 * time.Second
		found, err := fabric.Check(t.Context(), p, discover(t, p, fabric.Options{}), c.o)
		must(t, err)
		match := len(found) == len(c.want)
		for i := range found {
			if match && !strings.HasPrefix(fmt.Sprint(found[i].Kind, " ", found[i].Text), c.want[i]) {
				match = false
			}
		}
		if !match {
			t.Errorf("%s: %+v, want %q", name, found, c.want)
		}
		p.Close()
	}
}

// TestCheckXDR: a link between ports with XDR runs at it, and is a finding when it does not.
func TestCheckXDR(t *testing.T) {
	top, err := subnet.Parse("line:2")
	must(t, err)
	for _, n := range top.Nodes {
		for i := range n.Ports {
			n.Ports[i].Speed = subnet.XDR
		}
	}
	s := subnet.New(top, subnet.Config{})
	must(t, s.Assign("host1", 1))
	p, err := openPort(s, "host1", 1)
	must(t, err)
	defer p.Close()
	for slow, want := range map[subnet.Speed]string{subnet.XDR: "[]", subnet.NDR: "[speed NDR to", subnet.EDR: "[speed EDR to"} {
		must(t, s.LimitLink("host2", 1, subnet.Width4X, slow), s.Assign("host1", 1))
		f := discover(t, p, fabric.Options{})
		found, err := fabric.Check(t.Context(), p, f, fabric.CheckOptions{})
		must(t, err)
		var texts []string
		for _, x := range found {
			texts = append(texts, fmt.Sprint(x.Kind, " ", x.Text))
		}
		if text := fmt.Sprint(texts); !strings.HasPrefix(text, want) || len(found) > 1 || len(found) == 1 && !strings.HasSuffix(text, "both ends support XDR]") {
			t.Errorf("at %v: %s, want %s", slow, text, want)
		}
		if speed := nodeOf(f, "host2").Ports[0].Speed().String(); speed != slow.String() || f.From.Speed() != fabric.XDR || f.From.Gbps() != 850 {
			t.Errorf("the link that runs at %v is shown with %s, the own one with %v, %v Gbit/s", slow, speed, f.From.Speed(), f.From.Gbps())
		}
	}
}

// TestCheckAnswers: a counter that rises between two readings, an agent without an answer, LIDs and GUIDs of several ports, and
// a counter that does not exist.
func TestCheckAnswers(t *testing.T) {
	s, p := open(t, "fattree:20", "host1")
	f := discover(t, p, fabric.Options{})
	var asked int
	must(t, s.Intercept("host3", func(q *subnet.Packet) ([]*subnet.Packet, bool) {
		req, err := mad.Parse(q.MAD)
		if err != nil || req.Class != mad.ClassPerf {
			return nil, false
		}
		asked++
		a := subnet.Reply(q, 0)
		data, _ := mad.Marshal(&mad.PortCounters{PortSelect: 1, PortRcvErrors: uint16(asked)})
		copy(a.MAD[64:], data)
		return []*subnet.Packet{a}, true
	}), s.Intercept("host4", func(q *subnet.Packet) ([]*subnet.Packet, bool) { return nil, q.MAD[1] == byte(mad.ClassPerf) }))
	o := fabric.CheckOptions{Interval: time.Millisecond, NoRoutes: true, Options: fabric.Options{Timeout: 50 * time.Millisecond, Tries: 1}}
	found, err := fabric.Check(t.Context(), p, f, o)
	must(t, err)
	var rises, silent int
	for _, x := range found {
		if x.Kind == fabric.KindCounter && x.Counter == "PortRcvErrors" && x.Value == 1 && x.Port.Node.Description == "host3" {
			rises++
		}
		if x.Kind == fabric.KindAnswer && x.Port.Node.Description == "host4" {
			silent++
		}
	}
	if rises != 1 || silent != 1 || len(found) != 2 {
		t.Errorf("%+v", found)
	}
	nodeOf(f, "host5").Ports[0].Info.LID = nodeOf(f, "host6").Ports[0].Info.LID
	nodeOf(f, "host7").Ports[0].GUID = nodeOf(f, "host8").Ports[0].GUID
	nodeOf(f, "host9").Ports[0].Info.LID = 0
	found, err = fabric.Check(t.Context(), p, f, fabric.CheckOptions{NoCounters: true, NoRoutes: true})
	must(t, err)
	var kinds []string
	for _, x := range found {
		kinds = append(kinds, string(x.Kind))
	}
	slices.Sort(kinds)
	if !slices.Equal(kinds, []string{"guid", "lid", "lid"}) {
		t.Errorf("%+v", found)
	}
	if _, err := fabric.Check(t.Context(), p, f, fabric.CheckOptions{Thresholds: map[string]uint64{"Bogus": 1}}); err == nil || !strings.Contains(err.Error(), `the counter is "Bogus", allowed: [Exc`) {
		t.Error(err)
	}
	must(t, p.Close())
	if _, err := fabric.Check(t.Context(), p, f, fabric.CheckOptions{}); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the port is closed: %v", err)
	}
}
