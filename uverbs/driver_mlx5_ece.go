package uverbs

import (
	"errors"
	"fmt"

	"github.com/goverbs/goverbs/mmio/mlx5"
)

// Any reports whether there are options. Those of mlx5 have their version in the upper four bits, which is
// no option.
func (e ECE) Any() bool {
	const version = 0xf << 28
	if e.VendorID == mlx5.ECEVendor {
		return e.Options&^version != 0
	}
	return e.Options != 0
}

func (q *QP) eceMlx5() (ECE, error) {
	if !q.dev.mlx5.ECE {
		return ECE{}, noECE(q, errNoECE)
	}
	return ECE{VendorID: mlx5.ECEVendor, Options: q.mlx5.eceHas.Load()}, nil
}

func (q *QP) setECEMlx5(e ECE) error {
	if e.VendorID != mlx5.ECEVendor {
		return argErr("SetECE", "VendorID", fmt.Sprintf("%#x", e.VendorID), "%#x, the vendor of the device", mlx5.ECEVendor)
	}
	if !q.dev.mlx5.ECE {
		return noECE(q, errNoECE)
	}
	q.mlx5.eceWanted.Store(e.Options)
	q.mlx5.eceHas.Store(0)
	return nil
}

// errNoECE is the reason why an adapter has no ECE.
var errNoECE = errors.New("the adapter does not have the capability ece_support")

// modifyUdataMlx5 has options until a MODIFY_QP has passed them to the device, as libmlx5 does.
func (q *QP) modifyUdataMlx5() udata {
	ece, outOfOrder := q.mlx5.eceWanted.Load(), q.mlx5.outOfOrder
	if ece == 0 && !outOfOrder {
		return udata{}
	}
	u := udata{in: mlx5.EncodeModifyQP(ece, outOfOrder), out: make([]byte, mlx5.ModifyQPRespSize)}
	if outOfOrder && q.State() == QPReset { // a later MODIFY_QP fails with EOPNOTSUPP for another reason
		u.unsupported = noOutOfOrder(q.typ)
	}
	return u
}

func (q *QP) modifyAnswerMlx5(u udata) error {
	sent := mlx5.SentECE(u.in)
	if sent == 0 {
		return nil
	}
	_, ece, err := mlx5.DecodeModifyQP(u.out)
	if err != nil {
		return err
	}
	if q.mlx5.eceWanted.CompareAndSwap(sent, 0) { // SetECE may have set others meanwhile
		q.mlx5.eceHas.Store(ece)
	}
	return nil
}
