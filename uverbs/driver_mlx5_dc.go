package uverbs

import "github.com/goverbs/goverbs/mmio/mlx5"

// prepareDCT prepares a DCT, which has no queues of its own: its SRQ has the receives.
func (dr mlx5Driver) prepareDCT(q *QP, s *qpSpec) (udata, error) {
	x := &q.mlx5
	*x = mlx5QP{mlx5TableEntry: mlx5TableEntry{owner: mlx5Owner{qp: q, srq: q.srq}, index: mlx5.NoUserIndex}, outOfOrder: s.OutOfOrder}
	if s.OutOfOrder {
		if err := dr.hasOutOfOrder(q.dev); err != nil {
			return udata{}, err
		}
	}
	if err := x.register(q.dev.mlx5); err != nil {
		return udata{}, err
	}
	req := mlx5.QPRequest{UserIndex: x.index, DC: mlx5.Target, AccessKey: s.dc.key, ECE: q.dev.mlx5.ECE}
	return udata{in: req.Encode(), out: make([]byte, mlx5.QPRespSize)}, nil
}

func (mlx5Driver) rateLimits(d *Device) (RateLimits, error) {
	u := udata{out: make([]byte, mlx5.QueryDeviceRespSize)}
	if err := d.queryUdata(u); err != nil {
		return RateLimits{}, err
	}
	least, most, types := mlx5.DecodeRates(u.out)
	return RateLimits{Min: least, Max: most, QPTypes: QPTypes(types)}, nil
}

func (mlx5Driver) dciStreams(d *Device) (concurrent, errored uint8, err error) {
	u := udata{out: make([]byte, mlx5.QueryDeviceRespSize)}
	if err := d.queryUdata(u); err != nil {
		return 0, 0, err
	}
	concurrent, errored = mlx5.DecodeStreams(u.out)
	return concurrent, errored, nil
}

// dciReads asks the firmware, which needs DEVX.
func (dr mlx5Driver) dciReads(d *Device) uint8 {
	if !d.mlx5.devx.has {
		return 0
	}
	caps, err := dr.devxCaps(d)
	if err != nil {
		return 0
	}
	return uint8(1 << min(caps.LogDCReads, 7))
}

func (dr mlx5Driver) dctUdata(q *QP) udata {
	u := dr.modifyUdata(q)
	if u.out == nil { // the answer has the number in any case
		u.out = make([]byte, mlx5.ModifyQPRespSize)
	}
	return u
}

func (dr mlx5Driver) dctReady(q *QP, u udata) error {
	dctn, _, err := mlx5.DecodeModifyQP(u.out)
	if err == nil {
		err = dr.modifyAnswer(q, u)
	}
	if err != nil {
		return err
	}
	q.setNumber(dctn)
	q.mlx5.registerNumber(q.dev.mlx5, dctn)
	return nil
}
