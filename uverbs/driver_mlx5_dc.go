package uverbs

import "github.com/goverbs/goverbs/mmio/mlx5"

// prepareDCT prepares a DCT, which has no queues of its own: its SRQ has the receives.
func (mlx5Driver) prepareDCT(q *QP, s *qpSpec) (udata, error) {
	x := &q.mlx5
	*x = mlx5QP{mlx5TableEntry: mlx5TableEntry{owner: mlx5Owner{qp: q, srq: q.srq}, index: mlx5.NoUserIndex}}
	if err := x.register(q.dev.mlx5); err != nil {
		return udata{}, err
	}
	req := mlx5.QPRequest{UserIndex: x.index, DC: mlx5.Target, AccessKey: s.dc.key}
	return udata{in: req.Encode(), out: make([]byte, mlx5.QPRespSize)}, nil
}

func (mlx5Driver) dciStreams(d *Device) (concurrent, errored uint8, err error) {
	u := udata{out: make([]byte, mlx5.StreamsRespSize)}
	if err := d.queryUdata(u); err != nil {
		return 0, 0, err
	}
	concurrent, errored = mlx5.DecodeStreams(u.out)
	return concurrent, errored, nil
}

func (mlx5Driver) dctUdata() udata { return udata{out: make([]byte, mlx5.ModifyQPRespSize)} }

func (mlx5Driver) dctReady(q *QP, u udata) error {
	dctn, err := mlx5.DecodeModifyQP(u.out)
	if err != nil {
		return err
	}
	q.setNumber(dctn)
	q.mlx5.registerNumber(q.dev.mlx5, dctn)
	return nil
}
