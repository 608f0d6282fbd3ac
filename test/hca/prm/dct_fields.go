package prm

// dctc_bits, create_dct_in_bits, query_dct_out_bits.
var (
	DCTCState       = Field{0x04, 4}
	DCTCForceOrder  = Field{0x27, 1} // dp_ordering_force
	DCTCUserIndex   = Field{0x28, 24}
	DCTCCQN         = Field{0x48, 24}
	DCTCCounterSet  = Field{0x60, 8}
	DCTCAtomicMode  = Field{0x68, 4}
	DCTCRRE         = Field{0x6c, 1}
	DCTCRWE         = Field{0x6d, 1}
	DCTCRAE         = Field{0x6e, 1}
	DCTCOrdering1   = Field{0x74, 1} // dp_ordering_1
	DCTCScatterRes  = Field{0x88, 8}
	DCTCMinRNRNAK   = Field{0x93, 5}
	DCTCSRQN        = Field{0xa8, 24}
	DCTCPD          = Field{0xc8, 24}
	DCTCTClass      = Field{0xe0, 8}
	DCTCFlowLabel   = Field{0xec, 20}
	DCTCKey         = Field{0x100, 64}
	DCTCMTU         = Field{0x145, 3}
	DCTCPort        = Field{0x148, 8}
	DCTCPKeyIndex   = Field{0x150, 16}
	DCTCGIDIndex    = Field{0x168, 8} // my_addr_index
	DCTCHopLimit    = Field{0x178, 8}
	DCTCViolations  = Field{0x180, 32}
	DCTCEthPrio     = Field{0x1b5, 3}
	DCTCECE         = Field{0x1e0, 32}
	CreateDCTECEOut = Field{0x60, 32}
)

// Numbers that go with them: bytes where records are and how long they are.
const (
	DCTCtx     = 0x80 / 8
	DCTCSize   = 0x200 / 8
	DCTCtxSize = 0x400 / 8 // of the command and of the answer to QUERY_DCT
)
