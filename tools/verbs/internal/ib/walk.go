package ib

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
)

// endRow is a port and its node.
type endRow struct {
	Node     string `json:"node"` // the description
	NodeGUID string `json:"node_guid"`
	NodeType string `json:"node_type"`
	Port     int    `json:"port"`
	LID      uint16 `json:"lid,omitempty"`
}

// LinkRow is an element of the JSON of "verbs ib links": a link, or a port without one.
type LinkRow struct {
	endRow
	State      string  `json:"state"`
	PhysState  string  `json:"phys_state"`
	RateGbps   float64 `json:"rate_gbps"`
	Width      int     `json:"width"`
	Speed      string  `json:"speed,omitempty"`
	CouldWidth int     `json:"could_width,omitempty"`
	CouldSpeed string  `json:"could_speed,omitempty"`
	Peer       *endRow `json:"peer,omitempty"`
}

// NodeRow is a node in the JSON of "verbs ib discover".
type NodeRow struct {
	Node       string    `json:"node"`
	NodeGUID   string    `json:"node_guid"`
	NodeType   string    `json:"node_type"`
	SystemGUID string    `json:"system_guid"`
	VendorID   string    `json:"vendor_id"`
	DeviceID   string    `json:"device_id"`
	PortCount  int       `json:"port_count"`
	Hops       []int     `json:"hops"`
	Ports      []LinkRow `json:"ports"`
}

// problemRow is what the walk could not find out.
type problemRow struct {
	Hops   []int  `json:"hops"`
	Node   string `json:"node,omitempty"`
	Reason string `json:"reason"`
}

// FabricReport is the JSON of "verbs ib discover".
type FabricReport struct {
	Nodes    []NodeRow    `json:"nodes"`
	Problems []problemRow `json:"problems"`
	Requests int          `json:"requests"`
}

// hops returns a route for JSON, which would have bytes as text.
func hops(path []uint8) []int {
	all := []int{}
	for _, port := range path {
		all = append(all, int(port))
	}
	return all
}

// hexGUID is a GUID as other programs of InfiniBand write it.
func hexGUID(guid ib.GUID) string { return fmt.Sprintf("0x%016x", uint64(guid)) }

// endOf returns the row of a port.
func endOf(p *fabric.Port) endRow {
	n := p.Node
	return endRow{description(n), n.GUID().String(), n.Info.NodeType.String(), int(p.Number), p.LID()}
}

// linkOf returns the row of a link.
func linkOf(p *fabric.Port) LinkRow {
	r := LinkRow{endRow: endOf(p), State: "NOT_KNOWN", PhysState: "NOT_KNOWN"}
	if i := p.Info; i != nil {
		r.State, r.PhysState = i.PortState.String(), ib.PhysState(i.PortPhysicalState).Words()
		if i.PortState != ib.PortDown { // the rest is not valid then
			r.Width, r.RateGbps = p.Lanes(), p.Gbps()
			if speed := p.Speed(); speed != 0 {
				r.Speed = speed.String()
			}
		}
	}
	if p.Remote != nil {
		peer := endOf(p.Remote)
		r.Peer = &peer
		width, speed := p.Could()
		if r.CouldWidth = width; speed != 0 {
			r.CouldSpeed = speed.String()
		}
	}
	return r
}

// rate describes the rate of a link.
func (r *LinkRow) rate() string {
	if r.Width == 0 {
		return "-"
	}
	return fmt.Sprintf("%dX %s", r.Width, cmp.Or(r.Speed, "-"))
}

// could describes what a link does not use.
func (r *LinkRow) could() string {
	text := ""
	if r.CouldWidth > 0 {
		text = fmt.Sprintf("%dX ", r.CouldWidth)
	}
	if text += r.CouldSpeed; text == "" {
		return "-"
	}
	return text
}

// discover walks the subnet of the port that the flags choose. Problems go to standard error.
func (o *options) discover(cmd *command.Command) (*fabric.Fabric, error) {
	p, err := o.open()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	f, err := fabric.Discover(cmd.Context(), p, o.fabric())
	if err != nil {
		return nil, err
	}
	for i := range f.Problems {
		fmt.Fprintf(cmd.Err(), "verbs: %v\n", &f.Problems[i])
	}
	return f, nil
}

// fabric returns the options of a walk.
func (o *options) fabric() fabric.Options {
	return fabric.Options{Parallel: o.parallel, Timeout: o.timeout, Tries: o.tries, MKey: o.mkey}
}

// walkOptions defines the flags of the commands that walk through a subnet.
func walkOptions(s *System, cmd *command.Command) *options {
	o := newOptions(s, cmd)
	o.parallelFlag(cmd, 8)
	o.mkeyFlag(cmd)
	return o
}

// rightsHelp is a part of the help of the commands that walk.
const rightsHelp = `The walk takes directed routes: it needs neither LIDs nor a subnet manager. Requests
that a node does not answer are reported on standard error, and the walk goes on.`

func newLinks(s *System) *command.Command {
	var asJSON, compat, down bool
	cmd := &command.Command{
		Use:   "links [flags]",
		Short: "List the links of a subnet, their speed, and what they could do",
		Long:  rightsHelp,
		Example: `  verbs ib links
  verbs ib links --down         # ports without a link, too
  verbs ib links --dev mlx5_1 --compat
  verbs ib links --json | jq '.[] | select(.could_speed)'`,
		Args: command.Arguments(0),
	}
	o := walkOptions(s, cmd)
	f := cmd.Flags()
	f.BoolVar(&compat, "compat", false, "print the text of iblinkinfo")
	f.BoolVar(&down, "down", false, "list ports without a link, too")
	command.JSONFlag(cmd, &asJSON)
	cmd.Run = func(cmd *command.Command, _ []string) error {
		if down && compat {
			return command.Usagef("--down is true, allowed: without --compat, which lists such ports anyway")
		}
		f, err := o.discover(cmd)
		if err != nil {
			return err
		}
		if compat {
			_, err := cmd.Out().Write(linkInfo(f))
			return err
		}
		rows := linkRows(f, down)
		if asJSON {
			return command.PrintJSON(cmd.Out(), rows)
		}
		return printLinks(cmd.Out(), rows)
	}
	return cmd
}

// linkRows lists the links, and with down also the ports without one.
func linkRows(f *fabric.Fabric, down bool) []LinkRow {
	rows := []LinkRow{}
	second := map[*fabric.Port]bool{} // ports whose link is there already
	for _, n := range f.Nodes {
		for _, p := range n.Ports {
			if p.Number == 0 || second[p] || p.Remote == nil && !down {
				continue
			}
			second[p.Remote] = true
			rows = append(rows, linkOf(p))
		}
	}
	return rows
}

// printLinks writes the table.
func printLinks(w io.Writer, rows []LinkRow) error {
	t := command.Table(w, "node\tport\tLID\tstate\tphysical\trate\tcould be\tpeer\tport\tLID")
	for i := range rows {
		r := &rows[i]
		peer, port, lid := "-", "-", "-"
		if r.Peer != nil {
			peer, port, lid = r.Peer.Node, strconv.Itoa(r.Peer.Port), strconv.Itoa(int(r.Peer.LID))
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Node, r.Port, r.LID, r.State, r.PhysState, r.rate(), r.could(), peer, port, lid)
	}
	return t.Flush()
}

func newDiscover(s *System) *command.Command {
	var asJSON, compat, ports bool
	cmd := &command.Command{
		Use:   "discover [flags]",
		Short: "List the nodes of a subnet",
		Long: rightsHelp + `

With --compat it prints the text of ibnetdiscover: a topology, in which nodes are in the order of a
walk with one request at a time, the last one first.`,
		Example: `  verbs ib discover
  verbs ib discover --compat > topology
  verbs ib discover --compat --ports   # a line for each port, as ibnetdiscover --ports has it
  verbs ib discover --json | jq -r '.nodes[] | select(.node_type == "switch") | .node'`,
		Args: command.Arguments(0),
	}
	o := walkOptions(s, cmd)
	f := cmd.Flags()
	f.BoolVar(&compat, "compat", false, "print the text of ibnetdiscover")
	f.BoolVar(&ports, "ports", false, "with --compat, print its report of ports")
	command.JSONFlag(cmd, &asJSON)
	cmd.Run = func(cmd *command.Command, _ []string) error {
		if ports && !compat {
			return command.Usagef("--ports is true, allowed: with --compat only")
		}
		f, err := o.discover(cmd)
		if err != nil {
			return err
		}
		switch {
		case ports:
			_, err = cmd.Out().Write(portsReport(f))
		case compat:
			_, err = cmd.Out().Write(topology(f, time.Now()))
		case asJSON:
			err = command.PrintJSON(cmd.Out(), reportOf(f))
		default:
			err = printNodes(cmd.Out(), f)
		}
		return err
	}
	return cmd
}

// reportOf returns the JSON of a fabric.
func reportOf(f *fabric.Fabric) FabricReport {
	report := FabricReport{Nodes: []NodeRow{}, Problems: []problemRow{}, Requests: f.SMPs}
	for _, n := range f.Nodes {
		i := &n.Info
		r := NodeRow{
			Node: description(n), NodeGUID: n.GUID().String(), NodeType: i.NodeType.String(), SystemGUID: i.SystemImageGUID.String(),
			VendorID: fmt.Sprintf("%#x", i.VendorID), DeviceID: fmt.Sprintf("%#x", i.DeviceID), PortCount: int(i.NumPorts), Hops: hops(n.Path), Ports: []LinkRow{},
		}
		for _, p := range n.Ports {
			r.Ports = append(r.Ports, linkOf(p))
		}
		report.Nodes = append(report.Nodes, r)
	}
	for i := range f.Problems {
		p := &f.Problems[i]
		r := problemRow{Hops: hops(p.Path), Reason: p.Err.Error()}
		if p.Node != nil {
			r.Node = description(p.Node)
		}
		report.Problems = append(report.Problems, r)
	}
	return report
}

// printNodes writes the table.
func printNodes(w io.Writer, f *fabric.Fabric) error {
	t := command.Table(w, "type\tnode GUID\tLID\tports\tlinks\tname\troute")
	for _, n := range f.Nodes {
		lid, links := uint16(0), 0
		for _, p := range n.Ports {
			if lid == 0 {
				lid = p.LID()
			}
			if p.Remote != nil {
				links++
			}
		}
		fmt.Fprintf(t, "%v\t%s\t%d\t%d\t%d\t%s\t%v\n", n.Info.NodeType, hexGUID(n.GUID()), lid, n.Info.NumPorts, links, description(n), n.Path)
	}
	return t.Flush()
}
