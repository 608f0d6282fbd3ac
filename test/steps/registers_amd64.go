//go:build linux

package steps

import "golang.org/x/sys/unix"

// anyProcessor is for GODEBUG: the runtime copies, clears and compares memory without instructions that some
// processors do not have, as in AVX.
const anyProcessor = "cpu.all=off"

// callSize is the size of the instruction of a system call, SYSCALL.
const callSize = 2

// counter returns the address of the next instruction.
func counter(r *unix.PtraceRegs) uint64 { return r.Rip }

// firstArg returns the first argument of a system call that is about to begin.
func firstArg(r *unix.PtraceRegs) uint64 { return r.Rdi }

// call returns the number and the first arguments of a system call that has begun.
func call(r *unix.PtraceRegs) (number uint64, arg [4]uint64) {
	return r.Orig_rax, [4]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10}
}
