//go:build amd64 || arm64

package mmio

// Supported says whether this architecture has the barriers and device stores
// of this package. Where it is false they panic, and a driver that needs them
// must not open its device; Region and Index work everywhere.
const Supported = true

// ToDevice orders all earlier stores to memory before all later ones, as a
// device sees them: it stands between a work queue entry and the doorbell that
// makes the device read it (udma_to_device_barrier).
//
//go:noescape
func ToDevice()

// FromDevice orders all earlier loads of memory that a device writes before
// all later ones: it stands between the bit that says an entry is there and the
// entry (udma_from_device_barrier). One for a batch of entries is enough.
//
//go:noescape
func FromDevice()

// StartWC keeps earlier stores, to memory and to registers, from being seen
// after later stores to write-combining memory. It implies ToDevice
// (mmio_wc_start).
//
//go:noescape
func StartWC()

// FlushWC sends what is held in write-combining buffers on its way and keeps it
// from being combined with later stores (mmio_flush_writes).
//
//go:noescape
func FlushWC()

// Store64 stores v with one 8-byte store. It orders nothing by itself.
//
// Preconditions: p is aligned to 8 bytes.
//
//go:noescape
func Store64(p *uint64, v uint64)

// Load32 loads a register of 4 bytes with one load. It orders nothing by itself.
//
// Preconditions: p is aligned to 4 bytes.
//
//go:noescape
func Load32(p *uint32) uint32

// Copy64 copies 64 bytes to a register that takes a whole work queue entry
// (BlueFlame), in the widest stores that every such CPU has, so that the
// write-combining buffer can send them as one. It orders nothing by itself.
//
// Preconditions: dst is aligned to 64 bytes, src to 8.
//
//go:noescape
func Copy64(dst, src *[64]byte)
