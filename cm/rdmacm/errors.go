package rdmacm

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/cm/internal/ucm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
)

// Error reports a command that failed, normally because the kernel refused it. It unwraps to the
// errno.
type Error struct {
	Op    string        // Op is the operation that failed, such as "resolve address".
	Addr  string        // Addr is the address in question; may be empty.
	Errno syscall.Errno // Errno is the error number.
	Hint  string        // Hint says what the cause may be and what to do; may be empty.
}

// Error implements the error interface.
func (e *Error) Error() string {
	s := "cm: " + e.Op
	if e.Addr != "" {
		s += " " + e.Addr
	}
	s += ": " + e.Errno.Error()
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// ArgError reports an argument or option that is not valid. The kernel was not asked. The fields are
// Package, which is "cm", Op, Field, Given and Allowed. It unwraps to EINVAL.
type ArgError = uverbs.ArgError

// argErr returns an ArgError of this package for any printable value.
func argErr(op, field string, given any, allowed string, args ...any) error {
	return &ArgError{Package: "cm", Op: op, Field: field, Given: fmt.Sprint(given), Allowed: fmt.Sprintf(allowed, args...)}
}

// errZero returns the error for an object that this package did not make.
func errZero(kind string) error {
	return argErr("use", kind, "a zero value", "one that this package has made")
}

// bindErr is opError for a failed bind. The kernel returns EADDRNOTAVAIL if the port is in use and
// one of the two listeners, the old or the new, is on all addresses; bindErr turns it into
// EADDRINUSE.
func bindErr(a *Addr, errno syscall.Errno) error {
	if errno == syscall.EADDRNOTAVAIL && a.Port != 0 && (a.IP.IsUnspecified() || ownAddr(a)) {
		errno = syscall.EADDRINUSE
	}
	err := opError(opBind, a.String(), errno)
	if e, ok := err.(*Error); ok && e.Errno == syscall.EINVAL && a.Space == IPoIB {
		e.Hint = noIPoIB
	}
	return err
}

// ownAddr reports whether this host, or a software device of this process, has the address.
func ownAddr(a *Addr) bool {
	if inprocess.Host.HasDevices() && inprocess.Host.Serves(a.IP, netip.Addr{}) {
		return true
	}
	all, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(all, func(own net.Addr) bool {
		prefix, err := netip.ParsePrefix(own.String())
		return err == nil && prefix.Addr() == a.ip()
	})
}

// opError returns the error for an errno, or nil if it is 0.
func opError(op, addr string, errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case errClosedID:
		return errIDClosed
	case errClosedFile:
		return fmt.Errorf("cm: %s: %w", op, os.ErrClosed)
	case ucm.ErrNoSocket:
		return &Error{Op: op, Addr: addr, Errno: syscall.ENETUNREACH, Hint: "the peer is not in this process, and the software device here has no socket to reach others; make it with an address or Auto, as with GOVERBS_SOFT=auto"}
	case enotsupp:
		errno = syscall.EOPNOTSUPP
	}
	return &Error{Op: op, Addr: addr, Errno: errno, Hint: hint(op, addr, errno)}
}

// enotsupp is an errno of the kernel that should never reach programs but does (ENOTSUPP,
// linux/errno.h). It means EOPNOTSUPP.
const enotsupp = syscall.Errno(524)

// noIPoIB is the hint for EINVAL of an address in port space IPoIB.
const noIPoIB = "port space ipoib needs the address of an IPoIB network interface, and this address belongs to another kind of interface"

// listDevices lists the kernel's devices. Tests change it.
var listDevices = netlinkrdma.Devices

// onlyEFA returns a hint if the kernel has devices, all of which are EFA devices, and "" otherwise.
func onlyEFA() string {
	devices, _ := listDevices()
	var names []string
	for _, d := range devices {
		if d.Protocol != netlinkrdma.ProtocolEFA {
			return ""
		}
		names = append(names, d.Name)
	}
	if names == nil {
		return ""
	}
	return "EFA devices (" + strings.Join(names, ", ") + ") have no connection manager; exchange GID, QP number and Q_Key over TCP and use QPs of type SRD (package uverbs), or cm.Dialer, which falls back to TCP"
}

// noDevice returns the hint for ENODEV of an address.
func noDevice(addr string) string {
	if hint := onlyEFA(); hint != "" {
		return orSoft(hint)
	}
	hint := "its route leads through a network interface without an RDMA device"
	if at, err := netip.ParseAddrPort(addr); err == nil && at.Addr().IsLoopback() {
		hint = "loopback is a network interface without an RDMA device; use an address of a device here: " + cmp.Or(addrsOfDevices(at.Addr().Is4()), "verbs status shows them")
	}
	return orSoft(hint)
}

// addrsOfDevices lists the IP addresses of a family that software devices of this process have, and all those of the
// network interfaces of this network namespace that RDMA devices have.
func addrsOfDevices(is4 bool) string {
	devices, _ := netlinkrdma.Devices()
	all := inprocess.Host.Addrs(is4)
	for _, d := range devices {
		ports, _ := netlinkrdma.Ports(d)
		for _, p := range ports {
			link, err := net.InterfaceByIndex(p.NetdevIndex)
			if err != nil {
				continue // the port has none here
			}
			addrs, _ := link.Addrs()
			for _, a := range addrs {
				if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
					all = append(all, n.IP.String()+" of "+d.Name)
				}
			}
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// orSoft adds to the hint about an address why a software device of the environment, which may have the address, could
// not be made.
func orSoft(hint string) string {
	if err := softFailure(); err != nil {
		hint += "; software device: " + err.Error()
	}
	return hint
}

// errRemoved returns the error of an object whose device is being removed. The name may be empty.
func errRemoved(device string) error {
	if device != "" {
		device = " " + device
	}
	return fmt.Errorf("device%s is being removed: %w", device, syscall.ENODEV)
}

// Reasons why the QP of an ID flushes work requests, for [uverbs.QP.SetErrCause].
var (
	errDisconnected = errors.New("this program disconnected the ID, which moved the QP to state ERR")
	errPeerGone     = fmt.Errorf("the peer disconnected, or closed its ID: %w", syscall.ECONNRESET)
	errIWARPGone    = fmt.Errorf("the connection manager reported DISCONNECTED: the peer disconnected or is gone, or the connection broke: %w", syscall.ECONNRESET)
)

// hint returns the likely cause of an errno, or "".
func hint(op, addr string, errno syscall.Errno) string {
	switch {
	case errno == syscall.EACCES && op == opBind:
		return "ports below 1024 need CAP_NET_BIND_SERVICE; or the channel was opened under other credentials: open it after changing user or group"
	case errno == syscall.EACCES:
		return "the kernel refuses write() to a file opened under other credentials; open the channel after changing user or group"
	case (errno == syscall.EADDRNOTAVAIL || errno == syscall.EADDRINUSE) && op == opConnect:
		return "on iWARP the port that the connection manager has chosen is taken by TCP, perhaps by a connection that has just ended; try again"
	case errno == syscall.EADDRINUSE && op == opListen:
		return "the port is taken; a program of the same port space has it, or on iWARP one that uses TCP"
	case errno == syscall.EADDRINUSE:
		return "the port is taken; a program of the same port space has it"
	case op == opJoin && (errno == syscall.EINVAL || errno == syscall.ENODEV):
		return "bind the ID to an address of an RDMA device first, or resolve an address"
	case op == opJoin && errno == syscall.EOPNOTSUPP:
		return "RoCE v2 does not support IPv6 groups, and not every InfiniBand subnet administrator supports members that only send"
	case errno == syscall.EADDRNOTAVAIL:
		return orSoft("no network interface has it; in a container, those of the host need --network host")
	case errno == syscall.ENETUNREACH:
		return orSoft("this network namespace has no route to the address; in a container: --network host")
	case errno == syscall.EPERM && op == opCreate:
		return "a sandbox forbids write() to the connection manager; in a container: --security-opt seccomp=FILE that allows it"
	case errno == syscall.ENOENT && op == opConnect:
		return "the port does not have the partition key of the path, which may come from SetPath"
	case errno == syscall.ECONNREFUSED && op == opConnect:
		return "nobody listens there; a listener that does not use iWARP does not count"
	case errno == syscall.ENODEV && op != opConnect:
		return noDevice(addr)
	case op == opSetPath && errno == syscall.EINVAL:
		return "the ID has no resolved address, or has a route already"
	case op == opService && errno == syscall.EINVAL:
		return "the ID is not bound to an address of a device, or has gone further already"
	case errno == syscall.EINVAL:
		return "the ID is in a state that does not allow it"
	}
	return ""
}

// isClosedError reports whether an object was closed.
func isClosedError(err error) bool { return errors.Is(err, os.ErrClosed) }
