package metrics

import (
	"cmp"
	"errors"
	"strconv"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/proc"
)

// process is the owner of objects, as labels: a process, or a module of the kernel in brackets. It is empty if the
// owner is not known.
type process struct{ name, pid, container, netns string }

// objectKey is a type of objects of an owner.
type objectKey struct {
	process
	typ string
}

// qpKey is a kind of QPs.
type qpKey struct{ transport, state string }

// owners counts the objects of a device by owner.
type owners struct {
	processes  *proc.Cache
	objects    map[objectKey]uint64
	registered map[process]uint64 // bytes
	qps        map[qpKey]uint64
}

// newOwners returns an empty count.
func newOwners(p proc.FS) *owners {
	return &owners{proc.NewCache(p), map[objectKey]uint64{}, map[process]uint64{}, map[qpKey]uint64{}}
}

// of returns the owner of an object. One that has ended is not known.
func (o *owners) of(owner netlinkrdma.Owner) process {
	switch {
	case owner.Kernel != "":
		return process{name: "[" + owner.Kernel + "]"}
	case owner.PID == 0:
		return process{}
	}
	p, ok := o.processes.Of(owner.PID)
	if !ok {
		return process{}
	}
	return process{p.Name, strconv.FormatUint(uint64(p.PID), 10), p.Container, o.processes.Netns(p.PID)}
}

// count adds objects of one type. It returns nil if the kernel does not list them.
func count[T any](o *owners, dev netlinkrdma.Device, typ string, list func(netlinkrdma.Device) ([]T, error), owner func(T) netlinkrdma.Owner) error {
	all, err := list(dev)
	for _, v := range all {
		o.objects[objectKey{o.of(owner(v)), typ}]++
	}
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// withDrivers includes the QPs of drivers.
var withDrivers = netlinkrdma.ListOptions{Driver: true}

// listObjects counts the objects of a device. If some lists fail, the others are counted.
func listObjects(dev netlinkrdma.Device, o *owners) error {
	qps := func(dev netlinkrdma.Device) ([]netlinkrdma.QP, error) { return netlinkrdma.QPs(dev, withDrivers) }
	return errors.Join(
		count(o, dev, "qp", qps, func(q netlinkrdma.QP) netlinkrdma.Owner {
			o.qps[qpKey{cmp.Or(q.Subtype, q.Type.String()), q.State.String()}]++
			return q.Owner
		}),
		count(o, dev, "mr", netlinkrdma.MRs, func(m netlinkrdma.MR) netlinkrdma.Owner {
			o.registered[o.of(m.Owner)] += m.Length
			return m.Owner
		}),
		count(o, dev, "cq", netlinkrdma.CQs, func(v netlinkrdma.CQ) netlinkrdma.Owner { return v.Owner }),
		count(o, dev, "pd", netlinkrdma.PDs, func(v netlinkrdma.PD) netlinkrdma.Owner { return v.Owner }),
		count(o, dev, "srq", netlinkrdma.SRQs, func(v netlinkrdma.SRQ) netlinkrdma.Owner { return v.Owner }),
		count(o, dev, "cm_id", netlinkrdma.CMIDs, func(v netlinkrdma.CMID) netlinkrdma.Owner { return v.Owner }),
		count(o, dev, "context", netlinkrdma.Contexts, func(v netlinkrdma.Context) netlinkrdma.Owner { return v.Owner }),
	)
}

// add adds what was counted.
func (o *owners) add(s *samples, device string) {
	for key, n := range o.objects {
		s.add(processObjects, integer(n), device, key.typ, key.name, key.pid, key.container, key.netns)
	}
	for p, n := range o.registered {
		s.add(processRegistered, integer(n), device, p.name, p.pid, p.container, p.netns)
	}
	for key, n := range o.qps {
		s.add(deviceQPs, integer(n), device, key.transport, key.state)
	}
}
