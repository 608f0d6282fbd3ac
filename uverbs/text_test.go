package uverbs

import (
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

var (
	_ encoding.TextMarshaler   = Endpoint{}
	_ encoding.TextUnmarshaler = (*Endpoint)(nil)
)

// endpoints are endpoints and their forms in JSON.
var endpoints = map[string]Endpoint{
	`"qpn=17,psn=4711,gid=0000:0000:0000:0000:0000:ffff:0a01:0001"`:   {QPN: 17, PSN: 4711, GID: ib.GID{10: 0xff, 11: 0xff, 12: 10, 13: 1, 15: 1}},
	`"qpn=16777215,psn=16777215,lid=65535"`:                           {QPN: maxQPN, PSN: maxPSN, LID: 65535},
	`"qpn=0,psn=0"`:                                                   {},
	`"qpn=1,psn=2,lid=3,mtu=4096"`:                                    {QPN: 1, PSN: 2, LID: 3, MTU: ib.MTU4096},
	`"qpn=1,psn=2,lid=3,gid=fe80:0000:0000:0000:0002:c903:000a:000b"`: {QPN: 1, PSN: 2, LID: 3, GID: ib.GID{0: 0xfe, 1: 0x80, 9: 2, 10: 0xc9, 11: 3, 13: 10, 15: 11}},
}

func TestEndpointText(t *testing.T) {
	for want, e := range endpoints {
		b, err := json.Marshal(e)
		if err != nil || string(b) != want {
			t.Errorf("JSON of %+v is %s, %v; want %s", e, b, err, want)
		}
		var back Endpoint
		if err := json.Unmarshal(b, &back); err != nil || back != e {
			t.Errorf("%s is read as %+v, %v", b, back, err)
		}
	}
	set := flag.NewFlagSet("", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	var e Endpoint
	set.TextVar(&e, "peer", Endpoint{}, "")
	if err := set.Parse([]string{"-peer", "gid=10.1.0.1,psn=2,qpn=1"}); err != nil || e != (Endpoint{QPN: 1, PSN: 2, GID: gid(t, "10.1.0.1")}) {
		t.Errorf("as a flag: %+v, %v", e, err)
	}
}

// TestEndpointTextRefused: the error quotes the text, names the field, and leaves the endpoint as it was.
func TestEndpointTextRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "no field",
		"qpn=1":                           "psn is missing",
		"psn=1":                           "qpn is missing",
		"qpn=1,psn=2,":                    "no field",
		"qpn=16777216,psn=1":              `qpn is "16777216", allowed: 0 to 16777215`,
		"qpn=1,psn=-1":                    `psn is "-1"`,
		"qpn=1,psn=2,lid=65536":           "allowed: 0 to 65535",
		"qpn=1,psn=2,qpn=3":               "qpn is given twice",
		"qpn=1,psn=2,mtu=1500":            `mtu is "1500", allowed: 256, 512, 1024, 2048, 4096`,
		"qpn=1,psn=2,mtu=":                `mtu is ""`,
		"qpn=1,psn=2,pkey=0x8000":         `pkey is "0x8000", allowed: 0x1 to 0x7fff`,
		"qpn=1,psn=2,pkey=0x18001":        `pkey is "0x18001"`,
		"qpn=1,psn=2,gid=10.1.0":          `GID "10.1.0"`,
		"qpn=1,psn=2,gid=fe80::1%eth0":    "no zone",
		"qpn=1,psn=2,GID=10.1.0.1":        `"GID"`,
		"qpn=,psn=":                       `qpn is ""`,
		"qpn,psn":                         `qpn is ""`,
		"10.1.0.1 QP 17":                  `"10.1.0.1 QP 17"`,
		"qpn=1,psn=2,lid=1,gid=::,lid=10": "lid is given twice",
	} {
		e := Endpoint{QPN: 99}
		err := e.UnmarshalText([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "uverbs: Endpoint \""+text) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if e != (Endpoint{QPN: 99}) {
			t.Errorf("%q has changed the endpoint to %+v", text, e)
		}
	}
}

func FuzzEndpoint(f *testing.F) {
	for text := range endpoints {
		f.Add(strings.Trim(text, `"`))
	}
	f.Add("gid=10.1.0.1,psn=2,qpn=1")
	f.Fuzz(func(t *testing.T, text string) {
		var e, back Endpoint
		if e.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := e.check(); err != nil {
			t.Errorf("%q is taken: %v", text, err)
		}
		b, err := e.MarshalText()
		must(t, err)
		if err := back.UnmarshalText(b); err != nil || back != e {
			t.Errorf("%q is %s, which is read as %+v, %v", text, b, back, err)
		}
	})
}

// TestFlagNames: flags print as the names of their constants, and others as numbers.
func TestFlagNames(t *testing.T) {
	for _, c := range []struct {
		flags fmt.Stringer
		want  string
	}{
		{WCFlags(0), "0x0"},
		{SendFence | SendSignaled, "SendFence|SendSignaled"}, {SendSolicited, "SendSolicited"}, {ib.MTU4096, "MTU4096"}, {ib.MTU(9), "MTU(9)"}, {ib.MTU(0), "MTU(0)"},
		{WCWithGRH | WCWithImm, "WCWithGRH|WCWithImm"},
		{WCWithInv | WCWithVLAN | 1<<30 | 1<<31, "WCWithInv|WCWithVLAN|0xc0000000"},
		{CQTimestamp | CQIgnoreOverrun, "CQTimestamp|CQIgnoreOverrun"},
		{CQFlags(4), "0x4"},
	} {
		if got := c.flags.String(); got != c.want {
			t.Errorf("%T %#x is %s, want %s", c.flags, c.flags, got, c.want)
		}
	}
}
