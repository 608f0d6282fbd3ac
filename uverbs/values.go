package uverbs

import "github.com/goverbs/goverbs/uverbs/ib"

// GID is a global identifier; see [ib.GID].
type GID = ib.GID

// ParseGID parses a GID; see [ib.ParseGID].
func ParseGID(s string) (GID, error) { return ib.ParseGID(s) }

// GUID is an EUI-64 identifier; see [ib.GUID].
type GUID = ib.GUID

// QPType is the transport service of a QP; see [ib.QPType].
type QPType = ib.QPType

// Types of QPs that programs can create. Only mlx5 has DCI and DCT.
const (
	RC        = ib.RC
	UC        = ib.UC
	UD        = ib.UD
	RawPacket = ib.RawPacket
	XRCSend   = ib.XRCSend
	XRCRecv   = ib.XRCRecv
	DCI       = ib.DCI
	DCT       = ib.DCT
)

// QPState is the state of a QP; see [ib.QPState].
type QPState = ib.QPState

// States of QPs.
const (
	QPReset = ib.QPReset
	QPInit  = ib.QPInit
	QPRTR   = ib.QPRTR
	QPRTS   = ib.QPRTS
	QPSQD   = ib.QPSQD
	QPSQE   = ib.QPSQE
	QPErr   = ib.QPErr
)

// PathMigState is the state of the migration of a QP to its alternate path; see [ib.PathMigState].
// To use it, call [QP.Modify] with AltAH and PathRearm. [QP.Query] returns PathArmed once both sides
// are ready, and Modify with PathMigrated migrates.
type PathMigState = ib.PathMigState

// States of path migration.
const (
	PathMigrated = ib.PathMigrated
	PathRearm    = ib.PathRearm
	PathArmed    = ib.PathArmed
)

// PortState is the logical state of a port; see [ib.PortState].
type PortState = ib.PortState

// States of ports.
const (
	PortNop         = ib.PortNop
	PortDown        = ib.PortDown
	PortInit        = ib.PortInit
	PortArmed       = ib.PortArmed
	PortActive      = ib.PortActive
	PortActiveDefer = ib.PortActiveDefer
)

// LinkLayer is the kind of network of a port; see [ib.LinkLayer].
type LinkLayer = ib.LinkLayer

// Link layers.
const (
	LinkLayerUnspecified = ib.LinkLayerUnspecified
	LinkLayerInfiniBand  = ib.LinkLayerInfiniBand
	LinkLayerEthernet    = ib.LinkLayerEthernet
)
