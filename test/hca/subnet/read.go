package subnet

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// The lines of a file that matter. Text after "#" is a comment, except for the description of a
// node, and the width and speed of a link.
var (
	lineNode  = regexp.MustCompile(`^(Switch|Hca|Ca|Rt)\s+(\d+)\s+"([^"]+)"\s*(?:#\s*"(.*)"(.*))?(?:#.*)?$`)
	linePort  = regexp.MustCompile(`^\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-fA-F]+)\))?\s*"([^"]+)"\s*(?:\[(\d+)\])?(?:\[ext \d+\])?\s*(?:\(([0-9a-fA-F]+)\))?([^#]*)(#.*)?$`)
	lineValue = regexp.MustCompile(`^(vendid|devid|sysimgguid|switchguid|caguid|hcaguids|rtguid)=(0[xX][0-9a-fA-F]+|\d+)(?:\(([0-9a-fA-F]+)\))?\s*(?:#.*)?$`)
	guidName  = regexp.MustCompile(`^[SHR]-([0-9a-fA-F]{16})$`)
	rateWord  = regexp.MustCompile(`\b(1|2|4|8|12)x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b`)
)

// lineKinds says which lines are allowed, for errors.
const lineKinds = `Switch, Ca, Hca or Rt with ports and "name"; [port] "name"[port]; vendid=, devid=, sysimgguid=, switchguid=, caguid= or rtguid=; Chassis; # comment; empty`

// ignoredLines are the beginnings of other lines that ibnetdiscover writes, with -g.
var ignoredLines = []string{"#", "Chassis ", "Hostname:", "Non-Chassis Nodes", "DR path "}

// reader is a file that is read.
type reader struct {
	t      *Topology
	line   int
	node   *Node             // the last one
	values map[string]uint64 // of the next node
	port   uint64            // port GUID of the next switch
	links  []linkLine
}

// linkLine is a link, whose other end may follow.
type linkLine struct {
	line   int
	from   End
	name   string // of the other node
	port   int
	guid   uint64 // of the other port, if it is given
	hasOne bool
}

// ReadFile reads a topology from a file.
func ReadFile(path string) (*Topology, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Read reads a topology in the format of ibnetdiscover, such as the dump of a real subnet. Names of nodes
// may be any, as ibsim allows it; one that has the form of ibnetdiscover's names gives the node's GUID. A
// port that is not mentioned, and is not mentioned as the other end of one, has no link.
func Read(r io.Reader) (*Topology, error) {
	d := &reader{t: NewTopology(), values: map[string]uint64{}}
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<16)
	for s.Scan() {
		d.line++
		if err := d.read(strings.TrimRight(s.Text(), " \t\r")); err != nil {
			return nil, fmt.Errorf("line %d: %w", d.line, err)
		}
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("line %d: %w", d.line+1, err)
	}
	if len(d.t.Nodes) == 0 {
		return nil, fmt.Errorf("%d lines and no node; a node begins with Switch, Ca, Hca or Rt", d.line)
	}
	for _, l := range d.links {
		if err := d.connect(l); err != nil {
			return nil, fmt.Errorf("line %d: %w", l.line, err)
		}
	}
	if err := d.t.checkGUIDs(); err != nil {
		return nil, err
	}
	return d.t, nil
}

// checkGUIDs returns an error if two nodes, or two ports with a link, have the same GUID, or one
// has no GUID. A node and a port may have the same one, and all ports of a switch have one.
func (t *Topology) checkGUIDs() error {
	nodes, ports := map[uint64]*Node{}, map[uint64]*Node{}
	for _, n := range t.Nodes {
		if err := unique(nodes, n.GUID, n, "the GUID"); err != nil {
			return err
		}
		for i, p := range n.Ports {
			if n.Type != Switch && p.Peer.Node != nil || n.Type == Switch && i == 0 {
				if err := unique(ports, p.GUID, n, fmt.Sprintf("port %d with the GUID", i)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// unique enters a GUID of a node, and returns an error if it is 0 or there already.
func unique(seen map[uint64]*Node, guid uint64, n *Node, what string) error {
	switch other := seen[guid]; {
	case guid == 0:
		return fmt.Errorf("node %q has %s 0, allowed: 1 to %#x", n.Name, what, uint64(math.MaxUint64))
	case other != nil:
		return fmt.Errorf("node %q has %s %#x, which node %q has already", n.Name, what, guid, other.Name)
	}
	seen[guid] = n
	return nil
}

// read reads a line.
func (d *reader) read(line string) error {
	if line == "" {
		return nil
	}
	for _, begin := range ignoredLines {
		if strings.HasPrefix(line, begin) {
			return nil
		}
	}
	if m := lineNode.FindStringSubmatch(line); m != nil {
		return d.addNode(m)
	}
	if m := linePort.FindStringSubmatch(line); m != nil {
		return d.addPort(m)
	}
	if m := lineValue.FindStringSubmatch(line); m != nil {
		return d.addValue(m)
	}
	return fmt.Errorf("%q, allowed: %s", line, lineKinds)
}

// addValue reads a value of the next node.
func (d *reader) addValue(m []string) error {
	v, err := strconv.ParseUint(m[2], 0, 64)
	limit := uint64(math.MaxUint64)
	switch m[1] {
	case "vendid":
		limit = 1<<24 - 1
	case "devid":
		limit = 1<<16 - 1
	}
	if err != nil || v > limit {
		return fmt.Errorf("%s is %s, allowed: up to %#x", m[1], m[2], limit)
	}
	d.values[m[1]] = v
	if m[3] != "" {
		if d.port, err = strconv.ParseUint(m[3], 16, 64); err != nil {
			return fmt.Errorf("%s has port GUID %s, allowed: 64 bits", m[1], m[3])
		}
	}
	return nil
}

// addNode reads the line of a node.
func (d *reader) addNode(m []string) error {
	kind := map[string]NodeType{"Switch": Switch, "Rt": Router}[m[1]]
	if kind == 0 {
		kind = CA
	}
	ports, err := strconv.Atoi(m[2])
	if err != nil {
		ports = maxPorts + 1
	}
	n, err := d.t.Add(kind, m[3], ports)
	if err != nil {
		return err
	}
	d.node = n
	if m[4] != "" {
		n.Description = m[4]
		if len(m[4]) > maxDescription {
			return fmt.Errorf("node %q has a description of %d bytes, allowed: %d", n.Name, len(m[4]), maxDescription)
		}
	}
	n.EnhancedPort0 = kind == Switch && strings.Contains(m[5], "enhanced port 0")
	if g := guidName.FindStringSubmatch(n.Name); g != nil {
		guid, _ := strconv.ParseUint(g[1], 16, 64) // 16 digits always fit
		n.setGUID(guid)
	}
	word := nodeWords[kind].guid
	if _, some := d.values["hcaguids"]; some && kind == CA {
		word = "hcaguids"
	}
	if guid, some := d.values[word]; some {
		n.setGUID(guid)
		d.t.next[kind] = guid + uint64(ports) + 1
	}
	if d.port != 0 && kind == Switch {
		for i := range n.Ports {
			n.Ports[i].GUID = d.port
		}
	}
	if v, some := d.values["sysimgguid"]; some {
		n.SystemGUID = v
	}
	if v, some := d.values["vendid"]; some {
		n.Vendor = uint32(v)
	}
	if v, some := d.values["devid"]; some {
		n.Device = uint16(v)
	}
	clear(d.values)
	d.port = 0
	return nil
}

// addPort reads the line of a port.
func (d *reader) addPort(m []string) error {
	if d.node == nil {
		return fmt.Errorf("port %q is before the first node", m[0])
	}
	if len(d.values) > 0 {
		return fmt.Errorf("port %q is between the values of a node and its line", m[0])
	}
	local, err := d.number(m[1], d.node)
	if err != nil {
		return err
	}
	l := linkLine{line: d.line, from: End{d.node, local}, name: m[3], port: 1}
	if m[4] != "" {
		if l.port, err = strconv.Atoi(m[4]); err != nil {
			return fmt.Errorf("port %s of %q, allowed: 1 to %d", m[4], m[3], maxPorts)
		}
	}
	p := &d.node.Ports[local]
	if m[2] != "" {
		if p.GUID, err = strconv.ParseUint(m[2], 16, 64); err != nil {
			return fmt.Errorf("port GUID %s, allowed: 64 bits", m[2])
		}
	}
	if m[5] != "" {
		l.hasOne = true
		if l.guid, err = strconv.ParseUint(m[5], 16, 64); err != nil {
			return fmt.Errorf("port GUID %s, allowed: 64 bits", m[5])
		}
	}
	if r := rateWord.FindStringSubmatch(m[6] + m[7]); r != nil {
		p.setRate(r[1]+"x", r[2])
	}
	d.links = append(d.links, l)
	return nil
}

// number reads the number of a port of a node.
func (d *reader) number(text string, n *Node) (int, error) {
	i, err := strconv.Atoi(text)
	if err != nil || i < 1 || i >= len(n.Ports) {
		return 0, fmt.Errorf("port %s of %q, allowed: 1 to %d", text, n.Name, len(n.Ports)-1)
	}
	return i, nil
}

// setRate sets width and speed by their names. FDR10 is a vendor's variant of QDR.
func (p *Port) setRate(width, speed string) {
	for _, w := range widthNames {
		if w.name == width {
			p.Width = w.width
		}
	}
	for i, s := range speedNames {
		if s == strings.TrimSuffix(speed, "10") {
			p.Speed = 1 << i
		}
	}
	if speed == "FDR10" {
		p.Speed = QDR
	}
}

// connect makes the link of a line.
func (d *reader) connect(l linkLine) error {
	to := d.t.names[l.name]
	if to == nil {
		return fmt.Errorf("%v is connected with %q, which is no node of the file", l.from, l.name)
	}
	if err := d.t.Connect(l.from, End{to, l.port}); err != nil {
		return err
	}
	if l.hasOne && to.Type != Switch {
		to.Ports[l.port].GUID = l.guid
	}
	return nil
}
