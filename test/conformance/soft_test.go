package conformance

import (
	_ "embed"
	"errors"
	"net/netip"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// lackingSoft lists what software devices lack in addition to rxe, which they play.
//
//go:embed lacking_soft.txt
var lackingSoft string

// makeSoft makes the software devices of the rig. The function that it returns closes them.
func makeSoft() (closeAll func() error, err error) {
	var devs []*soft.Device
	closeAll = func() error {
		var err error
		for _, d := range devs {
			err = errors.Join(err, d.Close())
		}
		return err
	}
	for i, name := range rig.Devices {
		if i > 0 && name == rig.Devices[0] {
			continue // both are the same
		}
		d, err := soft.New(soft.Options{Name: name, Addr: netip.MustParseAddr(rig.Addrs[i]), Faults: testenv.SoftFaults()})
		if err != nil {
			return nil, errors.Join(err, closeAll())
		}
		devs = append(devs, d)
	}
	return closeAll, nil
}
