package engine

import "math/rand/v2"

// Traits are the choices in which cards of one family differ, and which their drivers must not
// depend on. The zero value is a ConnectX-5 that does everything in order and leaves reserved
// fields zero.
type Traits struct {
	// NoBlueFlame: WQEs are always fetched from memory. A driver finds that out by copies of NOPs;
	// another BlueFlame copy is a violation.
	NoBlueFlame bool
	// LogBF is log2 of the size of a doorbell register, in bytes; 0 is 9.
	LogBF uint
	// MaxSendWQE is the longest send WQE of a QP, in bytes; 0 is 1,008, the most that the control
	// segment can say.
	MaxSendWQE int
	// NoAtomics: atomic operations are refused, and a violation.
	NoAtomics bool

	LogMaxQPSize  uint // LogMaxQPSize is log2 of the largest queue of a QP; 0 is 15.
	LogMaxSRQSize uint // LogMaxSRQSize is log2 of the largest SRQ; 0 is 15.
	LogMaxCQSize  uint // LogMaxCQSize is log2 of the largest CQ; 0 is 22.
	LogMaxStreams uint // LogMaxStreams is log2 of the largest number of streams of a DCI; 0 is 3.

	LogMaxReads   uint // LogMaxReads is log2 of the most READs and atomics of a QP under way; 0 is 4.
	LogMaxDCReads uint // LogMaxDCReads is the same of a DCI, and of what a DCT serves; 0 is LogMaxReads.

	MaxCQs   int // MaxCQs is the largest number of CQs; 0 is 16 times MaxQPs.
	MaxSRQs  int // MaxSRQs is the largest number of SRQs; 0 is 16 times MaxQPs.
	MaxMKeys int // MaxMKeys is the largest number of memory keys; 0 is 16 times MaxQPs.

	// GRHRequired: an InfiniBand port drops packets without a GRH, except those to QP0.
	GRHRequired bool
	// NoSMI: an InfiniBand port has no subnet management interface. QP0 can be made, since the driver does so
	// in any case, but no packet leaves or reaches it.
	NoSMI bool
	// SharedLID: other devices have the same LID, and the GID in the GRH tells them apart.
	SharedLID bool

	// Noise is the seed of random bytes in all fields of CQEs that have no meaning; 0 leaves them
	// zero.
	Noise uint64
	// SRQFaults: a page fault completes the receive WQE of an SRQ with the error RemoteAborted and
	// the vendor syndrome 0x93. The driver posts it again, at another index.
	SRQFaults bool
	// ReorderRecvs: receive WQEs of a QP's own queue are used in another order than they were
	// posted in.
	ReorderRecvs bool
	// ReorderWrites: the packets of an RDMA WRITE reach memory in another order than they were sent
	// in.
	ReorderWrites bool
	// OutOfOrderRC: of the types of QPs only RC may use receives and place data in any order
	// (dp_ordering_1). Otherwise all but those for raw packets and the special ones may.
	OutOfOrderRC bool
}

// hasOutOfOrder reports whether QPs of a type may use receives and place data in any order.
func (t *Traits) hasOutOfOrder(q QPType) bool {
	switch q {
	case RC:
		return true
	case UC, UD, XRC, DCI:
		return !t.OutOfOrderRC
	}
	return false
}

// Defaults of Traits.
const (
	defaultLogBF  = 9
	logQueueMax   = 15
	logCQMax      = 22
	logStreamsMax = 3
	logReadsMax   = 4
	maxSendWQEAll = maxDS * 16
)

// fill replaces zeros by what they stand for.
func (t *Traits) fill(maxQPs int) {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	setLog := func(p *uint, v uint) {
		if *p == 0 {
			*p = v
		}
	}
	setLog(&t.LogBF, defaultLogBF)
	set(&t.MaxSendWQE, maxSendWQEAll)
	setLog(&t.LogMaxQPSize, logQueueMax)
	setLog(&t.LogMaxSRQSize, logQueueMax)
	setLog(&t.LogMaxCQSize, logCQMax)
	setLog(&t.LogMaxStreams, logStreamsMax)
	setLog(&t.LogMaxReads, logReadsMax)
	setLog(&t.LogMaxDCReads, t.LogMaxReads)
	for _, p := range []*int{&t.MaxCQs, &t.MaxSRQs, &t.MaxMKeys} {
		set(p, 16*maxQPs)
	}
}

// bfHalf is the size of half a doorbell register, in bytes: the longest BlueFlame copy.
func (t *Traits) bfHalf() uint32 { return 1 << (t.LogBF - 1) }

// noise fills b with random bytes, if the device has noise.
func (d *Device) noise(b []byte) {
	if d.cfg.Traits.Noise == 0 {
		return
	}
	for i := range b {
		b[i] = byte(d.rng.Uint32())
	}
}

// coin is true half of the time.
func (d *Device) coin() bool { return d.rng.IntN(2) == 0 }

// newRand makes a device's own source of random choices, so that they do not depend on what other
// devices do.
func newRand(t *Traits) *rand.Rand { return rand.New(rand.NewPCG(t.Noise, 0x6e6f)) }
