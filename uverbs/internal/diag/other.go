//go:build !linux

package diag

import "time"

// The functions of this file know nothing: what they read is the kernel's of Linux, and software
// devices need no explanation by it.

func kernelLog() (log string, now time.Duration, ok bool) { return "", 0, false }

func descriptorLimit() (limit uint64, ok bool) { return 0, false }

func memlockLimit() (limit uint64, ok bool) { return 0, false }

func hasIPCLock() bool { return false }

func kindOf(string) fileKind { return ordinary }

func (p *Path) interfaceOf(*GIDEntry) *netif { return nil }

func (p *Path) readRoute(*netif) {}
