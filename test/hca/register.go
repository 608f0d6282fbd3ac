package hca

import "github.com/goverbs/goverbs/test/hca/prm"

// Registers that ACCESS_REG reads and writes: MLX5_REG_* (mlx5/driver.h).
const (
	regPMTU     = 0x5003
	regPTYS     = 0x5004
	regPAOS     = 0x5006
	regPFCC     = 0x5007
	regPPCNT    = 0x5008
	regPVLC     = 0x500f
	regPCMR     = 0x5041
	regNodeDesc = 0x6001

	regResourceDump = 0xc000

	accessWrite = 0
	accessRead  = 1

	ibMTU  = 4096
	ethMTU = 9000

	// Widths and speeds of InfiniBand: enum mlx5_ptys_width and MLX5_PTYS_RATE_*.
	ptysWidth1X, ptysWidth4X  = 1 << 0, 1 << 2
	ptysSDR, ptysDDR, ptysQDR = 1 << 0, 1 << 1, 1 << 2
	ptysFDR, ptysEDR          = 1 << 4, 1 << 5

	// groupInfiniBand is the group of PPCNT with counters as in PMA's PortCounters.
	groupInfiniBand = 0x20

	// A ConnectX-5 with 100GBASE-CR4 and 40GBASE-CR4: enum mlx5e_link_mode (mlx5/port.h).
	eth100GCR4 = 1 << 20
	eth40GCR4  = 1 << 6
	pvlcVL0To3 = 4
	adminUp    = 1
	adminDown  = 2
)

// register fields: ptys_reg_bits and its kin (mlx5_ifc.h).
var (
	ptysEthCap      = prm.Field{Off: 0x60, Width: 32}
	ptysIBWidthCap  = prm.Field{Off: 0x80, Width: 16}
	ptysIBProtoCap  = prm.Field{Off: 0x90, Width: 16}
	ptysEthAdmin    = prm.Field{Off: 0xc0, Width: 32}
	ptysIBWidthAdm  = prm.Field{Off: 0xe0, Width: 16}
	ptysIBProtoAdm  = prm.Field{Off: 0xf0, Width: 16}
	ptysEthOper     = prm.Field{Off: 0x120, Width: 32}
	ptysIBWidthOper = prm.Field{Off: 0x140, Width: 16}
	ptysIBProtoOper = prm.Field{Off: 0x150, Width: 16}
	pmtuMax         = prm.Field{Off: 0x20, Width: 16}
	pmtuAdmin       = prm.Field{Off: 0x40, Width: 16}
	pmtuOper        = prm.Field{Off: 0x60, Width: 16}
	pvlcCap         = prm.Field{Off: 0x3c, Width: 4}
	pvlcAdmin       = prm.Field{Off: 0x5c, Width: 4}
	pvlcOper        = prm.Field{Off: 0x7c, Width: 4}
	paosAdmin       = prm.Field{Off: 0x14, Width: 4}
	paosOper        = prm.Field{Off: 0x1c, Width: 4}
	ppcntGroup      = prm.Field{Off: 0x1a, Width: 6}
	ppcntClear      = prm.Field{Off: 0x20, Width: 1}
)

// registers says which registers there are, and which of them the driver may write.
var registers = map[uint16]struct {
	name     string
	size     int
	writable bool
}{
	regPMTU:     {"PMTU", 16, true},
	regPTYS:     {"PTYS", 64, false},
	regPAOS:     {"PAOS", 16, true},
	regPPCNT:    {"PPCNT", 256, false},
	regPVLC:     {"PVLC", 16, false},
	regNodeDesc: {"node description", 64, true},
}

// accessRegister is ACCESS_REG.
func (d *Device) accessRegister(c *call) error {
	id := uint16(prm.RegisterID.Get(c.in))
	if id == regResourceDump {
		return d.resourceDump(c)
	}
	r, known := registers[id]
	if !known {
		d.rep.Unknown[registerName(id)]++
		return refuse(prm.BadParam, "register", "%#x is not modelled", id)
	}
	in := c.in[prm.RegisterData:]
	out := c.out[prm.RegisterData:]
	if len(in) < r.size {
		return refuse(prm.BadInLen, "register "+r.name, "%d bytes instead of %d", len(in), r.size)
	}
	switch c.opmod {
	case accessRead:
		if len(out) < r.size {
			return refuse(prm.BadOutLen, "register "+r.name, "room for %d bytes instead of %d", len(out), r.size)
		}
		copy(out, in[:r.size])
		d.readRegister(id, out)
	case accessWrite:
		if !r.writable {
			return refuse(prm.BadParam, "register "+r.name, "a virtual function may not write it")
		}
		d.regs[id] = append([]byte(nil), in[:r.size]...)
	default:
		return refuse(prm.BadParam, "modifier", "%d", c.opmod)
	}
	return nil
}

func (d *Device) readRegister(id uint16, r []byte) {
	p := d.eng.Port()
	up := p.Up()
	switch id {
	case regPTYS:
		if d.cfg.Mode == RoCE {
			ptysEthCap.Put(r, eth100GCR4|eth40GCR4)
			ptysEthAdmin.Put(r, eth100GCR4|eth40GCR4)
			if up {
				ptysEthOper.Put(r, eth100GCR4)
			}
			return
		}
		d.readPTYS(r)
	case regPMTU:
		most, mtu := uint64(ibMTU), uint64(128)<<p.MTU
		if d.cfg.Mode == RoCE {
			most, mtu = ethMTU, ethMTU
		}
		pmtuMax.Put(r, most)
		if w := d.regs[regPMTU]; w != nil && pmtuAdmin.Get(w) > 0 {
			mtu = min(mtu, pmtuAdmin.Get(w))
		}
		pmtuAdmin.Put(r, mtu)
		pmtuOper.Put(r, mtu)
	case regPVLC:
		pvlcCap.Put(r, pvlcVL0To3)
		pvlcAdmin.Put(r, pvlcVL0To3)
		pvlcOper.Put(r, pvlcVL0To3)
	case regPAOS:
		admin, oper := uint64(adminUp), uint64(adminDown)
		if w := d.regs[regPAOS]; w != nil {
			admin = paosAdmin.Get(w)
		}
		if up {
			oper = adminUp
		}
		paosAdmin.Put(r, admin)
		paosOper.Put(r, oper)
	case regPPCNT:
		d.readPPCNT(r)
	case regNodeDesc:
		if w := d.regs[regNodeDesc]; w != nil {
			copy(r, w)
		} else {
			clear(r)
			copy(r, "goverbs ConnectX model "+d.cfg.Name)
		}
	}
}

// readPTYS fills in width and speed of an InfiniBand port: what is possible, enabled, and in force.
func (d *Device) readPTYS(r []byte) {
	b := d.subnet.info[:]
	widths := func(w uint64) uint64 { return w&width1X*ptysWidth1X | w&width4X/width4X*ptysWidth4X }
	speeds := func(speed, ext uint64) uint64 { // FDR 10, which PortInfo does not have, is between them
		return speed | ext*ptysFDR
	}
	ext := piExtEnabled.Get(b)
	if ext == extOff {
		ext = 0
	}
	oper := speeds(0, piExtActive.Get(b))
	if oper == 0 {
		oper = piSpeedActive.Get(b)
	}
	for _, x := range []setting{
		{ptysIBWidthCap, widths(widthsSupported)}, {ptysIBWidthAdm, widths(piWidthEnabled.Get(b))}, {ptysIBWidthOper, widths(piWidthActive.Get(b))},
		{ptysIBProtoCap, speeds(speedsSupported, extSupported)}, {ptysIBProtoAdm, speeds(piSpeedEnabled.Get(b), ext)}, {ptysIBProtoOper, oper},
	} {
		x.f.Put(r, x.v)
	}
}

// readPPCNT fills in a group of counters. Those of Ethernet are all 0.
func (d *Device) readPPCNT(r []byte) {
	group, clears := ppcntGroup.Get(r), ppcntClear.Bool(r)
	clear(r[8:])
	if group != groupInfiniBand {
		return
	}
	counts := d.eng.PortCounts()
	d.counters.ppcnt.fill(r[4:], counts) // the counters begin at byte 8 here, and at byte 4 of PortCounters
	if clears {
		d.counters.ppcnt.clear(counts)
	}
}

func registerName(id uint16) string {
	const digits = "0123456789abcdef"
	return "register 0x" + string([]byte{digits[id>>12], digits[id>>8&15], digits[id>>4&15], digits[id&15]})
}
