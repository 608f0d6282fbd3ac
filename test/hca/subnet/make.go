package subnet

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// build makes topologies whose names and ports are known to be valid.
type build struct{ *Topology }

func (b build) node(kind NodeType, ports int, format string, args ...any) *Node {
	n, err := b.Add(kind, fmt.Sprintf(format, args...), ports)
	if err != nil {
		panic(err)
	}
	// The name is the one that ibnetdiscover prints; the description is for people.
	delete(b.names, n.Name)
	n.Name = fmt.Sprintf("%s-%016x", nodeWords[kind].name, n.GUID)
	b.names[n.Name] = n
	return n
}

func (b build) link(a *Node, ap int, c *Node, cp int) {
	if err := b.Connect(End{a, ap}, End{c, cp}); err != nil {
		panic(err)
	}
}

// Radix is the number of ports of the switches of [FatTree].
const Radix = 36

// FatTree makes a tree of two levels of switches with 36 ports: 18 hosts ("host1" and so on) below each leaf
// ("leaf1"), and 18 links from each leaf, which are spread over as few spines ("spine1") as their ports
// allow. Allowed are 1 to 648 hosts. A single leaf has no spine.
func FatTree(hosts int) (*Topology, error) {
	const down = Radix / 2
	if hosts < 1 || hosts > down*Radix {
		return nil, fmt.Errorf("a fat tree with %d hosts, allowed: 1 to %d", hosts, down*Radix)
	}
	b := build{NewTopology()}
	leaves := (hosts + down - 1) / down
	spines := 0
	for _, n := range []int{1, 2, 3, 6, 9, down} { // they divide the links of a leaf
		if leaves > 1 && leaves*(down/n) <= Radix {
			spines = n
			break
		}
	}
	var leaf, spine []*Node
	for i := range leaves {
		leaf = append(leaf, b.node(Switch, Radix, "leaf%d", i+1))
	}
	for i := range spines {
		spine = append(spine, b.node(Switch, Radix, "spine%d", i+1))
	}
	for i := range hosts {
		b.link(leaf[i/down], i%down+1, b.node(CA, 1, "host%d", i+1), 1)
	}
	for s, node := range spine {
		for l := range leaf {
			for k := range down / spines {
				b.link(leaf[l], down+1+s*(down/spines)+k, node, 1+l*(down/spines)+k)
			}
		}
	}
	return b.Topology, nil
}

// Ring makes a ring of switches ("switch1" and so on) with 8 ports, and with one host ("host1") at port 1 of each.
// Port 2 leads to the next switch, port 3 to the previous one. Allowed are 3 to 1000 switches.
func Ring(switches int) (*Topology, error) {
	t, err := chain("ring", switches, 3)
	if err == nil {
		last, first := t.Node(fmt.Sprintf("switch%d", switches)), t.Node("switch1")
		err = t.Connect(End{last, 2}, End{first, 3})
	}
	return t, err
}

// Line makes a line of switches, which is a [Ring] without its last link. Allowed are 1 to 1000 switches.
func Line(switches int) (*Topology, error) { return chain("line", switches, 1) }

func chain(what string, switches, least int) (*Topology, error) {
	if switches < least || switches > 1000 {
		return nil, fmt.Errorf("a %s of %d switches, allowed: %d to 1000", what, switches, least)
	}
	b := build{NewTopology()}
	var last *Node
	for i := range switches {
		n := b.node(Switch, 8, "switch%d", i+1)
		b.link(n, 1, b.node(CA, 1, "host%d", i+1), 1)
		if last != nil {
			b.link(last, 2, n, 3)
		}
		last = n
	}
	return b.Topology, nil
}

// Load reads a topology from a file if there is one with that name, and otherwise makes one as [Parse] does.
func Load(name string) (*Topology, error) {
	t, err := ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		var bad error
		if t, bad = Parse(name); bad != nil {
			return nil, fmt.Errorf("%w, or a file", bad)
		}
		return t, nil
	}
	return t, err
}

// Parse makes a topology from a word: "fattree:N" (hosts), "ring:N" or "line:N" (switches).
func Parse(word string) (*Topology, error) {
	kind, number, _ := strings.Cut(word, ":")
	makers := map[string]func(int) (*Topology, error){"fattree": FatTree, "ring": Ring, "line": Line}
	var n int
	if _, err := fmt.Sscanf(number, "%d", &n); err != nil || makers[kind] == nil || fmt.Sprint(n) != number {
		return nil, fmt.Errorf("topology %q, allowed: fattree:HOSTS, ring:SWITCHES, line:SWITCHES", word)
	}
	return makers[kind](n)
}
