//go:build linux

package trace

import "golang.org/x/sys/unix"

// auditArch is the architecture in struct seccomp_data.
const auditArch = unix.AUDIT_ARCH_AARCH64
