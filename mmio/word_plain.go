//go:build (amd64 || arm64) && !race

package mmio

// storeRelaxed stores v at once. On these architectures an aligned store of 8 bytes is never
// seen in parts, and the compiler does not split one.
func storeRelaxed(p *uint64, v uint64) { *p = v }
