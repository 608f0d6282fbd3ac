package fabric_test

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/goverbs/test/hca/subnet"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
)

// route finds the route in the text of a time-out. The one of a problem may be another one, by which the walk has
// come to the node later.
var route = regexp.MustCompile(`by route \[([0-9 ]+)\]`)

// lostAt reports whether err is a time-out of a request whose route passes the link.
func lostAt(from *subnet.Node, err error, link subnet.End) bool {
	m := route.FindStringSubmatch(err.Error())
	if m == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	at := from
	for word := range strings.FieldsSeq(m[1]) {
		number, err := strconv.Atoi(word)
		if err != nil || number >= len(at.Ports) || at.Ports[number].Peer.Node == nil {
			return false
		}
		next := at.Ports[number].Peer
		if (subnet.End{Node: at, Port: number}) == link || next == link {
			return true
		}
		at = next.Node
	}
	return false
}

// withoutLink returns a copy of a topology in which a port has no link.
func withoutLink(t *testing.T, word string, node string, port int) *subnet.Topology {
	t.Helper()
	top, err := subnet.Parse(word)
	must(t, err)
	p := &top.Node(node).Ports[port]
	p.Peer.Node.Ports[p.Peer.Port].Peer, p.Peer = subnet.End{}, subnet.End{}
	return top
}

// unexplained reports nodes that a walk did not find although it knows a switch next to them, has no problem with it,
// and the link between them is not the one that was cut.
func unexplained(t *testing.T, f *fabric.Fabric, top *subnet.Topology, cut subnet.End) {
	t.Helper()
	for _, n := range top.Nodes {
		if f.Node(ib.GUID(n.GUID)) != nil {
			continue
		}
		for i, p := range n.Ports {
			if p.Peer.Node == nil || p.Peer == cut || (subnet.End{Node: n, Port: i}) == cut {
				continue
			}
			next := f.Node(ib.GUID(p.Peer.Node.GUID))
			if next != nil && next.IsSwitch() && !slices.ContainsFunc(f.Problems, func(x fabric.Problem) bool {
				return x.Node == next || x.Node == nil && slices.Equal(x.Path, append(slices.Clip(next.Path), uint8(p.Peer.Port)))
			}) {
				t.Errorf("%s was not found behind %v port %d, and there is no problem", n.Description, next, p.Peer.Port)
			}
		}
	}
}

// TestDiscoverLinkCut cuts a link between switches after every number of nodes that a walk finds.
// Nodes that do not answer have a route through the link, and no node is missing without a problem
// that explains it. The next walk finds everything but the link, and one after the link is back
// finds everything.
func TestDiscoverLinkCut(t *testing.T) {
	for _, c := range []struct {
		word, node string
		port       int
	}{{"ring:9", "switch2", 2}, {"ring:9", "switch6", 2}, {"fattree:40", "leaf1", 19}} {
		for _, parallel := range []int{1, 8} {
			synctest.Test(t, func(t *testing.T) {
				s, p := open(t, c.word, "host1")
				top, without := s.Topology(), withoutLink(t, c.word, c.node, c.port)
				link := subnet.End{Node: top.Node(c.node), Port: c.port}
				lost := 0
				for at := range top.Nodes {
					o := fabric.Options{Parallel: parallel, Timeout: 100 * time.Millisecond, Tries: 2}
					o.Progress = func(nodes, _ int) {
						if nodes == at+1 {
							must(t, s.SetLink(c.node, c.port, false))
						}
					}
					f := discover(t, p, o)
					lost += len(f.Problems)
					for i := range f.Problems {
						if x := &f.Problems[i]; !lostAt(top.Node("host1"), x.Err, link) {
							t.Errorf("%v, cut after %d nodes: %v", c, at+1, x)
						}
					}
					unexplained(t, f, top, link)
					if f := discover(t, p, fabric.Options{}); len(f.Problems) > 0 {
						t.Errorf("%v, the next walk: %v", c, f.Problems)
					} else {
						compare(t, f, without)
					}
					must(t, s.SetLink(c.node, c.port, true))
				}
				compare(t, discover(t, p, fabric.Options{}), top)
				if lost == 0 {
					t.Errorf("%v: no request was lost", c)
				}
				t.Logf("%v, %d requests at once: %d problems of %d walks", c, parallel, lost, len(top.Nodes))
				p.Close()
			})
		}
	}
}
