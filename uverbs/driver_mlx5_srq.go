package uverbs

import (
	"errors"
	"sync"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
)

// mlx5SRQ is the mlx5 part of an SRQ.
type mlx5SRQ struct {
	rq         *mlx5.SharedRecvQueue
	list       sync.Mutex // held while the list of free entries is changed, by posting and by polling
	owner      mlx5Owner
	index      uint32
	registered bool
	indexed    bool // index is from owners
	size       mlx5.RecvSize
	rec        mlx5.Record
	cq         *CQ // of an SRQ in an XRC domain, or nil
}

func (dr mlx5Driver) prepareSRQ(s *SRQ, o *SRQOptions) (u udata, err error) {
	m := s.dev.mlx5
	x := &mlx5SRQ{owner: mlx5Owner{srq: s}, cq: o.CQ}
	s.mlx5 = x
	faults := (s.dev.attr.ODPCapsRC|s.dev.attr.ODPCapsXRC)&ODPSRQRecv != 0
	if x.size, err = m.SizeSRQ(o.MaxWR, o.MaxSGE, faults); err != nil {
		return udata{}, mlx5Size("CreateSRQ", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dr.freeSRQ(s))
		}
	}()
	if s.region, err = mapRingMemory(x.size.Bytes()); err != nil {
		return udata{}, err
	}
	if x.rec, err = m.records.Take(); err != nil {
		return udata{}, err
	}
	if s.mlx5.rq, err = mlx5.NewSharedRecvQueue(s.region.Bytes(), x.size, x.rec); err != nil {
		return udata{}, err
	}
	index := uint32(mlx5.NoUserIndex)
	if m.UserIndex {
		index = 0 // only an SRQ in an XRC domain has completions of its own
		if o.XRCD != nil {
			if index, err = m.owners.add(&x.owner); err != nil {
				return udata{}, err
			}
			x.index, x.registered, x.indexed = index, true, true
		}
	}
	o.MaxWR, o.MaxSGE = s.mlx5.rq.Entries(), x.size.MaxSGE
	return udata{in: mlx5.EncodeSRQ(addrOf(s.region.Bytes()), x.rec, index), out: make([]byte, mlx5.SRQRespSize)}, nil
}

func (mlx5Driver) mapSRQ(s *SRQ, u udata) error {
	number, err := mlx5.DecodeSRQ(u.out)
	if err != nil {
		return err
	}
	m, x := s.dev.mlx5, s.mlx5
	s.num, s.maxWR, s.maxSGE = number, s.mlx5.rq.Cap(), x.size.MaxSGE
	if !m.UserIndex {
		m.srqs.set(number, &x.owner)
		x.index, x.registered = number, true
	}
	return nil
}

func (mlx5Driver) freeSRQ(s *SRQ) error {
	m, x := s.dev.mlx5, s.mlx5
	if x.registered && x.cq != nil {
		x.cq.cleanMlx5(&x.owner)
	}
	if x.registered {
		if x.indexed {
			m.owners.remove(x.index)
		} else {
			m.srqs.set(x.index, nil)
		}
		x.registered = false
	}
	m.records.Give(x.rec)
	x.rec = mlx5.Record{}
	return mmio.RetireAll(s.region)
}

// modifySRQ arms the limit. The device cannot resize an SRQ.
func (mlx5Driver) modifySRQ(_ *SRQ, resize bool, issue func(udata) error) error {
	if resize {
		return &FeatureError{Feature: "MODIFY_SRQ with a new size", Driver: "mlx5"}
	}
	return issue(udata{})
}

// completeMlx5 frees the entry of a completed receive and returns its ID.
func (s *SRQ) completeMlx5(counter uint16) (id uint64, err error) {
	s.mlx5.list.Lock()
	defer s.mlx5.list.Unlock()
	if id, err = s.mlx5.rq.ID(counter); err == nil {
		err = s.mlx5.rq.Free(counter)
	}
	return id, err
}

// scatterMlx5 calls put for the scatter entries of a completed receive.
func (s *SRQ) scatterMlx5(counter uint16, put func(addr uint64, length, lkey uint32) bool) {
	s.mlx5.list.Lock()
	defer s.mlx5.list.Unlock()
	if _, err := s.mlx5.rq.ID(counter); err == nil {
		s.mlx5.rq.Scatter(counter, put)
	}
}

// freeMlx5 frees the entry of a receive whose completion is discarded.
func (s *SRQ) freeMlx5(counter uint16) error {
	s.mlx5.list.Lock()
	defer s.mlx5.list.Unlock()
	return s.mlx5.rq.Free(counter)
}

// repostMlx5 posts a receive again whose completion only reported a page fault.
func (s *SRQ) repostMlx5(counter uint16) error {
	s.mlx5.list.Lock()
	defer s.mlx5.list.Unlock()
	return s.mlx5.rq.Repost(counter)
}

// postRecvsMlx5 posts receives; the caller holds post.
func (s *SRQ) postRecvsMlx5(wrs []RecvWR) error {
	s.mlx5.list.Lock()
	defer s.mlx5.list.Unlock()
	b := s.mlx5.rq.Begin()
	for i := range wrs {
		if !s.mlx5.rq.Next(&b, wrs[i].ID) {
			return roomErr(len(wrs), s.mlx5.rq.Cap(), nil)
		}
		if err := addSGEsMlx5(&b.RecvSlot, wrs[i].SGL); err != nil {
			return postErr(i, err)
		}
		b.Finish()
	}
	if len(wrs) > 0 {
		s.mlx5.rq.Publish(&b)
	}
	return nil
}

// queriedMlx5 restores the sizes: the kernel also counts the entries that the library keeps unused.
func (s *SRQ) queriedMlx5(a *SRQAttr) { a.MaxWR, a.MaxSGE = s.maxWR, s.maxSGE }
