package guest

import (
	"bytes"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseNetem(t *testing.T) {
	for _, tt := range []struct {
		words string
		want  Netem
		says  string
	}{
		{"", Netem{}, ""},
		{"loss 1%", Netem{Loss: 1}, ""},
		{"loss 0.5% delay 5ms reorder 100%", Netem{Loss: 0.5, Delay: 5 * time.Millisecond, Reorder: 100}, ""},
		{"delay 1us loss 0%", Netem{Delay: time.Microsecond}, ""},
		{"loss", Netem{}, `loss "": want a percentage such as 1% or 0.5%, from 0% to 100%`},
		{"loss 1", Netem{}, `loss "1": want a percentage`},
		{"loss 101%", Netem{}, `loss "101%": want a percentage`},
		{"loss -1%", Netem{}, `loss "-1%": want a percentage`},
		{"loss NaN%", Netem{}, `loss "NaN%": want a percentage`},
		{"loss 1% loss 2%", Netem{}, "loss is given twice"},
		{"delay 5", Netem{}, `delay "5": want a time such as 5ms, from 1us to 1m0s`},
		{"delay 2m", Netem{}, `delay "2m": want a time`},
		{"delay 0s", Netem{}, `delay "0s": want a time`},
		{"delay -5ms", Netem{}, `delay "-5ms": want a time`},
		{"reorder 10%", Netem{}, "reorder needs a delay"},
		{"reorder ten delay 1ms", Netem{}, `reorder "ten": want a percentage`},
		{"duplicate 1%", Netem{}, `"duplicate": want loss P%, delay TIME or reorder P%`},
	} {
		n, err := ParseNetem(strings.Fields(tt.words))
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %v, want %q in it", tt.words, err, tt.says)
		}
		if err == nil && n != tt.want {
			t.Errorf("%q: %+v, want %+v", tt.words, n, tt.want)
		}
	}
}

func TestParseLink(t *testing.T) {
	for _, tt := range []struct {
		args  string
		dev   string
		netem bool
		says  string
	}{
		{"down", "", false, ""},
		{"ve1 up", "ve1", false, ""},
		{"netem off", "", false, ""},
		{"ve0 netem loss 1% delay 5ms", "ve0", true, ""},
		{"", "", false, "nothing to do: want up, down or netem"},
		{"eth0", "", false, "nothing to do: want up, down or netem"},
		{"eth0 cut", "", false, `"cut": want up, down or netem`},
		{"down eth0", "", false, `"eth0" after down: want nothing more; a device comes first`},
		{"netem to 10.2.0.3 loss 1%", "", true, ""},
		{"netem to 10.2.0.3", "", false, "netem: to 10.2.0.3: want loss P%, delay TIME or reorder P% behind it"},
		{"netem to", "", false, `netem: to "": want an IPv4 address`},
		{"netem to fd02::3 loss 1%", "", false, `netem: to "fd02::3": want an IPv4 address`},
		{"netem to 10.2.0.3 loss 1", "", false, `netem: loss "1": want a percentage`},
		{"netem", "", false, "netem: want off, or to IPV4, loss P%, delay TIME, reorder P%"},
		{"netem off now", "", false, `netem: "off": want loss P%`},
		{"netem loss 1", "", false, `netem: loss "1": want a percentage`},
	} {
		c, err := parseLink(strings.Fields(tt.args))
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%q: %v, want %q in it", tt.args, err, tt.says)
		}
		if err == nil && (c.dev != tt.dev || c.netem != tt.netem || c.do == nil) {
			t.Errorf("%q: %+v", tt.args, c)
		}
	}
}

func TestLinkErrors(t *testing.T) {
	var out bytes.Buffer
	if err := link([]string{"help"}, &out); err != nil || out.String() != linkUsage {
		t.Errorf("help: %q, %v", out.String(), err)
	}
	// There is no configuration where no guest is.
	if err := link([]string{"down"}, &out); err == nil || !strings.Contains(err.Error(), ConfigPath) {
		t.Errorf("outside of a guest: %v", err)
	}
	for _, f := range []func() error{
		func() error { return setNetem("nosuch0", netip.Addr{}, Netem{}) },
		func() error { return setLink("nosuch0", true) },
		func() error { return setLink("nosuch0", false) },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), "device nosuch0: ") {
			t.Errorf("a device that is not there: %v", err)
		}
	}
}

func TestIsLink(t *testing.T) {
	old := os.Args
	defer func() { os.Args = old }()
	for name, want := range map[string]bool{"vmlink": true, "/usr/bin/vmlink": true, "/init": false, "vmrun": false} {
		os.Args = []string{name}
		if IsLink() != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
