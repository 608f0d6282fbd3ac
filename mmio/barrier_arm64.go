package mmio

// ToDevice orders all earlier stores to memory before all later ones, as a device sees them
// (udma_to_device_barrier). It belongs between a work queue entry and the doorbell that makes the
// device read it.
//
//go:noescape
func ToDevice()

// FromDevice orders all earlier loads of memory that a device writes before all later ones
// (udma_from_device_barrier). It belongs between the bit that marks an entry as valid and the rest
// of the entry. One barrier for a batch of entries is enough.
//
//go:noescape
func FromDevice()
