//go:build amd64 || arm64

package mmio

// Supported reports whether this architecture has the barriers and device stores of this package.
// If it is false, they panic, and a driver that needs them must not open its device. Region and
// Index work everywhere.
const Supported = true

// StartWC orders earlier stores, to memory and to registers, before later stores to write-combining
// memory. It implies ToDevice (mmio_wc_start).
//
//go:noescape
func StartWC()

// FlushWC sends the contents of write-combining buffers to the device and keeps them from being
// combined with later stores (mmio_flush_writes).
//
//go:noescape
func FlushWC()

// Store64 stores v with one 8-byte store. It orders nothing by itself.
//
// Preconditions: p is aligned to 8 bytes.
//
//go:noescape
func Store64(p *uint64, v uint64)

// Store32 stores v with one 4-byte store. It orders nothing by itself.
//
// Preconditions: p is aligned to 4 bytes.
//
//go:noescape
func Store32(p *uint32, v uint32)

// Load32 loads a register of 4 bytes with one load. It orders nothing by itself.
//
// Preconditions: p is aligned to 4 bytes.
//
//go:noescape
func Load32(p *uint32) uint32

// Copy64 copies n consecutive blocks of 64 bytes to a register that takes a whole work queue entry
// (BlueFlame). It uses the widest stores that every CPU of the architecture has, so that the
// write-combining buffer can send 64 bytes as one. It orders nothing by itself.
//
// Preconditions: dst is aligned to 64 bytes, src to 8; n is at least 1.
//
//go:noescape
func Copy64(dst, src *[64]byte, n int)

// StoreWC is StartWC, Store64 and FlushWC in one call, which makes a doorbell of 8 bytes cheaper.
//
// Preconditions: those of Store64.
//
//go:noescape
func StoreWC(p *uint64, v uint64)

// CopyWC is StartWC, Copy64 and FlushWC, in one call.
//
// Preconditions: those of Copy64.
//
//go:noescape
func CopyWC(dst, src *[64]byte, n int)

// CopyAndRing is CopyWC, and then Store32 of v to a doorbell, in one call.
//
// Preconditions: those of Copy64 and Store32.
//
//go:noescape
func CopyAndRing(dst, src *[64]byte, n int, bell *uint32, v uint32)

// StoreWords stores n words of 4 bytes to device memory, each with one store. It does what StartWC
// does before the first store, and what FlushWC does after the last.
//
// Preconditions: dst is aligned to 4 bytes; n is at least 1.
//
//go:noescape
func StoreWords(dst *uint32, src *byte, n int)

// LoadWords loads n words of 4 bytes from device memory, each with one load. They are ordered with
// the loads before and after.
//
// Preconditions: src is aligned to 4 bytes; n is at least 1.
//
//go:noescape
func LoadWords(dst *byte, src *uint32, n int)
