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

// target is where the peer's messages of a queue pair go with DC: a target, and the queue with its receives.
type target struct {
	qp  *uverbs.QP
	srq *uverbs.SRQ
}

// DCBoth reports whether both sides of a test over DC have initiators and targets, as perftest has them:
// where one side alone sends, it has initiators, and the other targets.
func (c *Config) DCBoth() bool { return c.Type == DC && (c.Both || c.Metric == Lat) }

// CheckType returns an error if a device does not have the type of queue pairs, or their options. Those of DC are
// made only when the peer's address is known, which is late to find that out.
func (c *Config) CheckType(dev *uverbs.Device) error {
	if c.Type != DC && !c.OutOfOrder {
		return nil
	}
	var opened objects.Stack
	pd, cq := opened.PD(dev), opened.CQ(dev, uverbs.CQOptions{Size: 1})
	qp := objects.Open(&opened, func() (*uverbs.QP, error) {
		if c.Type == DC {
			return mlx5.CreateDCI(pd, mlx5.DCIOptions{SendCQ: cq, MaxSendWR: 1, OutOfOrder: c.OutOfOrder, Streams: c.streams()})
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
	case c.Type == DC:
		return lacks("type dc", dev.Name(), err)
	}
	return lacks("use-ooo", dev.Name(), err)
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

// TargetSRQN returns the number of the SRQ of the target that a queue pair of the peer sends to, or 0 if there is
// no target.
func (e *End) TargetSRQN(i int) uint32 {
	if i < len(e.targets) {
		return e.targets[i].srq.SRQN()
	}
	return 0
}

// createDC makes the queue pairs of DC, for a peer with such a GID: a target answers from a GID of its own,
// which must suit that.
func (e *End) createDC(remote ib.GID) error {
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
	for range e.Config.QPs {
		if e.Server || e.Config.DCBoth() {
			if err := e.createTarget(gid); err != nil {
				return err
			}
		}
		if e.Server && !e.Config.DCBoth() {
			e.QPs = append(e.QPs, e.targets[len(e.QPs)].qp)
			continue
		}
		_, err := e.CreateQP(func(o uverbs.QPOptions) (*uverbs.QP, error) {
			o.Path.GIDIndex = gid
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
		return mlx5.CreateDCT(e.PD, mlx5.DCTOptions{RecvCQ: o.RecvCQ, SRQ: srq, AccessKey: dcKey, Path: o.Path, OutOfOrder: o.OutOfOrder})
	})
	if err := e.opened.Err(); err != nil {
		return err
	}
	e.targets = append(e.targets, target{qp, srq})
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
