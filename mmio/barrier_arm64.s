#include "textflag.h"

// In all of these the call is half of the barrier: the Go compiler does not
// move memory accesses across a call into assembly.
//
// The operands are those of rdma-core. The outer shareable domain is needed:
// the other observer is a device on the bus, not a CPU.

// func ToDevice()
// DMB OSHST: arm64 may reorder any two stores.
TEXT ·ToDevice(SB), NOSPLIT|NOFRAME, $0-0
	DMB $2
	RET

// func FromDevice()
// DMB OSHLD: arm64 may reorder any two loads.
TEXT ·FromDevice(SB), NOSPLIT|NOFRAME, $0-0
	DMB $1
	RET

// func StartWC()
// DSB ST, the same as FlushWC: rdma-core's mmio_wc_start is mmio_flush_writes,
// and DSB ST is stronger than the DMB OSHST that StartWC implies.
TEXT ·StartWC(SB), NOSPLIT|NOFRAME, $0-0
	DSB $14
	RET

// func FlushWC()
// DSB ST: a DMB would order the stores and still let them sit in the merge
// buffer.
TEXT ·FlushWC(SB), NOSPLIT|NOFRAME, $0-0
	DSB $14
	RET

// func Store64(p *uint64, v uint64)
// Not sync/atomic: that is STLR, or an LSE instruction that a device register
// may not take; the order is made by the barriers above.
TEXT ·Store64(SB), NOSPLIT|NOFRAME, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	MOVD R1, (R0)
	RET

// func Store32(p *uint32, v uint32)
// As Store64.
TEXT ·Store32(SB), NOSPLIT|NOFRAME, $0-12
	MOVD p+0(FP), R0
	MOVW v+8(FP), R1
	MOVW R1, (R0)
	RET

// func Load32(p *uint32) uint32
// A plain load: what comes before and after is ordered by the barriers above.
TEXT ·Load32(SB), NOSPLIT|NOFRAME, $0-12
	MOVD p+0(FP), R0
	MOVWU (R0), R1
	MOVW R1, ret+8(FP)
	RET

// func Copy64(dst, src *[64]byte, n int)
// One ST1 of four registers: 64 contiguous bytes from one instruction, which is
// the best chance for one transaction on CPUs without ST64B. Elements of 8
// bytes, because that is the alignment that src has.
TEXT ·Copy64(SB), NOSPLIT|NOFRAME, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2
next:
	VLD1 (R1), [V0.D2, V1.D2, V2.D2, V3.D2]
	VST1 [V0.D2, V1.D2, V2.D2, V3.D2], (R0)
	ADD  $64, R1
	ADD  $64, R0
	SUBS $1, R2
	BGT  next
	RET

// func StoreWC(p *uint64, v uint64)
// The DSBs are those of StartWC and FlushWC.
TEXT ·StoreWC(SB), NOSPLIT|NOFRAME, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	DSB  $14
	MOVD R1, (R0)
	DSB  $14
	RET

// func CopyWC(dst, src *[64]byte, n int)
// As Copy64, between the DSBs of StartWC and FlushWC.
TEXT ·CopyWC(SB), NOSPLIT|NOFRAME, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2
	DSB  $14
next:
	VLD1 (R1), [V0.D2, V1.D2, V2.D2, V3.D2]
	VST1 [V0.D2, V1.D2, V2.D2, V3.D2], (R0)
	ADD  $64, R1
	ADD  $64, R0
	SUBS $1, R2
	BGT  next
	DSB  $14
	RET

// func CopyAndRing(dst, src *[64]byte, n int, bell *uint32, v uint32)
// As CopyWC and Store32.
TEXT ·CopyAndRing(SB), NOSPLIT|NOFRAME, $0-36
	MOVD  dst+0(FP), R0
	MOVD  src+8(FP), R1
	MOVD  n+16(FP), R2
	DSB   $14
next:
	VLD1  (R1), [V0.D2, V1.D2, V2.D2, V3.D2]
	VST1  [V0.D2, V1.D2, V2.D2, V3.D2], (R0)
	ADD   $64, R1
	ADD   $64, R0
	SUBS  $1, R2
	BGT   next
	MOVD  bell+24(FP), R0
	MOVWU v+32(FP), R1
	DSB   $14
	MOVW  R1, (R0)
	RET

// func StoreWords(dst *uint32, src *byte, n int)
// Aligned stores of 4 bytes, since device memory takes no others: src, which is ordinary
// memory, may have any alignment. The DSBs are those of StartWC and FlushWC.
TEXT ·StoreWords(SB), NOSPLIT|NOFRAME, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2
	DSB  $14
next:
	MOVWU (R1), R3
	MOVW  R3, (R0)
	ADD   $4, R1
	ADD   $4, R0
	SUBS  $1, R2
	BGT   next
	DSB   $14
	RET

// func LoadWords(dst *byte, src *uint32, n int)
// Aligned loads of 4 bytes, as in StoreWords, between the DMBs of FromDevice.
TEXT ·LoadWords(SB), NOSPLIT|NOFRAME, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n+16(FP), R2
	DMB  $1
next:
	MOVWU (R1), R3
	MOVW  R3, (R0)
	ADD   $4, R1
	ADD   $4, R0
	SUBS  $1, R2
	BGT   next
	DMB   $1
	RET
