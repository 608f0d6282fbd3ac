package rdmacm

import (
	"fmt"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/uverbs"
)

// withSoft adds to the error of a kernel without a connection manager why the environment has not
// given the process a software device.
func withSoft(err error) error {
	if failed := softFailure(); failed != nil {
		return fmt.Errorf("software device: %w; without it: %w", failed, err)
	}
	if soft := os.Getenv("GOVERBS_SOFT"); soft != "" {
		return fmt.Errorf("neither the local address nor the route to the peer selects the software device of GOVERBS_SOFT=%q; without it: %w", soft, err)
	}
	return fmt.Errorf("%w; or set GOVERBS_SOFT=auto in the environment, for a software device", err)
}

// softFailure returns why a software device of the environment could not be made. It returns nil if there is none that
// could not. Tests change it.
var softFailure = func() error {
	if os.Getenv("GOVERBS_SOFT") == "" {
		return nil
	}
	infos, _ := uverbs.Devices() // its error is about the kernel
	for _, i := range infos {
		if i.InProcess && i.Err != nil {
			return i.Err
		}
	}
	return nil
}

// kernelHasDevices reports whether the kernel has RDMA devices. Tests change it.
var kernelHasDevices = inprocess.KernelHasDevices

// onlySoftFailure is softFailure if it is known that the kernel has no devices either. Without it a listener on all
// addresses would wait for requests that cannot come.
func onlySoftFailure() error {
	failed := softFailure()
	if failed == nil {
		return nil
	}
	if has, err := kernelHasDevices(); has || err != nil {
		return nil
	}
	return fmt.Errorf("the kernel has no RDMA device: %w; software device: %w", syscall.ENODEV, failed)
}

// openSoft opens a file whose commands are carried out for the software devices of this process.
func openSoft() (*file, error) {
	commands, err := inprocess.Host.Open()
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
