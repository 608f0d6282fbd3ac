package udp

import "golang.org/x/sys/windows"

// Errors of the system's sockets. The names in package syscall that other systems have are invented
// numbers here.
const (
	errAcces        = windows.WSAEACCES
	errAddrInUse    = windows.WSAEADDRINUSE
	errAddrNotAvail = windows.WSAEADDRNOTAVAIL
	errAFNoSupport  = windows.WSAEAFNOSUPPORT
	errHostUnreach  = windows.WSAEHOSTUNREACH
	errInval        = windows.WSAEINVAL
	errMsgSize      = windows.WSAEMSGSIZE
	errNetDown      = windows.WSAENETDOWN
	errNetUnreach   = windows.WSAENETUNREACH
	errNoBufs       = windows.WSAENOBUFS
)
