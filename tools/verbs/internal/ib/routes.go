package ib

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// RoutesRow has the routes of a switch, and is an element of the JSON of "verbs ib routes".
type RoutesRow struct {
	Node     string     `json:"node"`
	NodeGUID string     `json:"node_guid"`
	LID      uint16     `json:"lid"`
	Routes   []RouteRow `json:"routes"`

	target      *target
	info        mad.NodeInfo
	sw          mad.SwitchInfo
	first, last uint16
}

// RouteRow is where a switch sends the packets to a LID.
type RouteRow struct {
	LID   uint16 `json:"lid"`
	Ports []int  `json:"ports"`
	Node  string `json:"node,omitempty"`

	out  int // the port of a unicast LID, 255 if packets are dropped
	dest *lidDest
}

// lidDest is the port that has a LID.
type lidDest struct {
	name string
	kind ib.NodeType
	guid ib.GUID
	base uint16
	lmc  uint8
}

// routeFlags are the flags of "verbs ib routes".
type routeFlags struct {
	*options
	multicast, all, numeric bool
	first, last             uint16 // 0 for what the switch has

	found map[uint16]*lidDest                                    // by LID
	find  func(ctx context.Context, lid uint16) (*lidDest, bool) // returns the port that has a LID
}

// firstMLID is the first LID of multicast groups.
const firstMLID = maxLID + 1

func newRoutes(s *System) *command.Command {
	var asJSON, compat bool
	cmd := &command.Command{
		Use:   "routes [flags] [DEST [FIRST [LAST]]]",
		Short: "List the forwarding tables of a switch, or of all",
		Long: `Without DEST it walks through the subnet and lists the tables of all switches. FIRST and LAST are
LIDs. The switches answer themselves; "verbs ib sa lft" shows what the subnet manager has told them.

` + destHelp,
		Example: `  verbs ib routes 7                  # where the switch with LID 7 sends packets
  verbs ib routes 0,1 1 100 -n       # only numbers, LIDs 1 to 100, of the next switch
  verbs ib routes --multicast 7
  verbs ib routes --json | jq '.[] | select(.routes | any(.lid == 12)) | .node'
  verbs ib routes 7 --compat         # as ibroute; without DEST as dump_fts`,
		Args: command.Arguments(3),
	}
	r := &routeFlags{options: walkOptions(s, cmd)}
	f := cmd.Flags()
	f.BoolVarP(&r.multicast, "multicast", "M", false, "list the tables of multicast groups")
	f.BoolVarP(&r.all, "all", "a", false, "list LIDs whose packets are dropped, too")
	f.BoolVarP(&r.numeric, "numeric", "n", false, "do not ask who has a LID")
	command.JSONFlag(cmd, &asJSON)
	compatFlag(cmd, &compat, "ibroute or dump_fts")
	cmd.Run = func(cmd *command.Command, args []string) error {
		for i, p := range []*uint16{&r.first, &r.last} {
			if len(args) > i+1 {
				n, ok := lidNumber(args[i+1])
				if !ok || n == 0 || (n > maxLID) != r.multicast {
					return command.Usagef("%s is %s, allowed: 1 to 0xbfff, or 0xc000 to 0xffff with --multicast", []string{"FIRST", "LAST"}[i], peertext.Quote(args[i+1]))
				}
				*p = n
			}
		}
		if r.last != 0 && r.last < r.first {
			return command.Usagef("LAST is %s, allowed: %s and more, which is FIRST", peertext.Quote(args[2]), args[1])
		}
		rows, err := r.collect(cmd, args)
		if err != nil {
			return err
		}
		switch {
		case asJSON:
			return command.PrintJSON(cmd.Out(), rows)
		case compat:
			for _, row := range rows {
				if _, err := io.WriteString(cmd.Out(), r.text(row, len(args) == 0)); err != nil {
					return err
				}
			}
			return nil
		}
		t := command.Table(cmd.Out(), "switch\tLID\tports\tto")
		for _, row := range rows {
			for _, to := range row.Routes {
				lid := fmt.Sprint(to.LID)
				if r.multicast {
					lid = fmt.Sprintf("%#x", to.LID)
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", row.Node, lid, cmp.Or(strings.Trim(fmt.Sprint(to.Ports), "[]"), "-"), cmp.Or(to.Node, "-"))
			}
		}
		return t.Flush()
	}
	return cmd
}

// collect reads the tables of the switch that the arguments name, or of all switches.
func (r *routeFlags) collect(cmd *command.Command, args []string) ([]*RoutesRow, error) {
	ctx := cmd.Context()
	r.found = map[uint16]*lidDest{}
	t, err := r.target(ctx, args)
	if err != nil {
		return nil, err
	}
	defer t.close()
	rows := []*RoutesRow{}
	if len(args) > 0 {
		r.find = t.find
		row := &RoutesRow{target: t}
		var desc mad.NodeDescription
		var info mad.PortInfo
		for _, a := range []mad.Attribute{&row.info, &desc, &info, &row.sw} {
			if a == &row.sw && !isSwitch(&row.info) {
				return nil, fmt.Errorf("%v is no switch, but of type %v", t, row.info.NodeType)
			}
			if _, err := t.get(ctx, a, 0); err != nil {
				return nil, err
			}
		}
		row.Node, row.LID = fabric.Printable(desc.NodeString), info.LID
		rows = append(rows, row)
	} else {
		f, err := fabric.Discover(ctx, t.port, r.fabric())
		if err != nil {
			return nil, err
		}
		for i := range f.Problems {
			fmt.Fprintf(cmd.Err(), "verbs: %v\n", &f.Problems[i])
		}
		r.find = func(_ context.Context, lid uint16) (*lidDest, bool) {
			p := f.PortByLID(lid)
			if p == nil {
				return nil, false
			}
			return &lidDest{description(p.Node), p.Node.Info.NodeType, p.GUID, p.LID(), p.LMC()}, true
		}
		for _, n := range slices.Backward(f.Nodes) {
			if n.IsSwitch() && n.Switch != nil && n.Port(0) != nil {
				to := *t
				to.route = n.Path
				rows = append(rows, &RoutesRow{Node: description(n), LID: n.Port(0).LID(), target: &to, info: n.Info, sw: *n.Switch})
			}
		}
	}
	for _, row := range rows {
		row.NodeGUID, row.Routes = row.info.NodeGUID.String(), []RouteRow{}
		read := r.unicast
		if r.multicast {
			read = r.groups
		}
		if err := read(ctx, row); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// find asks the port that has a LID who it is.
func (t *target) find(ctx context.Context, lid uint16) (*lidDest, bool) {
	at := *t
	at.lid, at.route = lid, nil
	var desc mad.NodeDescription
	var port mad.PortInfo
	var info mad.NodeInfo
	for _, a := range []mad.Attribute{&desc, &port, &info} {
		if _, err := at.get(ctx, a, 0); err != nil {
			return nil, false
		}
	}
	return &lidDest{fabric.Printable(desc.NodeString), info.NodeType, info.PortGUID, port.LID, port.LMC}, true
}

// who returns the port that has a LID, or nil.
func (r *routeFlags) who(ctx context.Context, lid uint16) *lidDest {
	if d, ok := r.found[lid]; ok {
		return d
	}
	d, ok := r.find(ctx, lid)
	r.found[lid] = d
	for i := 0; ok && i < 1<<d.lmc; i++ {
		r.found[d.base+uint16(i)] = d
	}
	return d
}

// unicast reads the linear forwarding table of a switch.
func (r *routeFlags) unicast(ctx context.Context, row *RoutesRow) error {
	top := min(row.sw.LinearFDBTop, maxLID)
	row.first, row.last = r.first, min(cmp.Or(r.last, maxLID), top)
	if r.first > top {
		return command.Usagef("FIRST is %d, allowed: up to %d, the highest LID in the table of %s", r.first, top, row.Node)
	}
	for block := row.first / 64; block <= row.last/64; block++ {
		var t mad.LinearForwardingTable
		if _, err := row.target.get(ctx, &t, uint32(block)); err != nil {
			return err
		}
		for i, out := range t.Port {
			lid := block*64 + uint16(i)
			valid := out <= row.info.NumPorts
			if lid < row.first || lid > row.last || !valid && !r.all {
				continue
			}
			to := RouteRow{LID: lid, Ports: []int{}, out: int(out)}
			if valid {
				to.Ports = append(to.Ports, int(out))
			}
			if !r.numeric && valid {
				if to.dest = r.who(ctx, lid); to.dest != nil {
					to.Node = to.dest.name
				}
			}
			row.Routes = append(row.Routes, to)
		}
	}
	return ctx.Err()
}

// groups reads the multicast forwarding table of a switch.
func (r *routeFlags) groups(ctx context.Context, row *RoutesRow) error {
	last := min(firstMLID+max(int(row.sw.MulticastFDBCap), 1)-1, umad.LIDPermissive-1)
	if top := int(row.sw.MulticastFDBTop); !r.all && top >= firstMLID-1 {
		last = min(last, top)
	}
	row.first, row.last = cmp.Or(r.first, firstMLID), min(cmp.Or(r.last, uint16(last)), uint16(last))
	if int(r.first) > last {
		return command.Usagef("FIRST is %#x, allowed: up to %#x, the highest LID in the table of %s", r.first, last, row.Node)
	}
	for block := row.first / 32; block <= row.last/32; block++ {
		var masks [16]mad.MulticastForwardingTable
		for position := range int(row.info.NumPorts)/16 + 1 {
			if _, err := row.target.get(ctx, &masks[position], uint32(position)<<28|uint32(block-firstMLID/32)); err != nil {
				return err
			}
		}
		for i := range masks[0].PortMask {
			to := RouteRow{LID: block*32 + uint16(i), Ports: []int{}}
			for port := range int(row.info.NumPorts) + 1 {
				if masks[port/16].PortMask[i]>>(port%16)&1 != 0 {
					to.Ports = append(to.Ports, port)
				}
			}
			if to.LID >= row.first && to.LID <= row.last && (r.all || len(to.Ports) > 0) {
				row.Routes = append(row.Routes, to)
			}
		}
	}
	return ctx.Err()
}

// text is the text of ibroute, or for a walk of dump_fts.
func (r *routeFlags) text(row *RoutesRow, walk bool) string {
	var b strings.Builder
	kind := "Unicast lids"
	if r.multicast {
		kind = "Multicast mlids"
	}
	at := row.target.String()
	if walk { // dump_fts leaves out where a route begins and ends
		at = strings.ReplaceAll(at, "lid 65535", "lid 0")
	}
	fmt.Fprintf(&b, "%s [0x%x-0x%x] of switch %s guid 0x%016x (%s):\n", kind, row.first, row.last, at, uint64(row.info.NodeGUID), row.Node)
	line := r.lidLine(walk)
	if r.multicast {
		line = r.groupLine(&b, int(row.info.NumPorts))
	} else {
		b.WriteString("  Lid  Out   Destination\n       Port     Info \n")
	}
	for i := range row.Routes {
		b.WriteString(line(&row.Routes[i]))
	}
	valid := "valid "
	if r.all {
		valid = ""
	}
	kind = kind[strings.Index(kind, " ")+1:]
	fmt.Fprintf(&b, "%d %s%s dumped \n", len(row.Routes), valid, kind)
	return b.String()
}

// lidLine returns what writes the line of a LID. LIDs that a port has by its LMC are numbered.
func (r *routeFlags) lidLine(walk bool) func(to *RouteRow) string {
	var base, last int // the LIDs of the port that had the last line
	var guid ib.GUID
	return func(to *RouteRow) string {
		text, lid := "", int(to.LID)
		switch d := to.dest; {
		case r.numeric:
		case lid <= last && len(to.Ports) == 0:
			text = fmt.Sprintf(": (path #%d - illegal port)", lid-base)
		case lid <= last:
			text = fmt.Sprintf(": (path #%d out of %d: portguid 0x%016x)", lid-base+1, last-base+1, uint64(guid))
		case len(to.Ports) == 0:
			text = ": (illegal port)"
		case d == nil && walk:
			text = ": (node info not available fabric scan)"
		case d == nil:
			text = ": (unknown node and type)"
		default:
			if guid = d.guid; d.lmc > 0 {
				base, last = int(d.base), int(d.base)+1<<d.lmc-1
			}
			text = fmt.Sprintf(": (%s portguid 0x%016x: '%s')", words["node"](uint64(d.kind)), uint64(d.guid), d.name)
		}
		return fmt.Sprintf("0x%04x %03d %s\n", to.LID, to.out, text)
	}
}

// groupLine writes the head of a table of groups for n ports, and returns what writes the line of a group.
func (r *routeFlags) groupLine(b *strings.Builder, n int) func(to *RouteRow) string {
	columns := func(of func(port int) string) string {
		var b strings.Builder
		for port := range n + 1 {
			b.WriteString(of(port) + " ")
		}
		return b.String()
	}
	if r.numeric {
		b.WriteString(" MLid       Port Mask\n")
		return func(to *RouteRow) string {
			var masks [16]uint16
			for _, port := range to.Ports {
				masks[port/16] |= 1 << (port % 16)
			}
			text := fmt.Sprintf("0x%04x      ", to.LID)
			for _, mask := range masks[:n/16+1] {
				text += fmt.Sprintf("%04x", mask)
			}
			return text + "\n"
		}
	}
	if n > 9 {
		b.WriteString("            " + columns(func(port int) string {
			if port%10 != 0 {
				return " "
			}
			return strconv.Itoa(port / 10)
		}) + "\n")
	}
	b.WriteString("     Ports: " + columns(func(port int) string { return strconv.Itoa(port % 10) }) + "\n MLid\n")
	return func(to *RouteRow) string {
		return fmt.Sprintf("0x%04x      %s\n", to.LID, columns(func(port int) string {
			if slices.Contains(to.Ports, port) {
				return "x"
			}
			return " "
		}))
	}
}
