package fault

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// texts are text forms with what they mean. canonical is what String returns, if that is another text.
var texts = []struct {
	text, canonical string
	config          Config
}{
	{"", "", Config{}},
	{" ", "", Config{}},
	{"seed=7", "", Config{Seed: 7}},
	{"seed=0xffffffffffffffff", "seed=18446744073709551615", Config{Seed: 1<<64 - 1}},
	{
		"loss=1%,reorder=2%,seed=7", "seed=7,loss=1%,reorder=2%",
		Config{Seed: 7, Rules: []Rule{{Loss: Percent, Reorder: 2 * Percent}}},
	},
	{
		"direction=sent,peer=10.0.0.2,qpn=17,class=send|ack,loss=0.5%,duplicate=3%,corrupt=0.25%,reorder=4%,behind=3,hold=2ms,delay=1ms..5ms,delayed=10%,rate=10mbit", "",
		Config{Rules: []Rule{{
			Direction: Sent, Peer: netip.MustParsePrefix("10.0.0.2/32"), QPN: 17, Class: Send | Ack,
			Loss: Percent / 2, Duplicate: 3 * Percent, Corrupt: Percent / 4, Reorder: 4 * Percent, Behind: 3, Hold: 2 * time.Millisecond,
			Delay: Delay{Min: time.Millisecond, Max: 5 * time.Millisecond}, Delayed: 10 * Percent, Rate: 10_000_000,
		}}},
	},
	{
		"class=mad; direction=received,peer=fd00::/64,delay=1.5ms+250us; loss=100%", "class=mad;direction=received,peer=fd00::/64,delay=1.5ms+250µs;loss=100%",
		Config{Rules: []Rule{
			{Class: MAD},
			{Direction: Received, Peer: netip.MustParsePrefix("fd00::/64"), Delay: Delay{Min: 1500 * time.Microsecond, Mean: 250 * time.Microsecond}},
			{Loss: Always},
		}},
	},
	{"qpn=0x11", "qpn=17", Config{Rules: []Rule{{QPN: 17}}}},
	{"peer=::1,delay=5ms,rate=1500bit", "", Config{Rules: []Rule{{Peer: netip.MustParsePrefix("::1/128"), Delay: Delay{Min: 5 * time.Millisecond}, Rate: 1500}}}},
	{"delay=5ms..5ms", "", Config{Rules: []Rule{{Delay: Delay{Min: 5 * time.Millisecond, Max: 5 * time.Millisecond}}}}},
	{"class=write,remove=1000", "", Config{Rules: []Rule{{Class: Write, Remove: 1000}}}},
	{"rate=1000gbit", "", Config{Rules: []Rule{{Rate: 1e12}}}},
	{"rnr=1/4", "", Config{Plan: Plan{{RNR: RNR{1, 4}}}}},
	{
		"rnr=2/2,seed=3;loss=1%;qpn=5,slow=3s,fail=recv:0:9", "seed=3,loss=1%;rnr=2/2;qpn=5,slow=3s,fail=recv:0:rem_inv_req_err",
		Config{Seed: 3, Rules: []Rule{{Loss: Percent}}, Plan: Plan{
			{RNR: RNR{2, 2}},
			{QPN: 5, Slow: 3 * time.Second, Fail: Fail{RecvQueue, 0, 9}},
		}},
	},
	{"fail=send:18446744073709551615:general_err", "", Config{Plan: Plan{{Fail: Fail{SendQueue, 1<<64 - 1, MaxStatus}}}}},
}

func TestParse(t *testing.T) {
	for _, c := range texts {
		got, err := Parse(c.text)
		if err != nil {
			t.Errorf("Parse(%q): %v", c.text, err)
			continue
		}
		if diff := cmp.Diff(c.config, got, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
			t.Errorf("Parse(%q): want -, got +\n%s", c.text, diff)
		}
		want := c.canonical
		if want == "" {
			want = strings.TrimSpace(c.text)
		}
		if got.String() != want {
			t.Errorf("Parse(%q).String() = %q, want %q", c.text, got, want)
		}
		if err := c.config.Validate(); err != nil {
			t.Errorf("Validate of %q: %v", c.text, err)
		}
	}
}

// TestFieldError: the error names the field, the value and what is allowed.
func TestFieldError(t *testing.T) {
	for _, c := range []struct{ text, field, value, allowed string }{
		{"loss=101%", "loss", "101%", "0% to 100% in steps of 0.0001%"},
		{"seed=1,duplicate=1", "duplicate", "1", "0% to 100%"},
		{"corrupt=", "corrupt", "", "0% to 100%"},
		{"reorder=0.00001%", "reorder", "0.00001%", "steps of 0.0001%"},
		{"seed=-1", "seed", "-1", "64 bits"},
		{"seed=1_0", "seed", "1_0", "64 bits"},
		{"direction=up", "direction", "up", "both, sent, received"},
		{"peer=10.0.0.1/24", "peer", "10.0.0.1/24", "without bits behind its length"},
		{"peer=host", "peer", "host", "an IP address"},
		{"peer=fe80::1%eth0", "peer", "fe80::1%eth0", "without a zone"},
		{"peer=::ffff:10.0.0.1", "peer", "::ffff:10.0.0.1", "an IP address"},
		{"qpn=0", "qpn", "0", "1 to 16777215"},
		{"qpn=16777216", "qpn", "16777216", "1 to 16777215"},
		{"class=send|all", "class", "send|all", "send, write, read, atomic, flush, ack, response, mad, nak"},
		{"behind=0", "behind", "0", "1 to 64"},
		{"behind=65", "behind", "65", "1 to 64"},
		{"hold=2h", "hold", "2h", "0s to 1h0m0s"},
		{"hold=5", "hold", "5", "a time such as 10ms"},
		{"delay=-1ms", "delay", "-1ms", "MIN..MAX"},
		{"delay=5ms..1ms", "delay", "5ms..1ms", "MIN..MAX"},
		{"delay=1ms..2ms+1ms", "delay", "1ms..2ms+1ms", "MIN..MAX"},
		{"delay=0s+10m", "delay", "0s+10m", "MIN+16*MEAN at most 1h0m0s"},
		{"rate=10", "rate", "10", "1bit to 1000gbit"},
		{"rate=0bit", "rate", "0bit", "1bit to 1000gbit"},
		{"rate=1001gbit", "rate", "1001gbit", "1bit to 1000gbit"},
		{"remove=0", "remove", "0", "from 1"},
		{"rnr=3/2", "rnr", "3/2", "1 <= MISSING <= OF <= 1000000"},
		{"rnr=0/2", "rnr", "0/2", "1 <= MISSING"},
		{"rnr=1", "rnr", "1", "MISSING/OF"},
		{"slow=61m", "slow", "61m", "0s to 1h0m0s"},
		{"fail=send:1", "fail", "send:1", "QUEUE:WR:STATUS"},
		{"fail=both:1:9", "fail", "both:1:9", "QUEUE send or recv"},
		{"fail=send:x:9", "fail", "send:x:9", "WR a number from 0"},
		{"fail=send:1:0", "fail", "send:1:0", "STATUS a number from 1 to 21"},
		{"fail=send:1:22", "fail", "send:1:22", "retry_exc_err"},
	} {
		_, err := Parse(c.text)
		var f *FieldError
		if !errors.As(err, &f) {
			t.Errorf("Parse(%q): %v, want a FieldError", c.text, err)
			continue
		}
		if f.Field != c.field || f.Value != c.value || !strings.Contains(f.Allowed, c.allowed) {
			t.Errorf("Parse(%q): field %q, value %q, allowed %q; want %q, %q, %q", c.text, f.Field, f.Value, f.Allowed, c.field, c.value, c.allowed)
		}
		for _, part := range []string{c.field, c.value, c.allowed} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("Parse(%q): %q does not contain %q", c.text, err, part)
			}
		}
	}
}

// TestParseError: errors that are not about a value.
func TestParseError(t *testing.T) {
	for text, want := range map[string]string{
		"los=1%":             `unknown field "los"; the fields are seed, direction, peer`,
		"loss=1%,":           `unknown field ""`,
		"loss=1%;":           `unknown field ""`,
		"loss":               "field loss has no value; allowed: 0% to 100%",
		"loss=1%,loss=2%":    "field loss stands twice",
		"seed=1;seed=1":      "field seed stands twice",
		"loss=1%,rnr=1/2":    "separate them by a semicolon",
		"slow=1ms,class=ack": "separate them by a semicolon",
	} {
		if c, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %q, %v; want an error with %q", text, c, err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	for want, c := range map[string]Config{
		"field loss":               {Rules: []Rule{{Loss: Always + 1}}},
		"field delayed":            {Rules: []Rule{{Delayed: 1<<32 - 1}}},
		"field behind":             {Rules: []Rule{{Behind: -1}}},
		"field hold":               {Rules: []Rule{{Hold: -1}}},
		"field delay has":          {Rules: []Rule{{Delay: Delay{Min: 2, Max: 1}}}},
		"field direction":          {Rules: []Rule{{Direction: 9}}},
		"field peer":               {Rules: []Rule{{Peer: netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 8)}}},
		`field peer has value "in`: {Rules: []Rule{{Peer: netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 33)}}},
		"field qpn":                {Rules: []Rule{{QPN: 1 << 24}}},
		"field rate":               {Rules: []Rule{{Rate: 1e12 + 1}}},
		"rule 1 is empty":          {Rules: []Rule{{Loss: 1}, {}}},
		"field rnr":                {Plan: Plan{{RNR: RNR{2, 1}}}},
		"field slow":               {Plan: Plan{{Slow: -time.Second}}},
		"field fail":               {Plan: Plan{{Fail: Fail{Queue: 2, Status: 1}}}},
		`"send:0:status(22)"`:      {Plan: Plan{{Fail: Fail{Status: 22}}}},
		`"send:1:status(0)"`:       {Plan: Plan{{Fail: Fail{WR: 1}}}},
		"fault 0 of the plan":      {Plan: Plan{{QPN: 3}}},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate of %q: %v; want an error with %q", c, err, want)
		}
	}
}

// FuzzParse: what Parse accepts is valid, and String and Parse are inverse to each other.
func FuzzParse(f *testing.F) {
	for _, c := range texts {
		f.Add(c.text)
	}
	f.Add("loss=1%,;")
	f.Add("delay=0s..0s,rate=0001kbit")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fault: ") {
				t.Errorf("Parse(%q): %q", text, err)
			}
			return
		}
		again, err := Parse(c.String())
		if err != nil {
			t.Fatalf("Parse(%q) accepts it, but not its String %q: %v", text, c, err)
		}
		if again.String() != c.String() {
			t.Errorf("%q: String is %q and then %q", text, c, again)
		}
	})
}
