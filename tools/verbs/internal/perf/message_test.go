package perf

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// limits0 are limits of a device that has no part in a test.
var limits0 = Limits{Device: "rxe9", MaxMsg: 1 << 23, MTU: 1024, MaxWR: 1 << 14, MaxCQE: 1 << 15, MaxQPs: 1 << 10, RdAtomic: 16, Driver: "rxe"}

// read reads a message as the server or the client does that has agreed on terms, or nil.
func read(t *terms, server bool, text string) (message, error) {
	qps := 0
	if t != nil {
		qps = t.config.QPs
	}
	m, err := decodeMessage([]byte(text), qps)
	if err == nil {
		err = m.validate(t, server)
	}
	return m, err
}

// termsOf returns terms with changes to a config of send-bw in both directions.
func termsOf(iwarp bool, change func(*Config)) *terms {
	c := with(Send, BW, func(c *Config) { c.Both = true })
	change(&c)
	return &terms{config: c, iwarp: iwarp}
}

// Terms that the two sides have agreed on.
var (
	termsTwo     = termsOf(false, func(c *Config) { c.QPs, c.Sizes, c.Iterations, c.Warmup = 2, []int{2, 4096}, 90, 10 })
	termsIWARP   = termsOf(true, func(c *Config) { c.Sizes = []int{8} })
	termsForever = termsOf(false, func(c *Config) { c.Duration = maxTime })
	termsPassive = &terms{config: Default(Read, BW)}
	termsCM      = termsOf(false, func(c *Config) { c.CM = true })
)

// helloText returns a hello with limits.
func helloText(msg, mtu, wr, cqe, qps, rd int) string {
	const lim = `"device":"rxe9","driver":"rxe"`
	return fmt.Sprintf(`{"kind":"hello","limits":{%s,"maxmsg":%d,"mtu":%d,"maxwr":%d,"maxcqe":%d,"maxqps":%d,"rdatomic":%d}}`, lim, msg, mtu, wr, cqe, qps, rd)
}

// openText returns an open whose configuration was changed.
func openText(change func(*Config)) string {
	c := termsOf(false, change).config
	b, err := json.Marshal(message{Kind: kindOpen, Config: &c})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// reportText returns a report of a run with more fields, which come last and so have the last word.
func reportText(fields string) string {
	return `{"kind":"report","run":{"Took":1,"CPU":1,"Sent":1,"Received":1,"AllSent":1,` + fields + `}}`
}

// messageValues are messages, and what is wrong with them.
var messageValues = []struct {
	terms  *terms
	server bool
	text   string
	want   string // "" if nothing is wrong
}{
	{nil, true, helloText(1, 256, 1, 1, 1, 0), ""},
	{nil, false, helloText(math.MaxUint32, 4096, math.MaxUint32, math.MaxUint32, math.MaxUint32, 255), ""},
	{nil, true, `{"kind":"hello"}`, "hello does not contain the limits"},
	{nil, true, helloText(0, 256, 1, 1, 1, 0), "MaxMsg is 0, allowed: 1 to 4294967295"},
	{nil, true, helloText(-1, 256, 1, 1, 1, 0), "MaxMsg is -1, allowed: 1 to"},
	{nil, true, helloText(1<<32, 256, 1, 1, 1, 0), "MaxMsg is 4294967296, allowed: 1 to 4294967295"},
	{nil, false, helloText(1, 257, 1, 1, 1, 0), "MTU is 257, allowed: 256, 512, 1024, 2048, 4096"},
	{nil, false, helloText(1, 256, 0, 1, 1, 0), "MaxWR is 0, allowed: 1 to"},
	{nil, false, helloText(1, 256, 1, -5, 1, 0), "MaxCQE is -5, allowed: 1 to"},
	{nil, false, helloText(1, 256, 1, 1, 0, 0), "MaxQPs is 0, allowed: 1 to"},
	{nil, false, helloText(1, 256, 1, 1, 1, 256), "RdAtomic is 256, allowed: 0 to 255"},
	{nil, false, strings.ReplaceAll(helloText(1, 256, 1, 1, 1, 0), "rxe9", `rxe\u001b[2J`), `device is "rxe\x1b[2J", allowed: up to 64 printable`},
	{nil, false, strings.ReplaceAll(helloText(1, 256, 1, 1, 1, 0), "rxe9", strings.Repeat("x", 65)), "device is \"xxxx"},

	{nil, true, `{"kind":"open"}`, "open does not contain the config"},
	{nil, true, openText(func(*Config) {}), ""},
	{nil, true, openText(func(c *Config) { c.QPs = 0 }), "--qps is 0, allowed: 1 to 16384"},
	{nil, true, openText(func(c *Config) { c.QPs = maxQPs + 1 }), "--qps is 16385, allowed: 1 to 16384"},
	{nil, true, openText(func(c *Config) { c.Sizes = []int{-1} }), "--size is -1, allowed: 1 to"},
	{nil, true, openText(func(c *Config) { c.Depth = -1 }), "--depth is -1, allowed: 1 to"},
	{nil, true, openText(func(c *Config) { c.List = 1 << 40 }), "--list is 1099511627776, allowed: 1 to --depth"},
	{nil, true, openText(func(c *Config) { c.Moderate = 0 }), "--moderate is 0, allowed: 1 and more"},
	{nil, true, openText(func(c *Config) { c.Inline = maxMessage + 1 }), "--inline is 2147483649, allowed: 0 to 2147483648 bytes"},
	{nil, true, openText(func(c *Config) { c.Duration = -1 }), "--duration is -1ns, allowed: more than 0, up to 24h"},
	{nil, true, openText(func(c *Config) { c.Duration = maxTime + 1 }), "--duration is 24h0m0.000000001s, allowed: more than 0, up to 24h"},
	{nil, true, openText(func(c *Config) { c.Timeout = math.MaxInt64 }), "allowed: more than 0, up to 24h"},
	{nil, true, openText(func(c *Config) { c.Timeout = 0 }), "--timeout is 0s, allowed: more than 0"},
	{nil, true, openText(func(c *Config) { c.Rate = Rate{-1, Messages, false} }), `--rate is "-1 messages", allowed:`},
	{nil, true, openText(func(c *Config) { c.Rate = Rate{1, "\x1b[2J", false} }), `--rate is "1 \x1b[2J", allowed:`},
	{nil, true, openText(func(c *Config) { c.RdAtomic = 256 }), "--outs is 256, allowed: 0 to 255"},
	{nil, true, openText(func(c *Config) { c.Imm, c.SRQ, c.QPs = true, true, 3 }), ""},
	{nil, true, openText(func(c *Config) { c.AtomicType = Swap }), "--atomic-type is for atomics, and this is send-bw"},
	{nil, true, openText(func(c *Config) { c.Op, c.Sizes = Atomic, []int{8} }), `--atomic-type is "", allowed: add, swap`},
	{nil, true, openText(func(c *Config) { c.Endless, c.Duration = true, time.Second }), "--run-infinitely and a duration exclude each other"},
	{nil, true, openText(func(c *Config) { c.Endless, c.Sizes = true, []int{1, 2} }), "--run-infinitely: send-bw has no end, and there are several sizes"},
	{termsOf(false, func(c *Config) { c.Endless = true }), false, `{"kind":"opened"}`, "max_time_ns is 0, allowed: 1 to 86400000000000"},
	{termsOf(false, func(c *Config) { c.Endless = true }), false, `{"kind":"opened","max_time_ns":86400000000001}`, "max_time_ns is 86400000000001, allowed: 1 to"},
	{termsOf(false, func(c *Config) { c.Endless = true }), false, `{"kind":"opened","max_time_ns":1}`, ""},
	{nil, false, openText(func(*Config) {}), `the kind of a message is "open"`},

	{nil, true, `{"kind":"peers","peers":[]}`, "peers has come before the two sides have agreed"},
	{nil, true, `{"kind":"peers","peers":[{}]}`, "peers has more than 0 queue pairs"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{},{}]}`, ""},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{}]}`, "peers has 1 queue pairs, allowed: 2"},
	{termsTwo, true, `{"kind":"peers"}`, "peers has 0 queue pairs, allowed: 2"},
	{termsTwo, true, `{"kind":"peers","peers":null}`, "peers is not a JSON array"},
	{termsTwo, true, `{"kind":"peers","peers":{}}`, "peers is not a JSON array"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{},{},{}]}`, "peers has more than 2 queue pairs, allowed: 2"},
	{termsTwo, true, `{"kind":"peers","path":{"lid":65535},"peers":[{"qpn":16777215,"psn":16777215,"lid":65535,"addr":18446744073709543423,"rkey":4294967295},{"lid":65535}],"inline":2147483648}`, ""},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{},{"qpn":16777216}]}`, "queue pair 1 in peers: qpn is 16777216, allowed: 0 to 16777215"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{},{"qpn":-1}]}`, "queue pair 1 in peers: json"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{"psn":16777216},{}]}`, "queue pair 0 in peers: psn is 16777216, allowed: 0 to 16777215"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{"lid":65536},{}]}`, "queue pair 0 in peers: json"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{"rkey":4294967296},{}]}`, "queue pair 0 in peers: json"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{"addr":18446744073709543424},{}]}`, "queue pair 0 in peers: addr is 18446744073709543424, allowed: 0 to 18446744073709543423"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{"own":1},{}]}`, "own is 1, allowed: 0 to 0"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{"recvs":-1},{}]}`, "recvs is -1, allowed: 0 to 0"},
	{termsTwo, true, `{"kind":"peers","peers":[{},{}]}`, "peers does not contain the path"},
	{termsTwo, true, `{"kind":"peers","path":{"psn":16777216},"peers":[{},{}]}`, "path in peers: psn is 16777216"},
	{termsTwo, true, `{"kind":"peers","path":{},"peers":[{},{"gid":"::ffff:192.0.2.1"}]}`, "queue pair 1 in peers is at GID"},
	{termsTwo, true, `{"kind":"peers","path":{"lid":1},"peers":[{"lid":1},{"lid":2}]}`, "LID 2, allowed: GID 0000"},
	{termsTwo, false, `{"kind":"peers","path":{},"peers":[{},{}],"inline":-1}`, "inline is -1, allowed: 0 to 2147483648"},
	{termsIWARP, true, `{"kind":"peers","peers":[{"own":1,"recvs":1}]}`, ""},
	{termsIWARP, true, `{"kind":"peers","peers":[{"own":18446744073709551551,"recvs":1048576}]}`, ""},
	{termsIWARP, true, `{"kind":"peers","peers":[{"qpn":17,"own":1,"recvs":-1}]}`, "queue pair 0 in peers: recvs is -1, allowed: 1 to 1048576"},
	{termsIWARP, true, `{"kind":"peers","peers":[{"own":1,"recvs":1048577}]}`, "recvs is 1048577, allowed: 1 to 1048576"},
	{termsIWARP, true, `{"kind":"peers","peers":[{"recvs":1}]}`, "own is 0, allowed: 1 to 18446744073709551551"},
	{termsIWARP, true, `{"kind":"peers","peers":[{"own":18446744073709551552,"recvs":1}]}`, "own is 18446744073709551552, allowed: 1 to"},

	{nil, false, `{"kind":"opened"}`, "opened has come before"},
	{termsTwo, false, `{"kind":"opened"}`, ""},
	{termsCM, false, `{"kind":"opened","cm_addr":"10.1.0.1:80","cm_token":"AAECAwQFBgc="}`, ""},
	{termsCM, false, `{"kind":"opened","cm_addr":"10.1.0.1:80","cm_token":"AAEC"}`, "length of cm_token is 3, allowed: 8 to 8"},
	{termsCM, false, `{"kind":"opened","cm_addr":"10.1.0.1:80"}`, "length of cm_token is 0, allowed: 8 to 8"},
	{termsCM, false, `{"kind":"opened","cm_addr":"10.1.0.1:0"}`, `cm_addr is "10.1.0.1:0", allowed: a unicast IP address and a port`},
	{termsCM, false, `{"kind":"opened","cm_addr":"0.0.0.0:80"}`, "cm_addr is "},
	{termsCM, false, `{"kind":"opened","cm_addr":"224.0.0.1:80"}`, "cm_addr is "},
	{termsCM, false, `{"kind":"opened"}`, `cm_addr is "", allowed`},

	{nil, true, `{"kind":"start","size":1}`, "start has come before"},
	{termsTwo, true, `{"kind":"start","size":4096}`, ""},
	{termsTwo, true, `{"kind":"start","size":3}`, "size is 3, allowed: one of [2 4096]"},
	{termsTwo, true, `{"kind":"start"}`, "size is 0, allowed: one of [2 4096]"},
	{nil, true, `{"kind":"finished"}`, "finished has come before"},
	{termsTwo, true, `{"kind":"finished","sent":200}`, ""},
	{termsTwo, true, `{"kind":"finished","sent":201}`, "sent is 201, allowed: 0 to 200"},
	{termsTwo, false, `{"kind":"finished","sent":-1}`, "sent is -1, allowed: 0 to 200"},
	{termsForever, true, `{"kind":"finished","sent":18014398509481984}`, ""},
	{termsForever, true, `{"kind":"finished","sent":9223372036854775807}`, "sent is 9223372036854775807, allowed: 0 to 18014398509481984"},
	{termsTwo, false, reportText(`"Sent":200`), ""},
	{termsTwo, true, reportText(`"Sent":200`), `the kind of a message is "report"`},
	{termsTwo, false, reportText(`"Sent":201`), "sent is 201, allowed: 0 to 200"},
	{termsTwo, false, reportText(`"Sent":-1`), "sent is -1, allowed: 0 to 200"},
	{termsTwo, false, reportText(`"Received":201`), "received is 201, allowed: 0 to 200"},
	{termsTwo, false, reportText(`"AllSent":-9223372036854775808`), "all_sent is -9223372036854775808, allowed: 0 to 200"},
	{termsTwo, false, reportText(`"Took":-1`), "took is -1, allowed: 0 to"},
	{termsTwo, false, reportText(`"CPU":-1`), "cpu is -1, allowed: 0 to"},
	{termsTwo, false, reportText(`"Latencies":[1]`), "latencies of the server is 1, allowed: 0 to 0"},
	{termsTwo, false, `{"kind":"report"}`, "the server does not report its run of send-bw"},
	{termsPassive, false, `{"kind":"report"}`, "the server does not report its run of read-bw"},
	{termsPassive, false, `{"kind":"report","run":{"Took":2,"CPU":1}}`, ""},
	{termsPassive, false, reportText(`"Sent":1`), "sent is 1, allowed: 0 to 0"},
	{termsTwo, true, `{"kind":"connected"}`, ""},
	{termsTwo, false, `{"kind":"connected"}`, `the kind of a message is "connected"`},
	{termsTwo, false, `{"kind":"ready"}`, ""},
	{termsTwo, true, `{"kind":"\u001b[2J"}`, `the kind of a message is "\x1b[2J"`},
	{nil, true, `{"kind":5}`, "not valid JSON for this protocol"},
}

// TestMessageValues: each number outside of its range is refused by an error with its name, its
// value and the range, and the least and the greatest value are not.
func TestMessageValues(t *testing.T) {
	for _, c := range messageValues {
		_, err := read(c.terms, c.server, c.text)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
		if _, public := publicText(err); err != nil && !public {
			t.Errorf("%s: the peer is not told: %v", c.text, err)
		}
	}
}

// TestFrames: a frame of the allowed length has room for the longest message of its kind, and a
// longer one is refused before anything of it is read.
func TestFrames(t *testing.T) {
	text := func(m message) int {
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return len(b)
	}
	longest := Peer{
		QPN: max24Bits, PSN: max24Bits, LID: math.MaxUint16, GID: ib.GID(slices.Repeat([]byte{0xff}, 16)), Addr: math.MaxUint64, RKey: math.MaxUint32,
		Own: math.MaxUint64, Recvs: maxDepth,
	}
	if n := text(message{Kind: kindPeers, Peers: []Peer{longest, longest}, Inline: maxMessage}) - text(message{Kind: kindPeers, Peers: []Peer{longest}, Inline: maxMessage}); n > maxPeer {
		t.Errorf("a queue pair takes %d bytes, and has %d", n, maxPeer)
	}
	name := strings.Repeat(`\`, maxName)
	l := Limits{Device: name, Driver: name, MaxMsg: math.MaxUint32, MTU: 4096, MaxWR: math.MaxUint32, MaxCQE: math.MaxUint32, MaxQPs: math.MaxUint32, RdAtomic: 255}
	c := termsOf(true, func(c *Config) {
		c.Sizes = slices.Repeat([]int{maxMessage}, 64)
		c.Op, c.Metric, c.All, c.CM, c.Events, c.Verify = "atomic", "lat", true, true, true, true
		c.Iterations, c.Warmup, c.QPs, c.Inline, c.Duration, c.Timeout = maxIterations, maxIterations, maxQPs, maxMessage, maxTime, maxTime
		c.List, c.Moderate, c.Depth, c.RecvDepth, c.Rate = maxDepth, maxDepth, maxDepth, maxDepth, Rate{-1.2345678901234567e+14, Messages, true}
		c.MTU, c.SL, c.TOS, c.AckTimeout, c.Retry, c.RdAtomic = 4096, 255, 255, maxTimeout, maxRetry, 255
	}).config
	r := Run{Took: math.MaxInt64, CPU: math.MaxInt64, Sent: maxOutcome, Received: maxOutcome, AllSent: maxOutcome}
	for _, m := range []message{
		{Kind: kindHello, Limits: &l}, {Kind: kindOpen, Config: &c}, {Kind: kindReport, Run: &r}, {Kind: kindError, Error: strings.Repeat("\x00", maxError)},
		{Kind: kindOpened, CMAddr: "[ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255%" + name + "]:65535", CMToken: make([]byte, tokenSize)},
	} {
		if n := text(m); n > maxFrame {
			t.Errorf("%s takes %d bytes, and has %d", m.Kind, n, maxFrame)
		}
	}
	var head [4]byte
	for _, n := range []uint32{0, maxFrame + 1, 8 << 20, math.MaxUint32} {
		binary.BigEndian.PutUint32(head[:], n)
		r := bytes.NewReader(append(head[:], make([]byte, maxFrame)...))
		if _, err := readFrame(r, func() int { return maxFrame }); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("a message of %d bytes, allowed: 1 to %d", n, maxFrame)) || r.Len() != maxFrame {
			t.Errorf("a frame of %d bytes: %v, and %d bytes are left", n, err, r.Len())
		}
	}
}

// TestFrameMemory: decoding takes no more memory than what was accounted for before, however many
// queue pairs are in the message.
func TestFrameMemory(t *testing.T) {
	for _, qps := range []int{0, 1, 1000, maxQPs} {
		room := peersFrame(qps)
		elements := (room - 40) / 3
		body := `{"kind":"peers","peers":[` + strings.Repeat("{},", elements-1) + `{}]}`
		b := append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		frame, err := readFrame(bytes.NewReader(b), func() int { return room })
		if err != nil {
			t.Fatal(err)
		}
		_, err = decodeMessage(frame, qps)
		runtime.ReadMemStats(&after)
		if want := fmt.Sprintf("peers has more than %d queue pairs", qps); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d queue pairs and not %d: %v, want %q", elements, qps, err, want)
		}
		if took, most := int(after.TotalAlloc-before.TotalAlloc), clientRoom+qpRoom*qps; took > most {
			t.Errorf("%d bytes were allocated for %d queue pairs, accounted for: %d", took, qps, most)
		}
	}
}

// TestPublicText: the peer is told what is wrong with what it has sent, and nothing of this
// machine.
func TestPublicText(t *testing.T) {
	secret := errors.New("REG_MR (65536 bytes at 0x7f1234560000): cannot allocate memory")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"internal":          {secret, privateText},
		"internal, wrapped": {atSize(8, fmt.Errorf("open: %w", secret)), privateText},
		"refusal":           {refusef("qpn is 1"), "qpn is 1"},
		"joined":            {errors.Join(refusef("qpn is 1"), secret), "qpn is 1"},
		"around it":         {fmt.Errorf("%w: %w", secret, refusef("qpn is 1")), "qpn is 1"},
		"at a size":         {atSize(8, errors.Join(refusef("qpn is 1"), secret)), "size 8: qpn is 1"},
		"data":              {atSize(8, &DataError{What: "a message", Offset: 1, Got: 1, Want: 2}), "size 8: wrong data in a message of queue pair 0: byte 1 is 0x01, expected 0x02"},
	} {
		if got, _ := publicText(c.err); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// FuzzMessage: what a peer sends is refused, or all of its numbers are in their ranges.
func FuzzMessage(f *testing.F) {
	open, err := json.Marshal(message{Kind: kindOpen, Config: &termsOf(true, func(*Config) {}).config})
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{
		string(open), `{"kind":"start","size":4096}`, `{"kind":"peers","peers":[{"qpn":17}]}`, `{"kind":"peers","peers":[{"own":1,"recvs":-1}]}`,
		`{"kind":"hello","limits":{"device":"a","driver":"b","maxmsg":1,"mtu":256,"maxwr":1,"maxcqe":1,"maxqps":1}}`,
		`{"kind":"finished","sent":10}`, `{"kind":"report","run":{"Took":1}}`, `{"kind":"opened","cm_addr":"[::1]:5"}`, `{"kind":`,
	} {
		f.Add([]byte(text), uint8(1), true, true)
		f.Add([]byte(text), uint8(1), false, false)
	}
	f.Fuzz(func(t *testing.T, b []byte, qps uint8, iwarp, server bool) {
		agreed := termsOf(iwarp, func(c *Config) { c.QPs, c.CM, c.Sizes = int(qps)+1, iwarp, []int{64, 4096} })
		m, err := read(agreed, server, string(b))
		if err != nil {
			if text, public := publicText(err); !public || text == "" {
				t.Errorf("the peer is not told why: %v", err)
			}
			if m.Kind != kindOpen {
				return
			}
			m, err = read(nil, server, string(b))
			if err != nil {
				return
			}
		}
		is := func(what string, ok bool) {
			if !ok {
				t.Errorf("%s of %s is out of range: %+v", what, m.Kind, m)
			}
		}
		switch m.Kind {
		case kindHello:
			l := m.Limits
			is("device", len(l.Device) <= 64 && len(l.Driver) <= 64)
			is("limits", l.MaxMsg > 0 && l.MaxWR > 0 && l.MaxCQE > 0 && l.MaxQPs > 0 && l.RdAtomic >= 0 && l.RdAtomic < 256)
			_, err := uverbs.MTUFromBytes(l.MTU)
			is("MTU", err == nil)
			c := agreed.config
			if c.fit(*l) == nil {
				c.settle(*l)
				is("recv-depth", c.RecvDepth >= 1 && c.RecvDepth <= l.MaxWR)
			}
		case kindOpen:
			for _, l := range []Limits{device, limits0} {
				c := *m.Config
				if c.fit(l) != nil {
					continue
				}
				c.settle(l)
				checkPlan(t, &c, l)
			}
		case kindPeers:
			is("peers", len(m.Peers) == int(qps)+1)
			for _, p := range m.Peers {
				is("qpn", p.QPN <= 0xffffff && p.PSN <= 0xffffff)
				is("addr", p.Addr+4096+4096 >= p.Addr)
				if iwarp {
					is("own", p.Own > 0 && p.Own+64 > p.Own && p.Recvs >= 1 && p.Recvs <= 1<<20)
				} else {
					is("own", p.Own == 0 && p.Recvs == 0)
				}
			}
		case kindStart:
			is("size", m.Size == 64 || m.Size == 4096)
		case kindFinished:
			is("sent", m.Sent >= 0 && m.Sent <= int64(agreed.config.total()*agreed.config.QPs))
		case kindReport:
			r := m.Run
			is("run", r.Sent >= 0 && r.Received >= 0 && r.AllSent >= 0 && r.Took >= 0 && r.CPU >= 0 && r.Latencies == nil)
		}
	})
}

// checkPlan checks what follows from a config that is valid and fits.
func checkPlan(t *testing.T, c *Config, l Limits) {
	t.Helper()
	plan := newLayout(c)
	e := &End{Config: *c, Limits: l, memory: plan}
	last := c.QPs - 1
	for _, size := range c.Sizes {
		for _, n := range []int{0, e.places(size) - 1, e.places(size), 1 << 20} {
			at, remote := e.sendAt(last, n, size)
			if at < 0 || at+size > plan.base || remote < 0 || remote+size > plan.recv {
				t.Errorf("message %d of %d bytes of %+v is at %d, and of the peer's memory at %d: %+v", n, size, c, at, remote, plan)
			}
		}
		if at := e.recvAt(last, plan.slots-1, size); at < plan.base || at+size > plan.own {
			t.Errorf("the last receive of %d bytes of %+v is at %d: %+v", size, c, at, plan)
		}
		if n := c.listOf(size, l.IWARP); n < 1 || n > c.Depth {
			t.Errorf("a doorbell posts %d messages of %d bytes of %+v", n, size, c)
		}
		if n := c.moderation(size); n < 1 || n > c.Depth {
			t.Errorf("there is one completion for %d messages of %d bytes of %+v", n, size, c)
		}
		if gap := c.Rate.gap(c.list(), size); gap < 0 {
			t.Errorf("the gap for %d bytes of %+v is %s", size, c, gap)
		}
	}
	if e.own(last) < plan.own || e.own(last)+ownSize > plan.size || plan.slots < 1 || plan.slots > c.RecvDepth {
		t.Errorf("the layout of %+v is %+v", c, plan)
	}
	if n := footprint(c, l); n < plan.size+c.QPs*plan.slots+c.QPs*c.Depth {
		t.Errorf("%+v needs %d bytes, of which the messages take %d", c, n, plan.size)
	}
}

// FuzzCredit: whatever the peer writes into the counter that this side looks at, there is room for
// as many messages as the peer has receives, at most, and a doorbell posts a number that the ring
// of work requests has.
func FuzzCredit(f *testing.F) {
	f.Add(uint32(1), uint32(0), uint32(0), uint16(128), uint16(64), uint32(0), uint32(0))
	f.Add(uint32(512), uint32(0), uint32(math.MaxUint32), uint16(1), uint16(1), uint32(0), uint32(0))
	f.Add(uint32(512), uint32(5), uint32(1<<31), uint16(16), uint16(0), uint32(7), uint32(2))
	f.Fuzz(func(t *testing.T, recvs, sent, told uint32, depth, list uint16, posted, completed uint32) {
		recvs = min(max(recvs, 1), maxDepth)
		n := room(int(recvs), sent, told)
		if n < 0 || n > int(recvs) {
			t.Fatalf("room for %d of %d", n, recvs)
		}
		c := Default(Send, BW)
		c.Depth, c.List = int(depth)+1, int(list)
		if c.List == 0 {
			c.List = Auto
		}
		if c.Validate() != nil {
			return
		}
		fl := flow{wrs: make([]uverbs.SendWR, c.list()*3), goal: 1 << 33, posted: int(posted), completed: int(posted) - int(completed)%(c.Depth+1)}
		fl.next = int(posted) % len(fl.wrs)
		n = min(n, fl.together(&c, c.list(), c.moderation(64)))
		if n > 0 && (n > c.list() || fl.next+n > len(fl.wrs) || fl.posted-fl.completed+n > c.Depth) {
			t.Errorf("%d messages by one doorbell of %d, from %d of %d, %d under way of %d", n, c.list(), fl.next, len(fl.wrs), fl.posted-fl.completed, c.Depth)
		}
	})
}

// TestDecode: what is encoded comes back, with every field.
func TestDecode(t *testing.T) {
	m := message{Kind: "k", Error: "e", Limits: &limits0, Config: &Config{Op: "x"}, Peers: []Peer{{QPN: 1}, {QPN: 2}}, CMAddr: "a", CMToken: []byte("t"), Inline: 1, Size: 2, Sent: 3, Run: &Run{Sent: 4}}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeMessage(b, 2); err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("%s becomes %+v: %v", b, got, err)
	}
}
