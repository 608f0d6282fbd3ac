package fault

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
)

// field is a field of the text form. Its two functions are the only place that knows the range of a
// value: Config.Validate uses them too.
type field struct {
	name    string
	use     use
	allowed string                        // describes the values, for errors
	set     func(g *group, v string) bool // reports whether the value is allowed
	print   func(g *group) string         // returns "" if the field is not set
}

// use says what a field belongs to.
type use uint8

const (
	useAny     use = iota // the seed, and the QPN that both kinds of groups have
	usePackets            // a Rule
	usePlan               // a QPFault
)

// fields returns all fields. They are made at their first use, since most programs never use them.
func fields() []field {
	fieldsOnce.Do(func() { fieldTable = newFields() })
	return fieldTable
}

var (
	fieldsOnce sync.Once
	fieldTable []field
)

func newFields() []field {
	timeRange := fmt.Sprintf("a time such as 10ms, from 0s to %v", MaxDelay)
	return []field{
		{"seed", useAny, "a number of 64 bits", setSeed, func(*group) string { return "" }},
		{"direction", usePackets, listOf(directions), setDirection, printDirection},
		{"peer", usePackets, "an IP address without a zone, or a prefix without bits behind its length", setPeer, printPeer},
		{"qpn", useAny, "1 to 16777215", setQPN, printQPN},
		{"class", usePackets, "one or more, separated by |, of " + listOf(classes), setClass, func(g *group) string { return g.rule.Class.String() }},
		chanceField("loss", func(r *Rule) *Chance { return &r.Loss }),
		chanceField("duplicate", func(r *Rule) *Chance { return &r.Duplicate }),
		chanceField("corrupt", func(r *Rule) *Chance { return &r.Corrupt }),
		chanceField("reorder", func(r *Rule) *Chance { return &r.Reorder }),
		{"behind", usePackets, fmt.Sprintf("1 to %d", MaxBehind), setBehind, printBehind},
		{"hold", usePackets, timeRange, setHold, func(g *group) string { return printTime(g.rule.Hold) }},
		{"delay", usePackets, fmt.Sprintf("TIME, MIN..MAX or MIN+MEAN with times from 0s to %v, and MIN+%d*MEAN at most %v", MaxDelay, longestMean, MaxDelay), setDelay, printDelay},
		chanceField("delayed", func(r *Rule) *Chance { return &r.Delayed }),
		{"rate", usePackets, "1bit to 1000gbit, with unit bit, kbit, mbit or gbit", setRate, printRate},
		{"remove", usePackets, "the number of a packet, from 1", setRemove, printRemove},
		{"rnr", usePlan, fmt.Sprintf("MISSING/OF with 1 <= MISSING <= OF <= %d", MaxRNR), setRNR, printRNR},
		{"slow", usePlan, timeRange, setSlow, func(g *group) string { return printTime(g.fault.Slow) }},
		{"fail", usePlan, fmt.Sprintf("QUEUE:WR:STATUS with QUEUE send or recv, WR a number from 0, STATUS a number from 1 to %d or one of %s", MaxStatus, listOf(statuses)), setFail, printFail},
	}
}

// fieldOf returns the field with a name, or nil.
func fieldOf(name string) *field {
	all := fields()
	for i := range all {
		if all[i].name == name {
			return &all[i]
		}
	}
	return nil
}

// fieldNames lists the fields.
func fieldNames() string {
	var names []string
	for _, f := range fields() {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

func chanceField(name string, of func(*Rule) *Chance) field {
	set := func(g *group, v string) (ok bool) {
		*of(&g.rule), ok = parseChance(v)
		return ok
	}
	print := func(g *group) string {
		if c := *of(&g.rule); c != 0 {
			return c.String()
		}
		return ""
	}
	return field{name, usePackets, "0% to 100% in steps of 0.0001%", set, print}
}

func setSeed(g *group, v string) (ok bool) {
	g.seed, ok = parseUint(v, 64)
	g.seeded = true
	return ok
}

func setDirection(g *group, v string) (ok bool) {
	g.rule.Direction, ok = valueOf(directions, v)
	return ok
}

func printDirection(g *group) string {
	if g.rule.Direction == Both {
		return ""
	}
	return g.rule.Direction.String()
}

func setPeer(g *group, v string) bool {
	if a, err := netip.ParseAddr(v); err == nil {
		g.rule.Peer = netip.PrefixFrom(a, a.BitLen())
		return a == plain(a)
	}
	p, err := netip.ParsePrefix(v)
	g.rule.Peer = p
	return err == nil && p == p.Masked() && p.Addr() == plain(p.Addr())
}

func printPeer(g *group) string {
	switch p := g.rule.Peer; {
	case p == netip.Prefix{}:
		return ""
	case p.IsSingleIP():
		return p.Addr().String()
	default:
		return p.String()
	}
}

func setQPN(g *group, v string) bool {
	n, ok := parseUint(v, 24)
	g.qpn = uint32(n)
	return ok && n > 0
}

func printQPN(g *group) string {
	if g.qpn == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(g.qpn), 10)
}

func setClass(g *group, v string) bool {
	for name := range strings.SplitSeq(v, "|") {
		c, ok := valueOf(classes, name)
		if !ok {
			return false
		}
		g.rule.Class |= c
	}
	return true
}

func setBehind(g *group, v string) bool {
	n, ok := parseUint(v, 31)
	g.rule.Behind = int(n)
	return ok && n >= 1 && n <= MaxBehind
}

func printBehind(g *group) string {
	if g.rule.Behind == 0 {
		return ""
	}
	return strconv.Itoa(g.rule.Behind)
}

func setHold(g *group, v string) (ok bool) {
	g.rule.Hold, ok = parseTime(v)
	return ok
}

func setDelay(g *group, v string) (ok bool) {
	d := &g.rule.Delay
	if low, high, even := strings.Cut(v, ".."); even {
		var ok2 bool
		d.Min, ok = parseTime(low)
		d.Max, ok2 = parseTime(high)
		return ok && ok2 && d.Min <= d.Max
	}
	low, mean, exponential := strings.Cut(v, "+")
	d.Min, ok = parseTime(low)
	if exponential && ok {
		d.Mean, ok = parseTime(mean)
	}
	return ok && d.Mean <= (MaxDelay-d.Min)/longestMean
}

func printDelay(g *group) string {
	d := g.rule.Delay
	if d == (Delay{}) {
		return ""
	}
	s := d.Min.String()
	if d.Max != 0 {
		s += ".." + d.Max.String()
	}
	if d.Mean != 0 {
		s += "+" + d.Mean.String()
	}
	return s
}

// units of rates, the largest first.
var units = []named[uint64]{{1e9, "gbit"}, {1e6, "mbit"}, {1e3, "kbit"}, {1, "bit"}}

// maxRate keeps the time of a byte a whole number of nanoseconds or a useful fraction.
const maxRate = 1000 * 1_000_000_000

func setRate(g *group, v string) bool {
	for _, u := range units {
		number, ok := strings.CutSuffix(v, u.name)
		if !ok {
			continue
		}
		n, ok := parseUint(number, 64)
		if !ok || n == 0 || n > maxRate/u.value {
			return false
		}
		g.rule.Rate = n * u.value
		return true
	}
	return false
}

func printRate(g *group) string {
	for _, u := range units {
		if g.rule.Rate != 0 && g.rule.Rate%u.value == 0 {
			return strconv.FormatUint(g.rule.Rate/u.value, 10) + u.name
		}
	}
	return ""
}

func setRemove(g *group, v string) (ok bool) {
	g.rule.Remove, ok = parseUint(v, 64)
	return ok && g.rule.Remove > 0
}

func printRemove(g *group) string {
	if g.rule.Remove == 0 {
		return ""
	}
	return strconv.FormatUint(g.rule.Remove, 10)
}

func setRNR(g *group, v string) bool {
	missing, of, _ := strings.Cut(v, "/")
	m, ok1 := parseUint(missing, 31)
	n, ok2 := parseUint(of, 31)
	g.fault.RNR = RNR{int(m), int(n)}
	return ok1 && ok2 && 1 <= m && m <= n && n <= MaxRNR
}

func printRNR(g *group) string {
	if g.fault.RNR == (RNR{}) {
		return ""
	}
	return fmt.Sprintf("%d/%d", g.fault.RNR.Missing, g.fault.RNR.Of)
}

func setSlow(g *group, v string) (ok bool) {
	g.fault.Slow, ok = parseTime(v)
	return ok
}

func setFail(g *group, v string) (ok bool) {
	parts := strings.Split(v, ":")
	if len(parts) != 3 {
		return false
	}
	f := &g.fault.Fail
	if f.Queue, ok = valueOf(queues, parts[0]); !ok {
		return false
	}
	if f.WR, ok = parseUint(parts[1], 64); !ok {
		return false
	}
	if f.Status, ok = valueOf(statuses, parts[2]); ok {
		return true
	}
	n, ok := parseUint(parts[2], 32)
	f.Status = Status(n)
	return ok && 1 <= f.Status && f.Status <= MaxStatus
}

func printFail(g *group) string {
	f := g.fault.Fail
	if f == (Fail{}) {
		return ""
	}
	return fmt.Sprintf("%v:%d:%v", f.Queue, f.WR, f.Status)
}
