package hca

import (
	"fmt"
	"time"

	"github.com/goverbs/goverbs/test/hca/prm"
)

// A command's descriptor: struct mlx5_cmd_layout (mlx5/device.h).
const (
	descSize   = 64
	descType   = 0
	descInLen  = 4
	descInPtr  = 8
	descIn     = 16
	descOut    = 32
	descOutPtr = 48
	descOutLen = 56
	descToken  = 60
	descStatus = 63 // delivery status << 1, and whether the card owns the descriptor
	inlineLen  = 16 // bytes of input and output that are in the descriptor

	descPCI = 7 // the one transport there is (MLX5_PCI_CMD_XPORT)
)

// A block of a mailbox: struct mlx5_cmd_prot_block.
const (
	blockData  = 512
	blockSize  = 576
	blockNext  = 560
	blockNum   = 568
	blockToken = 573
)

// maxCommand is the longest input or output in bytes: a memory key of 4 GiB in pages of 4 KiB.
const maxCommand = 8<<20 + 4096

// call is a command that is executed.
type call struct {
	op    prm.Op
	opmod uint16
	in    []byte
	out   []byte // as long as the driver wants; all zeros at first
}

// delivery is why a command could not be taken from memory.
type delivery struct {
	code uint8
	why  string
}

func (e *delivery) Error() string { return e.why }

func undelivered(code uint8, format string, args ...any) *delivery {
	return &delivery{code: code, why: fmt.Sprintf(format, args...)}
}

// command executes what is in a slot of the command queue.
func (d *Device) command(slot int) {
	desc := d.descriptor(slot)
	if desc == nil {
		return
	}
	if desc[descStatus]&1 == 0 {
		d.violation("the doorbell of command slot %d rang, which the card does not own", slot)
		return
	}
	if d.fatal {
		return // a dead card leaves the command where it is
	}
	if d.cfg.Personality.SlowResize && isResize(desc) {
		d.resizeSlowly(slot)
		return
	}
	eqn := d.cmdEQ
	d.finish(slot, desc, d.perform(slot, desc), eqn)
}

// descriptor gives the memory of a slot of the command queue, or nil if there is none.
func (d *Device) descriptor(slot int) []byte {
	desc, err := d.memory(d.slots+uint64(slot)*descSize, descSize)
	if err != nil {
		d.violation("command slot %d: %v", slot, err)
		return nil
	}
	return desc
}

// isResize reports whether a descriptor is for a resize of a CQ.
func isResize(desc []byte) bool {
	head := desc[descIn : descIn+inlineLen]
	return prm.Op(prm.InOpcode.Get(head)) == prm.ModifyCQ && prm.InOpMod.Get(head) == prm.ModifyCQOpResize
}

// resizeTime is how long a resize of a CQ takes with the personality's SlowResize.
const resizeTime = 40 * time.Millisecond

// resizeSlowly executes a resize of a CQ that is in a slot: the ring changes after half of the
// time, and the command completes after all of it. Other commands go on.
func (d *Device) resizeSlowly(slot int) {
	d.later(resizeTime/2, func() {
		desc := d.descriptor(slot)
		if desc == nil {
			return
		}
		code := d.perform(slot, desc)
		d.later(resizeTime/2, func() {
			if desc := d.descriptor(slot); desc != nil {
				d.finish(slot, desc, code, d.cmdEQ)
			}
		})
	})
}

// later runs f after a time, with the lock held, unless the card is reset or fails before.
func (d *Device) later(wait time.Duration, f func()) {
	life := d.life
	time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.life == life && !d.fatal {
			f()
		}
	})
}

// perform executes the command in a slot, and gives the status of its delivery.
func (d *Device) perform(slot int, desc []byte) uint8 {
	if bad := d.deliver(desc); bad != nil {
		d.violation("command slot %d: %s", slot, bad.why)
		return bad.code
	}
	return prm.DeliveryOK
}

// finish gives a slot back to the driver. eqn is the EQ for completions when the command came.
func (d *Device) finish(slot int, desc []byte, code uint8, eqn uint32) {
	desc[descStatus] = code << 1
	// The CREATE_EQ that made the EQ is still waited for by polling, and a DESTROY_EQ is
	// again.
	if eqn != 0 && eqn == d.cmdEQ {
		var data [28]byte
		be.PutUint32(data[:], 1<<slot)
		if err := d.eng.PostEQE(eqn, prm.EventCmd, 0, data[:]); err != nil {
			d.violation("completion of the command in slot %d: %v", slot, err)
		}
	}
}

// deliver reads a command from memory, executes it and writes the answer.
func (d *Device) deliver(desc []byte) *delivery {
	if desc[descType] != descPCI {
		return undelivered(prm.DeliveryDescrErr, "descriptor type %d", desc[descType])
	}
	inLen, outLen := be.Uint32(desc[descInLen:]), be.Uint32(desc[descOutLen:])
	if inLen < 8 || inLen > maxCommand {
		return undelivered(prm.DeliveryInLenErr, "%d bytes of input", inLen)
	}
	if outLen < 8 || outLen > maxCommand {
		return undelivered(prm.DeliveryOutLenErr, "%d bytes of output", outLen)
	}
	token := desc[descToken]
	c := &call{in: make([]byte, max(inLen, inlineLen)), out: make([]byte, max(outLen, inlineLen))}
	copy(c.in, desc[descIn:descIn+inlineLen])
	err := d.blocks(be.Uint64(desc[descInPtr:]), token, len(c.in)-inlineLen, prm.DeliveryInPtrErr, func(block []byte, off int) {
		copy(c.in[inlineLen+off:], block[:blockData])
	})
	if err != nil {
		return err
	}
	c.in = c.in[:max(inLen, inlineLen)]
	d.execute(c)
	copy(desc[descOut:descOut+inlineLen], c.out)
	return d.blocks(be.Uint64(desc[descOutPtr:]), token, len(c.out)-inlineLen, prm.DeliveryOutPtrErr, func(block []byte, off int) {
		copy(block[:blockData], c.out[inlineLen+off:])
		block[blockToken] = token
	})
}

// blocks walks a mailbox of n bytes.
func (d *Device) blocks(ptr uint64, token byte, n int, badPtr uint8, each func(block []byte, off int)) *delivery {
	for i := 0; i*blockData < n; i++ {
		if ptr%blockData != 0 || ptr == 0 {
			return undelivered(badPtr, "mailbox block %d at %#x, which is not aligned", i, ptr)
		}
		block, err := d.memory(ptr, blockSize)
		if err != nil {
			return undelivered(badPtr, "mailbox block %d: %v", i, err)
		}
		if got := be.Uint32(block[blockNum:]); got != uint32(i) {
			return undelivered(prm.DeliveryBlockErr, "mailbox block %d says that it is block %d", i, got)
		}
		if block[blockToken] != token {
			return undelivered(prm.DeliveryTokenErr, "mailbox block %d has token %#x, the command %#x", i, block[blockToken], token)
		}
		each(block, i*blockData)
		ptr = be.Uint64(block[blockNext:])
	}
	return nil
}

// memory gives n contiguous bytes of the guest's memory.
func (d *Device) memory(addr uint64, n int) ([]byte, error) {
	b, err := d.cfg.Memory.Bytes(addr, n)
	if err != nil {
		return nil, err
	}
	if len(b) < n {
		return nil, fmt.Errorf("%d bytes at %#x are not in one piece", n, addr)
	}
	return b, nil
}

// execute runs a command and leaves its answer in c.out.
func (d *Device) execute(c *call) {
	c.op, c.opmod = prm.Op(prm.InOpcode.Get(c.in)), uint16(prm.InOpMod.Get(c.in))
	err := d.dispatch(c)
	status := prm.OK
	if err != nil {
		f := asFailure(err)
		clear(c.out)
		status = f.status
		prm.OutStatus.Put(c.out, uint64(f.status))
		prm.OutSyndrome.Put(c.out, uint64(f.syndrome))
		d.rep.refused(c, f)
	}
	d.rep.count(c, status)
	if d.cfg.Trace != nil {
		line := fmt.Sprintf("%s: command %s", d.cfg.Name, c.op)
		if c.opmod != 0 {
			line += fmt.Sprintf(" modifier %#x", c.opmod)
		}
		if err != nil {
			line += ": " + err.Error()
		}
		d.cfg.Trace(line)
	}
}

// dispatch finds the command in the table and checks what all of them have in common.
func (d *Device) dispatch(c *call) error {
	cmd, known := commands[c.op]
	if !known {
		return refuse(prm.BadOp, "opcode", "%#x is not modelled", uint16(c.op))
	}
	if f := d.injected(c.op); f != nil {
		return f
	}
	if len(c.in) < cmd.in {
		return refuse(prm.BadInLen, "input length", "%s has at least %d bytes, not %d", c.op, cmd.in, len(c.in))
	}
	if len(c.out) < cmd.out {
		return refuse(prm.BadOutLen, "output length", "%s has at least %d bytes, not %d", c.op, cmd.out, len(c.out))
	}
	if cmd.mode != "" && cmd.mode != d.cfg.Mode {
		return refuse(prm.BadOp, "opcode", "%s is not for a card in mode %s", c.op, d.cfg.Mode)
	}
	if d.phase < cmd.phase {
		return refuse(prm.BadSysState, "state", "%s before the card is %s", c.op, map[phase]string{phaseEnabled: "enabled", phaseRunning: "initialized"}[cmd.phase])
	}
	if err := d.users.check(c); err != nil {
		return err
	}
	if err := cmd.run(d, c); err != nil {
		return err
	}
	d.users.keep(c)
	return nil
}

// number gives the object that a command is about.
func (c *call) number() uint32 { return prm.ObjectNumber.U32(c.in) }

// answer says which object a command has made.
func (c *call) answer(n uint32) { prm.ObjectNumber.Put(c.out, uint64(n)) }

// commandFault makes commands fail.
type commandFault struct {
	op    prm.Op
	fault failure
	skip  int
	times int
}

// FailCommand makes a command fail with a status and a syndrome: after so many more of them
// were executed, so many times. Nothing of the command is done.
func (d *Device) FailCommand(op prm.Op, status prm.Status, syndrome uint32, skip, times int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = append(d.faults, &commandFault{op: op, skip: skip, times: times, fault: failure{status: status, syndrome: syndrome, why: "a fault was injected"}})
}

// injected gives the fault that a command shall have now.
func (d *Device) injected(op prm.Op) *failure {
	for _, f := range d.faults {
		switch {
		case f.op != op || f.times == 0:
		case f.skip > 0:
			f.skip--
		default:
			f.times--
			return &f.fault
		}
	}
	return nil
}
