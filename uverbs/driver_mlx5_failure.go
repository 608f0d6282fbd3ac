package uverbs

import (
	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// refusal returns why the firmware refused the command that has just failed.
func (mlx5Driver) refusal() string { return diag.FirmwareRefusal() }

func (mlx5Driver) vendorText(code uint32) (text string, injected bool) {
	if code == 0 {
		return "", false
	}
	return mlx5.VendorText(uint8(code)), false
}

func (mlx5Driver) findRequest(q *QP, id uint64) (sentWR, bool) {
	if q.mlx5.sq == nil {
		return sentWR{}, false
	}
	i, ok := q.mlx5.sq.Find(id)
	return sentMlx5(&i), ok
}

// sentMlx5 converts the contents of a WQE.
func sentMlx5(i *mlx5.SendInfo) sentWR {
	s := sentWR{op: WROpcode(i.Op), length: i.Length, qpn: i.RemoteQPN, raddr: i.RemoteAddr, rkey: i.RKey, mwRKey: i.OldKey}
	for _, e := range i.SGEs {
		s.sges = append(s.sges, SGE{Addr: e.Addr, Length: e.Length, LKey: e.LKey})
	}
	return s
}

func (mlx5Driver) postedRecvs(q *QP) int {
	switch s := q.srq; {
	case s != nil:
		s.post.Lock() // so that Close waits
		defer s.post.Unlock()
		s.mlx5.list.Lock()
		defer s.mlx5.list.Unlock()
		if !s.closed.Load() {
			return s.mlx5.rq.Posted()
		}
	case q.mlx5.rq != nil:
		return q.mlx5.rq.Posted()
	}
	return 0
}
