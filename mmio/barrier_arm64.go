package mmio

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
