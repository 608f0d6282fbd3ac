#include "textflag.h"

// In all of these the call is half of the barrier: the Go compiler does not
// move memory accesses across a call into assembly.

// func StartWC()
// Stores to write-combining memory are weakly ordered even on x86: without
// SFENCE one can pass earlier stores to other memory.
TEXT ·StartWC(SB), NOSPLIT|NOFRAME, $0-0
	SFENCE
	RET

// func FlushWC()
// SFENCE drains the write-combining buffers, and nothing crosses it to be
// combined with what was there.
TEXT ·FlushWC(SB), NOSPLIT|NOFRAME, $0-0
	SFENCE
	RET

// func Store64(p *uint64, v uint64)
// Not sync/atomic: that is XCHG, a locked read-modify-write of the device.
TEXT ·Store64(SB), NOSPLIT|NOFRAME, $0-16
	MOVQ p+0(FP), DI
	MOVQ v+8(FP), AX
	MOVQ AX, (DI)
	RET

// func Store32(p *uint32, v uint32)
// As Store64.
TEXT ·Store32(SB), NOSPLIT|NOFRAME, $0-12
	MOVQ p+0(FP), DI
	MOVL v+8(FP), AX
	MOVL AX, (DI)
	RET

// func Load32(p *uint32) uint32
// Not sync/atomic, which may be any instruction that loads; this is one MOV.
TEXT ·Load32(SB), NOSPLIT|NOFRAME, $0-12
	MOVQ p+0(FP), DI
	MOVL (DI), AX
	MOVL AX, ret+8(FP)
	RET

// func Copy64(dst, src *[64]byte, n int)
// Not copy(): that may use any width and order, REP MOVSB included. Four
// 16-byte stores, ascending, are in the baseline of every amd64 CPU; unaligned
// forms because src may be a work queue entry that is aligned to 8 bytes only.
TEXT ·Copy64(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ   dst+0(FP), DI
	MOVQ   src+8(FP), SI
	MOVQ   n+16(FP), CX
next:
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVOU  X0, (DI)
	MOVOU  X1, 16(DI)
	MOVOU  X2, 32(DI)
	MOVOU  X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   CX
	JGT    next
	RET

// func StoreWC(p *uint64, v uint64)
// The SFENCEs are those of StartWC and FlushWC.
TEXT ·StoreWC(SB), NOSPLIT|NOFRAME, $0-16
	MOVQ p+0(FP), DI
	MOVQ v+8(FP), AX
	SFENCE
	MOVQ AX, (DI)
	SFENCE
	RET

// func CopyWC(dst, src *[64]byte, n int)
// As Copy64, between the SFENCEs of StartWC and FlushWC.
TEXT ·CopyWC(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ   dst+0(FP), DI
	MOVQ   src+8(FP), SI
	MOVQ   n+16(FP), CX
	SFENCE
next:
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVOU  X0, (DI)
	MOVOU  X1, 16(DI)
	MOVOU  X2, 32(DI)
	MOVOU  X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   CX
	JGT    next
	SFENCE
	RET

// func CopyAndRing(dst, src *[64]byte, n int, bell *uint32, v uint32)
// As CopyWC and Store32.
TEXT ·CopyAndRing(SB), NOSPLIT|NOFRAME, $0-36
	MOVQ   dst+0(FP), DI
	MOVQ   src+8(FP), SI
	MOVQ   n+16(FP), CX
	SFENCE
next:
	MOVOU  (SI), X0
	MOVOU  16(SI), X1
	MOVOU  32(SI), X2
	MOVOU  48(SI), X3
	MOVOU  X0, (DI)
	MOVOU  X1, 16(DI)
	MOVOU  X2, 32(DI)
	MOVOU  X3, 48(DI)
	ADDQ   $64, SI
	ADDQ   $64, DI
	DECQ   CX
	JGT    next
	MOVQ   bell+24(FP), DI
	MOVL   v+32(FP), AX
	SFENCE
	MOVL   AX, (DI)
	RET

// func StoreWords(dst *uint32, src *byte, n int)
// Not copy(), which may use any width: a MOVL each, between the SFENCEs of StartWC and
// FlushWC.
TEXT ·StoreWords(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ   dst+0(FP), DI
	MOVQ   src+8(FP), SI
	MOVQ   n+16(FP), CX
	SFENCE
next:
	MOVL   (SI), AX
	MOVL   AX, (DI)
	ADDQ   $4, SI
	ADDQ   $4, DI
	DECQ   CX
	JGT    next
	SFENCE
	RET

// func LoadWords(dst *byte, src *uint32, n int)
// Loads of write-combining memory are weakly ordered even on x86: without the first LFENCE they
// may be done before a completion is seen, without the second one behind later loads.
TEXT ·LoadWords(SB), NOSPLIT|NOFRAME, $0-24
	MOVQ   dst+0(FP), DI
	MOVQ   src+8(FP), SI
	MOVQ   n+16(FP), CX
	LFENCE
next:
	MOVL   (SI), AX
	MOVL   AX, (DI)
	ADDQ   $4, SI
	ADDQ   $4, DI
	DECQ   CX
	JGT    next
	LFENCE
	RET
