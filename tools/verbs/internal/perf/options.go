package perf

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
)

// validateOptions checks the options of both sides against the operation and each other.
func (c *Config) validateOptions() error {
	kinds := []string{""}
	if c.Op == Atomic {
		kinds = []string{Add, Swap}
	}
	for _, rule := range []struct {
		broken bool
		text   string // with the name of the test
	}{
		{c.Op != Atomic && c.AtomicType != "", "--atomic-type is for atomics, and this is %s"},
		{c.Imm && c.Op != Send && c.Op != Write, "--imm is for SEND and WRITE, and this is %s"},
		{c.SRQ && !c.messages(), "--use-srq is for messages that take receives, in %s only with --imm"},
		{c.SRQ && c.Type == XRC, "--use-srq: with --type xrc the queue pairs of %s share receives in any case"},
		{c.Endless && c.Metric != BW, "--run-infinitely is for bandwidth, and this is %s"},
		{c.Endless && c.Duration != 0, "--run-infinitely and a duration exclude each other in %s"},
		{c.Endless && len(c.Sizes) > 1, "--run-infinitely: %s has no end, and there are several sizes (--size, --all)"},
		{c.Streams != 0 && c.Type != DC, "--log-dci-streams: %s has no initiators without --type dc"},
	} {
		if rule.broken {
			return fmt.Errorf(rule.text, c.Name())
		}
	}
	switch {
	case !slices.Contains(kinds, c.AtomicType):
		return field("atomic-type", peertext.Quote(c.AtomicType), "%s", strings.Join(kinds, ", "))
	case c.Streams < 0 || c.Streams > maxStreams:
		return field("log-dci-streams", c.Streams, "0 to %d", maxStreams)
	}
	return nil
}

// fitOptions refuses options that a device does not have.
func (c *Config) fitOptions(l Limits) error {
	switch {
	case !c.MGID.IsZero() && l.InfiniBand:
		return fmt.Errorf("--mcg: %s is of InfiniBand, and only groups of RoCE are implemented", l.Device)
	case c.Rate.Hardware && !l.InfiniBand:
		return fmt.Errorf("--rate-type is hw, allowed: sw, as %s is not of InfiniBand, whose devices alone limit the rate of these queue pairs", l.Device)
	case c.Imm && l.IWARP:
		return lacks("imm", l.Device, &uverbs.FeatureError{Feature: "immediate data", Driver: l.Driver})
	case c.SRQ && l.IWARP:
		return fmt.Errorf("--use-srq: %s is of iWARP, where each queue pair counts its own receives", l.Device)
	case c.SRQ && l.MaxSRQWR == 0:
		return lacks("use-srq", l.Device, &uverbs.FeatureError{Feature: "SRQ", Driver: l.Driver})
	case c.shared() && c.QPs*c.RecvDepth > l.MaxSRQWR:
		return fmt.Errorf("--qps times --recv-depth is %d, allowed with one shared receive queue: up to %d, max_srq_wr of %s", c.QPs*c.RecvDepth, l.MaxSRQWR, l.Device)
	}
	return nil
}

// immOf is the immediate data of what a queue pair sends.
func immOf(qp int) uint32 { return uint32(qp) + 1 }

// errKind refuses a completion of a receive that is not of the messages of the test.
func (e *End) errKind(wc *uverbs.WC) error {
	var flags [2]string
	for i, f := range []uverbs.WCFlags{wc.Flags, e.flags} {
		if f&uverbs.WCWithImm != 0 {
			flags[i] = " with immediate data"
		}
	}
	return refusef("a %s%s has taken a receive, expected a %s%s", wc.Opcode, flags[0], strings.ToUpper(e.Config.Op), flags[1])
}

// checkMessage compares a message that has come with what it must be. With an SRQ its receive may have been posted
// for another queue pair.
func (e *End) checkMessage(wc *uverbs.WC, qp, slot, size int) error {
	got := e.MR.Bytes()[e.recvAt(qp, slot, size):][:size]
	if e.srq != nil {
		qp = 0
		for qp < len(e.flows)-1 && e.receiver(qp).QPN() != wc.QPN {
			qp++
		}
	}
	if e.Config.Imm && wc.Imm != immOf(qp) {
		return refusef("wrong immediate data in a message of queue pair %d: %d, expected %d", qp, wc.Imm, immOf(qp))
	}
	if e.Config.Op == Write && e.Config.Metric == BW { // at the end, as several go to one place
		return nil
	}
	if err := e.mismatch("a message", qp, got); err != nil {
		return err
	}
	clear(got)
	return nil
}

// counterAfter is what an atomic finds after n others at the same place.
func (c *Config) counterAfter(n int) uint64 {
	if c.AtomicType == Swap {
		return uint64(min(n, 1))
	}
	return uint64(n)
}

// fit refuses settings that a device does not have, before anything is made.
func (l Local) fit(dev *uverbs.Device, port uint8, c *Config) error {
	attr := dev.Attr()
	flag, missing := "odp", ""
	if l.ODP {
		missing = c.onDemand(&attr)
	}
	if l.NullMR {
		if _, err := dev.NullLKey(); err != nil {
			flag, missing = "use-null-mr", "null memory region"
		}
	}
	info := dev.Info()
	switch {
	case missing != "":
		return lacks(flag, info.Name, &uverbs.FeatureError{Feature: missing, Driver: info.Driver})
	case l.ODP && info.Driver == "rxe" && !info.InProcess: // see AccessOnDemand
		return fmt.Errorf("--odp: %s: packets of driver rxe would go to the start of a page", info.Name)
	}
	err := l.CheckVector(dev)
	if err == nil {
		_, err = l.counters(dev, port)
	}
	if err == nil && c.PKey != 0 && !dev.Info().IWARP() {
		err = partOf(dev, port, c.PKey)
	}
	return err
}

// lacks is the error of a flag for what a device does not have.
func lacks(flag, device string, err error) error {
	return fmt.Errorf("--%s: %s: %w", flag, device, err)
}

// CheckVector refuses a completion vector that a device does not have.
func (l Local) CheckVector(dev *uverbs.Device) error {
	if most := max(dev.Attr().CompVectors-1, 0); l.Vector > most {
		return field("vector", l.Vector, "0 to %d, the completion vectors of %s", most, dev.Name())
	}
	return nil
}

// partOf returns an error if a port is not in the partition of a key.
func partOf(dev *uverbs.Device, port uint8, key uint16) error {
	keys, err := keysOf(dev, port)
	if err == nil && joined(keys, key) < 0 {
		err = field("pkey", fmt.Sprintf("0x%04x", key), "the P_Keys of port %d of %s: %s", port, dev.Name(), listKeys(keys))
	}
	return err
}

// listKeys lists the first keys of a table for an error.
func listKeys(keys []uint16) string {
	const most = 8
	var list []string
	for _, k := range keys {
		if k != 0 && len(list) < most {
			list = append(list, fmt.Sprintf("0x%04x", k))
		}
	}
	return strings.Join(list, ", ")
}

// keysOf returns the P_Key table of a port.
func keysOf(dev *uverbs.Device, port uint8) ([]uint16, error) {
	attr, err := dev.Port(port)
	if err != nil {
		return nil, err
	}
	keys := make([]uint16, attr.PKeyTableLen)
	for i := range keys {
		if keys[i], err = dev.PKey(port, i); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// Partition sets the P_Key of a config to the one at the index that the user chose, if there is one.
func (l Local) Partition(dev *uverbs.Device, port uint8, c *Config) error {
	if l.PKeyIndex == nil {
		return nil
	}
	keys, err := keysOf(dev, port)
	if err != nil {
		return err
	}
	index := *l.PKeyIndex
	if index >= len(keys) {
		return field("pkey-index", index, "0 to %d, of port %d of %s", len(keys)-1, port, dev.Name())
	}
	c.PKey = keys[index]
	if c.PKey&^fullMember == 0 {
		return field("pkey-index", index, "one that has a key; this entry of port %d of %s is not in use", port, dev.Name())
	}
	if i := joined(keys, c.PKey); i != index {
		return field("pkey-index", index, "%d, which has key 0x%04x of the same partition of port %d of %s", i, keys[i], port, dev.Name())
	}
	return nil
}

// fullMember is the bit of full members in a P_Key.
const fullMember = 0x8000

// joined returns the index of the key with which a queue pair joins the partition of a key: the first one of a full
// member, or else the first one.
func joined(keys []uint16, key uint16) int {
	in := func(k uint16) bool { return (k^key)&^fullMember == 0 }
	if i := slices.IndexFunc(keys, func(k uint16) bool { return k&fullMember != 0 && in(k) }); i >= 0 {
		return i
	}
	return slices.IndexFunc(keys, in)
}

// Counter is how much a counter of a port has grown.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// counters returns what the counters that the user chose have counted.
func (l Local) counters(dev *uverbs.Device, port uint8) (all []Counter, err error) {
	if l.Counters == nil {
		return nil, nil
	}
	has, err := dev.PortCounters(port)
	if err != nil {
		return nil, fmt.Errorf("--report-counters: %s: %w", dev.Name(), err)
	}
	return l.choose(dev.Name(), has)
}

// choose returns the counters of a device that the user chose, in the order of the choice.
func (l Local) choose(device string, has []netlinkrdma.Counter) (all []Counter, err error) {
	for _, name := range l.Counters {
		i := slices.IndexFunc(has, func(c netlinkrdma.Counter) bool { return c.Name == name })
		if i < 0 {
			names := ""
			for _, c := range has {
				names += " " + c.Name
			}
			return nil, field("report-counters", peertext.Quote(name), "the counters of %s:%s", device, names)
		}
		all = append(all, Counter(has[i]))
	}
	return all, nil
}

// count runs a function, and adds how much the counters have grown meanwhile to a run.
func (l Local) count(dev *uverbs.Device, port uint8, r *Run, run func() error) error {
	before, err := l.counters(dev, port)
	if err == nil {
		err = run()
	}
	if err == nil {
		r.Counters, err = l.counters(dev, port)
	}
	for i := range r.Counters {
		r.Counters[i].Value -= before[i].Value
	}
	return err
}

// maxStreams is the largest number of streams of an initiator, as a power of 2.
const maxStreams = 15

// exclude refuses settings that exclude each other.
func (l *Local) exclude(c *Config) error {
	dmabuf := l.DMABuf != ""
	if l.Direct && (!dmabuf || l.heap() != "") {
		return errors.New("--use-data-direct needs --dmabuf with the memory of another device, which alone the second PCI function is for")
	}
	given := map[string]bool{
		"dmabuf": dmabuf, "huge-pages": l.HugePages, "inline": c.Inline > 0, "odp": l.ODP, "ph": l.DMAH != nil, "pkey": c.PKey != 0, "pkey-index": l.PKeyIndex != nil,
		"relaxed-ordering": l.Relaxed, "type dc": c.Type == DC, "use-data-direct": l.Direct, "use-dm": l.DM, "use-null-mr": l.NullMR,
	}
	rules := []struct{ flag, others string }{
		{"pkey-index", "pkey"},
		{"dmabuf", "huge-pages,odp"},
		{"use-null-mr", "inline"},
		{"use-dm", "dmabuf,huge-pages,odp,relaxed-ordering,ph"},
		{"ph", "odp,use-data-direct"},
		{"odp", "type dc"},
	}
	if !c.Both && (c.Op != Write || c.Metric == BW) { // this side's own memory is not used with the null MR
		rules = append(rules, struct{ flag, others string }{"use-null-mr", "use-dm,ph,dmabuf,odp,huge-pages,relaxed-ordering"})
	}
	for _, flag := range []string{"dmabuf", "use-dm", "use-null-mr"} {
		if given[flag] && (flag == "use-null-mr" || l.Foreign()) && (c.Verify || c.Op == Write && c.Metric == Lat && !c.Imm) {
			return fmt.Errorf("--%s: the memory is not the program's to look at, which --verify and write-lat do", flag)
		}
	}
	for _, r := range rules {
		for other := range strings.SplitSeq(r.others, ",") {
			if given[r.flag] && given[other] {
				return fmt.Errorf("--%s and --%s exclude each other", r.flag, other)
			}
		}
	}
	return nil
}

// onDemand returns what a test needs of memory that is paged in on demand, and the device does not have; or "".
func (c *Config) onDemand(attr *uverbs.DeviceAttr) string {
	need := uverbs.ODPSend | uverbs.ODPRecv
	switch c.Op {
	case Write:
		need = uverbs.ODPWrite
	case Read:
		need = uverbs.ODPRead
	case Atomic:
		need = uverbs.ODPAtomic
	}
	if c.shared() && c.messages() {
		need |= uverbs.ODPSRQRecv
	}
	has := attr.ODPCapsRC
	switch c.Type {
	case UC:
		has = attr.ODPCapsUC
	case UD:
		has = attr.ODPCapsUD
	case XRC:
		has = attr.ODPCapsXRC
	}
	if has&need == need {
		return ""
	}
	return c.Op + " over " + c.Type + " on demand"
}

// progress is what Count shows. For a sender of a test without an end, and of one with a time line, it is how many
// messages have completed.
func (e *End) progress() int64 {
	if !e.Config.Endless && !e.exact || !e.Config.sends(e.Server) || e.Config.Metric == Lat {
		return e.done
	}
	n := 0
	for i := range e.flows {
		n += e.flows[i].completed
	}
	return int64(n)
}
