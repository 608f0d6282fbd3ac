package fault

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Parse reads the text form of a Config, for environment variables and command lines:
//
//	loss=1%,reorder=2%,seed=7
//	class=mad; direction=sent,peer=10.0.0.2,loss=5%; delay=1ms..3ms; rnr=1/4; qpn=17,fail=send:3:retry_exc_err
//
// Groups are separated by semicolons and fields by commas. A group becomes a [Rule] or a [QPFault].
// The order of rules counts, and that of fields does not. The seed may stand in any group. An empty
// text is a Config without faults. Fields of rules:
//
//	direction=sent|received|both
//	peer=10.0.0.2               or a prefix, as fd00::/64
//	qpn=17                      destination QPN
//	class=send|write            one or more of send, write, read, atomic, flush, ack, response, mad, nak
//	loss=1%                     and so duplicate, corrupt, reorder; at least 0.0001%
//	behind=3                    reordered packets: later packets that overtake, 1 to 64
//	hold=10ms                   reordered packets: the longest time
//	delay=5ms                   every delay is 5 ms
//	delay=1ms..5ms              evenly distributed
//	delay=1ms+2ms               1 ms, and beyond it exponentially distributed with a mean of 2 ms
//	delayed=10%                 part of the packets that is delayed; without it, all
//	rate=10mbit                 bits per second, in bit, kbit, mbit or gbit
//	remove=1000                 the device is removed with the 1,000th packet
//
// Fields of faults of queue pairs:
//
//	qpn=17                      own QPN
//	rnr=1/4                     of each four receives that are needed, the first one is missing
//	slow=5ms                    the responder carries out and answers a request after 5 ms
//	fail=send:3:retry_exc_err   work request 3 of the send queue (or recv) completes with this error; see Fail
//
// Every error names the field, its value and what is allowed; see [FieldError].
func Parse(text string) (Config, error) {
	var c Config
	if strings.TrimSpace(text) == "" {
		return c, nil
	}
	seeded := false
	for part := range strings.SplitSeq(text, ";") {
		var g group
		if err := g.parse(part); err != nil {
			return Config{}, err
		}
		if g.seeded {
			if seeded {
				return Config{}, fmt.Errorf("fault: field seed stands twice in %q", text)
			}
			c.Seed, seeded = g.seed, true
		}
		switch {
		case g.plan:
			g.fault.QPN = g.qpn
			c.Plan = append(c.Plan, g.fault)
		case g.packets || g.qpn != 0:
			g.rule.QPN = g.qpn
			c.Rules = append(c.Rules, g.rule)
		}
	}
	return c, nil
}

// A FieldError reports a field of the text form with a value that is not allowed.
type FieldError struct {
	Field   string // name of the field
	Value   string // the value, as it was given
	Allowed string // what the field may be
}

// Error names the field, the value and what is allowed.
func (e *FieldError) Error() string {
	return fmt.Sprintf("fault: field %s has value %q; allowed: %s", e.Field, e.Value, e.Allowed)
}

// String returns the text form. Parse returns an equal Config for it if Validate returns nil.
func (c Config) String() string {
	var groups []string
	for _, r := range c.Rules {
		groups = append(groups, (&group{rule: r, qpn: r.QPN}).String())
	}
	for _, f := range c.Plan {
		groups = append(groups, (&group{fault: f, qpn: f.QPN}).String())
	}
	text := strings.Join(groups, ";")
	if c.Seed == 0 {
		return text
	}
	seed := fmt.Sprintf("seed=%d", c.Seed)
	if text == "" {
		return seed
	}
	return seed + "," + text
}

// Validate returns an error that names the field, its value and what is allowed, if a field of a rule
// or of a fault is out of its range. A rule or a fault with no field set is an error too.
func (c Config) Validate() error {
	for i, r := range c.Rules {
		if reflect.ValueOf(r).IsZero() {
			return fmt.Errorf("fault: rule %d is empty", i)
		}
	}
	for i, f := range c.Plan {
		if f == (QPFault{QPN: f.QPN}) {
			return fmt.Errorf("fault: fault %d of the plan is empty", i)
		}
	}
	again, err := Parse(c.String())
	if err != nil {
		return err
	}
	if !c.equal(&again) {
		return fmt.Errorf("fault: the text form of %#v is %q, which means something else", c, c)
	}
	return nil
}

// equal reports whether two configurations say the same.
func (c *Config) equal(o *Config) bool {
	same := c.Seed == o.Seed && len(c.Rules) == len(o.Rules) && len(c.Plan) == len(o.Plan)
	for i := 0; same && i < len(c.Rules); i++ {
		same = c.Rules[i] == o.Rules[i]
	}
	for i := 0; same && i < len(c.Plan); i++ {
		same = c.Plan[i] == o.Plan[i]
	}
	return same
}

// group is a part of the text form between semicolons.
type group struct {
	seed   uint64
	seeded bool
	qpn    uint32
	rule   Rule
	fault  QPFault

	packets bool // a field of Rule is set, other than QPN
	plan    bool // a field of QPFault is set, other than QPN
}

// parse reads the fields of a group.
func (g *group) parse(text string) error {
	seen := make(map[string]bool)
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		f := fieldOf(name)
		switch {
		case f == nil:
			return fmt.Errorf("fault: unknown field %q; the fields are %s", name, fieldNames())
		case !ok:
			return fmt.Errorf("fault: field %s has no value; allowed: %s", name, f.allowed)
		case seen[name]:
			return fmt.Errorf("fault: field %s stands twice in %q", name, text)
		case !f.set(g, value):
			return &FieldError{name, value, f.allowed}
		}
		seen[name] = true
		g.packets = g.packets || f.use == usePackets
		g.plan = g.plan || f.use == usePlan
		if g.packets && g.plan {
			return fmt.Errorf("fault: fields of packets and of queue pairs stand together in %q; separate them by a semicolon", text)
		}
	}
	return nil
}

// String returns the fields that are set, the seed excepted.
func (g *group) String() string {
	var set []string
	for _, f := range fields() {
		if v := f.print(g); v != "" {
			set = append(set, f.name+"="+v)
		}
	}
	return strings.Join(set, ",")
}

// parseUint reads a number in decimal, or in hexadecimal with 0x.
func parseUint(s string, size int) (uint64, bool) {
	base := 10
	if hex, ok := strings.CutPrefix(s, "0x"); ok {
		s, base = hex, 16
	}
	if strings.ContainsAny(s, "+-_") {
		return 0, false
	}
	n, err := strconv.ParseUint(s, base, size)
	return n, err == nil
}

// parseTime reads a time from 0 to MaxDelay.
func parseTime(s string) (time.Duration, bool) {
	d, err := time.ParseDuration(s)
	return d, err == nil && !strings.ContainsAny(s, "+-") && d <= MaxDelay
}

// printTime is the inverse of parseTime, with "" for 0.
func printTime(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}
