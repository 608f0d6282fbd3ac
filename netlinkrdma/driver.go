package netlinkrdma

import "github.com/goverbs/goverbs/netlinkrdma/internal/abi"

// DriverID identifies a driver, and so the format of the driver-specific data in its commands (enum
// rdma_driver_id in rdma/ib_user_ioctl_verbs.h).
type DriverID uint32

// The drivers. Some, such as cxgb4 and hns, do not report their number
// (uverbs_no_driver_id_binding) and appear as DriverUnknown.
const (
	DriverUnknown   DriverID = abi.RDMA_DRIVER_UNKNOWN
	DriverMLX5      DriverID = abi.RDMA_DRIVER_MLX5
	DriverMLX4      DriverID = abi.RDMA_DRIVER_MLX4
	DriverCXGB3     DriverID = abi.RDMA_DRIVER_CXGB3
	DriverCXGB4     DriverID = abi.RDMA_DRIVER_CXGB4
	DriverMTHCA     DriverID = abi.RDMA_DRIVER_MTHCA
	DriverBNXTRE    DriverID = abi.RDMA_DRIVER_BNXT_RE
	DriverOCRDMA    DriverID = abi.RDMA_DRIVER_OCRDMA
	DriverNES       DriverID = abi.RDMA_DRIVER_NES
	DriverIRDMA     DriverID = abi.RDMA_DRIVER_IRDMA // also used by its predecessor i40iw
	DriverVMWPVRDMA DriverID = abi.RDMA_DRIVER_VMW_PVRDMA
	DriverQEDR      DriverID = abi.RDMA_DRIVER_QEDR
	DriverHNS       DriverID = abi.RDMA_DRIVER_HNS
	DriverUSNIC     DriverID = abi.RDMA_DRIVER_USNIC
	DriverRXE       DriverID = abi.RDMA_DRIVER_RXE
	DriverHFI1      DriverID = abi.RDMA_DRIVER_HFI1
	DriverQIB       DriverID = abi.RDMA_DRIVER_QIB
	DriverEFA       DriverID = abi.RDMA_DRIVER_EFA
	DriverSIW       DriverID = abi.RDMA_DRIVER_SIW
	DriverERDMA     DriverID = abi.RDMA_DRIVER_ERDMA
	DriverMANA      DriverID = abi.RDMA_DRIVER_MANA
	DriverIONIC     DriverID = abi.RDMA_DRIVER_IONIC
)

var driverNames = [...]string{
	DriverUnknown:   "unknown",
	DriverMLX5:      "mlx5",
	DriverMLX4:      "mlx4",
	DriverCXGB3:     "cxgb3",
	DriverCXGB4:     "cxgb4",
	DriverMTHCA:     "mthca",
	DriverBNXTRE:    "bnxt_re",
	DriverOCRDMA:    "ocrdma",
	DriverNES:       "nes",
	DriverIRDMA:     "irdma",
	DriverVMWPVRDMA: "vmw_pvrdma",
	DriverQEDR:      "qedr",
	DriverHNS:       "hns",
	DriverUSNIC:     "usnic",
	DriverRXE:       "rxe",
	DriverHFI1:      "hfi1",
	DriverQIB:       "qib",
	DriverEFA:       "efa",
	DriverSIW:       "siw",
	DriverERDMA:     "erdma",
	DriverMANA:      "mana",
	DriverIONIC:     "ionic",
}

// String returns the name of the driver, or a text with the number if the driver is not in the
// list.
func (d DriverID) String() string { return nameOf("DriverID", driverNames[:], int(d)) }
