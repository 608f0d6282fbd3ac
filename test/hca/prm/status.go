package prm

import "fmt"

// Status is how a command ended: MLX5_CMD_STAT_* (device.h).
type Status uint8

// The statuses.
const (
	OK          Status = 0x00
	InternalErr Status = 0x01
	BadOp       Status = 0x02 // opcode, or its modifier
	BadParam    Status = 0x03
	BadSysState Status = 0x04 // the device is not initialized, or is already
	BadResource Status = 0x05 // no such object
	ResBusy     Status = 0x06 // the object is in use
	NotReady    Status = 0x07
	LimitErr    Status = 0x08
	BadResState Status = 0x09
	BadIndex    Status = 0x0a
	NoResource  Status = 0x0f
	BadQPState  Status = 0x10
	BadPacket   Status = 0x30
	BadSizeCQE  Status = 0x40
	BadInLen    Status = 0x50
	BadOutLen   Status = 0x51
)

var statusNames = map[Status]string{
	OK: "OK", InternalErr: "internal error", BadOp: "bad operation", BadParam: "bad parameter", BadSysState: "bad system state",
	BadResource: "bad resource", ResBusy: "resource busy", NotReady: "not ready", LimitErr: "limits exceeded",
	BadResState: "bad resource state", BadIndex: "bad index", NoResource: "no resources", BadQPState: "bad QP state",
	BadPacket: "bad packet", BadSizeCQE: "CQEs do not fit", BadInLen: "bad input length", BadOutLen: "bad output length",
}

// String gives the status in words.
func (s Status) String() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return fmt.Sprintf("status %#x", uint8(s))
}

// Errors in the delivery of a command: MLX5_CMD_DELIVERY_STAT_* (drivers/net/
// ethernet/mellanox/mlx5/core/cmd.c).
const (
	DeliveryOK        = 0x0
	DeliveryTokenErr  = 0x2
	DeliveryBlockErr  = 0x3
	DeliveryOutPtrErr = 0x4
	DeliveryInPtrErr  = 0x5
	DeliveryInLenErr  = 0x7
	DeliveryOutLenErr = 0x8
	DeliveryDescrErr  = 0x10
)

// Types of events: enum mlx5_event (device.h).
const (
	EventComp          = 0x00
	EventCQError       = 0x04
	EventInternalError = 0x08
	EventPortChange    = 0x09
	EventCmd           = 0x0a
	EventPageRequest   = 0x0b
	EventVportChange   = 0x0d
)
