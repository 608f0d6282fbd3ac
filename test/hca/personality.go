package hca

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// Personality is what makes a card differ from others of its family. Its fields are independent
// choices, and the zero value of each is what the card of the name plain does. A driver must work
// with every combination.
type Personality struct {
	// Name is a fixed personality's name, or the seed of one that was drawn.
	Name string
	// Seed is the seed of everything that the card leaves to chance: noise and order.
	Seed uint64

	// BAR is the size of BAR 0 in bytes; 0 is BARSize. It limits the number of UAR pages.
	BAR uint64
	// NoBlueFlame: the card fetches every WQE from memory, as where the host does not combine
	// writes.
	NoBlueFlame bool
	// SmallBlueFlame: doorbell registers have 256 bytes and not 512. With 1,024 the kernel would
	// use registers behind the end of a UAR page, as it takes four of them.
	SmallBlueFlame bool

	// CQEVersion0: CQEs have no user index.
	CQEVersion0 bool
	// ShortWQEs: a send WQE has at most 512 bytes and not 1,024. On Ethernet that is not so, as the
	// kernel's driver of the interface wants 1,024.
	ShortWQEs bool
	// NoAtomics: there are no atomic operations.
	NoAtomics bool
	// NoCQResize: a CQ keeps its size.
	NoCQResize bool
	// NoScatterCQE: the card does not put the data of short messages into CQEs.
	NoScatterCQE bool
	// SmallLimits: there are few objects, and queues are short.
	SmallLimits bool
	// NoDC: there is no DC, the dynamically connected transport.
	NoDC bool
	// FewDCReads: a DCI has fewer READs and atomics under way than an RC QP may have.
	FewDCReads bool
	// NoQPCounters: a QP that is connected keeps its counter set, so that it cannot get one of its
	// own.
	NoQPCounters bool
	// DEVX: the card has user contexts, in which programs give commands of their own. A real card has
	// them, with memory that programs register for queues (CREATE_UMEM), which UCX and DPDK take for
	// granted. The model does not have that memory, so the usual card has no user contexts.
	DEVX bool
	// LAG: the function is one of an adapter with two ports in link aggregation, on Ethernet.
	LAG bool
	// ECE: the card takes part in enhanced connection establishment.
	ECE bool

	// GRHRequired: an InfiniBand port drops packets without a GRH.
	GRHRequired bool
	// SharedLID: the InfiniBand ports of all cards have one LID, as functions of one adapter have.
	SharedLID bool
	// PKeyIndex is where an InfiniBand port has the default P_Key, 0xffff. If it is not 0, the
	// first entry is another partition, of which all ports are full members.
	PKeyIndex int
	// NoSMI: an InfiniBand port has no subnet management interface (SMI), as those of most virtual functions: QP0
	// is dead. The host's subnet manager cannot manage it, so it is not drawn.
	NoSMI bool
	// ManyGIDs: an Ethernet port has 256 GIDs and not 64.
	ManyGIDs bool

	// Noise: fields of CQEs that have no meaning are random.
	Noise bool
	// SlowResize: RESIZE_CQ takes some time, and the ring changes in the middle of it.
	SlowResize bool
	// SRQFaults: a page fault completes the receive WQE of an SRQ with an error.
	SRQFaults bool
	// ReorderRecvs: receive WQEs may be used in another order than they were posted in, as by cards
	// that are told to force it. Programs see the order, so it is not drawn from a seed.
	ReorderRecvs bool
	// ReorderWrites: packets of an RDMA WRITE reach memory in another order than they were sent in.
	ReorderWrites bool
	// OutOfOrderRC: of the types of QPs only RC may use receives and place data in any order.
	OutOfOrderRC bool
}

// personalities are the fixed ones.
var personalities = []Personality{
	{Name: "plain"},
	{Name: "devx", DEVX: true},
	{
		Name: "small", BAR: 1 << 20, CQEVersion0: true, ShortWQEs: true, NoAtomics: true, NoCQResize: true,
		NoScatterCQE: true, SmallLimits: true, NoDC: true, NoQPCounters: true,
	},
	{
		Name: "vf", BAR: 2 << 20, SmallBlueFlame: true, GRHRequired: true, SharedLID: true, PKeyIndex: 3, Noise: true, SlowResize: true, OutOfOrderRC: true,
		FewDCReads: true, DEVX: true, Seed: 1,
	},
	{
		Name: "late", BAR: 32 << 20, ECE: true, LAG: true, ManyGIDs: true, Noise: true, SlowResize: true, SRQFaults: true, ReorderWrites: true,
		FewDCReads: true, DEVX: true, Seed: 2,
	},
	// Without BlueFlame the kernel gives up on the card at a busy moment: it waits 100 ms for 256 NOPs.
	{Name: "unordered", NoBlueFlame: true, Noise: true, ReorderRecvs: true, ReorderWrites: true, Seed: 3},
	{Name: "no-smi", NoSMI: true},
}

// Personalities names the fixed personalities.
func Personalities() []string {
	var names []string
	for _, p := range personalities {
		names = append(names, p.Name)
	}
	return names
}

// ParsePersonality finds a personality: the name of a fixed one, a seed, which is a number from 1
// on, or random, which draws a seed. The result's name is what gives the same one again.
func ParsePersonality(s string) (Personality, error) {
	for _, p := range personalities {
		if p.Name == s {
			return p, nil
		}
	}
	if s == "random" {
		return DrawPersonality(uint64(time.Now().UnixNano())%1e9 + 1), nil
	}
	seed, err := strconv.ParseUint(s, 10, 64)
	if err != nil || seed == 0 {
		return Personality{}, fmt.Errorf("personality %q: want %s, random, or a seed from 1 on", s, strings.Join(Personalities(), ", "))
	}
	return DrawPersonality(seed), nil
}

// DrawPersonality makes the personality of a seed: each choice is made by itself.
func DrawPersonality(seed uint64) Personality {
	rng := rand.New(rand.NewPCG(seed, 0x7065))
	p := Personality{Name: strconv.FormatUint(seed, 10), Seed: seed}
	p.BAR = []uint64{0, 1 << 20, 2 << 20, 32 << 20}[rng.IntN(4)]
	p.PKeyIndex = max(rng.IntN(3*pkeyCount/2)-pkeyCount, 0)
	for _, c := range choices {
		if c.flag != nil && !c.kept && rng.IntN(3) == 0 {
			*c.flag(&p) = true
		}
	}
	// Ports of one LID can only be told apart by a GRH.
	p.GRHRequired = p.GRHRequired || p.SharedLID
	return p
}

// choices are the words by which a personality is written down, and the flag of each that is one.
// New ones go to the end, so that a seed keeps its meaning.
var choices = []struct {
	word string
	flag func(p *Personality) *bool
	text func(p *Personality) string // the value; empty is the usual one
	kept bool                        // it is not drawn
}{
	{word: "bar", text: func(p *Personality) string {
		if p.BAR == 0 {
			return ""
		}
		return strconv.FormatUint(p.BAR>>20, 10) + "MiB"
	}},
	{word: "no-blueflame", flag: func(p *Personality) *bool { return &p.NoBlueFlame }},
	{word: "small-blueflame", flag: func(p *Personality) *bool { return &p.SmallBlueFlame }},
	{word: "cqe-version-0", flag: func(p *Personality) *bool { return &p.CQEVersion0 }},
	{word: "short-wqes", flag: func(p *Personality) *bool { return &p.ShortWQEs }},
	{word: "no-atomics", flag: func(p *Personality) *bool { return &p.NoAtomics }},
	{word: "no-cq-resize", flag: func(p *Personality) *bool { return &p.NoCQResize }},
	{word: "no-scatter-cqe", flag: func(p *Personality) *bool { return &p.NoScatterCQE }},
	{word: "small-limits", flag: func(p *Personality) *bool { return &p.SmallLimits }},
	{word: "grh-required", flag: func(p *Personality) *bool { return &p.GRHRequired }},
	{word: "shared-lid", flag: func(p *Personality) *bool { return &p.SharedLID }},
	{word: "default-pkey", text: func(p *Personality) string {
		if p.PKeyIndex == 0 {
			return ""
		}
		return strconv.Itoa(p.PKeyIndex)
	}},
	{word: "many-gids", flag: func(p *Personality) *bool { return &p.ManyGIDs }},
	{word: "noise", flag: func(p *Personality) *bool { return &p.Noise }},
	{word: "slow-resize", flag: func(p *Personality) *bool { return &p.SlowResize }},
	{word: "srq-faults", flag: func(p *Personality) *bool { return &p.SRQFaults }},
	{word: "reorder-recvs", kept: true, flag: func(p *Personality) *bool { return &p.ReorderRecvs }},
	{word: "reorder-writes", flag: func(p *Personality) *bool { return &p.ReorderWrites }},
	{word: "ece", flag: func(p *Personality) *bool { return &p.ECE }},
	{word: "no-dc", flag: func(p *Personality) *bool { return &p.NoDC }},
	{word: "no-qp-counters", flag: func(p *Personality) *bool { return &p.NoQPCounters }},
	{word: "devx", flag: func(p *Personality) *bool { return &p.DEVX }},
	{word: "lag", flag: func(p *Personality) *bool { return &p.LAG }},
	{word: "out-of-order-rc", flag: func(p *Personality) *bool { return &p.OutOfOrderRC }},
	{word: "no-smi", kept: true, flag: func(p *Personality) *bool { return &p.NoSMI }},
	{word: "few-dc-reads", flag: func(p *Personality) *bool { return &p.FewDCReads }},
}

// String is the name and a word for each choice that differs from those of plain:
//
//	vf bar=2MiB small-blueflame grh-required shared-lid default-pkey=5 noise slow-resize
func (p Personality) String() string {
	words := []string{p.Name}
	if p.Name == "" {
		words[0] = personalities[0].Name
	}
	for _, c := range choices {
		if c.flag != nil && *c.flag(&p) {
			words = append(words, c.word)
		}
		if c.text != nil && c.text(&p) != "" {
			words = append(words, c.word+"="+c.text(&p))
		}
	}
	return strings.Join(words, " ")
}

// check finds values that no card can have.
func (p *Personality) check() error {
	if p.BAR != 0 && (p.BAR < 1<<20 || p.BAR > BARSize || p.BAR&(p.BAR-1) != 0) {
		return fmt.Errorf("personality %s: a BAR of %d bytes: want a power of two from %d to %d", p.Name, p.BAR, 1<<20, BARSize)
	}
	if p.PKeyIndex < 0 || p.PKeyIndex >= pkeyCount {
		return fmt.Errorf("personality %s: the default P_Key at %d: want 0 to %d", p.Name, p.PKeyIndex, pkeyCount-1)
	}
	return nil
}

// BARBytes is the size of BAR 0.
func (p *Personality) BARBytes() uint64 {
	if p.BAR == 0 {
		return BARSize
	}
	return p.BAR
}

// gids is the number of GIDs of an Ethernet port.
func (p *Personality) gids() int {
	if p.ManyGIDs {
		return 256
	}
	return roceAddresses
}

// Limits of a card with SmallLimits. The kernel's own queues have to fit: its UMR QP has 1,024
// blocks, and the queues of an Ethernet interface 1,024 entries and more.
const (
	smallLogQPs, smallLogCQs, smallLogSRQs, smallLogMKeys = 10, 10, 9, 12

	smallLogQPSize, smallLogSRQSize, smallLogCQSize = 10, 11, 13
)

// fewLogDCReads is log2 of the READs and atomics of a DCI on a card with FewDCReads.
const fewLogDCReads = 2

// partition is the P_Key of the first entry where the default one is elsewhere.
const partition = 0x8a5c

// traits are the choices that are about the data path.
func (p *Personality) traits(mode Mode) engine.Traits {
	t := engine.Traits{
		NoBlueFlame: p.NoBlueFlame, NoAtomics: p.NoAtomics, GRHRequired: p.GRHRequired, SharedLID: p.SharedLID, NoSMI: p.NoSMI,
		SRQFaults: p.SRQFaults, ReorderRecvs: p.ReorderRecvs, ReorderWrites: p.ReorderWrites, OutOfOrderRC: p.OutOfOrderRC,
	}
	if p.SmallBlueFlame {
		t.LogBF = 8
	}
	if p.ShortWQEs && mode == IB {
		t.MaxSendWQE = 512
	}
	if p.FewDCReads {
		t.LogMaxDCReads = fewLogDCReads
	}
	if p.Noise {
		t.Noise = max(p.Seed, 1)
	}
	if p.SmallLimits {
		t.LogMaxQPSize, t.LogMaxSRQSize, t.LogMaxCQSize = smallLogQPSize, smallLogSRQSize, smallLogCQSize
		t.MaxCQs, t.MaxSRQs, t.MaxMKeys = 1<<smallLogCQs, 1<<smallLogSRQs, 1<<smallLogMKeys
	}
	return t
}

// general are the capabilities in which the personality differs.
func (p *Personality) general(mode Mode) []setting {
	var all []setting
	add := func(differs bool, settings ...setting) {
		if differs {
			all = append(all, settings...)
		}
	}
	add(p.SmallBlueFlame, setting{prm.CapLogBFRegSize, 8})
	add(p.CQEVersion0, setting{prm.CapCQEVersion, 0})
	add(p.ShortWQEs && mode == IB, setting{prm.CapMaxWQESizeSQ, 512})
	add(p.NoAtomics, setting{prm.CapAtomicBit, 0})
	add(p.NoCQResize, setting{prm.CapCQResize, 0})
	add(p.NoScatterCQE, setting{prm.CapScatterCQE, 0})
	add(p.NoQPCounters, setting{prm.CapRTS2RTSCounters, 0})
	add(p.ECE, setting{prm.CapECE, 1})
	add(p.DEVX, setting{prm.CapLogMaxUCtx, logMaxUCtx}, setting{prm.CapUCtx, prm.UCtxRawTX})
	add(p.LAG && mode == RoCE, setting{prm.CapLAGPorts, lagPorts}, setting{prm.CapLAGPort, 1}, setting{prm.CapRTS2RTSLAGPort, 1})
	add(p.OutOfOrderRC, setting{prm.CapUnorderedUD, 0}, setting{prm.CapUnorderedUC, 0}, setting{prm.CapUnorderedXRC, 0}, setting{prm.CapUnorderedDC, 0})
	add(p.FewDCReads, setting{prm.CapLogMaxRAReqDC, fewLogDCReads}, setting{prm.CapLogMaxRAResDC, fewLogDCReads})
	add(p.NoDC, setting{prm.CapDCT, 0}, setting{prm.CapLogMaxRAReqDC, 0}, setting{prm.CapLogMaxRAResDC, 0},
		setting{prm.CapLogMaxDCIStreams, 0}, setting{prm.CapLogMaxDCIFailed, 0})
	add(p.SmallLimits,
		setting{prm.CapLogMaxQP, smallLogQPs}, setting{prm.CapLogMaxCQ, smallLogCQs}, setting{prm.CapLogMaxSRQ, smallLogSRQs},
		setting{prm.CapLogMaxMKey, smallLogMKeys}, setting{prm.CapLogMaxQPSize, smallLogQPSize},
		setting{prm.CapLogMaxSRQSize, smallLogSRQSize}, setting{prm.CapLogMaxCQSize, smallLogCQSize})
	return all
}

// pkeys is the port's table of P_Keys after power-on. On Ethernet there is the default one alone.
func (p *Personality) pkeys(mode Mode) []uint16 {
	table := make([]uint16, pkeyCount)
	if mode == RoCE {
		table[0] = 0xffff
		return table
	}
	table[0] = partition
	table[p.PKeyIndex] = 0xffff
	return table
}
