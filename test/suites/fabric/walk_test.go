package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// must fails a test on an error.
var must = testenv.Must

// open makes a subnet whose ports have LIDs, and opens a port of it.
func open(t testing.TB, word, node string) (*subnet.Subnet, *umad.Port) {
	t.Helper()
	top, err := subnet.Parse(word)
	must(t, err)
	s := subnet.New(top, subnet.Config{})
	must(t, s.Assign("host1", 1))
	p, err := openPort(s, node, 1)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return s, p
}

// discover walks.
func discover(t testing.TB, p *umad.Port, o fabric.Options) *fabric.Fabric {
	t.Helper()
	f, err := fabric.Discover(t.Context(), p, o)
	must(t, err)
	return f
}

// compare reports nodes and links that the walk found and the topology does not have, or the reverse.
func compare(t testing.TB, f *fabric.Fabric, top *subnet.Topology) {
	t.Helper()
	var got, want []string
	for _, n := range f.Nodes {
		i := &n.Info
		got = append(got, fmt.Sprintf("%s %d %#x %#x %d", n.Description, i.NodeType, uint64(n.GUID()), uint64(i.SystemImageGUID), i.NumPorts))
	}
	for a, b := range f.Links() {
		ends := []string{fmt.Sprint(a.Node.Description, " ", a.Number), fmt.Sprint(b.Node.Description, " ", b.Number)}
		slices.Sort(ends)
		got = append(got, strings.Join(ends, " - "))
	}
	for _, n := range top.Nodes {
		want = append(want, fmt.Sprintf("%s %d %#x %#x %d", n.Description, n.Type, n.GUID, n.SystemGUID, len(n.Ports)-1))
		for i, p := range n.Ports {
			if p.Peer.Node == nil {
				continue
			}
			ends := []string{fmt.Sprint(n.Description, " ", i), fmt.Sprint(p.Peer.Node.Description, " ", p.Peer.Port)}
			if slices.IsSorted(ends) {
				want = append(want, strings.Join(ends, " - "))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the walk found %d nodes and links, there are %d:\n%s\n\n%s", len(got), len(want), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDiscover: the walk finds every node and link once, whatever the shape of the subnet and the number
// of requests at once, and always in the same order and by the same routes.
func TestDiscover(t *testing.T) {
	for _, word := range []string{"fattree:1", "fattree:10", "fattree:100", "fattree:324", "ring:3", "ring:40", "line:20"} {
		s, p := open(t, word, "host1")
		var first []string
		for _, parallel := range []int{1, 2, 0, 64} {
			calls := 0
			f := discover(t, p, fabric.Options{Parallel: parallel, Timeout: 10 * time.Second, Progress: func(nodes, requests int) { calls = nodes }})
			compare(t, f, s.Topology())
			if len(f.Problems) > 0 || f.From.Node.Description != "host1" || f.From.Number != 1 || calls != len(f.Nodes) || f.SMPs < 3*len(f.Nodes) {
				t.Errorf("%s: problems %v, from %v, %d nodes reported, %d requests", word, f.Problems, f.From, calls, f.SMPs)
			}
			var order []string
			for _, n := range f.Nodes {
				order = append(order, fmt.Sprint(n.Description, n.Path))
			}
			if first == nil {
				first = order
			}
			if !slices.Equal(order, first) {
				t.Errorf("%s with %d requests at once: %v, want %v", word, parallel, order, first)
			}
		}
	}
}

// TestDiscoverPorts: what is known of ports: LIDs, rates, states, and what a link could do.
func TestDiscoverPorts(t *testing.T) {
	s, p := open(t, "fattree:20", "host2")
	must(t, s.LimitLink("host3", 1, subnet.Width1X, subnet.QDR), s.SetLink("host4", 1, false), s.Assign("host1", 1))
	f := discover(t, p, fabric.Options{})
	leaf := f.From.Remote.Node
	port := leaf.Port(3)
	if lanes, speed := port.Could(); port.Lanes() != 1 || port.Speed() != fabric.QDR || port.Gbps() != 10 || lanes != 4 || speed != fabric.EDR {
		t.Errorf("the narrow link has %d lanes, %v, %v Gbit/s, could have %d, %v", port.Lanes(), port.Speed(), port.Gbps(), lanes, speed)
	}
	if lanes, speed := f.From.Could(); f.From.Lanes() != 4 || f.From.Speed() != fabric.EDR || f.From.Gbps() != 103.125 || lanes != 0 || speed != 0 {
		t.Errorf("the own link has %d lanes, %v, could have %d, %v", f.From.Lanes(), f.From.Speed(), lanes, speed)
	}
	if f.From.SpeedsSupported() != fabric.SDR|fabric.DDR|fabric.QDR|fabric.FDR|fabric.EDR || f.From.SpeedsEnabled().Max() != fabric.EDR {
		t.Errorf("speeds: supported %v, enabled %v", f.From.SpeedsSupported(), f.From.SpeedsEnabled())
	}
	if down := leaf.Port(4); down.Up() || down.Active() || down.Remote != nil || !port.Active() {
		t.Errorf("port 4, which is down: %+v", down)
	}
	if f.PortByLID(f.From.LID()) != f.From || f.PortByLID(leaf.Port(0).LID()) != leaf.Port(0) || leaf.Port(3).LID() != leaf.Port(0).LID() || f.PortByLID(0xbfff) != nil {
		t.Error("ports are not found by their LIDs")
	}
	if f.Node(leaf.GUID()) != leaf || f.Node(1) != nil {
		t.Error("nodes are not found by their GUIDs")
	}
}

// TestDiscoverSilent: a node that answers nothing, or stops answering in the middle, is a problem with its
// route, and the walk finds the rest. No request goes to a node that has not answered three.
func TestDiscoverSilent(t *testing.T) {
	for _, answers := range []int{0, 1, 5} {
		synctest.Test(t, func(t *testing.T) {
			s, p := open(t, "ring:6", "host1")
			var asked atomic.Int32
			must(t, s.Intercept("switch2", func(*subnet.Packet) ([]*subnet.Packet, bool) { return nil, int(asked.Add(1)) > answers }))
			f := discover(t, p, fabric.Options{Parallel: 1, Tries: 1})
			p.Close()
			if len(f.Problems) == 0 || len(f.Problems) > 4 || !errors.Is(f.Problems[0].Err, os.ErrDeadlineExceeded) {
				t.Errorf("after %d answers: %v", answers, f.Problems)
			}
			if text := fmt.Sprint(&f.Problems[0]); !strings.Contains(text, "route [1 2]") && !strings.Contains(text, "route [1 3 ") {
				t.Errorf("the problem %q does not have the route", text)
			}
			for _, n := range []string{"switch3", "switch4", "host3", "host6"} {
				if !slices.ContainsFunc(f.Nodes, func(f *fabric.Node) bool { return f.Description == n }) {
					t.Errorf("after %d answers: %s was not found", answers, n)
				}
			}
			if n := asked.Load(); n > int32(answers)+4 {
				t.Errorf("%d requests to the silent node", n)
			}
		})
	}
}

// TestDiscoverLoss: requests that get lost are sent again.
func TestDiscoverLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := open(t, "fattree:40", "host1")
		must(t, s.SetLoss("host1", 1, 0.2))
		f := discover(t, p, fabric.Options{Tries: 30, Timeout: 100 * time.Millisecond})
		p.Close()
		compare(t, f, s.Topology())
	})
}

// TestDiscoverHops: a route ends after MaxHops ports, 63 without a limit, and the rest is a problem.
func TestDiscoverHops(t *testing.T) {
	_, p := open(t, "line:70", "host1")
	for limit, want := range map[int]int{0: 63, 63: 63, 5: 5} {
		f := discover(t, p, fabric.Options{MaxHops: limit, Timeout: 10 * time.Second})
		longest := 0
		for _, n := range f.Nodes {
			longest = max(longest, len(n.Path))
		}
		if longest != want || len(f.Problems) == 0 || !strings.Contains(f.Problems[0].Err.Error(), fmt.Sprintf("a route of %d ports", want)) {
			t.Errorf("limit %d: the longest route has %d ports; %v", limit, longest, f.Problems)
		}
	}
}

// nodeInfoOf changes the NodeInfos that a node answers.
func nodeInfoOf(change func(i *mad.NodeInfo)) func(*subnet.Packet) ([]*subnet.Packet, bool) {
	return func(p *subnet.Packet) ([]*subnet.Packet, bool) {
		req, err := mad.Parse(p.MAD)
		if err != nil || req.Attribute != mad.AttrNodeInfo {
			return nil, false
		}
		info := mad.NodeInfo{BaseVersion: 1, ClassVersion: 1, NodeType: 1, NumPorts: 1, LocalPortNum: 1, PortGUID: 77, NodeGUID: 77}
		change(&info)
		a := subnet.Reply(p, 0)
		data, _ := mad.Marshal(&info)
		copy(a.MAD[64:], data)
		return []*subnet.Packet{a}, true
	}
}

// TestDiscoverConflicts: nodes with the GUID of another, and ports that cannot be, are problems.
func TestDiscoverConflicts(t *testing.T) {
	s, p := open(t, "fattree:20", "host1")
	f := discover(t, p, fabric.Options{})
	third := f.Nodes[0]
	for _, n := range f.Nodes {
		if n.Description == "host3" {
			third = n
		}
	}
	for want, change := range map[string]func(*mad.NodeInfo){
		"is linked to":                         func(i *mad.NodeInfo) { *i = third.Info },
		"NodeInfo is":                          func(i *mad.NodeInfo) { *i = third.Info; i.NumPorts = 2 },
		"the request came through port 2 of 1": func(i *mad.NodeInfo) { i.LocalPortNum = 2 },
	} {
		must(t, s.Intercept("host5", nodeInfoOf(change)))
		f := discover(t, p, fabric.Options{})
		var c *fabric.Conflict
		if len(f.Problems) != 1 || !errors.As(f.Problems[0].Err, &c) || !strings.Contains(c.Error(), want) || len(f.Nodes) != len(s.Topology().Nodes)-1 {
			t.Errorf("want %q: %d nodes, %v", want, len(f.Nodes), f.Problems)
		}
	}
}

// TestDiscoverErrors: bad options, a port without QP0, an own node that does not answer, a context that
// ends, and a port that is closed end the walk with an error that names it.
func TestDiscoverErrors(t *testing.T) {
	s, p := open(t, "fattree:20", "host1")
	for want, o := range map[string]fabric.Options{
		"Parallel is -1, allowed: 1 to 1024":    {Parallel: -1},
		"MaxHops is 64, allowed: 1 to 63":       {MaxHops: 64},
		"MaxNodes is -5, allowed: 1 to 1048576": {MaxNodes: -5},
		"Timeout is -1s":                        {Timeout: -time.Second},
	} {
		if _, err := fabric.Discover(t.Context(), p, o); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
	if f := discover(t, p, fabric.Options{MaxNodes: 5}); len(f.Nodes) != 5 || len(f.Problems) != 1 || !strings.Contains(f.Problems[0].String(), "MaxNodes is 5, and there are more") {
		t.Errorf("more nodes than allowed: %d, %v", len(f.Nodes), f.Problems)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	_, err := fabric.Discover(ctx, p, fabric.Options{Progress: func(nodes, _ int) {
		if nodes == 3 {
			cancel(stop)
		}
	}})
	errorIs(t, err, stop, "the context ended")
	must(t, s.Intercept("host1", subnet.Silent))
	var timeout *umad.TimeoutError
	if _, err := fabric.Discover(t.Context(), p, fabric.Options{Tries: 1, Timeout: 10 * time.Millisecond}); !errors.As(err, &timeout) {
		t.Errorf("the own node is silent: %v", err)
	}
	must(t, p.Close())
	errorIs(t, second(fabric.Discover(t.Context(), p, fabric.Options{})), os.ErrClosed, "the port is closed")
	noQP0 := ibsim.NoQP0("rxe0")
	defer noQP0.Close()
	if _, err := fabric.Discover(t.Context(), noQP0, fabric.Options{}); !errors.Is(err, umad.ErrNoQP0) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a port without QP0: %v", err)
	}
}
