package ibsim

import "github.com/goverbs/goverbs/uverbs/umad/mad"

// Records returns a subnet administrator's answer to a request: a table of all records, or to a Get the first
// one. It panics if a record cannot be encoded, which is a mistake in the test.
func Records(req *mad.Packet, all ...mad.Attribute) *mad.Packet {
	p := req.Reply()
	if req.Method == mad.MethodGet {
		if len(all) == 0 {
			p.Status = mad.StatusNoRecords
		} else if err := p.Put(all[0]); err != nil {
			panic(err)
		}
		return p
	}
	p.RMPP = mad.RMPPHeader{Version: 1, Type: mad.RMPPData, Flags: mad.RMPPActive}
	for _, r := range all {
		b, err := mad.Marshal(r)
		if err != nil {
			panic(err)
		}
		size := (len(b) + 7) / 8
		p.SA.AttributeOffset = uint16(size)
		p.Data = append(p.Data, append(b, make([]byte, size*8-len(b))...)...)
	}
	return p
}
