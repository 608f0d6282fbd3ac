//go:build !amd64

package qemu

func tsc() uint64 { return 0 }

const hasTSC = false
