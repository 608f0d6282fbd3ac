//go:build unix

package replay

import (
	"slices"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/inproc"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
	"github.com/goverbs/goverbs/uverbs/trace"
)

// describe returns what the answers of records say about a device, and its GID tables by port.
func describe(records []*record) (inproc.Info, map[uint8][]inproc.GIDEntry) {
	id := netlinkrdma.DriverID(records[0].driver)
	info := inproc.Info{
		Name: "replay_" + records[0].device, DriverID: uint32(id), ABI: drivers[id], Linux: records[0].linux, Ports: 1,
		Protocol: string(netlinkrdma.ProtocolRoCE),
	}
	if id == netlinkrdma.DriverSIW {
		info.Protocol = string(netlinkrdma.ProtocolIWARP)
	}
	gids := map[uint8][]inproc.GIDEntry{}
	for _, r := range records {
		for _, c := range r.commands {
			if c.linkLayer() == ib.LinkLayerInfiniBand.String() {
				info.Protocol = string(netlinkrdma.ProtocolIB)
			}
			for _, e := range c.gids() {
				port := uint8(e.PortNum)
				info.Ports = max(info.Ports, int(port))
				if !slices.ContainsFunc(gids[port], func(g inproc.GIDEntry) bool { return g.Index == int(e.GIDIndex) }) {
					gids[port] = append(gids[port], inproc.GIDEntry{Index: int(e.GIDIndex), GID: [16]byte(kernel.Bytes(&e.GID)), Type: e.GIDType})
				}
			}
		}
	}
	for _, table := range gids {
		slices.SortFunc(table, func(a, b inproc.GIDEntry) int { return a.Index - b.Index })
	}
	return info, gids
}

// linkLayer returns the link layer that the answer to a command names, or "".
func (c *command) linkLayer() string {
	if c.kind != (kind{object: abi.UVERBS_OBJECT_DEVICE, method: abi.UVERBS_METHOD_QUERY_PORT}) &&
		c.kind != (kind{legacy: true, number: abi.IB_USER_VERBS_CMD_QUERY_PORT}) {
		return ""
	}
	for _, p := range trace.NewDecoder().Decode(c.call).Payloads {
		for _, v := range p.Values {
			if strings.HasSuffix(v.Name, "link_layer") {
				return v.Text
			}
		}
	}
	return ""
}

// gids returns the entries of GID tables that the answer to a command has.
func (c *command) gids() (all []abi.GIDEntry) {
	var a *trace.Attr
	switch c.kind {
	case kind{object: abi.UVERBS_OBJECT_DEVICE, method: abi.UVERBS_METHOD_QUERY_GID_TABLE}:
		a = attr(c.call, abi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES)
	case kind{object: abi.UVERBS_OBJECT_DEVICE, method: abi.UVERBS_METHOD_QUERY_GID_ENTRY}:
		a = attr(c.call, abi.UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY)
	}
	if a == nil || c.call.Errno != "" {
		return nil
	}
	for b := a.Output(); ; {
		var e abi.GIDEntry
		n := copy(kernel.Bytes(&e), b)
		if b = b[n:]; n < len(kernel.Bytes(&e)) {
			return all
		}
		if e.GID != [2]uint64{} { // the rest of the room for a table
			all = append(all, e)
		}
	}
}
