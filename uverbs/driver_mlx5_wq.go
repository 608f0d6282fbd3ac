package uverbs

import (
	"errors"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
)

// mlx5WQ is the mlx5 part of a WQ.
type mlx5WQ struct {
	mlx5TableEntry
	cq     *CQ
	size   mlx5.RecvSize
	rec    mlx5.Record
	region *mmio.Region
	rq     *mlx5.RecvQueue
}

// prepareMlx5 allocates the ring and returns the driver's part of CREATE_WQ.
func (w *WQ) prepareMlx5(o *WQOptions) (u udata, err error) {
	m := w.dev.mlx5
	x := &mlx5WQ{mlx5TableEntry: mlx5TableEntry{owner: mlx5Owner{wq: w}, index: mlx5.NoUserIndex}, cq: o.CQ}
	w.mlx5 = x
	if x.size, err = m.SizeRecv(o.MaxWR, o.MaxSGE); err != nil {
		return udata{}, mlx5Size("CreateWQ", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.freeMlx5())
		}
	}()
	if x.region, err = mapRingMemory(x.size.Bytes()); err != nil {
		return udata{}, err
	}
	if x.rec, err = m.records.Take(); err != nil {
		return udata{}, err
	}
	if err = x.register(m); err != nil {
		return udata{}, err
	}
	o.MaxWR, o.MaxSGE = x.size.Entries, x.size.MaxSGE
	return udata{in: mlx5.EncodeWQ(addrOf(x.region.Bytes()), x.rec, x.size, x.index), out: make([]byte, mlx5.WQRespSize)}, nil
}

// mapMlx5 completes a new WQ. It does nothing with a WQ of another driver.
func (w *WQ) mapMlx5() (err error) {
	m, x := w.dev.mlx5, w.mlx5
	if x == nil {
		return nil
	}
	w.maxWR, w.maxSGE = x.size.Entries, x.size.MaxSGE
	if x.rq, err = mlx5.NewRecvQueue(x.region.Bytes(), x.size, x.rec); err != nil {
		return err
	}
	x.registerNumber(m, w.num)
	return nil
}

// freeMlx5 frees the memory of a WQ that the kernel has destroyed or did not create.
func (w *WQ) freeMlx5() error {
	m, x := w.dev.mlx5, w.mlx5
	if x == nil {
		return nil
	}
	if x.registered {
		x.cq.cleanMlx5(&x.owner)
	}
	x.unregister(m)
	m.records.Give(x.rec)
	x.rec = mlx5.Record{}
	return closeRegions(x.region)
}

// modifyWQMlx5 returns the driver's part of MODIFY_WQ.
func modifyWQMlx5() udata { return udata{in: mlx5.EncodeModifyWQ()} }

// resetMlx5 is called after the WQ has entered WQReset.
func (w *WQ) resetMlx5() {
	w.mlx5.cq.cleanMlx5(&w.mlx5.owner)
	w.mlx5.rq.Reset()
}
