package classic

import (
	"fmt"
	"io"

	"github.com/goverbs/goverbs/uverbs"
)

// Devices lists the devices, with their ports and the addresses that these have.
func Devices(w io.Writer) error {
	infos, err := uverbs.Devices()
	if err != nil {
		return err
	}
	for _, info := range infos {
		if info.Err != nil {
			fmt.Fprintf(w, "%s: %v\n", info.Name, info.Err)
			continue
		}
		if err := describe(w, info); err != nil {
			return err
		}
	}
	return nil
}

// describe describes a device.
func describe(w io.Writer, info uverbs.DeviceInfo) error {
	dev, err := uverbs.Open(info.Name, uverbs.OpenOptions{})
	if err != nil {
		return err
	}
	defer dev.Close()
	attr := dev.Attr()
	fmt.Fprintf(w, "%s: driver %s, up to %d QPs, %d CQs, %d MRs\n", info.Name, info.Driver, attr.MaxQP, attr.MaxCQ, attr.MaxMR)
	for port := uint8(1); port <= attr.PhysPortCount; port++ {
		p, err := dev.Port(port)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "  port %d: %s, MTU %d\n", port, p.State, p.ActiveMTU.Bytes())
		gids, err := dev.GIDTable(port)
		if err != nil {
			return err
		}
		for _, g := range gids {
			fmt.Fprintf(w, "    GID %s\n", g)
		}
	}
	return nil
}
