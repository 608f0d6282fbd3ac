package uverbs

// ECE has options for enhanced connection establishment (struct ibv_ece). They select features of the
// transport that both devices of a connection must use, and that only the vendor describes.
//
// The two sides of a connection agree on options in four steps, which package cm can do; see there:
//
//  1. The connecting side sends the result of [QP.QueryECE], which is all that its device supports.
//  2. The accepting side passes it to [QP.SetECE] before it moves its QP to [QPInit] or [QPRTR]. The
//     device accepts the options that it supports.
//  3. The accepting side answers with the result of QueryECE.
//  4. The connecting side passes the answer to SetECE before it moves its QP to QPRTR.
//
// A QP without SetECE uses none of the options.
type ECE struct {
	VendorID uint32 // VendorID identifies the vendor that defines the options, such as 0x15b3 for mlx5; 0 is no vendor.
	Options  uint32 // Options are the options, one or more bits each; 0 is none.
}

// QueryECE returns options for enhanced connection establishment (ibv_query_ece):
//   - of a new QP, those that the device supports, but of a new DCT none;
//   - after [QP.SetECE], none, until [QP.Modify] has passed the options to the device;
//   - then those that the device has accepted.
//
// It does not call the kernel. It fails with a [FeatureError] if the driver or the device does not
// have ECE; only mlx5 has.
func (q *QP) QueryECE() (ECE, error) {
	if err := q.usable(); err != nil {
		return ECE{}, err
	}
	if q.dev.mlx5 == nil {
		return ECE{}, noECE(q, nil)
	}
	return q.eceMlx5()
}

// SetECE sets the options for enhanced connection establishment that the next [QP.Modify] passes to
// the device, as do [QP.Init], [QP.Connect] and [QP.ReadyDC] (ibv_set_ece). Options of 0 withdraw earlier
// ones that were not passed yet. The device accepts the options that it supports, which [QP.QueryECE]
// returns, and ignores the others. Options of 0 do not change what the device has accepted already, but
// QueryECE returns none then.
//
// For a connection, call SetECE before the QP leaves [QPInit]. VendorID must be that of the device:
// do not pass the options of a peer whose device is of another vendor. SetECE fails with a
// [FeatureError] if the driver or the device does not have ECE.
func (q *QP) SetECE(e ECE) error {
	if err := q.acquireState(); err != nil { // a Modify in progress must not take the answer for one to these
		return err
	}
	defer q.releaseState()
	if q.dev.mlx5 == nil {
		return noECE(q, nil)
	}
	return q.setECEMlx5(e)
}

// noECE is the error of a QP without ECE. The cause may be nil.
func noECE(q *QP, cause error) error {
	return &FeatureError{Feature: "ECE", Driver: q.dev.driver.name(), Err: cause}
}
