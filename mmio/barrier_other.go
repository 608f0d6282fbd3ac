//go:build !amd64 && !arm64

package mmio

// Supported says whether this architecture has the barriers and device stores
// of this package. Where it is false they panic, and a driver that needs them
// must not open its device; Region and Index work everywhere.
const Supported = false

// A guessed fence would corrupt data now and then, on somebody else's machine.
const unsupported = "mmio: device barriers are not implemented for this architecture; check mmio.Supported"

// ToDevice panics here: see Supported.
func ToDevice() { panic(unsupported) }

// FromDevice panics here: see Supported.
func FromDevice() { panic(unsupported) }

// StartWC panics here: see Supported.
func StartWC() { panic(unsupported) }

// FlushWC panics here: see Supported.
func FlushWC() { panic(unsupported) }

// Store64 panics here: see Supported.
func Store64(p *uint64, v uint64) { panic(unsupported) }

// Load32 panics here: see Supported.
func Load32(p *uint32) uint32 { panic(unsupported) }

// Copy64 panics here: see Supported.
func Copy64(dst, src *[64]byte, n int) { panic(unsupported) }

// StoreWC panics here: see Supported.
func StoreWC(p *uint64, v uint64) { panic(unsupported) }

// CopyWC panics here: see Supported.
func CopyWC(dst, src *[64]byte, n int) { panic(unsupported) }

// StoreWords panics here: see Supported.
func StoreWords(dst *uint32, src *byte, n int) { panic(unsupported) }

// LoadWords panics here: see Supported.
func LoadWords(dst *byte, src *uint32, n int) { panic(unsupported) }
