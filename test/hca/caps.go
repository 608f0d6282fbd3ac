package hca

import (
	"slices"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// capSet has the card's capabilities by kind: what is possible, and what is in force.
type capSet map[int]*capPair

type capPair struct{ max, cur []byte }

// setting is one field of a set of capabilities.
type setting struct {
	f prm.Field
	v uint64
}

// logMaxKLMs is log2 of how many entries an indirect key has at most: enough for a key of all
// addresses of a process in steps of 1 GiB (mlx5_imr_ksm_entries), unless these have more than 48 bits.
const logMaxKLMs = 18

// mostLogUARPage is log2 of the host's largest page, in pages of 4 KiB.
const mostLogUARPage = 4

// general are the capabilities that do not depend on the mode. All others are missing: no page
// requests, no eswitch, no tag matching.
var general = []setting{
	{prm.CapPageRequestDisable, 1}, {prm.CapReleaseAllPages, 1},
	{prm.CapLogMaxQP, 12}, {prm.CapLogMaxQPSize, 15}, {prm.CapLogMaxSRQ, 12}, {prm.CapLogMaxSRQSize, 15},
	{prm.CapLogMaxCQ, 14}, {prm.CapLogMaxCQSize, 22}, {prm.CapLogMaxEQ, 6}, {prm.CapLogMaxEQSize, 22},
	{prm.CapLogMaxMKey, 16}, {prm.CapLogMaxPD, 14}, {prm.CapLogMaxXRCD, 14}, {prm.CapLogMaxTD, 14},
	{prm.CapLogMaxRQ, 12}, {prm.CapLogMaxSQ, 12}, {prm.CapLogMaxTIR, 12}, {prm.CapLogMaxTIS, 12}, {prm.CapLogMaxRMP, 12},
	{prm.CapLogMaxRQT, 12}, {prm.CapLogMaxRQTSize, 10}, {prm.CapLogMaxTISPerSQ, 3}, {prm.CapCyclicRecvWQE, 1},
	{prm.CapLogMaxWQSize, 15}, {prm.CapLogMaxStrideRQ, 11}, {prm.CapLogMinStrideRQ, 4}, {prm.CapLogMaxStrideSQ, 9}, {prm.CapLogMinStrideSQ, 6},
	{prm.CapLogMaxUCList, 7}, {prm.CapLogMaxMCList, 11}, {prm.CapLogMaxVLANList, 12},
	{prm.CapMaxSGL, 30}, {prm.CapMaxIndirection, 4}, {prm.CapFixedBufferSize, 1}, {prm.CapLogMaxMRWSize, 64}, {prm.CapLogMaxKLMList, logMaxKLMs},
	{prm.CapLogMaxRAReqQP, 4}, {prm.CapLogMaxRAResQP, 4}, {prm.CapLogMaxMsg, 30}, {prm.CapLocalCAAckDelay, 16},
	{prm.CapGIDTableSize, prm.CapGIDTable64}, {prm.CapPKeyTableSize, prm.CapPKeyTable128}, {prm.CapNumPorts, 1},
	{prm.CapCQEVersion, 1}, {prm.CapCompactAddress, 1}, {prm.CapUMRFence, 2}, {prm.CapScatterCQE, 1},
	{prm.CapAtomicBit, 1}, {prm.CapCQOI, 1}, {prm.CapCQResize, 1}, {prm.CapCQModeration, 1}, {prm.CapBlockLBMC, 1}, {prm.CapCD, 1},
	{prm.CapIMAICL, 1}, {prm.CapQKV, 1}, {prm.CapPKV, 1}, {prm.CapSetDETHSQPN, 1}, {prm.CapAPM, 1},
	{prm.CapKind2, 1}, {prm.CapUnorderedUD, 1}, {prm.CapUnorderedUC, 1}, {prm.CapUnorderedXRC, 1}, {prm.CapUnorderedDC, 1}, {prm.CapUnorderedRC, 1},
	{prm.CapXRC, 1}, {prm.CapUD, 1}, {prm.CapUC, 1}, {prm.CapRC, 1}, {prm.CapLogPageSize, 12},
	{prm.CapBF, 1}, {prm.CapLogBFRegSize, 9}, {prm.CapMaxWQESizeSQ, 1024}, {prm.CapMaxWQESizeRQ, 512},
	{prm.CapMaxQPMCG, 240}, {prm.CapLogMaxMCG, 16}, {prm.CapNullMKey, 1}, {prm.CapTerminateMKey, 1}, {prm.CapDumpFillMKey, 1},
	{prm.CapDeviceMemory, 1}, {prm.CapPageFaults, 1}, {prm.CapUMROffset, 1},
	{prm.CapDCT, 1}, {prm.CapLogMaxRAReqDC, 4}, {prm.CapLogMaxRAResDC, 4}, {prm.CapLogMaxDCIStreams, 3}, {prm.CapLogMaxDCIFailed, 3}, {prm.CapQPExtension, 1},
	{prm.CapUAR4K, 1}, {prm.CapLogUARPage, mostLogUARPage}, // off until a driver with larger pages turns it on
	{prm.CapMaxQPCount, engine.MaxCounterSets}, {prm.CapOutOfSeqCount, 1}, {prm.CapRetransmitCounters, 1}, {prm.CapErrorCounters, 1},
	{prm.CapRTS2RTSCounters, 1}, {prm.CapModifyRQCounters, 1},
	{prm.CapStridingRQ, 1}, {prm.CapFewStrides, 1}, {prm.CapCompressed, 1}, {prm.CapCompressedMost, engine.MostCompressed}, {prm.CapMiniStride, 1},
	{prm.CapDebugBit, 1}, {prm.CapDriverVersion, 1}, {prm.CapDeviceFrequencyMHz, 1000}, {prm.CapDeviceFrequencyKHz, 1000000},
}

// Static rates go from 2.5 to 120 Gb/s.
var generalIB = []setting{{prm.CapPortType, prm.CapPortTypeIB}, {prm.CapIBVirt, 1}, {prm.CapStatRateSupport, 0xff80}}

var generalRoCE = []setting{
	{prm.CapPortType, prm.CapPortTypeEthernet}, {prm.CapEthNetOffloads, 1}, {prm.CapNICFlowTable, 1}, {prm.CapRoCEBit, 1},
	{prm.CapMaxTC, 8}, {prm.CapQoSBit, 1}, {prm.CapRTS2RTSSport, 1},
}

// atomics: compare and swap, fetch and add, and both masked; of 8 bytes; the result in
// the host's order if the driver asks for it.
var atomics = []setting{{prm.CapAtomicHostOrder, 1}, {prm.CapAtomicOps, 0xf}, {prm.CapAtomicSizeQP, 8}, {prm.CapAtomicSizeDC, 8}}

// onDemand is what may wait for pages: by the older of the two schemes, in which queues are suspended.
var onDemand = []setting{{prm.CapODPRC, odpConnected}, {prm.CapODPXRC, odpConnected}, {prm.CapODPUD, prm.ODPSend}, {prm.CapODPDC, prm.ODPSend}}

const odpConnected = prm.ODPSend | prm.ODPReceive | prm.ODPWrite | prm.ODPRead | prm.ODPAtomic | prm.ODPSRQReceive

// ethernet: headers need not be inline, as the virtual port says.
var ethernet = []setting{{prm.CapEthChecksum, 1}, {prm.CapEthVLAN, 1}, {prm.CapEthSelfLB, 1}, {prm.CapEthMaxLSO, 16}, {prm.CapEthInlineMode, 1}, {prm.CapEthRSSTable, 8}}

// pacing: rates in kbit/s, of which the table has one less than it says.
var pacing = []setting{{prm.CapQoSPacing, 1}, {prm.CapQoSMinRate, leastRate}, {prm.CapQoSMaxRate, mostRate}, {prm.CapQoSRateTable, rates}}

const (
	leastRate, mostRate = 64, 100_000_000
	rates               = 128
)

const (
	roceAddresses               = 64
	minSport                    = 0xc000
	roceV1, roceV2              = 1 << 0, 1 << 2
	roceGRH, roceIPv4, roceIPv6 = 1 << 0, 1 << 1, 1 << 2
)

var roceCaps = []setting{
	{prm.CapRoCEVersion, roceV1 | roceV2}, {prm.CapRoCEL3Type, roceIPv4 | roceIPv6},
	{prm.CapRoCEDestPort, 4791}, {prm.CapRoCEMinSport, minSport}, {prm.CapRoCEMaxSport, 0xffff},
}

var flowTableCaps = []setting{
	{prm.CapFTSupport, 1}, {prm.CapFTModifyEn, 1}, {prm.CapFTModifyRoot, 1}, {prm.CapFTIdentifiedMiss, 1}, {prm.CapFTModify, 1},
	{prm.CapFTLogMaxSize, 16}, {prm.CapFTMaxLevel, 64}, {prm.CapFTLogMaxNum, 16}, {prm.CapFTLogMaxDest, 8}, {prm.CapFTLogMaxFlow, 16},
}

func apply(b []byte, settings []setting) {
	for _, s := range settings {
		s.f.Put(b, s.v)
	}
}

// newCaps gives the capabilities of a card after power-on.
func newCaps(mode Mode, index uint8, p *Personality) capSet {
	set := capSet{}
	add := func(kind int, settings ...[]setting) []byte {
		b := make([]byte, prm.CapsSize)
		for _, s := range settings {
			apply(b, s)
		}
		set[kind] = &capPair{max: b}
		return b
	}
	own := []setting{{prm.CapVHCAID, uint64(index) + 1}}
	if !p.NoAtomics {
		add(prm.CapAtomic, atomics)
	}
	add(prm.CapGeneral2, []setting{{prm.Cap2ForceOrdering, 1}})
	add(prm.CapODP, onDemand)
	add(prm.CapDebug, []setting{{prm.CapResourceDump, 1}})
	add(prm.CapDevMem, deviceMemory(p))
	if mode == IB {
		add(prm.CapGeneral, general, generalIB, own, p.general(mode))
	} else {
		add(prm.CapGeneral, general, generalRoCE, own, p.general(mode))
		add(prm.CapEthernet, ethernet)
		add(prm.CapQoS, pacing)
		add(prm.CapRoCE, roceCaps, []setting{{prm.CapRoCETableSize, uint64(p.gids())}})
		ft := add(prm.CapFlowTable)
		for _, at := range []int{prm.CapFTReceive, prm.CapFTReceiveRDMA, prm.CapFTTransmit, prm.CapFTTransmitRDMA} {
			table := prm.Record(ft, at, prm.CapFTSize)
			apply(table, flowTableCaps)
			prm.CapFTMissDomain.PutBool(table, at == prm.CapFTReceiveRDMA)
			if at == prm.CapFTReceive {
				prm.CapFTFlowCounter.Put(table, 1)
			}
			copy(prm.Record(table, prm.CapFTFields, prm.CapFTFieldsSize), supportedMatches())
		}
	}
	for _, c := range set {
		c.cur = slices.Clone(c.max)
	}
	now := set[prm.CapGeneral].cur
	prm.CapUAR4K.Put(now, 0)
	prm.CapLogUARPage.Put(now, 0)
	prm.CapUARsPerPage.Put(now, 1)
	return set
}

// queryCaps is QUERY_HCA_CAP.
func (d *Device) queryCaps(c *call) error {
	kind := int(c.opmod >> 1)
	p, ok := d.caps[kind]
	if !ok {
		return refuse(prm.BadParam, "capability kind", "%#x is not there", kind)
	}
	if c.opmod&1 == 1 {
		copy(c.out[prm.CapsData:], p.cur)
	} else {
		copy(c.out[prm.CapsData:], p.max)
	}
	return nil
}

// writable are the general capabilities that the driver may set, each to at most what is
// possible. Other fields must keep their values.
var writable = []prm.Field{
	prm.CapLogMaxQP, prm.CapPKeyTableSize, prm.CapLogUARPage, prm.CapReleaseAllPages, prm.CapLogMaxUCList, prm.CapCmdChecksum, prm.CapRoCEBit,
	prm.CapDCT, prm.CapUAR4K,
}

// setCaps is SET_HCA_CAP. It is possible only before INIT_HCA.
func (d *Device) setCaps(c *call) error {
	if d.phase == phaseRunning {
		return refuse(prm.BadSysState, "state", "SET_HCA_CAP after INIT_HCA")
	}
	kind := int(c.opmod >> 1)
	p, ok := d.caps[kind]
	if !ok {
		return refuse(prm.BadParam, "capability kind", "%#x is not there", kind)
	}
	want := c.in[prm.CapsData:]
	switch kind {
	case prm.CapGeneral:
		next := slices.Clone(p.cur)
		for _, f := range writable {
			if f.Get(want) > f.Get(p.max) {
				return refuse(prm.BadParam, "capabilities", "bit %#x becomes %d, where %d is possible", f.Off, f.Get(want), f.Get(p.max))
			}
			f.Put(next, f.Get(want))
		}
		prm.CapUARsPerPage.Put(next, prm.CapUARsPerPage.Get(want)) // the card knows better, see below
		if i := firstDifference(next, want); i >= 0 {
			return refuse(prm.BadParam, "capabilities", "byte %#x would become %#x from %#x, which the driver may not set", i, want[i], next[i])
		}
		if prm.CapLogUARPage.Get(next) > 0 && !prm.CapUAR4K.Bool(next) {
			return refuse(prm.BadParam, "log_uar_page_sz", "%d without uar_4k: UAR pages have 4 KiB here", prm.CapLogUARPage.Get(next))
		}
		prm.CapUARsPerPage.Put(next, 1<<prm.CapLogUARPage.Get(next))
		p.cur = next
	case prm.CapAtomic:
		// Only the order of bytes can be set; the rest of the record may be anything.
		prm.CapAtomicMode.Put(p.cur, prm.CapAtomicMode.Get(want))
	case prm.CapODP:
		// All that is possible is in force already, and stays so.
		if i := firstDifference(p.cur, want); i >= 0 {
			return refuse(prm.BadParam, "capabilities", "byte %#x of on-demand paging would become %#x from %#x", i, want[i], p.cur[i])
		}
	default:
		return refuse(prm.BadParam, "capability kind", "%#x can't be set", kind)
	}
	return nil
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
