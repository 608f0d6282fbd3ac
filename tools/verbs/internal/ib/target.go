package ib

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
	"github.com/goverbs/goverbs/uverbs/umad/sa"
)

// A target is a node that gets SMPs: by its LID, by a directed route, or by a route that begins at a LID.
type target struct {
	o     *options
	port  *umad.Port
	agent *umad.Agent
	lid   uint16  // 0 for a route from here
	from  uint16  // LID of the own port, for a route that begins at lid
	route []uint8 // nil for none
}

// destHelp is a part of the help of the commands with a target.
const destHelp = `DEST is a LID, a GUID, which the subnet administrator looks up, or a directed route such as 0,3,12:
the ports by which it leaves each node, after a 0 for this one. "0" alone is the own node.`

// target opens the port that the flags choose, and returns the node that the first of the arguments names. Close it.
func (o *options) target(ctx context.Context, args []string) (*target, error) {
	t := &target{o: o}
	dest := "0"
	if len(args) > 0 {
		dest = args[0]
	}
	isRoute := dest == "0" || strings.HasPrefix(dest, "0,")
	if isRoute {
		t.route = []uint8{}
		for _, text := range strings.Split(dest, ",")[1:] {
			n, err := strconv.ParseUint(text, 10, 8)
			if err != nil || n == 0 || n == allPorts || len(t.route) == 63 {
				return nil, command.Usagef("the route is %s, allowed: 0, then up to 63 ports of 1 to 254, separated by commas", peertext.Quote(dest))
			}
			t.route = append(t.route, uint8(n))
		}
	}
	var to destination
	var err error
	if !isRoute {
		if to, err = parseDest(dest); err != nil {
			return nil, err
		}
	}
	if t.port, err = o.open(); err != nil {
		return nil, err
	}
	if !isRoute {
		var at umad.Addr
		at, err = o.resolve(ctx, t.port, to)
		t.lid = at.LID
	}
	if err == nil {
		t.agent, err = t.port.Register(o.agent(mad.ClassSubnDirected))
	}
	if err != nil {
		return nil, errors.Join(err, t.port.Close())
	}
	return t, nil
}

// close closes the port.
func (t *target) close() error { return t.port.Close() }

// String returns the address in the words of infiniband-diags.
func (t *target) String() string {
	var text string
	if t.lid != 0 {
		if text = fmt.Sprintf("Lid %d", t.lid); t.route == nil {
			return text
		}
		text += " "
	}
	from := t.from
	if t.lid == 0 {
		from = umad.LIDPermissive
	}
	text += fmt.Sprintf("DR path slid %d; dlid 65535; 0", from)
	for _, port := range t.route {
		text += fmt.Sprintf(",%d", port)
	}
	return text
}

// behind returns the node behind a port of the target.
func (t *target) behind(ctx context.Context, port uint8) (*target, error) {
	next := *t
	next.route = append(slices.Clone(t.route), port)
	if t.lid != 0 && t.from == 0 {
		own, err := sa.LocalPort(ctx, t.port)
		if err != nil {
			return nil, err
		}
		next.from = own.LID
	}
	return &next, nil
}

// do sends an SMP, and returns the data of the answer.
func (t *target) do(ctx context.Context, m mad.Method, attr mad.AttrID, modifier uint32, data []byte) ([]byte, error) {
	req := mad.NewSMP(m, attr, modifier)
	if t.route != nil {
		var err error
		if req, err = mad.NewDirectedSMP(m, attr, modifier, t.route...); err != nil {
			return nil, err
		}
		if t.lid != 0 {
			req.SMP.DrSLID = t.from
		}
	}
	req.SMP.MKey, req.Data = t.o.mkey, data
	answer, err := t.agent.Do(ctx, umad.Addr{LID: t.lid}, req)
	if err != nil {
		return nil, err
	}
	return answer.Data, nil
}

// get asks for an attribute, decodes it, and returns its bytes.
func (t *target) get(ctx context.Context, a mad.Attribute, modifier uint32) ([]byte, error) {
	data, err := t.do(ctx, mad.MethodGet, a.ID(), modifier, nil)
	if err == nil {
		err = mad.Unmarshal(data, a)
	}
	return data, err
}

// portArg reads the number of a port of a node that has n of them. Before that is known, n is maxPort.
func portArg(args []string, n uint8) (uint8, error) {
	if len(args) == 0 {
		return 0, nil
	}
	port, err := strconv.ParseUint(args[0], 10, 8)
	if err != nil || port > uint64(n) {
		return 0, command.Usagef("PORT is %s, allowed: 0 to %d", peertext.Quote(args[0]), n)
	}
	return uint8(port), nil
}

// isSwitch reports whether the target is a switch, whose port 0 has what other nodes have at each port.
func isSwitch(info *mad.NodeInfo) bool { return info.NodeType == ib.NodeSwitch }
