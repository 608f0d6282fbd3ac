package engine

// maxLSO is the longest payload of a large send: 2 to the power of max_lso_cap.
const maxLSO = 1 << 16

// Where things are in a TCP header.
const (
	tcpSeq    = 4
	tcpFlags  = 13
	tcpHeader = 20
	tcpFIN    = 1 << 0
	tcpPSH    = 1 << 3
	tcpCWR    = 1 << 7
)

// sendSegments cuts a large send into frames, each of which gets the inline headers with its
// own length, number and sums.
func (q *qp) sendSegments(w *sendWQE) {
	if q.pd == nil || w.size == 0 || w.size > maxLSO {
		w.refuse(LocalLength, "an LSO of %d bytes", w.size)
		return
	}
	data, why := w.gather(0, w.size)
	if why != "" {
		w.refuse(LocalProt, "%s", why)
		return
	}
	ip, l4, tcp := lsoHeaders(w.eth.header)
	if l4 == 0 {
		w.malformed("wqe-lso", "the headers are none of TCP or UDP: %x", w.eth.header)
		return
	}
	for off := 0; off < len(data); off += w.eth.mss {
		piece := data[off:min(off+w.eth.mss, len(data))]
		frame := append(append([]byte(nil), w.eth.header...), piece...)
		if v6 := frame[ip]>>4 == 6; v6 {
			be.PutUint16(frame[ip+4:], uint16(len(frame)-ip-40))
		} else {
			be.PutUint16(frame[ip+2:], uint16(len(frame)-ip))
			be.PutUint16(frame[ip+4:], be.Uint16(frame[ip+4:])+uint16(off/w.eth.mss))
		}
		if tcp {
			be.PutUint32(frame[l4+tcpSeq:], be.Uint32(frame[l4+tcpSeq:])+uint32(off))
			if off+len(piece) < len(data) {
				frame[l4+tcpFlags] &^= tcpFIN | tcpPSH
			}
			if off > 0 {
				frame[l4+tcpFlags] &^= tcpCWR
			}
		} else {
			be.PutUint16(frame[l4+4:], uint16(len(frame)-l4))
		}
		q.sendRaw(w, frame)
	}
}

// lsoHeaders finds the IP header and what follows it in the inline headers; 0 if they are
// not all there.
func lsoHeaders(h []byte) (ip, l4 int, tcp bool) {
	ip = ethHeader
	proto := be.Uint16(h[12:])
	if proto == 0x8100 && len(h) >= ip+4 {
		proto, ip = be.Uint16(h[16:]), ip+4
	}
	var next uint8
	switch {
	case proto == 0x0800 && len(h) >= ip+ipv4Bytes && h[ip]>>4 == 4 && h[ip]&0xf >= 5:
		next, l4 = h[ip+9], ip+int(h[ip]&0xf)*4
	case proto == 0x86dd && len(h) >= ip+40 && h[ip]>>4 == 6:
		next, l4 = h[ip+6], ip+40
	default:
		return ip, 0, false
	}
	switch {
	case next == 6 && len(h) >= l4+tcpHeader:
		return ip, l4, true
	case next == protoUDP && len(h) == l4+8:
		return ip, l4, false
	}
	return ip, 0, false
}
