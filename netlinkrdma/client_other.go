//go:build !linux

package netlinkrdma

import (
	"errors"
	"fmt"
)

// errLinuxOnly is the error of every request on a system without the kernel's RDMA subsystem.
var errLinuxOnly = fmt.Errorf("devices of the kernel need Linux; use a software device (package uverbs/soft): %w", errors.ErrUnsupported)

// socket stands for the one that Linux has.
type socket interface{ Close() }

func dialKernel() (socket, error) { return nil, errLinuxOnly }

// kernelRelease returns "": the running kernel is not Linux.
func kernelRelease() string { return "" }

// open fails. The error is no *unreachable, as there is no sysfs to read instead.
func (c *client) open() (*session, error) { return nil, errLinuxOnly }

func (s *session) get(int, ...*rtAttr) ([]byte, error) { return nil, errLinuxOnly }

func (s *session) dump(int, ...*rtAttr) ([][]byte, error) { return nil, errLinuxOnly }

func (s *session) set(int, ...*rtAttr) error { return errLinuxOnly }

// rtAttr is an attribute of a request, which is never sent.
type rtAttr struct{}

// AddRtAttr does nothing.
func (*rtAttr) AddRtAttr(int, []byte) *rtAttr { return nil }

// AddChild does nothing.
func (*rtAttr) AddChild(*rtAttr) {}

func u8Attr(int, uint8) *rtAttr { return &rtAttr{} }

func u32Attr(int, uint32) *rtAttr { return &rtAttr{} }

func u64Attr(int, uint64) *rtAttr { return &rtAttr{} }

func stringAttr(int, string) *rtAttr { return &rtAttr{} }

func nestedAttr(int) *rtAttr { return &rtAttr{} }

// openMonitor fails.
func (c *client) openMonitor() (*Monitor, error) {
	return nil, &Error{Op: "open monitor", Err: errLinuxOnly}
}

// decodeEvents is never called.
func decodeEvents([]byte) ([]Event, error) { return nil, errLinuxOnly }
