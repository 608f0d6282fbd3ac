//go:build !linux

package uverbs

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// errLinuxOnly is the error for devices of the kernel, which are not listed either.
var errLinuxOnly = fmt.Errorf("devices of the kernel need Linux; use a software device (package uverbs/soft): %w", errors.ErrUnsupported)

// openFile fails.
func (i *DeviceInfo) openFile() (*os.File, error) { return nil, errLinuxOnly }

// charNumber fails.
func charNumber(*os.File) (major, minor uint32, err error) { return 0, 0, errLinuxOnly }

// kernelRelease returns "": the running kernel is not Linux.
func kernelRelease() string { return "" }

// sysfsGIDs fails.
func sysfsGIDs(string, string, uint8, PortAttr) ([]GIDEntry, error) { return nil, errLinuxOnly }

// readLine fails.
func readLine(string) (string, error) { return "", errLinuxOnly }

// busyClock stands for the one of Linux.
type busyClock struct{}

func (*busyClock) start(time.Duration) bool { return false }

func (*busyClock) wait(*CompChannel) (int, *CQ, bool) { return 0, nil, true }

func (*busyClock) close() {}

// openWatcher fails.
func openWatcher(int, string) (*os.File, error) { return nil, errLinuxOnly }

// closeFiles closes the events.
func (c *CompChannel) closeFiles() error { return c.f.Close() }

func (*CompChannel) readNow(uintptr) {}

func (*CompChannel) tryRead(uintptr) bool { return true }

// readParked reads an event into c.event.
func (c *CompChannel) readParked() (int, error) { return c.f.Read(c.event[:]) }

// hasInput returns true, as devices of the kernel are on Linux only.
func hasInput(kernel.EventFile) bool { return true }
