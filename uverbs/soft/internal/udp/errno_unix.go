//go:build !windows

package udp

import "syscall"

// Errors of the system's sockets.
const (
	errAcces        = syscall.EACCES
	errAddrInUse    = syscall.EADDRINUSE
	errAddrNotAvail = syscall.EADDRNOTAVAIL
	errAFNoSupport  = syscall.EAFNOSUPPORT
	errHostUnreach  = syscall.EHOSTUNREACH
	errInval        = syscall.EINVAL
	errMsgSize      = syscall.EMSGSIZE
	errNetDown      = syscall.ENETDOWN
	errNetUnreach   = syscall.ENETUNREACH
	errNoBufs       = syscall.ENOBUFS
)
