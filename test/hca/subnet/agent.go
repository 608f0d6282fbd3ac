package subnet

// Places in the header of a MAD, and values of its fields: InfiniBand architecture, chapter 13.
const (
	madBase         = 0
	madClass        = 1
	madClassVersion = 2
	madMethod       = 3
	madStatus       = 4
	madTID          = 8
	madAttribute    = 16
	madModifier     = 20
	madHeader       = 24

	classSubnet   = 0x01
	classPerf     = 0x04
	classPing     = 0x32 // of OpenFabrics, for ibping
	classDirected = 0x81

	methodGet         = 0x01
	methodSet         = 0x02
	methodTrap        = 0x05
	methodReport      = 0x06
	methodTrapRepress = 0x07
	methodResponse    = 0x80 // the bit
	methodGetResp     = 0x81

	statusBadVersion = 1 << 2
	statusBadMethod  = 2 << 2
	statusBadAttr    = 3 << 2
	statusBadValue   = 7 << 2

	qkeyQP1 = 0x80010000
)

// request is a request to an agent. The answer's data is in data when a function of an attribute returns.
type request struct {
	at     *port  // at is the port that the agent belongs to: port 0 at a switch.
	in     *port  // in is the port through which the request came.
	set    bool   // set says that the method is Set.
	mod    uint32 // mod is the attribute modifier.
	data   []byte // data is the attribute.
	hasKey bool   // hasKey says that the M_Key of the request is right.
}

// attribute answers a request for an attribute, and returns the status.
type attribute struct {
	fn  func(r *request) uint16
	set bool // Set is supported
	sw  bool // only switches have it
}

// answer answers a packet for the agents of a port. It returns nil if there is no answer.
func (at *port) answer(in *port, p *Packet, local bool) *Packet {
	if len(p.MAD) < madSize || p.DLID >= lidMulticast && p.DLID != LIDPermissive {
		return nil
	}
	m := append([]byte(nil), p.MAD[:madSize]...)
	class, method := m[madClass], m[madMethod]
	if method&methodResponse != 0 || method == methodTrap || method == methodReport {
		return nil
	}
	if method == methodTrapRepress && !p.VL15 {
		return nil
	}
	var ok bool
	switch {
	case p.VL15 && p.DestQP == 0 && (class == classSubnet || class == classDirected):
		ok = at.subnetAgent(in, m, local)
	case !p.VL15 && p.DestQP == 1 && p.QKey == qkeyQP1 && class != classSubnet && class != classDirected:
		ok = at.generalAgent(in, m)
	}
	if !ok {
		return nil
	}
	a := &Packet{SLID: at.lid(), DLID: p.SLID, SL: p.SL, VL15: p.VL15, DestQP: p.SrcQP, SrcQP: p.DestQP, QKey: p.QKey, PKey: p.PKey, MAD: m}
	return a
}

// finish makes an answer of a MAD.
func finish(m []byte, status uint16) bool {
	m[madMethod] = methodGetResp
	if m[madClass] == classDirected {
		status |= 0x8000
	}
	be.PutUint16(m[madStatus:], status)
	return true
}

// goodVersion reports whether agents know the versions of a MAD and its class.
func goodVersion(m []byte) bool { return m[madBase] == 1 && m[madClassVersion] == 1 }

// attribute finds what answers a request, and the status if nothing does.
func (at *port) attribute(m []byte, table map[uint16]attribute) (attribute, uint16) {
	set := m[madMethod] == methodSet
	if !set && m[madMethod] != methodGet {
		return attribute{}, statusBadMethod
	}
	a, known := table[be.Uint16(m[madAttribute:])]
	if !known || set && !a.set || a.sw && at.node.sw == nil {
		return attribute{}, statusBadAttr
	}
	return a, 0
}

// subnetAgent answers an SMP, and reports whether there is an answer.
func (at *port) subnetAgent(in *port, m []byte, local bool) bool {
	method := m[madMethod]
	if !goodVersion(m) {
		return method != methodTrapRepress && finish(m, statusBadVersion)
	}
	hasKey, allowed := at.checkMKey(be.Uint64(m[smpMKey:]), method != methodGet, local)
	if !allowed {
		return false
	}
	if method == methodTrapRepress {
		if at.node.sw != nil {
			at.node.repress(be.Uint64(m[madTID:]))
		}
		return false
	}
	a, status := at.attribute(m, subnetAttributes)
	if status != 0 {
		return finish(m, status)
	}
	set := method == methodSet
	data := m[smpData : smpData+64]
	if !set {
		clear(data)
	}
	r := request{at: at, in: in, set: set, mod: be.Uint32(m[madModifier:]), data: data, hasKey: hasKey}
	return finish(m, a.fn(&r))
}

// generalAgent answers a MAD for QP1, and reports whether there is an answer.
func (at *port) generalAgent(in *port, m []byte) bool {
	switch {
	case m[madClass] == classPerf && !goodVersion(m):
		return finish(m, statusBadVersion)
	case m[madClass] == classPerf:
		a, status := at.attribute(m, perfAttributes)
		if status != 0 {
			return finish(m, status)
		}
		r := request{at: at, in: in, set: m[madMethod] == methodSet, data: m[smpData:]}
		return finish(m, a.fn(&r))
	case m[madClass] == classPing && at.node.sw == nil && be.Uint32(m[36:])&0xffffff == 0x1405 && m[madMethod] == methodGet:
		clear(m[40:])
		copy(m[40:], at.node.spec.Description+".(none)\x00")
		return finish(m, 0)
	case m[madMethod] == methodGet || m[madMethod] == methodSet:
		return finish(m, statusBadAttr) // as the kernel does if nobody has registered
	}
	return false
}

// checkMKey reports whether the M_Key of a request is the port's, and whether the request is allowed. change says that
// it does more than read. Local requests need no key.
func (at *port) checkMKey(key uint64, change, local bool) (has, allowed bool) {
	own := be.Uint64(at.info[piMKey:])
	if own == 0 || key == own || local {
		at.lease = 0
		return true, true
	}
	if !change && at.info[piLMC]>>6 < 2 {
		return false, true
	}
	if n := be.Uint16(at.info[piMKeyViolations:]); n < 0xffff {
		be.PutUint16(at.info[piMKeyViolations:], n+1)
	}
	if period := be.Uint16(at.info[piLease:]); period != 0 && at.lease == 0 {
		at.leases++
		lease := at.leases
		at.lease = lease
		at.node.s.after(seconds(period), func() {
			if at.lease == lease {
				at.lease = 0
				at.info[piLMC] &= 0x3f
			}
		})
	}
	return false, false
}
