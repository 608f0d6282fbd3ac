package uverbs

import (
	"os"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// XRCDOptions are the options of [Device.OpenXRCD]. The zero value creates a domain for this
// process alone.
type XRCDOptions struct {
	// File identifies the domain: processes that open the same file share one domain. The file may
	// be closed afterwards.
	File *os.File

	// Flags are os.O_CREATE, which creates the domain if the file has none, and os.O_EXCL, which
	// fails if it has one. Without File they have no effect.
	Flags int
}

// xrcdFlags are all XRCD flags.
const xrcdFlags = os.O_CREATE | os.O_EXCL

// XRCD is an XRC domain: the SRQs and XRC QPs of all processes that share it work together (struct
// ibv_xrcd). It is safe for concurrent use.
type XRCD struct {
	object
	handle uint32
}

// OpenXRCD opens an XRC domain (ibv_open_xrcd). It fails with EAGAIN if the file has no domain and
// os.O_CREATE is not set, and with EINVAL if the file has a domain and os.O_EXCL is set.
func (d *Device) OpenXRCD(o XRCDOptions) (*XRCD, error) {
	if o.Flags&^xrcdFlags != 0 {
		return nil, argErr("OpenXRCD", "Flags", o.Flags, "os.O_CREATE and os.O_EXCL, together %d", xrcdFlags)
	}
	x := &XRCD{}
	if err := x.addParents(d, "XRCD", "CLOSE_XRCD", &d.object); err != nil {
		return nil, err
	}
	if err := x.open(o); err != nil {
		x.removeParents()
		return nil, err
	}
	return x, x.markCreated(x)
}

// open opens the kernel's domain.
func (x *XRCD) open(o XRCDOptions) error {
	cmd := x.dev.cmd
	req := &abi.OpenXRCD{FD: noFD, Oflags: syscall.O_CREAT}
	resp := &abi.OpenXRCDResp{}
	ask := func() syscall.Errno {
		return cmd.legacy(abi.IB_USER_VERBS_CMD_OPEN_XRCD, bytesOf(req), bytesOf(resp), udata{})
	}
	var errno syscall.Errno
	if o.File == nil {
		errno = ask()
	} else {
		if err := cmd.untranslated("OPEN_XRCD with a file"); err != nil {
			return err
		}
		raw, err := o.File.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				req.FD, req.Oflags = uint32(fd), uint32(o.Flags)
				errno = ask()
			})
		}
		if err != nil {
			return argErr("OpenXRCD", "File", err, "an open file")
		}
	}
	if errno != 0 {
		return cmd.fail("OPEN_XRCD", errno, xrcdHint(errno, o))
	}
	x.handle = resp.XRCDHandle
	return nil
}

// noFD is the descriptor for no file.
const noFD = 1<<32 - 1

// xrcdHint explains why a domain cannot be opened.
func xrcdHint(errno syscall.Errno, o XRCDOptions) string {
	switch {
	case errno == syscall.EAGAIN:
		return "the file has no domain; os.O_CREATE creates one"
	case errno == syscall.EINVAL && o.File != nil && o.Flags&os.O_EXCL != 0:
		return "the file already has a domain, and os.O_EXCL is set"
	}
	return ""
}

// Close closes the domain (ibv_close_xrcd). It fails with EBUSY while an SRQ or a QP of
// this process uses it.
func (x *XRCD) Close() error {
	return x.close(func() error {
		errno := x.dev.cmd.destroy(abi.UVERBS_OBJECT_XRCD, abi.UVERBS_METHOD_XRCD_DESTROY, abi.UVERBS_ATTR_DESTROY_XRCD_HANDLE, x.handle)
		if absent(errno) {
			req := &abi.CloseXRCD{XRCDHandle: x.handle}
			errno = x.dev.cmd.legacy(abi.IB_USER_VERBS_CMD_CLOSE_XRCD, bytesOf(req), nil, udata{})
		}
		return x.dev.cmd.fail(x.destroy, errno, "")
	}, nil)
}
