package uverbs

import "github.com/goverbs/goverbs/mmio/mlx5"

// prepareDCTMlx5 is prepareQP for a DCT, which has no queues of its own: its SRQ has the receives.
func (q *QP) prepareDCTMlx5(s *qpSpec) (udata, error) {
	x := &q.mlx5
	*x = mlx5QP{mlx5TableEntry: mlx5TableEntry{owner: mlx5Owner{qp: q, srq: q.srq}, index: mlx5.NoUserIndex}, outOfOrder: s.OutOfOrder}
	if s.OutOfOrder {
		if err := (mlx5Driver{}).hasOutOfOrder(q.dev); err != nil {
			return udata{}, err
		}
	}
	if err := x.register(q.dev.mlx5); err != nil {
		return udata{}, err
	}
	req := mlx5.QPRequest{UserIndex: x.index, DC: mlx5.Target, AccessKey: s.dc.key, ECE: q.dev.mlx5.ECE}
	return udata{in: req.Encode(), out: make([]byte, mlx5.QPRespSize)}, nil
}

func (m *mlx5Context) rateLimits() (RateLimits, error) {
	u := udata{out: make([]byte, mlx5.QueryDeviceRespSize)}
	if err := m.dev.queryUdata(u); err != nil {
		return RateLimits{}, err
	}
	least, most, types := mlx5.DecodeRates(u.out)
	return RateLimits{Min: least, Max: most, QPTypes: QPTypes(types)}, nil
}

// dciStreams returns the largest values of DCIStreams; 0 means no streams.
func (m *mlx5Context) dciStreams() (concurrent, errored uint8, err error) {
	u := udata{out: make([]byte, mlx5.QueryDeviceRespSize)}
	if err := m.dev.queryUdata(u); err != nil {
		return 0, 0, err
	}
	concurrent, errored = mlx5.DecodeStreams(u.out)
	return concurrent, errored, nil
}

// dciReads returns the maximum number of READs and atomics that a DCI has in flight, or 0 if it is not
// known. Only the firmware knows it, which needs DEVX.
func (m *mlx5Context) dciReads() uint8 {
	if !m.devx.has {
		return 0
	}
	caps, err := m.devxCaps()
	if err != nil {
		return 0
	}
	return uint8(1 << min(caps.LogDCReads, 7))
}

// dctUdataMlx5 returns the driver's part of the MODIFY_QP that makes a DCT ready.
func (q *QP) dctUdataMlx5() udata {
	u := q.modifyUdataMlx5()
	if u.out == nil { // the answer has the number in any case
		u.out = make([]byte, mlx5.ModifyQPRespSize)
	}
	return u
}

// dctReadyMlx5 takes the number of a DCT from the response.
func (q *QP) dctReadyMlx5(u udata) error {
	dctn, _, err := mlx5.DecodeModifyQP(u.out)
	if err == nil {
		err = q.modifyAnswerMlx5(u)
	}
	if err != nil {
		return err
	}
	q.setNumber(dctn)
	q.mlx5.registerNumber(q.dev.mlx5, dctn)
	return nil
}
