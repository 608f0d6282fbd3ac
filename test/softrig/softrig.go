// Package softrig makes the software devices that the rig of a test names.
package softrig

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Make makes the devices. The function that it returns closes them. It also returns an error if the devices
// were to lose 1 % of packets and have lost none of many: then the tests have shown nothing about loss.
func Make() (closeAll func() error, err error) {
	var devs []*soft.Device
	closeAll = func() error {
		err := lossless(devs, testenv.SoftFaults())
		for _, d := range devs {
			err = errors.Join(err, d.Close())
		}
		return err
	}
	faults, err := soft.ParseFaults(testenv.SoftFaults())
	if err != nil {
		return nil, err
	}
	rig := testenv.TheRig()
	for i, name := range rig.Devices {
		if slices.Contains(rig.Devices[:i], name) {
			continue // both are the same
		}
		d, err := soft.New(soft.Options{
			Name: name, Addr: netip.MustParseAddr(rig.Addrs[i]), ViaSocket: testenv.SoftSockets(), Faults: faults,
		})
		if err != nil {
			return nil, errors.Join(err, closeAll())
		}
		devs = append(devs, d)
	}
	return closeAll, nil
}

// lossless returns an error if faults are to lose 1 % of packets, and many packets passed and none was lost.
func lossless(devs []*soft.Device, faults string) error {
	const many = 5000 // the chance that none of them is lost is below 10^-20
	var passed, lost uint64
	for _, d := range devs {
		sent, received := d.FaultCounters()
		passed += sent.Selected + received.Selected
		lost += sent.Lost + received.Lost
	}
	if strings.Contains(faults, "loss=1%") && passed > many && lost == 0 {
		return fmt.Errorf("none of %d packets was lost, with the faults %q", passed, faults)
	}
	return nil
}
