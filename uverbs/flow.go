package uverbs

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// FlowType is the kind of a flow (enum ibv_flow_attr_type).
type FlowType uint32

// Kinds of flows.
const (
	FlowNormal     FlowType = iota // packets that match the specs (IBV_FLOW_ATTR_NORMAL)
	FlowAllDefault                 // Ethernet packets that go to no other QP (IBV_FLOW_ATTR_ALL_DEFAULT)
	FlowMCDefault                  // multicast packets that go to no other QP (IBV_FLOW_ATTR_MC_DEFAULT)
	FlowSniffer                    // copies of all packets of the port (IBV_FLOW_ATTR_SNIFFER)
)

// FlowFlags are properties of a flow (enum ibv_flow_flags).
type FlowFlags uint32

// Flags of a flow.
const (
	FlowDontTrap FlowFlags = 1 << 1 // matching packets also go to flows of lower priority (IBV_FLOW_ATTR_FLAGS_DONT_TRAP)
	FlowEgress   FlowFlags = 1 << 2 // match packets that are sent (IBV_FLOW_ATTR_FLAGS_EGRESS)
)

// flowFlagsAll are all flow flags.
const flowFlagsAll = FlowDontTrap | FlowEgress

// FlowOptions are the options of [QP.CreateFlow]. The zero value matches every packet of port 1.
type FlowOptions struct {
	Type     FlowType   // Type is the kind of flow.
	Priority uint16     // Priority orders the flows; 0 is the highest.
	Port     uint8      // Port is the port that receives the packets; by default 1.
	Flags    FlowFlags  // Flags are properties of the flow.
	Specs    []FlowSpec // Specs are the headers to match, outermost first, and the actions.
}

// Flow directs matching packets to a QP (struct ibv_flow). It is safe for concurrent use.
type Flow struct {
	object
	handle uint32
	counts *Counters // the counters of the flow, or nil
}

// maxFlowSpecs is the maximum number of specs: the field for it is a byte. The kernel accepts
// fewer, depending on its version.
const maxFlowSpecs = 255

// CreateFlow directs packets that match o.Specs to the queue pair (ibv_create_flow). The QP must be
// of type UD or raw packet. The process needs CAP_NET_RAW; otherwise the error matches EPERM.
// Counters and actions in the specs cannot be closed before the flow.
func (q *QP) CreateFlow(o FlowOptions) (*Flow, error) {
	if err := q.usable(); err != nil {
		return nil, err
	}
	o.Port = orDefault(o.Port, 1)
	if err := o.check(q.dev); err != nil {
		return nil, err
	}
	parents := []*object{&q.object}
	var specs []byte
	var counts *Counters
	for _, s := range o.Specs {
		b, err := s.encode()
		if err != nil {
			return nil, err
		}
		specs = append(specs, b...)
		if obj := s.uses(); obj != nil {
			parents = append(parents, obj)
		}
		if c, ok := s.(FlowActionCount); ok {
			counts = c.Counters
		}
	}
	f := &Flow{counts: counts}
	if err := f.addParents(q.dev, "Flow", "DESTROY_FLOW", parents...); err != nil {
		return nil, err
	}
	req := &abi.CreateFlow{QPHandle: q.handle, FlowAttr: abi.FlowAttr{
		Type:       uint32(o.Type),
		Size:       uint16(len(specs)),
		Priority:   o.Priority,
		NumOfSpecs: uint8(len(o.Specs)),
		Port:       o.Port,
		Flags:      uint32(o.Flags),
	}}
	var u udata
	if counts != nil {
		counts.mu.Lock()
		defer counts.mu.Unlock()
		if counts.flows == 0 {
			var err error
			if u, err = q.dev.countUdata(); err != nil {
				f.removeParents()
				return nil, err
			}
		}
	}
	resp := &abi.CreateFlowResp{}
	errno := q.dev.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_CREATE_FLOW, append(bytesOf(req), specs...), bytesOf(resp), u)
	if errno != 0 {
		f.removeParents()
		return nil, q.dev.cmd.fail("CREATE_FLOW", errno, flowHint(errno, q.typ))
	}
	f.handle = resp.FlowHandle
	if counts != nil {
		counts.flows++
	}
	return f, f.markCreated(f)
}

// check returns an ArgError if an option is invalid.
func (o *FlowOptions) check(d *Device) error {
	if o.Type > FlowSniffer {
		return argErr("CreateFlow", "Type", uint32(o.Type), "the FlowType constants")
	}
	if o.Flags&^flowFlagsAll != 0 {
		return argErr("CreateFlow", "Flags", fmt.Sprintf("%#x", uint32(o.Flags)), "the FlowFlags constants, together %#x", uint32(flowFlagsAll))
	}
	if o.Flags&FlowDontTrap != 0 && (o.Type == FlowAllDefault || o.Type == FlowMCDefault) {
		return argErr("CreateFlow", "Flags", "FlowDontTrap", "FlowDontTrap only with FlowNormal and FlowSniffer")
	}
	if limit := d.attr.PhysPortCount; o.Port > limit {
		return argErr("CreateFlow", "Port", o.Port, "1 to %d", limit)
	}
	if len(o.Specs) > maxFlowSpecs {
		return argErr("CreateFlow", "number of Specs", len(o.Specs), "0 to %d", maxFlowSpecs)
	}
	for i, s := range o.Specs {
		if s == nil {
			return argErr("CreateFlow", fmt.Sprintf("Specs[%d]", i), "nil", "a FlowSpec")
		}
	}
	return nil
}

// flowHint explains a refused flow.
func flowHint(errno syscall.Errno, typ QPType) string {
	switch errno {
	case syscall.EPERM:
		return "the process needs CAP_NET_RAW"
	case syscall.EINVAL:
		return fmt.Sprintf("flows need a UD or raw packet QP, and this one is %s; or a spec does not fit the specs before it; or there are too many specs", typ)
	}
	return ""
}

// Close removes the flow (ibv_destroy_flow).
func (f *Flow) Close() error {
	return f.close(func() error {
		if f.counts != nil {
			f.counts.mu.Lock()
			defer f.counts.mu.Unlock()
		}
		errno := f.dev.cmd.destroy(abi.UVERBS_OBJECT_FLOW, abi.UVERBS_METHOD_FLOW_DESTROY, abi.UVERBS_ATTR_DESTROY_FLOW_HANDLE, f.handle)
		if absent(errno) {
			req := &abi.DestroyFlow{FlowHandle: f.handle}
			errno = f.dev.cmd.legacy(exCommand|abi.IB_USER_VERBS_EX_CMD_DESTROY_FLOW, bytesOf(req), nil, udata{})
		}
		if errno == 0 && f.counts != nil {
			f.counts.flows--
		}
		return f.dev.cmd.fail(f.destroy, errno, "")
	}, nil)
}
