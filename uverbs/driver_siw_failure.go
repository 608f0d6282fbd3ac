package uverbs

import "github.com/goverbs/goverbs/mmio/siw"

func (siwDriver) findRequest(q *QP, id uint64) (sentWR, bool) {
	if q.siw.sq == nil {
		return sentWR{}, false
	}
	i, ok := q.siw.sq.Find(id)
	return sentSiw(&i), ok
}

// sentSiw converts the contents of a ring element.
func sentSiw(i *siw.SendInfo) sentWR {
	s := sentWR{op: siwSent(i.Opcode), length: i.Length, raddr: i.RemoteAddr, rkey: i.RKey}
	if s.op == WRSendWithInv || s.op == WRLocalInv {
		s.invalid = &i.RKey
	}
	for _, e := range i.SGEs {
		s.sges = append(s.sges, SGE{Addr: e.Addr, Length: e.Length, LKey: e.LKey})
	}
	return s
}
