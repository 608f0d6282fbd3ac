// Package softrig makes the software devices that the rig of a test names.
package softrig

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Make makes the devices. The function that it returns closes them.
func Make() (closeAll func() error, err error) {
	var devs []*soft.Device
	closeAll = func() error {
		var err error
		for _, d := range devs {
			err = errors.Join(err, d.Close())
		}
		return err
	}
	rig := testenv.TheRig()
	for i, name := range rig.Devices {
		if slices.Contains(rig.Devices[:i], name) {
			continue // both are the same
		}
		d, err := soft.New(soft.Options{
			Name: name, Addr: netip.MustParseAddr(rig.Addrs[i]), ViaSocket: testenv.SoftSockets(), Faults: testenv.SoftFaults(),
		})
		if err != nil {
			return nil, errors.Join(err, closeAll())
		}
		devs = append(devs, d)
	}
	return closeAll, nil
}
