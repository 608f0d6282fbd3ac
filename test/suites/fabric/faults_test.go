package fabric_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// TestDiscoverSelfLink: a neighbor that answers as the own port ends neither the walk nor the order of its nodes.
func TestDiscoverSelfLink(t *testing.T) {
	s, p := open(t, "fattree:20", "host1")
	own := discover(t, p, fabric.Options{}).From.Node.Info
	must(t, s.Intercept("leaf1", nodeInfoOf(func(i *mad.NodeInfo) { *i = own })))
	f := discover(t, p, fabric.Options{})
	var c *fabric.Conflict
	if len(f.Nodes) != 1 || len(f.Problems) != 1 || !errors.As(f.Problems[0].Err, &c) || c.GUID != own.NodeGUID || !strings.HasSuffix(c.What, " port 1 is linked to itself") || f.From.Remote != nil {
		t.Errorf("%d nodes, %v", len(f.Nodes), f.Problems)
	}
}

// TestDiscoverBehindConflict: a wrong link hides neither the node that it contradicts nor those behind it.
func TestDiscoverBehindConflict(t *testing.T) {
	s, p := open(t, "fattree:20", "host1")
	f := discover(t, p, fabric.Options{})
	leaf, spine := nodeOf(f, "leaf1"), f.Nodes[slices.IndexFunc(f.Nodes, func(n *fabric.Node) bool { return strings.HasPrefix(n.Description, "spine") })]
	uplink := leaf.Ports[slices.IndexFunc(leaf.Ports, func(p *fabric.Port) bool { return p.Remote != nil && p.Remote.Node == spine })].Number
	must(t, s.Intercept("host3", nodeInfoOf(func(i *mad.NodeInfo) { *i = leaf.Info; i.LocalPortNum = uplink })))
	f = discover(t, p, fabric.Options{Parallel: 1})
	if len(f.Nodes) != len(s.Topology().Nodes)-1 || len(f.Problems) != 1 || !strings.Contains(f.Problems[0].Err.Error(), "is linked to") {
		t.Errorf("%d nodes, %v", len(f.Nodes), f.Problems)
	}
	for _, n := range f.Nodes {
		if n.Description == "" || len(n.Ports) == 0 || n.Ports[0].Info == nil {
			t.Errorf("%v was not asked", n)
		}
	}
}

// TestProblemPath: problems have the routes of their nodes, in whatever order the answers came.
func TestProblemPath(t *testing.T) {
	s, p := open(t, "ring:9", "host1")
	noSwitchInfo := func(q *subnet.Packet) ([]*subnet.Packet, bool) {
		req, err := mad.Parse(q.MAD)
		return nil, err == nil && req.Attribute == mad.AttrSwitchInfo
	}
	var far *fabric.Node
	for _, n := range discover(t, p, fabric.Options{}).Nodes {
		if n.IsSwitch() {
			far = n
		}
	}
	// The neighbors on the short way answer late, so that the walk finds the node by the long way.
	var short []string
	for i := range far.Path[1:] {
		for _, n := range discover(t, p, fabric.Options{}).Nodes {
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
	f := discover(t, p, fabric.Options{Timeout: 50 * time.Millisecond, Tries: 3})
	if len(f.Problems) != 3 || len(short) == 0 {
		t.Fatalf("%v; late: %q", f.Problems, short)
	}
	for i := range f.Problems {
		x := &f.Problems[i]
		if x.Node != nil && (x.Node.Description != far.Description || !slices.Equal(x.Path, far.Path)) || x.Node == nil && nodeAt(f, x.Path[:len(x.Path)-1]) == nil {
			t.Errorf("%v; the node's route is %v", x, far.Path)
		}
		if i > 0 && bytes.Compare(f.Problems[i-1].Path, x.Path) > 0 {
			t.Errorf("the problems are not sorted: %v", f.Problems)
		}
	}
}

// nodeAt returns the node with a route.
func nodeAt(f *fabric.Fabric, path []uint8) *fabric.Node {
	for _, n := range f.Nodes {
		if slices.Equal(n.Path, path) {
			return n
		}
	}
	return nil
}

// TestTraceMulticastSilent: a member that does not answer matters only if no other branch comes to the target.
func TestTraceMulticastSilent(t *testing.T) {
	s, p := open(t, "fattree:20", "host1")
	must(t, s.AssignGroup(0xc001, "host1", "host3", "host20"), s.Intercept("host3", subnet.Silent))
	f := discover(t, p, fabric.Options{Timeout: 20 * time.Millisecond, Tries: 1})
	o := fabric.Options{Timeout: 20 * time.Millisecond, Tries: 1}
	if r, err := fabric.TraceMulticast(t.Context(), p, 0, lidOf(t, f, "host20"), 0xc001, o); err != nil || !strings.HasSuffix(text(r), "-1 host20") {
		t.Errorf("%v, %v", r, err)
	}
	r, err := fabric.TraceMulticast(t.Context(), p, 0, lidOf(t, f, "host19"), 0xc001, o)
	if !errors.Is(err, os.ErrDeadlineExceeded) || text(r) != "host1 1-1 leaf1" {
		t.Errorf("the target is not a member: %v, %v", r, err)
	}
	must(t, s.Intercept("host3", nil))
	errorIs(t, second(fabric.TraceMulticast(t.Context(), p, 0, lidOf(t, f, "host20"), 0xc001, fabric.Options{MaxHops: 2})), fabric.ErrTooLong, "MaxHops is 2")
	_, err = fabric.TraceMulticast(t.Context(), p, 0, 500, 0xc005, fabric.Options{})
	if want := `fabric: the route to LID 500 ends at CA "host1": packets to 0xc005 do not come to it: ` + fabric.ErrNoRoute.Error(); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
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
		f := discover(t, p, fabric.Options{})
		lid := lidOf(t, f, c.to)
		var block mad.LinearForwardingTable
		set(t, p, nodeOf(f, c.at).Path, uint32(lid/64), &block, func() { block.Port[lid%64] = fabric.NoPort })
		for _, host := range strings.Fields(c.down) { // up, but not active
			must(t, s.SetLink(host, 1, false), s.SetLink(host, 1, true))
		}
		found, err := fabric.Check(t.Context(), p, discover(t, p, fabric.Options{}), fabric.CheckOptions{NoCounters: true, Options: fabric.Options{Timeout: 5 * time.Second}})
		must(t, err)
		var counts []int
		for _, x := range found {
			if x.Kind == fabric.KindRoute && x.Port.LID() == lid {
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
