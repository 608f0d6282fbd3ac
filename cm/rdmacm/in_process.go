package rdmacm

import (
	"fmt"
	"os"

	"github.com/goverbs/goverbs/cm/internal/inprocess"
	"github.com/goverbs/goverbs/uverbs"
)

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
