package softrxe

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// An exchangeCase is an exchange of packets between a requester, end a, and a responder, end b.
type exchangeCase struct {
	name     string
	a, b     uverbs.QPOptions
	subjects string // the ends whose packets are compared, "a", "b" or, by default, both
	since    [2]int // the first kernel whose rxe supports it
	run      func(x *recordedExchange)
	want     string // as in verbsCase, as is wantSpec
	wantSpec string
}

// recordedExchange is one run of an exchangeCase. One end, the subject, is the device whose packets matter. The
// other is a software device that records them.
type recordedExchange struct {
	exchange
	subject *end
	peer    *soft.Device
	tap     *tap
	numbers numbers

	unreliable bool // the QPs are of type UC
}

// Values that both ends agree upon, so that they are the same in each run.
const (
	psnA = 0xfffffe // soon 0 again
	psnB = 0x123456

	iovaA = 0x7a00_0010_0000
	iovaB = 0x7b00_0020_0000

	regionSize = 256 << 10 // of the memory of an end
)

// exchangeHosts returns the subject, which in a VM is the kernel's device, and its peer. Elsewhere packets take
// sockets if sockets is true.
func exchangeHosts(t *testing.T, ipv6, sockets bool) (subject, other host, peer *soft.Device, p *tap) {
	t.Helper()
	p = new(tap)
	if lab != nil {
		subject, other = host{name: kernelName, addr: rxeAddr}, host{soft: true, addr: softAddr}
		if ipv6 {
			subject.addr, other.addr = rxeAddr6, softAddr6
		}
		must(t, lab.nobody.do(func() (err error) {
			peer, err = soft.New(soft.Options{Addr: other.addr, Capture: p})
			return err
		}))
	} else {
		subject.soft, other.soft = true, true
		sender, receiver := soft.Options{Capture: p}, soft.Options{}
		if sockets {
			sender, receiver = soft.Options{Auto: true, ViaSocket: true}, soft.Options{Auto: true, ViaSocket: true, Capture: p}
		}
		dev, err := soft.New(sender)
		must(t, err)
		closeLater(t, dev)
		peer, err = soft.New(receiver)
		must(t, err)
		subject.name, subject.addr, other.addr = dev.Name(), dev.Addr(), peer.Addr()
	}
	closeLater(t, peer)
	other.name = peer.Name()
	if lab == nil && ipv6 {
		subject.addr, other.addr = subject.address6(t), other.address6(t)
	}
	return subject, other, peer, p
}

// address6 returns the IPv6 address of a software device on an IPv4 address, by which others of the process
// reach it.
func (h host) address6(t *testing.T) (addr netip.Addr) {
	t.Helper()
	dev, err := uverbs.Open(h.name, uverbs.OpenOptions{})
	must(t, err)
	defer dev.Close()
	table, err := dev.GIDTable(1)
	must(t, err)
	for _, e := range table {
		if a := e.GID.Addr(); a.Is6() && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	t.Fatalf("%s has no IPv6 address: %v", h.name, table)
	return addr
}

// supported reports whether rxe of a kernel supports the exchange, and sends what the newest one sends. In
// Linux 5.10 it repeats the flags of a request in the response, and does not count all messages in the MSN.
func (c *exchangeCase) supported(kernel [2]int) bool {
	return slices.Compare(kernel[:], v6_1[:]) >= 0 && slices.Compare(kernel[:], c.since[:]) >= 0
}

// play runs an exchange and returns what the subject has sent.
func (c *exchangeCase) play(t *testing.T, ipv6, sockets bool, subject string) *recorded {
	hosts := map[string]host{}
	x := &recordedExchange{unreliable: c.a.Type == ib.UC}
	x.t = t
	other := map[string]string{"a": "b", "b": "a"}[subject]
	hosts[subject], hosts[other], x.peer, x.tap = exchangeHosts(t, ipv6, sockets)
	x.a, x.b = newEnd(t, "a", hosts["a"], c.a, &x.record), newEnd(t, "b", hosts["b"], c.b, &x.record)
	x.subject = map[string]*end{"a": x.a, "b": x.b}[subject]
	x.a.moveTo(iovaA, c.a)
	x.b.moveTo(iovaB, c.b)
	x.a.start(x.b, psnA, psnB, c.a)
	x.b.start(x.a, psnB, psnA, c.b)
	x.numbers = numbers{"QPN of a": x.a.qp.QPN(), "QPN of b": x.b.qp.QPN(), "rkey of b": x.b.mr.RKey()}
	c.run(x)
	want, _ := (&verbsCase{want: c.want, wantSpec: c.wantSpec}).wanted([2]host{hosts["a"], hosts["b"]})
	if c.want == "" {
		want = x.lines
		if x.failures > 0 {
			t.Errorf("%d failures:\n%s", x.failures, &x.record)
		}
	}
	if diff := cmp.Diff(want, x.lines); diff != "" {
		t.Errorf("differs from what is expected:\n%s", diff)
	}
	return &recorded{x.numbers, x.tap.from(x.subject.host.addr)}
}

// moveTo registers the memory of an end at an address of its own.
func (e *end) moveTo(iova uint64, o uverbs.QPOptions) {
	e.t.Helper()
	access := rights
	if o.Path.Access&uverbs.AccessFlushGlobal != 0 {
		access |= uverbs.AccessFlushGlobal
	}
	var err error
	e.mr, err = e.pd.RegMR(e.buf, uverbs.MROptions{Access: access, Length: regionSize, IOVA: new(uint64(iova))})
	must(e.t, err)
	closeLater(e.t, e.mr)
}

// start makes the QP of an end ready to send, with PSNs that are the same in each run.
func (e *end) start(peer *end, own, peers uint32, o uverbs.QPOptions) {
	e.t.Helper()
	modify := func(a uverbs.QPAttr, m uverbs.QPAttrMask) {
		e.t.Helper()
		must(e.t, e.host.do(func() error { return e.qp.Modify(a, uverbs.AttrState|m) }))
	}
	rts := uverbs.QPAttr{State: ib.QPRTS, SQPSN: own, Timeout: orTimeout(o.Path.Timeout), RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 4}
	if o.Type == ib.UD {
		modify(uverbs.QPAttr{State: ib.QPReset}, 0)
		modify(uverbs.QPAttr{State: ib.QPInit, Port: 1, QKey: qkey}, uverbs.AttrPKeyIndex|uverbs.AttrPort|uverbs.AttrQKey)
		modify(uverbs.QPAttr{State: ib.QPRTR}, 0)
		modify(rts, uverbs.AttrSQPSN)
		return
	}
	rtr := uverbs.QPAttr{
		State: ib.QPRTR, PathMTU: ib.MTU256, DestQPN: peer.qp.QPN(), RQPSN: peers, MaxDestRdAtomic: 4,
		AH: uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{
			DGID: ib.GID(peer.host.addr.As16()), SGIDIndex: uint8(e.host.gidIndex(e.t, e.dev)), HopLimit: 64}},
	}
	connected := uverbs.AttrAH | uverbs.AttrPathMTU | uverbs.AttrDestQPN | uverbs.AttrRQPSN
	if o.Type == ib.UC {
		modify(rtr, connected)
		modify(rts, uverbs.AttrSQPSN)
		return
	}
	modify(rtr, connected|uverbs.AttrMaxDestRdAtomic|uverbs.AttrMinRNRTimer) // RNRTimer 0 is the longest one
	modify(rts, uverbs.AttrSQPSN|uverbs.AttrTimeout|uverbs.AttrRetryCount|uverbs.AttrRNRRetry|uverbs.AttrMaxRdAtomic)
}

// orTimeout returns a timeout that does not expire on a busy machine, if there is no other.
func orTimeout(t ib.AckTimeout) ib.AckTimeout {
	const patient = 21 // 8.6 s
	if t == 0 {
		return patient
	}
	return t
}

// lose has n packets of a class from end a, or from end b, be lost, which f causes. Acknowledgements behind them are
// late: one of the first packet that is sent again would end the repetition there.
func (x *recordedExchange) lose(from *end, class soft.Class, n uint64, f func()) {
	x.t.Helper()
	direction := soft.Sent
	if from == x.subject {
		direction = soft.Received
	}
	lost := func() uint64 {
		sent, received := x.peer.FaultCounters()
		return sent.Lost + received.Lost
	}
	before := lost()
	must(x.t, x.peer.SetFaults(soft.Faults{Rules: []soft.Rule{{Direction: direction, Class: class, Loss: soft.Always}}}))
	f()
	await(x.t, class.String()+" lost", func() bool { return lost()-before == n })
	var later soft.Faults
	if class == soft.ClassAck {
		later.Rules = []soft.Rule{{Direction: direction, Class: class, Delay: soft.Delay{Min: 300 * time.Millisecond}}}
	}
	must(x.t, x.peer.SetFaults(later))
}

// A difference is one between the packets of a software device and those of rxe.
type difference struct {
	reason string
	apply  func(form string) string // makes of a packet of rxe what the software device sends
}

// expectedDifferences are all that are expected.
var expectedDifferences = []difference{
	{
		reason: "rxe never sets MigReq. Without an alternate path the state of path migration is MIGRATED, and MigReq is 1 then",
		apply: func(form string) string {
			const flags = "flags "
			at := strings.Index(form, flags) + len(flags)
			digit := strings.IndexByte("0123456789abcdef", form[at])
			return form[:at] + fmt.Sprintf("%x", digit|4) + form[at+1:]
		},
	},
	{
		reason: "rxe asks for the acknowledgement of messages to QP 1. Datagrams are not acknowledged",
		apply: func(form string) string {
			return strings.Replace(form, "QPN 000001, ackreq 80", "QPN 000001, ackreq 00", 1)
		},
	},
}

// expect returns what the subject is expected to send in place of what was recorded.
func expect(forms []string) []string {
	if lab != nil {
		return forms
	}
	for i := range forms {
		for _, d := range expectedDifferences {
			forms[i] = d.apply(forms[i])
		}
	}
	return forms
}

// coalesce removes the acknowledgements that the next packet implies, as it acknowledges more. A software
// device sends one for all requests that come in at once from a socket.
func coalesce(forms []string) []string {
	const acknowledgement, positive = "opcode 11,", ", syndrome 1f,"
	return slices.Collect(func(yield func(string) bool) {
		for i, f := range forms {
			implied := strings.Contains(f, positive) && i+1 < len(forms) && strings.HasPrefix(forms[i+1], acknowledgement)
			if !implied && !yield(f) {
				return
			}
		}
	})
}

// exchangePlay is a case with one family of addresses and one subject.
type exchangePlay struct {
	*exchangeCase
	ipv6    bool
	subject string
}

// String returns the title of the play.
func (p exchangePlay) String() string {
	return fmt.Sprintf("%s, %s, from %s", p.name, family(p.ipv6), p.subject)
}

// exchangePlays returns all plays.
func exchangePlays() (all []exchangePlay) {
	for i := range exchangeCases {
		c := &exchangeCases[i]
		for _, ipv6 := range []bool{false, true} {
			for _, subject := range []string{"a", "b"} {
				if c.subjects == "" || c.subjects == subject {
					all = append(all, exchangePlay{c, ipv6, subject})
				}
			}
		}
	}
	return all
}

// TestExchanges plays all exchanges. In a VM the subject is rxe, and its packets must be those that were
// recorded. Elsewhere it is a software device, which sends the same but for the differences: within the process,
// and with IPv4 also by sockets. The loopback interface has one IPv6 address only.
func TestExchanges(t *testing.T) {
	if os.Getenv(recordEnv) != "" {
		recordExchanges(t)
		return
	}
	all := readRecorded(t, recordedText)
	plays := exchangePlays()
	if lab != nil {
		plays = slices.DeleteFunc(plays, func(p exchangePlay) bool { return !p.supported(testenv.Kernel(t)) })
	}
	for _, p := range plays {
		run := func(name string, sockets bool) {
			t.Run(name, func(t *testing.T) {
				if lab == nil {
					t.Parallel()
				}
				got, r := p.play(t, p.ipv6, sockets, p.subject), all[p.String()]
				if r == nil {
					t.Fatalf("nothing is recorded for %q", p)
				}
				want, have := expect(r.forms()), got.forms()
				if sockets {
					want, have = coalesce(want), coalesce(have)
				}
				if diff := cmp.Diff(want, have); diff != "" {
					t.Errorf("differs from what rxe sent:\n%s", diff)
				}
			})
		}
		run(p.String(), false)
		if lab == nil && !p.ipv6 {
			run(p.String()+", by sockets", true)
		}
	}
}

// recordEnv, if it is set in a VM, makes TestExchanges print what rxe sends.
const recordEnv = "GOVERBS_RECORD"

// recordExchanges prints what the subjects send, for testdata/exchanges.txt.
func recordExchanges(t *testing.T) {
	testenv.Guest(t)
	for _, p := range exchangePlays() {
		t.Run(p.String(), func(t *testing.T) { p.play(t, p.ipv6, false, p.subject).put(os.Stdout, p.String()) })
	}
}
