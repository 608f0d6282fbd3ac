package efa

import "fmt"

// adminQueue is the pair of rings for commands and their answers.
type adminQueue struct {
	commands, answers ring
	vector            int
}

// ring is a ring in the guest's memory, of entries that a phase bit marks as new.
type ring struct {
	base    uint64
	depth   uint32
	counter uint32 // entries that were read or written
}

// at gives the bus address of the next entry, and its phase: 1 on the first round.
func (r *ring) at(size int) (addr uint64, phase byte) {
	return r.base + uint64(r.counter%r.depth)*uint64(size), byte(r.counter/r.depth+1) & 1
}

// command is a command while it is executed.
type command struct {
	in     []byte // the entry
	answer [commandSize]byte
}

func (c *command) u8(off int) uint8   { return c.in[off] }
func (c *command) u16(off int) uint16 { return le.Uint16(c.in[off:]) }
func (c *command) u32(off int) uint32 { return le.Uint32(c.in[off:]) }
func (c *command) u64(off int) uint64 { return le.Uint64(c.in[off:]) }

func (c *command) put16(off int, v uint16) { le.PutUint16(c.answer[off:], v) }
func (c *command) put32(off int, v uint32) { le.PutUint32(c.answer[off:], v) }
func (c *command) put64(off int, v uint64) { le.PutUint64(c.answer[off:], v) }

// failure is why a command was refused.
type failure struct {
	status status
	why    string
}

// refuse makes a failure.
func refuse(s status, format string, args ...any) *failure {
	return &failure{s, fmt.Sprintf(format, args...)}
}

// illegal refuses a parameter.
func illegal(format string, args ...any) *failure { return refuse(statusIllegal, format, args...) }

// span is a part of a command: its first byte and the one behind it.
type span struct{ from, to int }

// kinds are the commands: the bytes that must be zero, and what is done.
var kinds = map[opcode]struct {
	name  string
	zero  []span
	flags byte // that may be set, besides the phase
	do    func(*Device, *command) *failure
}{
	opCreateQP:   {"CREATE_QP", []span{{8, 16}, {32, 40}, {59, 64}}, 0, (*Device).createQP},
	opModifyQP:   {"MODIFY_QP", []span{{30, 32}}, 0, (*Device).modifyQP},
	opQueryQP:    {"QUERY_QP", nil, 0, (*Device).queryQP},
	opDestroyQP:  {"DESTROY_QP", nil, 0, (*Device).destroyQP},
	opCreateAH:   {"CREATE_AH", []span{{22, 24}}, 0, (*Device).createAH},
	opDestroyAH:  {"DESTROY_AH", nil, 0, (*Device).destroyAH},
	opRegMR:      {"REG_MR", []span{{6, 8}, {50, 52}}, 6, (*Device).regMR},
	opDeregMR:    {"DEREG_MR", nil, 0, (*Device).deregMR},
	opCreateCQ:   {"CREATE_CQ", []span{{10, 12}, {20, 24}}, 0, (*Device).createCQ},
	opDestroyCQ:  {"DESTROY_CQ", []span{{6, 8}}, 0, (*Device).destroyCQ},
	opGetFeature: {"GET_FEATURE", []span{{4, 17}, {18, 20}}, 0, (*Device).getFeature},
	opSetFeature: {"SET_FEATURE", []span{{16, 17}, {18, 20}}, 2, (*Device).setFeature},
	opGetStats:   {"GET_STATS", []span{{4, 16}}, 0, (*Device).getStats},
	opAllocPD:    {"ALLOC_PD", nil, 0, (*Device).allocPD},
	opDeallocPD:  {"DEALLOC_PD", []span{{6, 8}}, 0, (*Device).deallocPD},
	opAllocUAR:   {"ALLOC_UAR", nil, 0, (*Device).allocUAR},
	opDeallocUAR: {"DEALLOC_UAR", []span{{6, 8}}, 0, (*Device).deallocUAR},
	opCreateEQ:   {"CREATE_EQ", []span{{20, 24}}, 0, (*Device).createEQ},
	opDestroyEQ:  {"DESTROY_EQ", []span{{6, 8}}, 0, (*Device).destroyEQ},

	opCreateCounter:  {"CREATE_EVENT_COUNTER", []span{{6, 8}}, 0, (*Device).createCounter},
	opDestroyCounter: {"DESTROY_EVENT_COUNTER", nil, 0, (*Device).destroyCounter},
	opAttachCounter:  {"ATTACH_EVENT_COUNTER", []span{{9, 12}}, 0, (*Device).attachCounter},
	opModifyCounter:  {"MODIFY_EVENT_COUNTER", []span{{9, 16}}, 0, (*Device).modifyCounter},
	opDetachCounter:  {"DETACH_EVENT_COUNTER", []span{{9, 12}}, 0, (*Device).detachCounter},
}

// setAQ starts the queue of commands.
func (d *Device) setAQ(v uint32) {
	if d.ringIsRight("AQ", d.reg.aq, v&0xffff, v>>16, d.admin.commands.depth) {
		d.admin.commands = ring{base: d.reg.aq, depth: v & 0xffff}
	}
}

// setACQ starts the queue of answers.
func (d *Device) setACQ(v uint32) {
	if d.ringIsRight("ACQ", d.reg.acq, v&0xffff, v>>16&0xff, d.admin.answers.depth) {
		d.admin.answers, d.admin.vector = ring{base: d.reg.acq, depth: v & 0xffff}, int(v>>24)
	}
}

// ringIsRight checks a ring that is set up. It must not have been before.
func (d *Device) ringIsRight(name string, base uint64, depth, size, already uint32) bool {
	switch {
	case d.reg.resetOn || already != 0:
		d.violate("admin-setup", "%s is set up twice, or during a reset", name)
	case depth == 0 || depth&(depth-1) != 0 || size != commandSize || base == 0 || base%commandSize != 0:
		d.violate("admin-setup", "%s at %#x has %d entries of %d bytes", name, base, depth, size)
	default:
		_, err := d.place(base, int(depth*size))
		if err == nil {
			return true
		}
		d.violate("admin-setup", "%s: %v", name, err)
	}
	return false
}

// adminDoorbell says how many commands there are.
func (d *Device) adminDoorbell(v uint32) {
	q := &d.admin.commands
	if q.depth == 0 || d.admin.answers.depth == 0 {
		d.violate("admin-doorbell", "%#x, and the queues are not set up", v)
		return
	}
	n := uint32(uint16(v) - uint16(q.counter))
	if v>>16 != 0 || n == 0 || n > q.depth {
		d.violate("admin-doorbell", "%#x after %#x with %d entries", v, uint16(q.counter), q.depth)
		return
	}
	for range n {
		d.execute()
	}
	if !d.reg.masked {
		d.interrupt(d.admin.vector)
	}
}

// execute executes the next command.
func (d *Device) execute() {
	addr, phase := d.admin.commands.at(commandSize)
	d.admin.commands.counter++
	c := &command{in: make([]byte, commandSize)}
	if err := d.read(addr, c.in); err != nil {
		d.gone(err)
		return
	}
	kind, known := kinds[opcode(c.u8(2))]
	if !known {
		kind.name = fmt.Sprintf("opcode %d", c.u8(2))
	}
	if c.u8(3)&1 != phase {
		d.violate("admin-phase", "%s: phase %d", kind.name, c.u8(3)&1)
	}
	d.rep.Commands[kind.name]++
	fail := refuse(statusUnsupported, "it is not modelled")
	if known {
		if fail = d.wellFormed(c, kind.flags, kind.zero); fail == nil {
			fail = kind.do(d, c)
		}
	}
	result := statusOK
	if fail != nil {
		result = fail.status
		c.answer = [commandSize]byte{}
		d.rep.Refusals++
		if len(d.rep.Refused) < kept {
			d.rep.Refused = append(d.rep.Refused, Refused{Command: kind.name, Status: result.String(), Why: fail.why})
		}
		d.trace("%s: %s (%s)", kind.name, result, fail.why)
	} else {
		d.trace("%s % x: % x", kind.name, c.in[4:], c.answer[8:32])
	}
	d.answerCommand(c, result)
}

// wellFormed checks what must be zero.
func (d *Device) wellFormed(c *command, flags byte, zero []span) *failure {
	if c.u16(0)>>12 != 0 || c.u8(3)&^(flags|1) != 0 {
		return d.malformed("command ID %#x, flags %#x", c.u16(0), c.u8(3))
	}
	for _, z := range zero {
		for i := z.from; i < z.to; i++ {
			if c.in[i] != 0 {
				return d.malformed("byte %d is %#x and must be 0", i, c.in[i])
			}
		}
	}
	return nil
}

// malformed refuses a command that no driver may give.
func (d *Device) malformed(format string, args ...any) *failure {
	d.violate("admin-reserved", format, args...)
	return refuse(statusMalformed, format, args...)
}

// answerCommand writes the answer.
func (d *Device) answerCommand(c *command, s status) {
	q := &d.admin.answers
	addr, phase := q.at(commandSize)
	q.counter++
	b, err := d.place(addr, commandSize)
	if err != nil {
		d.gone(err)
		return
	}
	copy(c.answer[:2], c.in[:2])
	c.answer[2], c.answer[3] = byte(s), phase
	c.put16(4, 0)
	c.put16(6, uint16(d.admin.commands.counter%d.admin.commands.depth))
	if d.cfg.Personality.Version >= 2 {
		c.put16(4, checksum(c.answer[:]))
	}
	publish(b, c.answer[:], 0)
}

// checksum is the CRC-16 of answers: that of USB, which begins with all ones and is inverted at the end.
func checksum(b []byte) uint16 {
	crc := uint16(0xffff)
	for _, x := range b {
		crc ^= uint16(x)
		for range 8 {
			low := crc & 1
			crc >>= 1
			if low != 0 {
				crc ^= 0xa001
			}
		}
	}
	return ^crc
}
