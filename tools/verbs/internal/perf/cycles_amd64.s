#include "textflag.h"

// func cycles() int64
// RDTSC without a fence, as perftest reads it.
TEXT ·cycles(SB), NOSPLIT, $0-8
	RDTSC
	SHLQ $32, DX
	ORQ  DX, AX
	MOVQ AX, ret+0(FP)
	RET
