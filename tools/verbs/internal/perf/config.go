package perf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Operations.
const (
	Send   = "send"
	Write  = "write"
	Read   = "read"
	Atomic = "atomic"
)

// Metrics.
const (
	Lat = "lat"
	BW  = "bw"
)

// Types of queue pairs.
const (
	RC  = "rc"
	UC  = "uc"
	UD  = "ud"
	XRC = "xrc"
	DC  = "dc"
	SRD = "srd" // of efa
)

// Kinds of atomics.
const (
	Add  = "add"  // FETCH_AND_ADD of 1
	Swap = "swap" // CMP_AND_SWAP of 0 for 1
)

// Defaults, which are perftest's.
const (
	DefaultSizeLat    = 2
	DefaultSizeBW     = 65536
	MaxSizes          = 64 // of a test
	DefaultIterations = 1000
	DefaultWriteBW    = 5000 // iterations of write-bw
	DefaultDepth      = 128  // of bandwidth tests; those of latency have 1
	DefaultRecvDepth  = 512
	DefaultModerate   = 100
	DefaultTimeout    = 14
	DefaultRetry      = 7
	DefaultRNRRetry   = 7
	largeMessage      = 8192 // above, each message of RC and UC has a completion of its own
	inlineWrite       = 220  // inline data of latency tests, if the device takes as much
	inlineSend        = 236
	inlineDatagram    = 188
	atomicSize        = 8
	sweepFirst        = 1 // a sweep goes from 2 to the 23rd power of 2
	sweepLast         = 23
)

// Limits of what one side may ask of the other.
const (
	maxQPs        = 16384
	maxIterations = 100_000_000
	maxDepth      = 1 << 20
	maxTimeout    = 31
	maxRetry      = 7
	maxMessage    = 1 << 31
	maxDatagrams  = 16000
)

// Auto, as the inline size or the moderation, has the test choose.
const Auto = -1

// Config says what is measured. Both sides have the same.
type Config struct {
	Op         string        `json:"operation"`            // send, write, read or atomic
	Metric     string        `json:"metric"`               // lat or bw
	Type       string        `json:"type"`                 // rc, uc, ud, xrc, dc or srd
	Sizes      []int         `json:"sizes"`                // of messages, in bytes, in the order of the tests
	All        bool          `json:"all,omitempty"`        // Sizes is a sweep, and may be cut at what both sides take
	Shorten    bool          `json:"-"`                    // Sizes is the default, and may be reduced to what both sides take
	Iterations int           `json:"iterations,omitempty"` // messages of each QP, if Duration is 0
	Duration   time.Duration `json:"duration_ns,omitempty"`
	Warmup     int           `json:"warmup"`                    // messages of each QP before those that count
	QPs        int           `json:"qps"`                       // number of queue pairs
	Both       bool          `json:"both,omitempty"`            // both directions
	List       int           `json:"list"`                      // work requests by one doorbell; Auto for as many as there is room for, within reason
	Inline     int           `json:"inline"`                    // largest message that is sent inline, in bytes; Auto
	Moderate   int           `json:"moderate"`                  // one completion for as many messages; Auto
	Depth      int           `json:"depth"`                     // messages of each QP in flight
	RecvDepth  int           `json:"recv_depth"`                // receives of each QP; Auto
	Events     bool          `json:"events"`                    // sleep instead of polling
	Rate       Rate          `json:"rate,omitzero"`             // the most that each side sends
	Verify     bool          `json:"verify"`                    // compare what arrives
	CM         bool          `json:"cm"`                        // connect by rdma_cm
	MTU        int           `json:"mtu"`                       // path MTU in bytes; 0 for the smaller of the ports'
	SL         uint8         `json:"sl,omitempty"`              // service level
	PKey       uint16        `json:"pkey,omitempty"`            // partition; 0 for the first one of which a side is a full member
	TOS        uint8         `json:"tos,omitempty"`             // traffic class
	FlowLabel  int           `json:"flow_label,omitempty"`      // from which some devices derive the UDP source port
	AckTimeout int           `json:"ack_timeout"`               // acknowledgement, 4.096 µs times 2 to this power
	Retry      int           `json:"retry"`                     // retries
	Timeout    time.Duration `json:"timeout_ns"`                // a test in which nothing happens for so long has failed
	RdAtomic   int           `json:"reads,omitempty"`           // READs and atomics in flight; 0 for the most that both devices support
	AtomicType string        `json:"atomic_type,omitempty"`     // add or swap, of atomics
	Endless    bool          `json:"run_infinitely,omitempty"`  // the client says when it is over
	Imm        bool          `json:"imm,omitempty"`             // SENDs and WRITEs have immediate data
	OutOfOrder bool          `json:"use_ooo,omitempty"`         // data may be placed as packets arrive, also out of order
	Streams    int           `json:"log_dci_streams,omitempty"` // each initiator of DC has 2 to this power of streams
	SRQ        bool          `json:"use_srq,omitempty"`         // the QPs of a side take receives from one SRQ
	MGID       ib.GID        `json:"mgid,omitzero"`             // multicast group that messages go to
}

// Name returns the test's name, such as "send-lat".
func (c *Config) Name() string { return c.Op + "-" + c.Metric }

// Default returns the default config of a test.
func Default(op, metric string) Config {
	c := Config{
		Op: op, Metric: metric, Type: RC,
		Iterations: DefaultIterations, Warmup: 10, QPs: 1, List: 1,
		Inline: Auto, Moderate: Auto, Depth: DefaultDepth, RecvDepth: Auto,
		AckTimeout: DefaultTimeout, Retry: DefaultRetry, Timeout: 30 * time.Second,
	}
	switch {
	case op == Atomic:
		c.Sizes, c.AtomicType = []int{atomicSize}, Add
	case metric == Lat:
		c.Sizes = []int{DefaultSizeLat}
	default:
		c.Sizes = []int{DefaultSizeBW}
	}
	if metric == Lat {
		c.Depth = 1
	} else {
		c.List = Auto
	}
	if op == Write && metric == BW {
		c.Iterations = DefaultWriteBW
	}
	return c
}

// Sweep returns the sizes of a sweep, which are perftest's: the powers of 2 up to a limit.
func Sweep(limit int) (sizes []int) {
	for i := sweepFirst; i <= sweepLast && 1<<i <= limit; i++ {
		sizes = append(sizes, 1<<i)
	}
	return sizes
}

// field is an error that names a flag.
//
//go:noinline
func field(name string, given any, allowed string, args ...any) error {
	return ValueError{fmt.Errorf("--%s is %v, allowed: %s", name, given, fmt.Sprintf(allowed, args...))}
}

// ValueError is the error of a flag whose value is not allowed, for any device or for one.
type ValueError struct{ error }

// Validate refuses what no device can do. Errors name fields by their flags.
func (c *Config) Validate() error {
	for _, f := range []struct {
		name    string
		given   string
		allowed []string
	}{
		{"operation", c.Op, []string{Send, Write, Read, Atomic}},
		{"metric", c.Metric, []string{Lat, BW}},
		{"type", c.Type, []string{RC, UC, UD, XRC, DC, SRD}},
	} {
		if !slices.Contains(f.allowed, f.given) {
			return field(f.name, peertext.Quote(f.given), "%s", strings.Join(f.allowed, ", "))
		}
	}
	if err := c.validateOp(); err != nil {
		return err
	}
	if err := c.validateOptions(); err != nil {
		return err
	}
	if err := c.validateGroup(); err != nil {
		return err
	}
	for _, f := range []struct {
		name       string
		given      int
		least, max int
	}{
		{"qps", c.QPs, 1, maxQPs},
		{"depth", c.Depth, 1, maxDepth},
		{"recv-depth", c.RecvDepth, Auto, maxDepth},
		{"warmup", c.Warmup, 0, maxIterations},
		{"ack-timeout", c.AckTimeout, 1, maxTimeout},
		{"retry", c.Retry, 1, maxRetry},
		{"outs", c.RdAtomic, 0, 255},
		{"flow-label", c.FlowLabel, 0, 1<<20 - 1},
	} {
		if f.given < f.least || f.given > f.max {
			return field(f.name, f.given, "%d to %d", f.least, f.max)
		}
	}
	switch {
	case c.Duration < 0 || c.Duration > maxTime:
		return field("duration", c.Duration, "more than 0, up to %s", maxTime)
	case c.Duration == 0 && (c.Iterations < 1 || c.Iterations > maxIterations):
		return field("iterations", c.Iterations, "1 to %d", maxIterations)
	case c.RecvDepth == 0:
		return field("recv-depth", 0, "1 and more")
	case c.Inline < Auto || c.Inline > maxMessage:
		return field("inline", c.Inline, "0 to %d bytes", maxMessage)
	case c.Moderate != Auto && c.Moderate < 1:
		return field("moderate", c.Moderate, "1 and more")
	case c.Type == SRD && c.Moderate > 1:
		return field("moderate", c.Moderate, "1, as each message of type srd has a completion")
	case c.Moderate > c.Depth:
		return field("moderate", c.Moderate, "up to --depth, which is %d", c.Depth)
	case c.List != Auto && (c.List < 1 || c.List > c.Depth):
		return field("list", c.List, "1 to --depth, which is %d", c.Depth)
	case c.Timeout <= 0 || c.Timeout > maxTime:
		return field("timeout", c.Timeout, "more than 0, up to %s", maxTime)
	case c.SL != 0 && c.CM:
		return fmt.Errorf("--sl is %d, but with --cm the connection manager takes the service level from the path", c.SL)
	case c.FlowLabel != 0 && c.CM:
		return fmt.Errorf("--flow-label is %d, but with --cm the connection manager takes the flow label from the path", c.FlowLabel)
	case c.PKey != 0 && c.CM:
		return fmt.Errorf("--pkey is 0x%04x, but with --cm the connection manager takes the partition from the network interface", c.PKey)
	case c.PKey != 0 && c.PKey&0x7fff == 0:
		return field("pkey", fmt.Sprintf("0x%04x", c.PKey), "0x1 to 0x7fff, with or without the bit of full members, 0x8000")
	case c.SL > 15:
		return field("sl", c.SL, "0 to 15")
	}
	if c.MTU != 0 {
		if _, err := uverbs.MTUFromBytes(c.MTU); err != nil {
			return field("mtu", c.MTU, "256, 512, 1024, 2048, 4096")
		}
	}
	if err := c.Rate.validate(); err != nil {
		return err
	}
	switch {
	case !c.Rate.Hardware:
	case c.Rate.static() == ib.RateMax:
		return field("rate", fmt.Sprintf("%g %s", c.Rate.Value, c.Rate.Unit), "with --rate-type hw the rates of InfiniBand: 2.5Gb, 5Gb, 10Gb, 20Gb, 25Gb, 40Gb, 50Gb, 100Gb and others")
	case c.CM:
		return errors.New("--rate-type is hw, allowed: sw with --cm, as the connection manager chooses the path, which has the rate")
	case c.datagrams() || c.Type == DC:
		return fmt.Errorf("--rate-type is hw, allowed: sw with --type %s, as the path of a queue pair has the rate", c.Type)
	}
	return c.validateMetric()
}

// validateOp checks sizes and types against the operation.
func (c *Config) validateOp() error {
	switch {
	case c.Type == UD && c.Op != Send:
		return field("type", "ud", "%s, as %s needs a QP with one peer", strings.Join(c.Types(), ", "), c.Name())
	case c.Type == UC && (c.Op == Read || c.Op == Atomic):
		return field("type", "uc", "%s, as %s needs a reliable connection", strings.Join(c.Types(), ", "), c.Name())
	case (c.split() || c.Type == SRD) && c.CM:
		return field("type", c.Type, "rc, ud, as the connection manager (--cm) connects nothing for type %s", c.Type)
	case c.Type == SRD && c.Op == Atomic:
		return field("type", "srd", "%s, as SRD has no atomics", strings.Join(c.Types(), ", "))
	case c.Type == UC && c.CM:
		return field("type", "uc", "rc, ud, as the connection manager (--cm) has no connections of type uc")
	case len(c.Sizes) == 0 || len(c.Sizes) > MaxSizes:
		return fmt.Errorf("--size has %d sizes, allowed: 1 to %d", len(c.Sizes), MaxSizes)
	}
	for _, s := range c.Sizes {
		if c.Op == Atomic && s != atomicSize {
			return field("size", s, "8, the bytes of an atomic")
		}
		if s < 1 || s > maxMessage {
			return field("size", s, "1 to %d bytes", maxMessage)
		}
		if c.Op == Read && c.Inline > 0 || c.Op == Atomic && c.Inline > 0 {
			return fmt.Errorf("--inline is %d, but %s sends no data", c.Inline, c.Name())
		}
	}
	return nil
}

// Types lists the types that have the operation.
func (c *Config) Types() []string {
	switch c.Op {
	case Send:
		return []string{RC, UC, UD, XRC, DC, SRD}
	case Write:
		return []string{RC, UC, XRC, DC, SRD}
	case Read:
		return []string{RC, XRC, DC, SRD}
	}
	return []string{RC, XRC, DC}
}

// validateMetric checks what only one kind of test has.
func (c *Config) validateMetric() error {
	if c.Metric == BW {
		return nil
	}
	switch {
	case c.QPs != 1:
		return field("qps", c.QPs, "1, as %s has one message under way", c.Name())
	case c.Both:
		return fmt.Errorf("--both is for bandwidth, and this is %s", c.Name())
	case c.List != 1:
		return field("list", c.List, "1, as %s has one message under way", c.Name())
	case c.Rate.Value != 0:
		return fmt.Errorf("--rate is for bandwidth, and this is %s", c.Name())
	case c.Events && !c.messages() && c.Op == Write:
		return errors.New("--events without --imm: write-lat polls memory, for which there are no events")
	}
	return nil
}

// list returns how many messages one doorbell posts at most. With a limit to the rate they are not
// to come in bursts.
func (c *Config) list() int {
	switch {
	case c.List != Auto:
		return c.List
	case c.Rate.Value != 0 && !c.Rate.Hardware:
		return 1
	}
	const enough = 64 // what a doorbell costs is shared by these
	return min(c.Depth, enough)
}

// listOf is list for messages of a size. siw's kernel goes on with more than some bytes in a thread of its
// own, beside the two processes that poll, so on iWARP they are not posted together.
func (c *Config) listOf(size int, iwarp bool) int {
	const enough = 1 << 20
	if c.List == Auto && iwarp {
		return min(c.list(), max(1, enough/size))
	}
	return c.list()
}

// moderation returns for how many messages of a size there is one completion.
func (c *Config) moderation(size int) int {
	if c.Moderate != Auto {
		return c.Moderate
	}
	switch {
	case c.List > 1:
		return c.List
	case size > largeMessage && c.Type != UD && !c.All && !c.Events:
		return 1
	}
	return min(DefaultModerate, c.Depth)
}

// inlineWanted returns the inline data to try with first, and whether less will do.
func (c *Config) inlineWanted() (bytes int, orLess bool) {
	switch {
	case c.Inline != Auto:
		return c.Inline, false
	case c.Metric == BW || c.Op == Read || c.Op == Atomic || c.Type == SRD && c.Op == Write: // narrow WQEs have none for WRITE
		return 0, false
	case c.Op == Write:
		return inlineWrite, true
	case c.Type == UD:
		return inlineDatagram, true
	}
	return inlineSend, true
}

// maxSize returns the largest size.
func (c *Config) maxSize() int { return slices.Max(c.Sizes) }

// total returns the messages of each QP, warm-up included; 0 without an end.
func (c *Config) total() int {
	if c.Duration != 0 || c.Endless {
		return 0
	}
	return c.Warmup + c.Iterations
}

// receives reports whether receives are posted at one side.
func (c *Config) receives(server bool) bool {
	return c.messages() && (server || c.Both || c.Metric == Lat)
}

// messages reports whether what is sent takes receives.
func (c *Config) messages() bool { return c.Op == Send || c.Imm }

// sends reports whether one side posts anything to its send queue.
func (c *Config) sends(server bool) bool {
	return !server || c.Both || c.Metric == Lat && (c.Op == Send || c.Op == Write)
}

// Limits are what a device sets.
type Limits struct {
	Device     string // Device is its name.
	MaxMsg     int    // MaxMsg is the longest message of the port, in bytes.
	MaxRDMA    int    // MaxRDMA is the longest READ or WRITE of SRD, in bytes; 0 if it is unknown.
	MTU        int    // MTU is the port's active MTU, in bytes.
	MaxWR      int    // MaxWR is the longest queue.
	MaxSRQWR   int    // MaxSRQWR is the longest shared receive queue.
	MaxCQE     int    // MaxCQE is the longest CQ.
	MaxQPs     int    // MaxQPs is the most queue pairs.
	RdAtomic   int    // RdAtomic is the maximum number of READs and atomics in flight.
	Atomics    bool   // Atomics says that it has atomics.
	Driver     string // Driver is the name of its driver.
	InfiniBand bool   // InfiniBand says that the port is of InfiniBand.
	IWARP      bool   // IWARP says that it is of iWARP, which has reliable connections alone, made by the connection manager.
}

// srd reports whether the device has queue pairs of types UD and SRD alone.
func (l *Limits) srd() bool { return l.Driver == "efa" }

// limits asks a device.
func limits(dev *uverbs.Device, port uverbs.PortAttr) Limits {
	a := dev.Attr()
	efa, _ := dev.EFA()
	return Limits{
		Device: dev.Name(), MaxMsg: int(port.MaxMsgSize), MaxRDMA: int(efa.MaxRDMASize), MTU: port.ActiveMTU.Bytes(), MaxWR: int(a.MaxQPWR), MaxSRQWR: int(a.MaxSRQWR), MaxCQE: int(a.MaxCQE), MaxQPs: int(a.MaxQP),
		RdAtomic: int(min(a.MaxQPRdAtom, a.MaxQPInitRdAtom, 255)), Atomics: a.AtomicCap != ib.AtomicNone, Driver: dev.Info().Driver,
		InfiniBand: port.LinkLayer == ib.LinkLayerInfiniBand, IWARP: dev.Info().IWARP(),
	}
}

// fit refuses what a device cannot do. It cuts a sweep and shortens a default size.
func (c *Config) fit(l Limits) error {
	switch {
	case l.IWARP && c.Type != RC, l.srd() && !c.datagrams(), !l.srd() && c.Type == SRD:
		return lacks("type", l.Device, &uverbs.FeatureError{Feature: "QP type " + strings.ToUpper(c.Type), Driver: l.Driver})
	case l.IWARP && !c.CM:
		return fmt.Errorf("--cm is missing: %s is of iWARP, where the connection manager alone connects queue pairs", l.Device)
	}
	if err := c.fitOptions(l); err != nil {
		return err
	}
	if l.srd() { // requests complete in no order
		if c.Moderate > 1 {
			return field("moderate", c.Moderate, "1, as each message of %s has a completion", l.Device)
		}
		c.Moderate = 1
	}
	longest, why := l.MaxMsg, fmt.Sprintf("max_msg_sz of %s", l.Device)
	mtu := min(l.MTU, cmp.Or(c.MTU, l.MTU))
	if c.Type == UD {
		longest, why = mtu, fmt.Sprintf("the MTU of %s, as a datagram is one packet", l.Device)
	}
	if c.Type == SRD && c.Op != Send {
		longest, why = cmp.Or(l.MaxRDMA, maxMessage), fmt.Sprintf("efa_max_rdma_size of %s", l.Device)
	}
	if c.Shorten {
		c.Sizes = []int{min(c.maxSize(), longest)}
	}
	if c.All {
		c.Sizes = slices.DeleteFunc(slices.Clone(c.Sizes), func(s int) bool { return s > longest })
	}
	if len(c.Sizes) == 0 {
		return fmt.Errorf("no size of the sweep is up to %d, %s", longest, why)
	}
	if s := c.maxSize(); s > longest {
		return field("size", s, "1 to %d, %s", longest, why)
	}
	if c.Op == Atomic && !l.Atomics {
		return &uverbs.FeatureError{Feature: "atomics", Driver: l.Driver}
	}
	recvs, receives := l.MaxWR, "max_qp_wr"
	if c.split() || c.SRQ {
		recvs, receives = l.MaxSRQWR, "max_srq_wr"
	}
	for _, f := range []struct {
		name  string
		given int
		max   int
		what  string
	}{
		{"mtu", c.MTU, l.MTU, "the active MTU"},
		{"qps", c.QPs, l.MaxQPs, "max_qp"},
		{"depth", c.Depth, l.MaxWR, "max_qp_wr"},
		{"recv-depth", c.RecvDepth, recvs, receives},
		{"outs", c.RdAtomic, l.RdAtomic, "max_qp_rd_atom"},
	} {
		if f.given > f.max {
			return field(f.name, f.given, "up to %d, %s of %s", f.max, f.what, l.Device)
		}
	}
	if n := c.QPs * max(c.Depth, c.RecvDepth); n > l.MaxCQE {
		depth := "depth"
		if c.RecvDepth > c.Depth {
			depth = "recv-depth"
		}
		return fmt.Errorf("--qps times --%s is %d, allowed: up to %d, max_cqe of %s", depth, n, l.MaxCQE, l.Device)
	}
	return nil
}

// settle chooses the receives of a queue pair if they were left open. Where messages that find
// none are lost there is one for each message, as far as the device has as many.
func (c *Config) settle(l Limits) {
	if c.RecvDepth != Auto {
		return
	}
	c.RecvDepth = DefaultRecvDepth
	if c.Type == UC || c.Type == UD {
		c.RecvDepth = min(max(c.total(), DefaultRecvDepth), maxDatagrams)
	}
	most := l.MaxWR
	if c.shared() {
		most = l.MaxSRQWR / c.QPs
	}
	c.RecvDepth = max(1, min(c.RecvDepth, most, l.MaxCQE/c.QPs))
}

// Rate is the most that a side sends.
type Rate struct {
	Value float64 `json:"value"` // in Unit per second
	Unit  string  `json:"unit"`  // messages, Gb (10^9 bits), Mb (10^6 bits) or MiB (2^20 bytes)

	Hardware bool `json:"hardware,omitempty"` // the device keeps to it, for each queue pair
}

// Units of a rate.
const (
	Messages = "messages"
	Gigabits = "Gb"
	Megabits = "Mb"
	Mebibyte = "MiB"
)

// ParseRate reads a rate: a number of messages per second, or of Gb, Mb or MiB per second if
// one of these is behind it.
func ParseRate(s string) (Rate, error) {
	r := Rate{Unit: Messages}
	number := s
	for _, u := range []string{Gigabits, Megabits, Mebibyte} {
		if n, ok := strings.CutSuffix(s, u); ok {
			number, r.Unit = n, u
		}
	}
	var err error
	if r.Value, err = strconv.ParseFloat(number, 64); err != nil || r.validate() != nil || r.Value == 0 {
		return r, field("rate", strconv.Quote(s), "a number above 0, of messages per second, or with Gb, Mb or MiB behind it")
	}
	return r, nil
}

// validate checks a rate; none is well.
func (r Rate) validate() error {
	if r.Value == 0 && r.Unit == "" {
		return nil
	}
	if !(r.Value >= 0 && r.Value < 1e15) || !slices.Contains([]string{Messages, Gigabits, Megabits, Mebibyte}, r.Unit) {
		return field("rate", peertext.Quote(fmt.Sprintf("%g %s", r.Value, r.Unit)), "a number of messages, Gb, Mb or MiB per second")
	}
	return nil
}

// staticRates are the rates of InfiniBand by their names, in Gbit/s. Signals are up to 6.25 % faster.
var staticRates = map[float64]ib.StaticRate{
	2.5: ib.Rate2500M, 5: ib.Rate5G, 10: ib.Rate10G, 14: ib.Rate14G, 20: ib.Rate20G, 25: ib.Rate25G, 28: ib.Rate28G, 30: ib.Rate30G,
	40: ib.Rate40G, 50: ib.Rate50G, 56: ib.Rate56G, 60: ib.Rate60G, 80: ib.Rate80G, 100: ib.Rate100G, 112: ib.Rate112G, 120: ib.Rate120G,
	168: ib.Rate168G, 200: ib.Rate200G, 300: ib.Rate300G, 400: ib.Rate400G, 600: ib.Rate600G, 800: ib.Rate800G, 1200: ib.Rate1200G,
}

// static returns the rate of InfiniBand that the device is to keep to, or RateMax if there is none.
func (r Rate) static() ib.StaticRate {
	if !r.Hardware || r.Unit != Gigabits {
		return ib.RateMax
	}
	return staticRates[r.Value]
}

// gap returns the time for n messages of a size; 0 without a limit.
func (r Rate) gap(n, size int) time.Duration {
	if r.Value == 0 || r.Hardware {
		return 0
	}
	per := r.Value // messages per second
	switch r.Unit {
	case Gigabits:
		per = r.Value * 1e9 / float64(8*size)
	case Megabits:
		per = r.Value * 1e6 / float64(8*size)
	case Mebibyte:
		per = r.Value * (1 << 20) / float64(size)
	}
	return time.Duration(min(float64(n)/per*1e9, float64(time.Hour)))
}
