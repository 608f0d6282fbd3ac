//go:build (amd64 || arm64) && !race

package mmio

// storeRelaxed stores v with one store: on these architectures an aligned store of 8 bytes is
// atomic, and the compiler does not split one.
func storeRelaxed(p *uint64, v uint64) { *p = v }

// Store3 stores three words, without the instructions of three calls.
func Store3(x, y, z *Word, a, b, c uint64) { x.v, y.v, z.v = a, b, c }
