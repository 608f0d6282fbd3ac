//go:build !amd64 && !arm64

package mmio

// Supported reports whether this architecture has the barriers and device stores of this package.
// If it is false, they panic, and a driver that needs them must not open its device. Region and
// Index work everywhere.
const Supported = false

// unsupported is the panic of the barriers: a guessed fence would corrupt data now and then.
const unsupported = "mmio: device barriers are not implemented for this architecture; check mmio.Supported"

// ToDevice panics on this architecture; see [Supported].
func ToDevice() { panic(unsupported) }

// FromDevice panics on this architecture; see [Supported].
func FromDevice() { panic(unsupported) }

// StartWC panics on this architecture; see [Supported].
func StartWC() { panic(unsupported) }

// FlushWC panics on this architecture; see [Supported].
func FlushWC() { panic(unsupported) }

// Store64 panics on this architecture; see [Supported].
func Store64(p *uint64, v uint64) { panic(unsupported) }

// Store32 panics on this architecture; see [Supported].
func Store32(p *uint32, v uint32) { panic(unsupported) }

// Load32 panics on this architecture; see [Supported].
func Load32(p *uint32) uint32 { panic(unsupported) }

// Copy64 panics on this architecture; see [Supported].
func Copy64(dst, src *[64]byte, n int) { panic(unsupported) }

// StoreWC panics on this architecture; see [Supported].
func StoreWC(p *uint64, v uint64) { panic(unsupported) }

// CopyWC panics on this architecture; see [Supported].
func CopyWC(dst, src *[64]byte, n int) { panic(unsupported) }

// CopyAndRing panics on this architecture; see [Supported].
func CopyAndRing(dst, src *[64]byte, n int, bell *uint32, v uint32) { panic(unsupported) }

// StoreWords panics on this architecture; see [Supported].
func StoreWords(dst *uint32, src *byte, n int) { panic(unsupported) }

// LoadWords panics on this architecture; see [Supported].
func LoadWords(dst *byte, src *uint32, n int) { panic(unsupported) }
