package uverbs

import (
	"errors"
	"syscall"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// lent are the functions for package uverbs/mlx5.
var lent = hook.Functions[Device, PD, QP, QPOptions, WQ, WQOptions]{
	Part: (*Device).mlx5Part, Device: (*Device).hold, QP: (*QP).hold,
	CreateDC: (*PD).createDC, ReadyDC: (*QP).readyDC, DataDirectPath: (*Device).dataDirectPath,
	QueryDevice: (*Device).queryMlx5, CreateStrided: (*PD).createStrided,
}

func init() { hook.Uverbs = &lent }

// mlx5Part returns what the device keeps for package uverbs/mlx5.
func (d *Device) mlx5Part() (*hook.Part, error) {
	if err := d.usable(); err != nil || d.mlx5 == nil {
		return nil, err
	}
	return &d.mlx5.part, nil
}

// hold keeps the device open for package uverbs/mlx5.
func (d *Device) hold() (*hook.Object, error) {
	if err := d.acquire(); err != nil {
		return nil, err
	}
	return d.held(nil, d.release), nil
}

// hold keeps the QP open for package uverbs/mlx5.
func (q *QP) hold(changes bool) (*hook.Object, error) {
	if err := q.acquire(); err != nil {
		return nil, err
	}
	if changes { // as acquireState
		q.changing.Lock()
	}
	return q.dev.held(q, func() {
		if changes {
			q.changing.Unlock()
		}
		q.release()
	}), nil
}

// held describes a device or a QP of it, which is not nil.
func (d *Device) held(q *QP, release func()) *hook.Object {
	o := &hook.Object{Conn: d.cmd.Conn, Driver: d.driver.name(), Imported: d.imported, Release: release}
	o.Fail = func(verb string, errno syscall.Errno, hint string, refused bool) error {
		err := d.cmd.fail(verb, errno, hint)
		if e, ok := errors.AsType[*Error](err); ok {
			e.refused = refused
		}
		if q != nil {
			err = about(err, q.label(), "")
		}
		return err
	}
	if d.mlx5 != nil {
		o.Part = &d.mlx5.part
	}
	if q != nil {
		o.QP = &hook.QP{Handle: q.handle, Type: q.typ, Streams: q.mlx5.streams, TIS: q.mlx5.tis, HasTIS: q.mlx5.hasTIS}
	}
	return o
}

// createStrided creates a WQ for package uverbs/mlx5. The device is one of mlx5, and no completion is in the CQ yet.
func (p *PD) createStrided(o WQOptions, s mlx5.Strides, c mlx5.Compression) (*WQ, *hook.Strided, error) {
	o.strides = s
	w, err := p.CreateWQ(o)
	if err != nil {
		return nil, nil, err
	}
	x := o.CQ.mlx5
	x.ring.Compress(c)
	return w, &hook.Strided{Mu: &x.mu, WQ: w.mlx5.rq, CQ: &x.ring}, nil
}
