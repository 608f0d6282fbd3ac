package ib

// QPType is the type of a queue pair (enum ib_qp_type). DCI and DCT are types of mlx5 and SRD is one of efa;
// for all of them the kernel has the one number of DriverQP.
type QPType uint8

// Types of queue pairs. SMI and GSI are QP 0 and QP 1 of a port, which belong to the kernel.
const (
	SMI          QPType = 0        // subnet management (IB_QPT_SMI)
	GSI          QPType = 1        // general services (IB_QPT_GSI)
	RC           QPType = 2        // reliable connection (IB_QPT_RC)
	UC           QPType = 3        // unreliable connection, which may lose messages (IB_QPT_UC)
	UD           QPType = 4        // unreliable datagrams, each to an AH (IB_QPT_UD)
	RawIPv6      QPType = 5        // IB_QPT_RAW_IPV6
	RawEtherType QPType = 6        // IB_QPT_RAW_ETHERTYPE
	RawPacket    QPType = 8        // whole Ethernet frames (IB_QPT_RAW_PACKET)
	XRCSend      QPType = 9        // extended reliable connection, sending side (IB_QPT_XRC_INI)
	XRCRecv      QPType = 10       // extended reliable connection, receiving side (IB_QPT_XRC_TGT)
	DCI          QPType = 11       // dynamically connected transport, initiator: each work request has a target (MLX5DV_DCTYPE_DCI)
	DCT          QPType = 12       // dynamically connected transport, target: it receives from all initiators (MLX5DV_DCTYPE_DCT)
	SRD          QPType = 13       // scalable reliable datagrams, in no order, each to an AH (EFADV_QP_DRIVER_TYPE_SRD)
	DriverQP     QPType = 1<<8 - 1 // defined by the driver (IB_QPT_DRIVER)
)

// MulticastQPN is the number that stands for all QPs of a multicast group, as the destination of a
// datagram.
const MulticastQPN = 0xffffff

// String returns the name that iproute2 uses.
func (t QPType) String() string {
	if t == DriverQP {
		return "DRIVER"
	}
	return nameOf("QPType", int(t), "SMI", "GSI", "RC", "UC", "UD", "RAW_IPV6", "RAW_ETHERTYPE", "", "RAW_PACKET", "XRC_INI", "XRC_TGT", "DCI", "DCT", "SRD")
}

// QPState is the state of a queue pair (enum ib_qp_state).
type QPState uint8

// States of queue pairs (IB_QPS_RESET and following).
const (
	QPReset QPState = iota // newly created; nothing can be posted
	QPInit                 // receives can be posted
	QPRTR                  // ready to receive
	QPRTS                  // ready to send and receive
	QPSQD                  // send queue drained
	QPSQE                  // send queue in error
	QPErr                  // error; all posted work requests are flushed
)

// String returns the name that iproute2 uses.
func (s QPState) String() string {
	return nameOf("QPState", int(s), "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
}

// PathMigState is the state of the migration of a queue pair to its alternate path (enum
// ib_mig_state).
type PathMigState uint8

// States of path migration (IB_MIG_MIGRATED and following).
const (
	PathMigrated PathMigState = iota // on its primary path, or migrated
	PathRearm                        // to be armed again
	PathArmed                        // ready to migrate
)

// String returns the name that iproute2 uses.
func (s PathMigState) String() string {
	return nameOf("PathMigState", int(s), "MIGRATED", "REARM", "ARMED")
}
