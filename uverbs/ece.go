package uverbs

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/mmio/mlx5"
)

// ECE has options for enhanced connection establishment (struct ibv_ece). They select features of the
// transport that both devices of a connection must use, and that only the vendor describes.
//
// The two sides of a connection agree on options in four steps, which package cm can do; see there:
//
//  1. The connecting side sends the result of [QP.ECE], which is all that its device supports.
//  2. The accepting side passes it to [QP.SetECE] before it moves its QP to [ib.QPInit] or [ib.QPRTR]. The
//     device accepts the options that it supports.
//  3. The accepting side answers with the result of ECE.
//  4. The connecting side passes the answer to SetECE before it moves its QP to QPRTR.
//
// A QP without SetECE uses none of the options.
type ECE struct {
	VendorID uint32 // VendorID identifies the vendor that defines the options, such as 0x15b3 for mlx5; 0 is no vendor.
	Options  uint32 // Options are the options, one or more bits each; 0 is none.
}

// ECE returns options for enhanced connection establishment (ibv_query_ece):
//   - of a new QP, those that the device supports, but of a new DCT none;
//   - after [QP.SetECE], none, until [QP.Modify] has passed the options to the device;
//   - then those that the device has accepted.
//
// It does not call the kernel. It fails with a [FeatureError] if the driver or the device does not
// have ECE; only mlx5 has.
func (q *QP) ECE() (ECE, error) {
	if err := q.usable(); err != nil {
		return ECE{}, err
	}
	if err := q.hasECE(); err != nil {
		return ECE{}, err
	}
	return ECE{VendorID: mlx5.ECEVendor, Options: q.mlx5.eceHas.Load()}, nil
}

// SetECE sets the options for enhanced connection establishment that the next [QP.Modify] passes to
// the device, as do [QP.Init], [QP.Connect] and mlx5.ReadyDC (ibv_set_ece). Options of 0 withdraw earlier
// ones that were not passed yet. The device accepts the options that it supports, which [QP.ECE]
// returns, and ignores the others. Options of 0 do not change what the device has accepted already, but
// ECE returns none then.
//
// For a connection, call SetECE before the QP leaves [ib.QPInit]. VendorID must be that of the device:
// do not pass the options of a peer whose device is of another vendor. SetECE fails with a
// [FeatureError] if the driver or the device does not have ECE.
func (q *QP) SetECE(e ECE) error {
	if err := q.acquireState(); err != nil { // a Modify in progress must not take the answer for one to these
		return err
	}
	defer q.releaseState()
	if q.dev.mlx5 != nil && e.VendorID != mlx5.ECEVendor {
		return argErr("SetECE", "VendorID", fmt.Sprintf("%#x", e.VendorID), "%#x, the vendor of the device", mlx5.ECEVendor)
	}
	if err := q.hasECE(); err != nil {
		return err
	}
	q.mlx5.eceWanted.Store(e.Options)
	q.mlx5.eceHas.Store(0)
	return nil
}

// hasECE returns an error if the QP has no ECE.
func (q *QP) hasECE() error {
	switch {
	case q.dev.mlx5 == nil:
		return noFeature(q.dev, "ECE")
	case !q.dev.mlx5.ECE:
		return &FeatureError{Feature: "ECE", Driver: q.dev.driver.name(), Err: errNoECE}
	}
	return nil
}

// Any reports whether there are options. Those of mlx5 have their version in the upper four bits, which is
// no option.
func (e ECE) Any() bool {
	const version = 0xf << 28
	if e.VendorID == mlx5.ECEVendor {
		return e.Options&^version != 0
	}
	return e.Options != 0
}

// errNoECE is the reason why an adapter has no ECE.
var errNoECE = errors.New("the adapter does not have the capability ece_support")
