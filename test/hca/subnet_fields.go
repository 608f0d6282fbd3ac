package hca

import "github.com/goverbs/goverbs/test/hca/prm"

// The attribute PortInfo: InfiniBand architecture, chapter 14.
var (
	piMKey           = prm.Field{Off: 0, Width: 64}
	piPrefix         = prm.Field{Off: 64, Width: 64}
	piLID            = prm.Field{Off: 128, Width: 16}
	piSMLID          = prm.Field{Off: 144, Width: 16}
	piCapMask        = prm.Field{Off: 160, Width: 32}
	piLease          = prm.Field{Off: 208, Width: 16}
	piLocalPort      = prm.Field{Off: 224, Width: 8}
	piWidthEnabled   = prm.Field{Off: 232, Width: 8}
	piWidthSupported = prm.Field{Off: 240, Width: 8}
	piWidthActive    = prm.Field{Off: 248, Width: 8}
	piSpeedSupported = prm.Field{Off: 256, Width: 4}
	piState          = prm.Field{Off: 260, Width: 4}
	piPhys           = prm.Field{Off: 264, Width: 4}
	piDownDefault    = prm.Field{Off: 268, Width: 4}
	piProtect        = prm.Field{Off: 272, Width: 2}
	piLMC            = prm.Field{Off: 277, Width: 3}
	piSpeedActive    = prm.Field{Off: 280, Width: 4}
	piSpeedEnabled   = prm.Field{Off: 284, Width: 4}
	piMTU            = prm.Field{Off: 288, Width: 4} // NeighborMTU
	piSMSL           = prm.Field{Off: 292, Width: 4}
	piVLCap          = prm.Field{Off: 296, Width: 4}
	piVLHighLimit    = prm.Field{Off: 304, Width: 8}
	piVLArbHighCap   = prm.Field{Off: 312, Width: 8}
	piVLArbLowCap    = prm.Field{Off: 320, Width: 8}
	piInitReply      = prm.Field{Off: 328, Width: 4}
	piMTUCap         = prm.Field{Off: 332, Width: 4}
	piStallLife      = prm.Field{Off: 336, Width: 8} // VLStallCount and HOQLife
	piVLs            = prm.Field{Off: 344, Width: 4} // OperationalVLs
	piMKeyViolations = prm.Field{Off: 352, Width: 16}
	piPKeyViolations = prm.Field{Off: 368, Width: 16}
	piQKeyViolations = prm.Field{Off: 384, Width: 16}
	piGUIDCap        = prm.Field{Off: 400, Width: 8}
	piReregister     = prm.Field{Off: 408, Width: 1}
	piSubnetTimeout  = prm.Field{Off: 411, Width: 5}
	piErrorLimits    = prm.Field{Off: 424, Width: 8} // LocalPhyErrors and OverrunErrors
	piExtActive      = prm.Field{Off: 496, Width: 4}
	piExtSupported   = prm.Field{Off: 500, Width: 4}
	piExtEnabled     = prm.Field{Off: 507, Width: 5}
)

// Values of PortInfo.
const (
	portNoChange, portDown, portInit, portArmed, portActive   = 0, 1, 2, 3, 4
	physNoChange, physSleep, physPolling, physOff, physLinkUp = 0, 1, 2, 3, 5

	width1X, width4X   = 1, 2
	widthAll           = 255
	speedSDR, speedDDR = 1, 2
	speedQDR           = 4
	speedAll           = 15
	extFDR, extEDR     = 1, 2
	extOff, extAll     = 30, 31

	widthsSupported = width1X | width4X
	speedsSupported = speedSDR | speedDDR | speedQDR
	extSupported    = extFDR | extEDR

	vls0To3      = 3
	vlArbEntries = 8
	mtu4096      = 5
	firstMLID    = 0xc000
)
