package ib

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/fabric"
)

// TraceReport is the JSON of "verbs ib trace".
type TraceReport struct {
	From   endRow   `json:"from"`
	Hops   []hopRow `json:"hops"`
	Reason string   `json:"reason,omitempty"`
}

// hopRow is a port by which a route enters a node.
type hopRow struct {
	OutPort int `json:"out_port"`
	endRow
}

// lidNumber reads a number of 16 bits, in decimal or with 0x. With as many digits as a GUID it is one.
func lidNumber(text string) (n uint16, ok bool) {
	digits, base := text, 10
	if hex, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok && len(hex) < 16 {
		digits, base = hex, 16
	}
	v, err := strconv.ParseUint(digits, base, 16)
	return uint16(v), err == nil
}

func newTrace(s *System) *command.Command {
	var asJSON, compat bool
	var group string
	cmd := &command.Command{
		Use:   "trace [flags] [FROM] TO",
		Short: "Show the route of packets between two ports, by the switches' forwarding tables",
		Long: `An end is a LID, a node or port GUID, or a node description. Without FROM the route begins at the
own port. GUIDs and descriptions need a walk through the subnet.`,
		Example: `  verbs ib trace 12                  # from this port to LID 12
  verbs ib trace 4 12
  verbs ib trace 0x0002c9030012ab40 node7
  verbs ib trace --mlid 0xc001 4 12  # the route of a multicast group's packets`,
		Exit: "  0  the route ends at TO\n  1  it ends before, or a failure; standard error has the reason",
	}
	o := walkOptions(s, cmd)
	f := cmd.Flags()
	f.StringVar(&group, "mlid", "", "follow the multicast group with this `LID`, 0xc000 to 0xfffe")
	f.BoolVar(&compat, "compat", false, "print the text of ibtracert")
	command.JSONFlag(cmd, &asJSON)
	cmd.Args = func(cmd *command.Command, args []string) error {
		if len(args) == 0 {
			return command.Usagef("%s needs TO: a LID, a GUID or a node description", cmd.Path())
		}
		return command.Arguments(2)(cmd, args)
	}
	cmd.Run = func(cmd *command.Command, args []string) error {
		mlid, ok := lidNumber(group)
		if group != "" && (!ok || mlid <= maxLID || mlid == umad.LIDPermissive) {
			return command.Usagef("--mlid is %s, allowed: 0xc000 to 0xfffe", peertext.Quote(group))
		}
		r, err := o.trace(cmd, args, mlid)
		if r == nil {
			return err
		}
		switch {
		case asJSON:
			report := traceOf(r)
			if err != nil {
				report.Reason = err.Error()
			}
			return errors.Join(command.PrintJSON(cmd.Out(), report), err)
		case compat:
			_, e := cmd.Out().Write(tracert(r, mlid != 0, err == nil))
			return errors.Join(e, err)
		default:
			return errors.Join(printTrace(cmd.Out(), r), err)
		}
	}
	return cmd
}

// trace follows a route. It may return a part of it with an error.
func (o *options) trace(cmd *command.Command, args []string, mlid uint16) (*fabric.Route, error) {
	p, err := o.open()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	lids := make([]uint16, 2) // 0 for the own port
	var f *fabric.Fabric
	for i, arg := range args {
		i += 2 - len(args)
		if n, ok := lidNumber(arg); ok && n > 0 && n <= maxLID {
			lids[i] = n
			continue
		}
		if f == nil {
			if f, err = fabric.Discover(cmd.Context(), p, o.fabric()); err != nil {
				return nil, err
			}
		}
		if lids[i], err = lidOf(f, arg); err != nil {
			return nil, err
		}
	}
	if mlid != 0 {
		return fabric.TraceMulticast(cmd.Context(), p, lids[0], lids[1], mlid, o.fabric())
	}
	return fabric.Trace(cmd.Context(), p, lids[0], lids[1], o.fabric())
}

// lidOf returns the LID of a port that is given by the GUID of the node or port, or by the node description.
func lidOf(f *fabric.Fabric, text string) (uint16, error) {
	guid, err := ib.ParseGUID(text)
	var found []*fabric.Port
	for _, n := range f.Nodes {
		for _, p := range n.Ports {
			isPort := err == nil && p.GUID == guid
			isNode := err == nil && n.GUID() == guid || description(n) == text
			if (isPort || isNode) && (p.Number == 0 || !n.IsSwitch()) {
				if found = append(found, p); isPort && !n.IsSwitch() {
					found = []*fabric.Port{p}
				}
			}
		}
	}
	const what = "an end of the route is %s, "
	switch {
	case len(found) == 0:
		return 0, command.Usagef(what+"allowed: a LID, 1 to %d, or the GUID or description of one of the %d nodes that were found", peertext.Quote(text), maxLID, len(f.Nodes))
	case found[len(found)-1].Node != found[0].Node:
		return 0, command.Usagef(what+"which several nodes have; use a LID or a GUID", peertext.Quote(text))
	case found[0].LID() == 0:
		return 0, fmt.Errorf(what+"which has no LID: no subnet manager has configured it", peertext.Quote(text))
	}
	return found[0].LID(), nil
}

// stopRow returns the row of a node on a route.
func stopRow(s *fabric.Stop) endRow {
	i := &s.Info
	return endRow{fabric.Printable(s.Description), i.NodeGUID.String(), i.NodeType.String(), int(i.LocalPortNum), s.LID}
}

// traceOf returns the JSON of a route.
func traceOf(r *fabric.Route) TraceReport {
	report := TraceReport{From: stopRow(&r.From), Hops: []hopRow{}}
	for i := range r.Hops {
		report.Hops = append(report.Hops, hopRow{int(r.Hops[i].Out), stopRow(&r.Hops[i].Stop)})
	}
	return report
}

// printTrace writes the table.
func printTrace(w io.Writer, r *fabric.Route) error {
	t := command.Table(w, "hop\tout\tin\ttype\tLID\tname")
	line := func(hop int, out string, s *fabric.Stop) {
		fmt.Fprintf(t, "%d\t%s\t%d\t%v\t%d\t%s\n", hop, out, s.Info.LocalPortNum, s.Info.NodeType, s.LID, fabric.Printable(s.Description))
	}
	line(0, "-", &r.From)
	for i := range r.Hops {
		line(i+1, strconv.Itoa(int(r.Hops[i].Out)), &r.Hops[i].Stop)
	}
	return t.Flush()
}

// tracert is the text of ibtracert. A route that does not end at its target has no last line.
func tracert(r *fabric.Route, multicast, ends bool) []byte {
	var b bytes.Buffer
	end := func(what string, s *fabric.Stop) {
		port, form := s.Info.LocalPortNum, "%s %s {0x%016x} portnum %d lid %d-%d \"%s\"\n"
		if multicast {
			form = "%s %s 0x%x port %d lid %d-%d \"%s\"\n"
		} else if s.Info.NodeType == ib.NodeSwitch {
			port = 0
		}
		fmt.Fprintf(&b, form, what, traceKind(s), uint64(s.Info.NodeGUID), port, s.LID, int(s.LID)+1<<s.LMC-1, fabric.Printable(s.Description))
	}
	end("From", &r.From)
	for i := range r.Hops {
		h := &r.Hops[i]
		if multicast {
			fmt.Fprintf(&b, "[%d] -> %s 0x%x[%d] lid %d \"%s\"\n", h.Out, traceKind(&h.Stop), uint64(h.Info.NodeGUID), h.Info.LocalPortNum, h.LID, fabric.Printable(h.Description))
			continue
		}
		fmt.Fprintf(&b, "[%d] -> %s port {0x%016x}[%d] lid %d-%d \"%s\"\n", h.Out, traceKind(&h.Stop), uint64(h.Info.PortGUID), h.Info.LocalPortNum, h.LID, int(h.LID)+1<<h.LMC-1, fabric.Printable(h.Description))
	}
	if ends {
		to := r.To()
		end("To", &to)
	}
	return b.Bytes()
}

// traceKind is the word for the type of a node.
func traceKind(s *fabric.Stop) string {
	if k, ok := nodeWords[s.Info.NodeType]; ok {
		return k.trace
	}
	return "???"
}
