package qemu

// tsc reads the processor's time stamp counter.
func tsc() uint64

// hasTSC says that there is one.
const hasTSC = true
