package wire

// SyndromeType is the kind of an acknowledgement, the high three bits of an AETH's syndrome.
type SyndromeType uint8

// Kinds of acknowledgements.
const (
	ACK      SyndromeType = 0x00 // a positive acknowledgement; the low bits are credits
	RNRNAK   SyndromeType = 0x20 // no receive was posted; the low bits are the code of an ib.RNRTimer
	Reserved SyndromeType = 0x40 // not in use
	NAK      SyndromeType = 0x60 // an error; the low bits are its code
)

// Syndromes.
const (
	SyndromeACK            uint8 = 0x1f // an ACK without credits: no end-to-end flow control
	SyndromeRNR            uint8 = 0x20 // an RNR NAK, to which the code of the timer is added
	SyndromeSequence       uint8 = 0x60 // NAK: the PSN is beyond the expected one
	SyndromeInvalidRequest uint8 = 0x61 // NAK: invalid request
	SyndromeRemoteAccess   uint8 = 0x62 // NAK: remote access error
	SyndromeRemoteOp       uint8 = 0x63 // NAK: remote operational error
)

// SyndromeCodeMask covers the low bits of a syndrome: credits, timer code or error code.
const SyndromeCodeMask uint8 = 0x1f

// TypeOf returns the kind of a syndrome.
func TypeOf(syndrome uint8) SyndromeType { return SyndromeType(syndrome &^ SyndromeCodeMask & 0x7f) }
