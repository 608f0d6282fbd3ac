package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// TestDiscoverSelfLink: a neighbor that answers as the own port ends neither the walk nor the order of its nodes.
func TestDiscoverSelfLink(t *testing.T) {
	s, p := open(t, "fattree:20", "host1")
	own := discover(t, p, Options{}).From.Node.Info
	must(t, s.Intercept("leaf1", nodeInfoOf(func(i *mad.NodeInfo) { *i = own })))
	f := discover(t, p, Options{})
	var c *Conflict
	if len(f.Nodes) != 1 || len(f.Problems) != 1 || !errors.As(f.Problems[0].Err, &c) || c.GUID != own.NodeGUID || !strings.HasSuffix(c.What, " port 1 is linked to itself") || f.From.Remote != nil {
		t.Errorf("%d nodes, %v", len(f.Nodes), f.Problems)
	}
}

// TestDiscoverBehindConflict: a wrong link hides neither the node that it contradicts nor those behind it.
func TestDiscoverBehindConflict(t *testing.T) {
	s, p := open(t, "fattree:20", "host1")
	f := discover(t, p, Options{})
	leaf, spine := nodeOf(f, "leaf1"), f.Nodes[slices.IndexFunc(f.Nodes, func(n *Node) bool { return strings.HasPrefix(n.Description, "spine") })]
	uplink := leaf.Ports[slices.IndexFunc(leaf.Ports, func(p *Port) bool { return p.Remote != nil && p.Remote.Node == spine })].Number
	must(t, s.Intercept("host3", nodeInfoOf(func(i *mad.NodeInfo) { *i = leaf.Info; i.LocalPortNum = uplink })))
	f = discover(t, p, Options{Parallel: 1})
	if len(f.Nodes) != len(s.Topology().Nodes)-1 || len(f.Problems) != 1 || !strings.Contains(f.Problems[0].Err.Error(), "is linked to") {
		t.Errorf("%d nodes, %v", len(f.Nodes), f.Problems)
	}
	for _, n := range f.Nodes {
		if n.Description == "" || len(n.Ports) == 0 || n.Ports[0].Info == nil {
			t.Errorf("%v was not asked", n)
		}
	}
}

// TestProblemPath: the routes of problems are those of the nodes, in whatever order the answers came.
func TestProblemPath(t *testing.T) {
	s, p := open(t, "ring:9", "host1")
	noSwitchInfo := func(q *subnet.Packet) ([]*subnet.Packet, bool) {
		req, err := mad.Parse(q.MAD)
		return nil, err == nil && req.Attribute == mad.AttrSwitchInfo
	}
	var far *Node
	for _, n := range discover(t, p, Options{}).Nodes {
		if n.IsSwitch() {
			far = n
		}
	}
	// The neighbors on the short way answer late, so that the walk finds the node by the long way.
	var short []string
	for i := range far.Path[1:] {
		for _, n := range discover(t, p, Options{}).Nodes {
			if i > 0 && slices.Equal(n.Path, far.Path[:i+1]) {
				short = append(short, n.Description)
			}
		}
	}
	for _, name := range short {
		var asked atomic.Int32
		must(t, s.Intercept(name, func(*subnet.Packet) ([]*subnet.Packet, bool) { return nil, asked.Add(1) <= 2 }))
	}
	must(t, s.Intercept(far.Description, noSwitchInfo), s.Intercept("host3", subnet.Silent), s.Intercept("host7", subnet.Silent))
	f := discover(t, p, Options{Timeout: 50 * time.Millisecond, Tries: 3})
	if len(f.Problems) != 3 || len(short) == 0 {
		t.Fatalf("%v; late: %q", f.Problems, short)
	}
	for i := range f.Problems {
		x := &f.Problems[i]
		if x.Node != nil && (x.Node.Description != far.Description || !slices.Equal(x.Path, far.Path)) || x.Node == nil && f.nodeAt(x.Path[:len(x.Path)-1]) == nil {
			t.Errorf("%v; the node's route is %v", x, far.Path)
		}
		if i > 0 && bytes.Compare(f.Problems[i-1].Path, x.Path) > 0 {
			t.Errorf("the problems are not sorted: %v", f.Problems)
		}
	}
}

// nodeAt returns the node with a route.
func (f *Fabric) nodeAt(path []uint8) *Node {
	for _, n := range f.Nodes {
		if slices.Equal(n.Path, path) {
			return n
		}
	}
	return nil
}

// TestSpeedPort0: what a switch's ports run at is known only with its port 0, and so is whether the vendor's attribute
// must be asked for.
func TestSpeedPort0(t *testing.T) {
	for name, c := range map[string]struct {
		caps   uint32
		silent int // how many requests for port 0 get no answer
		speed  Speed
		asked  int32 // for the vendor's attribute
	}{
		"late":       {mad.CapExtSpeeds, 2, EDR, 0},
		"late FDR10": {0, 2, FDR10, 2},
		"FDR10":      {0, 0, FDR10, 2},
		"silent":     {mad.CapExtSpeeds, 3, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			var asked, zero atomic.Int32
			p := newHostile(func(b []byte) []byte {
				q, err := mad.Parse(b)
				if err != nil || len(q.Route()) > 0 {
					return nil
				}
				switch q.Attribute {
				case mad.AttrNodeInfo:
					put(b, &mad.NodeInfo{NodeType: netlinkrdma.NodeSwitch, NumPorts: 2, NodeGUID: 7, PortGUID: 7, LocalPortNum: 1, DeviceID: 0xcb20})
				case attrMellanoxPortInfo:
					asked.Add(1)
					put(b, &mellanoxPortInfo{1, 1, 1})
				case mad.AttrPortInfo:
					if q.Modifier == 0 && int(zero.Add(1)) <= c.silent {
						return nil
					}
					i := &mad.PortInfo{LocalPortNum: 1, PortPhysicalState: netlinkrdma.PhysLinkUp, PortState: netlinkrdma.PortActive, LinkSpeedActive: uint8(QDR), LinkSpeedSupported: 7}
					if i.CapabilityMask = c.caps; c.caps != 0 {
						i.LinkSpeedExtActive, i.LinkSpeedExtSupported = 2, 2
					}
					if q.Modifier == 0 {
						i.LinkSpeedActive = 0
					}
					put(b, i)
				}
				return b
			})
			defer p.Close()
			f := discover(t, p, Options{})
			port := f.From.Node.Port(2)
			if port.Speed() != c.speed || asked.Load() != c.asked || (port.SpeedsSupported() == 0) != (c.speed == 0) || (port.SpeedsEnabled() == 0) != (c.speed == 0) && c.speed != EDR {
				t.Errorf("%s: %v, %d requests of the vendor, supported %v", name, port.Speed(), asked.Load(), port.SpeedsSupported())
			}
			port.Remote, port.Info.LinkWidthActive = &Port{Node: &Node{}, Info: port.Info}, mad.Width4X
			if _, speed := port.Could(); speed != 0 {
				t.Errorf("%s: could be %v", name, speed)
			}
		})
	}
}

// TestTraceArguments: LIDs that no port can have, and options out of range, are errors.
func TestTraceArguments(t *testing.T) {
	_, p := open(t, "line:2", "host1")
	for want, ask := range map[string]func() error{
		"the LID of the target is 0x0, allowed: 0x1 to 0xbfff":    func() error { _, err := Trace(t.Context(), p, 1, 0, Options{}); return err },
		"the LID of the target is 0xc000, allowed: 0x1 to 0xbfff": func() error { _, err := Trace(t.Context(), p, 0, 0xc000, Options{}); return err },
		"the LID of the source is 0xffff, allowed: 0x0 to 0xbfff": func() error { _, err := Trace(t.Context(), p, 0xffff, 1, Options{}); return err },
		"the LID of the target is 0xc001, allowed: 0x1 to 0xbfff": func() error {
			_, err := TraceMulticast(t.Context(), p, 0, 0xc001, 0xc001, Options{})
			return err
		},
		"MaxHops is 64, allowed: 1 to 63":      func() error { _, err := Trace(t.Context(), p, 0, 1, Options{MaxHops: 64}); return err },
		"Interval is -1ns, allowed: 0 or more": func() error { _, err := Check(t.Context(), p, &Fabric{}, CheckOptions{Interval: -1}); return err },
		"Parallel is 2000, allowed: 1 to 1024": func() error { _, err := Trace(t.Context(), p, 0, 1, Options{Parallel: 2000}); return err },
		"MaxNodes is -1, allowed: 1 to 1048576": func() error {
			_, err := TraceMulticast(t.Context(), p, 0, 1, 0xc000, Options{MaxNodes: -1})
			return err
		},
	} {
		if err := ask(); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestTraceMulticastSilent: a member that does not answer matters only if no other branch comes to the target.
func TestTraceMulticastSilent(t *testing.T) {
	s, p := open(t, "fattree:20", "host1")
	must(t, s.AssignGroup(0xc001, "host1", "host3", "host20"), s.Intercept("host3", subnet.Silent))
	f := discover(t, p, Options{Timeout: 20 * time.Millisecond, Tries: 1})
	o := Options{Timeout: 20 * time.Millisecond, Tries: 1}
	if r, err := TraceMulticast(t.Context(), p, 0, lidOf(t, f, "host20"), 0xc001, o); err != nil || !strings.HasSuffix(text(r), "-1 host20") {
		t.Errorf("%v, %v", r, err)
	}
	r, err := TraceMulticast(t.Context(), p, 0, lidOf(t, f, "host19"), 0xc001, o)
	if !errors.Is(err, os.ErrDeadlineExceeded) || text(r) != "host1 1-1 leaf1" {
		t.Errorf("the target is not a member: %v, %v", r, err)
	}
	must(t, s.Intercept("host3", nil))
	if _, err := TraceMulticast(t.Context(), p, 0, lidOf(t, f, "host20"), 0xc001, Options{MaxHops: 2}); !errors.Is(err, ErrTooLong) {
		t.Errorf("MaxHops is 2: %v", err)
	}
	_, err = TraceMulticast(t.Context(), p, 0, 500, 0xc005, Options{})
	if want := `fabric: the route to LID 500 ends at CA "host1": packets to 0xc005 do not come to it: ` + ErrNoRoute.Error(); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestTraceMulticastEndless: switches without an end, which forward a group to all ports, are an error.
func TestTraceMulticastEndless(t *testing.T) {
	var requests atomic.Int32
	p := newHostile(func(b []byte) []byte {
		requests.Add(1)
		b = endless(b)
		switch q, _ := mad.Parse(b); q.Attribute {
		case mad.AttrSwitchInfo:
			put(b, &mad.SwitchInfo{MulticastFDBCap: 1024})
		case mad.AttrMulticastForwardingTable:
			for i := range b[64:128] {
				b[64+i] = 0xff
			}
		}
		return b
	})
	defer p.Close()
	_, err := TraceMulticast(t.Context(), p, 0, 9, 0xc000, Options{MaxNodes: 300})
	if err == nil || !strings.Contains(err.Error(), "MaxNodes is 300, and packets to 0xc000 come to more nodes") || requests.Load() > 300*6 {
		t.Errorf("%d requests, %v", requests.Load(), err)
	}
}

// TestCheckSilentSwitch: a switch that does not answer requests for its table gets no more than there can be at
// once, and is one finding.
func TestCheckSilentSwitch(t *testing.T) {
	for _, parallel := range []int{1, 40} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			requests := 0
			p := newHostile(func(b []byte) []byte {
				mu.Lock()
				defer mu.Unlock()
				requests++
				return nil
			})
			defer p.Close()
			n := &Node{Info: mad.NodeInfo{NodeType: netlinkrdma.NodeSwitch, NumPorts: 1}, Switch: &mad.SwitchInfo{LinearFDBTop: 0xbfff}}
			n.addPort(0).Info = &mad.PortInfo{LID: 1}
			start := time.Now()
			found, err := Check(t.Context(), p, &Fabric{Nodes: []*Node{n}}, CheckOptions{Options: Options{Parallel: parallel, Tries: 1}})
			must(t, err)
			if len(found) != 1 || found[0].Kind != KindAnswer || found[0].Port != n.Ports[0] || requests != parallel || time.Since(start) > 3*time.Second {
				t.Errorf("Parallel is %d: %d requests in %v, %v", parallel, requests, time.Since(start), found)
			}
		})
	}
}

// TestCheckCount: a finding on a route counts the active ports of other adapters that it concerns, and there is none
// if there are none.
func TestCheckCount(t *testing.T) {
	for name, c := range map[string]struct {
		at, to string
		down   string // an adapter whose link is not active
		want   []int
	}{
		"own leaf":       {"leaf1", "host5", "", []int{19}},
		"other leaf":     {"leaf2", "host5", "", []int{2}},
		"not active":     {"leaf2", "host5", "host20", []int{1}},
		"no adapter":     {"leaf2", "leaf1", "host19", []int{1}},
		"nobody is lost": {"leaf2", "host5", "host19 host20", nil},
	} {
		s, p := open(t, "fattree:20", "host1")
		f := discover(t, p, Options{})
		lid := lidOf(t, f, c.to)
		var block mad.LinearForwardingTable
		set(t, p, nodeOf(f, c.at).Path, uint32(lid/64), &block, func() { block.Port[lid%64] = NoPort })
		for _, host := range strings.Fields(c.down) { // up, but not active
			must(t, s.SetLink(host, 1, false), s.SetLink(host, 1, true))
		}
		found, err := Check(t.Context(), p, discover(t, p, Options{}), CheckOptions{NoCounters: true, Options: Options{Timeout: 5 * time.Second}})
		must(t, err)
		var counts []int
		for _, x := range found {
			if x.Kind == KindRoute && x.Port.LID() == lid {
				counts = append(counts, x.Count)
				if !strings.HasPrefix(x.Text, fmt.Sprintf("%d ports of adapters cannot reach LID %d: ", x.Count, lid)) {
					t.Errorf("%s: %s", name, x.Text)
				}
			}
		}
		if !slices.Equal(counts, c.want) {
			t.Errorf("%s: counts %v, want %v", name, counts, c.want)
		}
		p.Close()
	}
}
