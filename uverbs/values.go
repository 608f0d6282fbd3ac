package uverbs

import (
	"time"

	"github.com/goverbs/goverbs/uverbs/ib"
)

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

// MTU is a path MTU in the encoding of the InfiniBand standard; see [ib.MTU].
type MTU = ib.MTU

// Path MTUs. In [PathOptions] the zero value lets the library choose.
const (
	MTU256  = ib.MTU256
	MTU512  = ib.MTU512
	MTU1024 = ib.MTU1024
	MTU2048 = ib.MTU2048
	MTU4096 = ib.MTU4096
)

// AckTimeout is a time in the encoding of the InfiniBand standard; see [ib.AckTimeout].
type AckTimeout = ib.AckTimeout

// AckTimeoutFor returns the shortest timeout that is at least d; see [ib.AckTimeoutFor].
func AckTimeoutFor(d time.Duration) AckTimeout { return ib.AckTimeoutFor(d) }

// RNRTimer is a time in the encoding of the InfiniBand standard; see [ib.RNRTimer].
type RNRTimer = ib.RNRTimer

// RNRTimerFor returns the shortest timer that is at least d; see [ib.RNRTimerFor].
func RNRTimerFor(d time.Duration) RNRTimer { return ib.RNRTimerFor(d) }
