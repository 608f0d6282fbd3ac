//go:build linux

package steps

import "golang.org/x/sys/unix"

// anyProcessor is for GODEBUG: the runtime may use what some processors have, since most needs the atomic
// instructions among it.
const anyProcessor = ""

// callSize is the size of the instruction of a system call, SVC.
const callSize = 4

// counter returns the address of the next instruction.
func counter(r *unix.PtraceRegs) uint64 { return r.Pc }

// firstArg returns the first argument of a system call that is about to begin.
func firstArg(r *unix.PtraceRegs) uint64 { return r.Regs[0] }

// call returns the number and the first arguments of a system call that has begun. When it has ended,
// register 0 has its result instead.
func call(r *unix.PtraceRegs) (number uint64, arg [4]uint64) {
	return r.Regs[8], [4]uint64(r.Regs[:4])
}
