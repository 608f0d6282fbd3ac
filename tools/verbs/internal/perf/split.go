package perf

import (
	"errors"

	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// dcKey is the access key of targets, which perftest has in its source (DC_KEY).
const dcKey = 0xffeeddcc

// target is the queue pair that receives the peer's messages with DC and XRC, and the queue with its receives, which
// with XRC all targets share.
type target struct {
	qp  *uverbs.QP
	srq *uverbs.SRQ
}

// split reports whether a queue pair either sends or receives: with DC an initiator sends to a target, and with XRC
// it is connected to one.
func (c *Config) split() bool { return c.Type == DC || c.Type == XRC }

// Paired reports whether each side has queue pairs of both kinds, as perftest has them. Where one side alone sends,
// it has initiators, and the other targets.
func (c *Config) Paired() bool { return c.split() && (c.Both || c.Metric == Lat) }

// shared reports whether the queue pairs of a side take receives from one SRQ.
func (c *Config) shared() bool { return c.SRQ || c.Type == XRC }

// CheckType returns an error if a device does not have the type of queue pairs, or their options. Those of DC are
// made only when the peer's address is known, which is late to find that out.
func (c *Config) CheckType(dev *uverbs.Device) error {
	if !c.split() && !c.OutOfOrder {
		return nil
	}
	var opened objects.Stack
	pd, cq := opened.PD(dev), opened.CQ(dev, uverbs.CQOptions{Size: 1})
	qp := objects.Open(&opened, func() (*uverbs.QP, error) {
		switch c.Type {
		case DC:
			return mlx5.CreateDCI(pd, mlx5.DCIOptions{SendCQ: cq, MaxSendWR: 1, OutOfOrder: c.OutOfOrder, Streams: c.streams()})
		case XRC:
			xrcd := openXRCD(&opened, dev)
			if err := opened.Err(); err != nil {
				return nil, err
			}
			return xrcd.CreateQP(uverbs.XRCRecvOptions{OutOfOrder: c.OutOfOrder})
		}
		return pd.CreateQP(uverbs.QPOptions{Type: c.qpType(), SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, OutOfOrder: c.OutOfOrder})
	})
	if c.OutOfOrder { // the kernel checks that it has it for this type when the queue pair gets ready
		opened.Do(func() error {
			switch c.Type {
			case UD, SRD:
				return qp.ReadyUD(qkey)
			case DC:
				return nil
			}
			return qp.Init()
		})
	}
	err := errors.Join(opened.Err(), opened.Close())
	switch {
	case err == nil:
		return nil
	case c.split():
		return lacks("type "+c.Type, dev.Name(), err)
	}
	return lacks("use-ooo", dev.Name(), err)
}

// openXRCD opens an XRC domain.
func openXRCD(opened *objects.Stack, dev *uverbs.Device) *uverbs.XRCD {
	return objects.Open(opened, func() (*uverbs.XRCD, error) { return dev.OpenXRCD(uverbs.XRCDOptions{}) })
}

// qpType returns the type of queue pairs that a PD makes.
func (c *Config) qpType() ib.QPType {
	switch c.Type {
	case UC:
		return ib.UC
	case UD:
		return ib.UD
	case SRD:
		return ib.SRD
	case XRC:
		return ib.XRCSend
	}
	return ib.RC
}

// streams divides an initiator.
func (c *Config) streams() (s mlx5.DCIStreams) {
	if c.Streams != 0 {
		s.Concurrent = 1 << c.Streams
	}
	return s
}

// srqn returns the number of the SRQ of the target that a queue pair of the peer sends to, or 0 if there is no target.
func (e *End) srqn(i int) uint32 {
	if i < len(e.targets) {
		return e.targets[i].srq.SRQN()
	}
	return 0
}

// createSplit makes the queue pairs of DC and XRC, for a peer with such a GID: a target of DC answers from a GID of
// its own, which must suit that.
func (e *End) createSplit(remote ib.GID) error {
	attr, err := e.Dev.Port(e.Port)
	if err != nil {
		return err
	}
	var gid *int
	if attr.LinkLayer == ib.LinkLayerEthernet || e.Local.GID != Auto {
		entry, err := e.localGID(remote)
		if err != nil {
			return err
		}
		gid = new(entry.Index)
	}
	targets := e.Server || e.Config.Paired()
	if targets && e.Config.Type == XRC {
		e.xrcd = openXRCD(&e.opened, e.Dev)
		e.srq = e.opened.SRQ(e.PD, uverbs.SRQOptions{MaxWR: e.Config.QPs * e.memory.slots, XRCD: e.xrcd, CQ: e.RecvCQ})
		if err := e.opened.Err(); err != nil {
			return err
		}
	}
	for range e.Config.QPs {
		if targets {
			if err := e.createTarget(gid); err != nil {
				return err
			}
		}
		if e.Server && !e.Config.Paired() {
			e.QPs = append(e.QPs, e.targets[len(e.QPs)].qp)
			continue
		}
		_, err := e.CreateQP(func(o uverbs.QPOptions) (*uverbs.QP, error) {
			o.Path.GIDIndex = gid
			if e.Config.Type == XRC {
				o.RecvCQ, o.SRQ, o.MaxRecvWR = nil, nil, 0
				return e.PD.CreateQP(o)
			}
			return mlx5.CreateDCI(e.PD, mlx5.DCIOptions{SendCQ: o.SendCQ, MaxSendWR: o.MaxSendWR, MaxInline: o.MaxInline, Path: o.Path, OutOfOrder: o.OutOfOrder, Streams: e.Config.streams()})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// createTarget makes the next target.
func (e *End) createTarget(gid *int) error {
	o := e.qpOptions()
	o.Path.GIDIndex = gid
	srq := e.srq
	if srq == nil {
		srq = e.opened.SRQ(e.PD, uverbs.SRQOptions{MaxWR: o.MaxRecvWR})
	}
	qp := objects.Open(&e.opened, func() (*uverbs.QP, error) {
		if e.Config.Type == XRC {
			return e.xrcd.CreateQP(uverbs.XRCRecvOptions{Path: o.Path, OutOfOrder: o.OutOfOrder})
		}
		return mlx5.CreateDCT(e.PD, mlx5.DCTOptions{RecvCQ: o.RecvCQ, SRQ: srq, AccessKey: dcKey, Path: o.Path, OutOfOrder: o.OutOfOrder})
	})
	if err := e.opened.Err(); err != nil {
		return err
	}
	e.targets = append(e.targets, target{qp, srq})
	if e.Config.Type == XRC {
		return qp.Init()
	}
	return mlx5.ReadyDC(qp)
}

// receiver returns the queue pair that the peer sends to, whose number and address it must know.
func (e *End) receiver(i int) *uverbs.QP {
	if i < len(e.targets) {
		return e.targets[i].qp
	}
	return e.QPs[i]
}

// postRecv posts a receive.
func (f *flow) postRecv(id uint64, sgl ...uverbs.SGE) error {
	if f.srq != nil {
		return f.srq.PostRecv(id, sgl...)
	}
	return f.qp.PostRecv(id, sgl...)
}
