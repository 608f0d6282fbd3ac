package cm

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/goverbs/goverbs/cm/internal/ucm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft/gsi"
)

// softHost is the connection manager of the software devices of this process (package soft).
var softHost = newSoftHost()

// newSoftHost makes a connection manager that learns of every software device.
func newSoftHost() *ucm.Host {
	h := ucm.New(ucm.Options{})
	gsi.SetManager(h)
	return h
}

// forSoft reports whether a channel for connections between two addresses, either of which may be
// unknown, is for the software devices of this process instead of the devices of the kernel.
func forSoft(local, remote netip.Addr) bool {
	gsi.Demand()
	return softHost.HasDevices() && (softHost.Serves(local, remote) || !kernelHasDevices())
}

// kernelHasDevices reports whether the kernel has RDMA devices that this process sees.
func kernelHasDevices() bool {
	devices, err := netlinkrdma.Devices()
	return err == nil && len(devices) > 0
}

// withSoft adds to the error of a kernel without a connection manager why the environment has not
// given the process a software device.
func withSoft(err error) error {
	infos, _ := uverbs.Devices() // its error is about the same kernel
	for _, i := range infos {
		if i.InProcess && i.Err != nil {
			return fmt.Errorf("%w; software device: %w", err, i.Err)
		}
	}
	return fmt.Errorf("%w; or use a software device: set GOVERBS_SOFT=auto in the environment", err)
}

// openSoft opens a file whose commands are carried out for the software devices of this process.
func openSoft() (*file, error) {
	commands, err := softHost.Open()
	if err != nil {
		return nil, fmt.Errorf("event descriptor of the software devices: %w", os.NewSyscallError("eventfd", err))
	}
	f, err := newFile(commands.FD(), "rdma_cm of the software devices")
	if err != nil {
		commands.Close()
		return nil, err
	}
	f.local = commands
	return f, nil
}
