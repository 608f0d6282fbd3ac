package soft

import (
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// texts are text forms with what they mean. canonical is what String returns, if that is another text.
var texts = []struct {
	text, canonical string
	options         Options
}{
	{"local", "", Options{}},
	{"local:4792,seed=7", "", Options{Port: 4792, Seed: 7}},
	{"auto", "", Options{Auto: true}},
	{"auto,via=socket,seed=7", "", Options{Auto: true, ViaSocket: true, Seed: 7}},
	{"auto:4792", "", Options{Auto: true, Port: 4792}},
	{"127.0.0.2", "", Options{Addr: netip.MustParseAddr("127.0.0.2")}},
	{"::ffff:127.0.0.2", "127.0.0.2", Options{Addr: netip.MustParseAddr("127.0.0.2")}},
	{"[::ffff:127.0.0.2]:7", "127.0.0.2:7", Options{Addr: netip.MustParseAddr("127.0.0.2"), Port: 7}},
	{"127.0.0.2:65535", "", Options{Addr: netip.MustParseAddr("127.0.0.2"), Port: 65535}},
	{"fd00::1:4791", "", Options{Addr: netip.MustParseAddr("fd00::1:4791")}},
	{"[fe80::1%eth0]:4791,seed=7", "", Options{Addr: netip.MustParseAddr("fe80::1%eth0"), Port: 4791, Seed: 7}},
	{"127.0.0.2,mtu=1024,name=left", "127.0.0.2,name=left,mtu=1024", Options{Addr: netip.MustParseAddr("127.0.0.2"), Name: "left", MTU: 1024}},
	{"auto,name=,mtu=0,seed=0,qps=0", "auto", Options{Auto: true}},
	{"local,name=a=b", "", Options{Name: "a=b"}},
	{"auto,seed=18446744073709551615", "", Options{Auto: true, Seed: 1<<64 - 1}},
	{"local,faults=(loss=1%,seed=7),mtu=256", "local,mtu=256,faults=(seed=7,loss=1%)", Options{MTU: 256, Faults: Faults{Seed: 7, Rules: []Rule{{Loss: Percent}}}}},
	{"local,faults=(loss=1%),trace=((a) b),capture=c(d)", "local,faults=loss=1%,trace=((a) b),capture=c(d)", Options{Faults: Faults{Rules: []Rule{{Loss: Percent}}}, TraceFile: "(a) b", CaptureFile: "c(d)"}},
	{"local,name=((x)),trace=(a)(b)", "local,name=((x)),trace=((a)(b))", Options{Name: "(x)", TraceFile: "(a)(b)"}},
	{
		"local,qps=1,cqs=2,srqs=3,mrs=4,mws=5,pds=6,ahs=7", "",
		Options{Limits: Limits{QPs: 1, CQs: 2, SRQs: 3, MRs: 4, MWs: 5, PDs: 6, AHs: 7}},
	},
}

func TestParseOptions(t *testing.T) {
	for _, c := range texts {
		got, err := ParseOptions(c.text)
		if err != nil || !reflect.DeepEqual(got, c.options) {
			t.Errorf("ParseOptions(%q) = %+v, %v; want %+v", c.text, got, err, c.options)
		}
		want := c.canonical
		if want == "" {
			want = c.text
		}
		if got.String() != want {
			t.Errorf("ParseOptions(%q).String() = %q, want %q", c.text, got, want)
		}
	}
}

// TestSplitList: blanks and semicolons separate devices, but not in parentheses.
func TestSplitList(t *testing.T) {
	for list, want := range map[string][]string{
		"":                             nil,
		" ;\n":                         nil,
		"auto":                         {"auto"},
		" auto;;local,mtu=256\tlocal ": {"auto", "local,mtu=256", "local"},
		"auto,faults=(class=mad; loss=1%),trace=((a b)) local": {"auto,faults=(class=mad; loss=1%),trace=((a b))", "local"},
		"auto,faults=(loss=1% local;local":                     {"auto,faults=(loss=1% local;local"},
	} {
		if got := SplitList(list); !slices.Equal(got, want) {
			t.Errorf("SplitList(%q) = %q, want %q", list, got, want)
		}
	}
}

// TestParseOptionsRefused: an error names the field, the value and what is allowed.
func TestParseOptionsRefused(t *testing.T) {
	for _, c := range []struct{ text, field, value, allowed string }{
		{"", "Addr", `""`, "an IP address, auto or local"},
		{"local,via=socket", "ViaSocket", "true", "no socket"},
		{"auto,via=wire", "ViaSocket", `"wire"`, "socket, or left out"},
		{"host", "Addr", `"host"`, "127.0.0.2:4791 or [fd00::1]:4791"},
		{"AUTO", "Addr", `"AUTO"`, "auto"},
		{"fd00::1:xyz", "Addr", `"fd00::1:xyz"`, "an IP address"},
		{"[auto", "Addr", `"[auto"`, "an IP address"},
		{":4791", "Addr", `":4791"`, "an IP address"},
		{"host:4791", "Addr", `"host:4791"`, "an IP address"},
		{"[fd00::1]", "Addr", `"[fd00::1]"`, "perhaps a port"},
		{"127.0.0.2:", "Port", `""`, "1 to 65535"},
		{"0.0.0.0", "Addr", "0.0.0.0", "not unspecified"},
		{"224.0.0.1", "Addr", "224.0.0.1", "multicast"},
		{"fe80::1", "Addr", "fe80::1", "with a zone"},
		{"127.0.0.2:0", "Port", `"0"`, "1 to 65535"},
		{"127.0.0.2:65536", "Port", `"65536"`, "1 to 65535"},
		{"127.0.0.2:x", "Port", `"x"`, "1 to 65535"},
		{"auto:", "Port", `""`, "1 to 65535"},
		{"auto:-1", "Port", `"-1"`, "1 to 65535"},
		{"auto,name=a/b", "Name", `"a/b"`, "printable bytes"},
		{"auto,name=a;b", "Name", `"a;b"`, "a semicolon"},
		{"auto,mtu=1500", "MTU", "1500", "256, 512, 1024, 2048 or 4096"},
		{"auto,mtu=big", "MTU", `"big"`, "256, 512, 1024, 2048 or 4096"},
		{"auto,mtu=-256", "MTU", `"-256"`, "256, 512, 1024, 2048 or 4096"},
		{"auto,mtu=4294967552", "MTU", `"4294967552"`, "256, 512, 1024, 2048 or 4096"},
		{"auto,seed=-1", "Seed", `"-1"`, "64 bits"},
		{"auto,qps=x", "Limits.QPs", `"x"`, "1 to 1048560"},
		{"auto,qps=1048561", "Limits.QPs", "1048561", "1 to 1048560"},
		{"auto,ahs=32768", "Limits.AHs", "32768", "1 to 32767"},
		{"auto,name=a(b", "Name", `"a(b"`, "a parenthesis without its counterpart"},
		{"auto,faults=lose", "Faults", `"lose"`, `such as loss=1%,reorder=1%,seed=7: fault: unknown field "lose"`},
		{"auto,faults=(loss=1%,seed=x),mtu=256", "Faults", `"loss=1%,seed=x"`, "64 bits"},
		{"auto,trace=a)b", "TraceFile", `"a)b"`, "each parenthesis has its counterpart"},
	} {
		o, err := ParseOptions(c.text)
		var e *OptionError
		if !errors.As(err, &e) || !reflect.ValueOf(o).IsZero() {
			t.Errorf("ParseOptions(%q) = %+v, %v; want an OptionError", c.text, o, err)
			continue
		}
		if want := "soft: " + c.field + " is " + c.value + ", must be "; e.Field != c.field || !strings.HasPrefix(e.Error(), want) || !strings.Contains(e.Error(), c.allowed) {
			t.Errorf("ParseOptions(%q): field %s, %q; want %q and %q", c.text, e.Field, e, want, c.allowed)
		}
	}
	for text, want := range map[string]string{
		"auto,":            `unknown field "" in "auto,"; the fields are name, via, mtu, seed, qps, cqs, srqs, mrs, mws, pds, ahs, faults, trace, capture`,
		"auto,mut=256":     `unknown field "mut"`,
		"auto, mtu=256":    `unknown field " mtu"`,
		"auto,mtu":         `field mtu has no value in "auto,mtu", such as mtu=1024`,
		"auto,ahs":         `such as ahs=100`,
		"auto,mtu=0,mtu=0": `field mtu stands twice in "auto,mtu=0,mtu=0"`,
	} {
		if o, err := ParseOptions(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseOptions(%q) = %+v, %v; want %q", text, o, err, want)
		}
	}
}

// FuzzParseOptions: what ParseOptions returns is allowed on every host, and String and ParseOptions
// are inverse to each other.
func FuzzParseOptions(f *testing.F) {
	for _, c := range texts {
		f.Add(c.text)
	}
	f.Add("auto:1,name=\xff")
	f.Add("[fe80::1%a,b]:1")
	f.Add("auto,faults=(class=mad;loss=1%, reorder=1%),trace=((a),b c)(d),mtu=256")
	f.Add("auto,name=(x),trace=((y))")
	f.Fuzz(func(t *testing.T, text string) {
		o, err := ParseOptions(text)
		if err != nil {
			return
		}
		checked := o
		if err := checked.check(); err != nil {
			t.Errorf("ParseOptions(%q) = %+v, which check refuses: %v", text, o, err)
		}
		if again, err := ParseOptions(o.String()); err != nil || !reflect.DeepEqual(again, o) {
			t.Errorf("ParseOptions(%q) = %+v, whose text is %q, which means %+v, %v", text, o, o, again, err)
		}
	})
}
