package uverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// FlowOptions are the options of [QP.CreateFlow]. The zero value matches every packet of port 1.
type FlowOptions struct {
	Type     flow.Type   // Type is the kind of flow.
	Priority uint16      // Priority orders the flows; 0 is the highest.
	Port     uint8       // Port is the port that receives the packets; by default 1.
	Flags    flow.Flags  // Flags are properties of the flow.
	Specs    []flow.Spec // Specs are the headers to match, outermost first, and the actions.
	Counters *Counters   // Counters count the matching packets (ibv_attach_counters_point_flow); nil counts none.
}

// Flow directs matching packets to a QP (struct ibv_flow). It is safe for concurrent use.
type Flow struct {
	object
	handle uint32
	counts *Counters // the counters of the flow, or nil
}

// maxFlowSpecs is the maximum number of specs, one for the counters included: the field for it is a byte. The
// kernel accepts fewer, depending on its version.
const maxFlowSpecs = 255

// flowSpecCount is IBV_FLOW_SPEC_ACTION_COUNT of libibverbs, which the kernel's uapi headers do not have.
const flowSpecCount = 0x1003

// CreateFlow directs packets that match o.Specs to the queue pair (ibv_create_flow). The QP must be
// of type UD or raw packet. The process needs CAP_NET_RAW; otherwise the error matches EPERM.
// Counters cannot be closed before the flow.
func (q *QP) CreateFlow(o FlowOptions) (*Flow, error) {
	if err := q.usable(); err != nil {
		return nil, err
	}
	o.Port = orDefault(o.Port, 1)
	if err := o.check(q.dev); err != nil {
		return nil, err
	}
	parents := []*object{&q.object}
	specs, err := o.encode()
	if err != nil {
		return nil, err
	}
	n, counts := len(o.Specs), o.Counters
	if counts != nil {
		count := &abi.FlowSpecActionCount{Handle: counts.handle}
		count.Hdr = abi.FlowSpecHdr{Type: flowSpecCount, Size: uint16(len(bytesOf(count)))}
		specs, n = append(specs, bytesOf(count)...), n+1
		parents = append(parents, &counts.object)
	}
	f := &Flow{counts: counts}
	if err := f.addParents(q.dev, "Flow", "DESTROY_FLOW", parents...); err != nil {
		return nil, err
	}
	req := &abi.CreateFlow{QPHandle: q.handle, FlowAttr: abi.FlowAttr{
		Type:       uint32(o.Type),
		Size:       uint16(len(specs)),
		Priority:   o.Priority,
		NumOfSpecs: uint8(n),
		Port:       o.Port,
		Flags:      uint32(o.Flags),
	}}
	var u udata
	if counts != nil {
		counts.mu.Lock()
		defer counts.mu.Unlock()
		if counts.flows == 0 {
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
	if o.Type > flow.Sniffer {
		return argErr("CreateFlow", "Type", uint32(o.Type), "the flow.Type constants")
	}
	if o.Flags&^flow.FlagsAll != 0 {
		return argErr("CreateFlow", "Flags", fmt.Sprintf("%#x", uint32(o.Flags)), "the flow.Flags constants, together %#x", uint32(flow.FlagsAll))
	}
	if o.Flags&flow.DontTrap != 0 && (o.Type == flow.AllDefault || o.Type == flow.MCDefault) {
		return argErr("CreateFlow", "Flags", "DontTrap", "DontTrap only with flow.Normal and flow.Sniffer")
	}
	if limit := d.attr.PhysPortCount; o.Port > limit {
		return argErr("CreateFlow", "Port", o.Port, "1 to %d", limit)
	}
	limit := maxFlowSpecs
	if o.Counters != nil {
		limit--
	}
	if len(o.Specs) > limit {
		return argErr("CreateFlow", "number of Specs", len(o.Specs), "0 to %d", limit)
	}
	for i, s := range o.Specs {
		if s == nil {
			return argErr("CreateFlow", fmt.Sprintf("Specs[%d]", i), "nil", "a flow.Spec")
		}
	}
	return nil
}

// encode returns the specs in the kernel's form. The error is an ArgError.
func (o *FlowOptions) encode() ([]byte, error) {
	specs, err := flow.Encode(o.Specs)
	if e, ok := errors.AsType[*flow.Error](err); ok {
		err = argErr("CreateFlow", e.Field, e.Given, "%s", e.Allowed)
	}
	return specs, err
}

// flowHint explains a refused flow.
func flowHint(errno syscall.Errno, typ ib.QPType) string {
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
