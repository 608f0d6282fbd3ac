//go:build !race

#include "textflag.h"

// func storeRelease(p *uint32, v uint32)
// x86 keeps a store to write-back memory after any earlier load and store, so
// only the compiler has to be stopped, which the call does.
TEXT ·storeRelease(SB), NOSPLIT|NOFRAME, $0-12
	MOVQ p+0(FP), DI
	MOVL v+8(FP), AX
	MOVL AX, (DI)
	RET
