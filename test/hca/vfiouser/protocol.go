package vfiouser

import "encoding/binary"

// Numbers of the protocol: QEMU's docs/interop/vfio-user.rst, version 0.0. All is
// little-endian.
const (
	headerSize = 16

	// The message's kind is in the low bits of its flags.
	flagReply   = 0x01
	flagNoReply = 0x10
	flagError   = 0x20
	typeMask    = 0x0f
)

// command is what a message asks for.
type command uint16

const (
	cmdVersion     command = 1
	cmdDMAMap      command = 2
	cmdDMAUnmap    command = 3
	cmdGetInfo     command = 4
	cmdRegionInfo  command = 5
	cmdIRQInfo     command = 7
	cmdSetIRQs     command = 8
	cmdRegionRead  command = 9
	cmdRegionWrite command = 10
	cmdDeviceReset command = 13
)

// Of struct vfio_device_info and its kin (linux/vfio.h).
const (
	infoReset = 1 << 0
	infoPCI   = 1 << 1

	regionRead  = 1 << 0
	regionWrite = 1 << 1

	irqEventFD  = 1 << 0
	irqNoResize = 1 << 3

	irqDataNone    = 1 << 0
	irqDataEventFD = 1 << 2
	irqTrigger     = 1 << 5

	dmaRead  = 1 << 0
	dmaWrite = 1 << 1

	unmapDirty = 1 << 0
	unmapAll   = 1 << 1

	numRegions   = 9 // six BARs, the ROM, configuration space, VGA
	configRegion = 7
	numIRQs      = 5 // INTx, MSI, MSI-X, error, request
	irqMSIX      = 2
)

// Limits that the server tells the client, or keeps to itself.
const (
	maxData     = 1 << 20 // bytes in one access to a region
	maxMessage  = maxData + 64
	maxFDs      = 8 // in one message
	maxMappings = 4096
)

var le = binary.LittleEndian

// header is what every message begins with.
type header struct {
	id    uint16
	cmd   command
	size  uint32
	flags uint32
	errno uint32
}

func parseHeader(b *[headerSize]byte) header {
	return header{
		id: le.Uint16(b[0:]), cmd: command(le.Uint16(b[2:])),
		size: le.Uint32(b[4:]), flags: le.Uint32(b[8:]), errno: le.Uint32(b[12:]),
	}
}

// appendTo writes the header in front of a body of n bytes.
func (h header) appendTo(b []byte, n int) []byte {
	b = le.AppendUint16(b, h.id)
	b = le.AppendUint16(b, uint16(h.cmd))
	b = le.AppendUint32(b, uint32(headerSize+n))
	b = le.AppendUint32(b, h.flags)
	return le.AppendUint32(b, h.errno)
}
