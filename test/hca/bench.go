package hca

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/test/hca/engine"
	"github.com/goverbs/goverbs/test/hca/prm"
)

// The test bench: a part of BAR 0 that no real card has, through which a test in the guest
// injects faults (its other end is Card of package testenv). A command is text in the area, executed by a
// store to the first byte of the area; the answer takes its place.
const (
	benchOffset = 0x80000 // benchOffset is where the area begins in BAR 0.
	benchSize   = 0x1000  // benchSize is its length in bytes.

	// benchText is where the text begins, behind the byte that executes and two with the
	// text's length, little-endian.
	benchText = 8
)

// benchArea is what has been stored to the area.
type benchArea struct{ mem [benchSize]byte }

func (d *Device) readBench(off uint64, p []byte) { copy(p, d.bench.mem[off:]) }

func (d *Device) writeBench(off uint64, p []byte) {
	copy(d.bench.mem[off:], p)
	if off != 0 {
		return
	}
	n := int(d.bench.mem[1]) | int(d.bench.mem[2])<<8
	answer := "error: the text is too long"
	if n <= benchSize-benchText {
		var err error
		if answer, err = d.Bench(string(d.bench.mem[benchText:][:n])); err != nil {
			answer = "error: " + err.Error()
		}
	}
	answer = answer[:min(len(answer), benchSize-benchText)]
	d.bench.mem[1], d.bench.mem[2] = byte(len(answer)), byte(len(answer)>>8)
	copy(d.bench.mem[benchText:], answer)
}

// benchCommand is a command: how many arguments it takes, and what it does.
type benchCommand struct {
	args int
	run  func(d *Device, a *benchArgs) (string, error)
}

// benchCommands are what a test can ask for.
var benchCommands = map[string]benchCommand{
	"fatal": {0, func(d *Device, a *benchArgs) (string, error) { d.Fail(); return "ok", nil }},
	"well":  {0, func(d *Device, a *benchArgs) (string, error) { d.Revive(); return "ok", nil }},
	"link": {1, func(d *Device, a *benchArgs) (string, error) {
		up := a.choice("up", "down") == 0
		if a.err != nil {
			return "", a.err
		}
		return "ok", d.SetLink(up)
	}},
	// fail-command NAME STATUS SYNDROME SKIP TIMES
	"fail-command": {5, func(d *Device, a *benchArgs) (string, error) {
		op, status, syndrome, skip, times := a.op(), prm.Status(a.number(8)), uint32(a.number(32)), int(a.number(31)), int(a.number(31))
		if a.err == nil {
			d.FailCommand(op, status, syndrome, skip, times)
		}
		return "ok", a.err
	}},
	// fail-wqe QPN send|recv SKIP SYNDROME VENDOR
	"fail-wqe": {5, func(d *Device, a *benchArgs) (string, error) {
		qpn, recv, skip, syndrome, vendor := uint32(a.number(24)), a.choice("send", "recv") == 1, int(a.number(31)), engine.Syndrome(a.number(8)), uint8(a.number(8))
		if a.err != nil {
			return "", a.err
		}
		return "ok", d.eng.FailWQE(qpn, recv, skip, syndrome, vendor)
	}},
	"fail-qp": {1, func(d *Device, a *benchArgs) (string, error) { return a.object(d.eng.FailQP) }},
	// fail-migration QPN: the peer's wish to migrate can't be followed
	"fail-migration": {1, func(d *Device, a *benchArgs) (string, error) { return a.object(d.eng.FailMigration) }},
	// lid N, pkey INDEX VALUE, gid INDEX ADDRESS: what the subnet manager sets of an InfiniBand port; :: is no GID
	"lid": {1, func(d *Device, a *benchArgs) (string, error) {
		lid := uint16(a.number(16))
		return a.port(d, func(p *engine.PortState) { p.LID = lid })
	}},
	"pkey": {2, func(d *Device, a *benchArgs) (string, error) {
		i, key := a.index(pkeyCount), uint16(a.number(16))
		return a.port(d, func(p *engine.PortState) { p.PKeys[i] = key })
	}},
	"gid": {2, func(d *Device, a *benchArgs) (string, error) {
		i, g := a.index(gidCount), a.address()
		return a.port(d, func(p *engine.PortState) { p.GIDs[i] = engine.GID{Addr: g, Invalid: g == [16]byte{}} })
	}},
	// reregister: the subnet manager wants all to register anew
	"reregister": {0, func(d *Device, a *benchArgs) (string, error) {
		return a.port(d, func(*engine.PortState) { d.eng.Reregister() })
	}},
	"fail-cq": {1, func(d *Device, a *benchArgs) (string, error) { return a.object(d.eng.FailCQ) }},
	// fail-cq-of QPN: the CQ of a QP's sends
	"fail-cq-of": {1, func(d *Device, a *benchArgs) (string, error) { return a.object(d.eng.FailCQOf) }},
	"fail-srq":   {1, func(d *Device, a *benchArgs) (string, error) { return a.object(d.eng.FailSRQ) }},
	// fail-rq RQN: the RQ of a WQ
	"fail-rq": {1, func(d *Device, a *benchArgs) (string, error) { return a.object(d.eng.FailRQ) }},
	// frames COUNT SIZE: the queue to which the flow tables lead receives them
	"frames": {2, func(d *Device, a *benchArgs) (string, error) {
		count, size := a.number(63), int(a.number(31))
		if a.err != nil {
			return "", a.err
		}
		return "ok", d.eng.Flood(count, size)
	}},
	// packets drop|duplicate QPN SKIP COUNT: of those that go to a QP, or with 0 to any
	"packets": {4, func(d *Device, a *benchArgs) (string, error) {
		action := []engine.PacketAction{engine.DropPacket, engine.DuplicatePacket}[a.choice("drop", "duplicate")]
		f := engine.PacketFault{Action: action, QPN: uint32(a.number(24)), Skip: int(a.number(31)), Count: int(a.number(31))}
		if a.err == nil {
			d.cfg.Fabric.Fault(f)
		}
		return "ok", a.err
	}},
	// fabric LOSS DUPLICATE DELAY: probabilities from 0 to 1, and a time
	"fabric": {3, func(d *Device, a *benchArgs) (string, error) {
		f := engine.FabricConfig{Loss: a.share(), Duplicate: a.share(), Delay: a.time()}
		if a.err == nil {
			d.cfg.Fabric.Configure(f)
		}
		return "ok", a.err
	}},
	// headers inline|anywhere: where the headers of frames must be, of SQs that are made from now on
	"headers": {1, func(d *Device, a *benchArgs) (string, error) {
		return a.done(d.SetInlineHeaders, a.choice("inline", "anywhere") == 0)
	}},
	// uars FIRST: given out from now on, of which that many are in use
	"uars": {1, func(d *Device, a *benchArgs) (string, error) {
		first := uint32(a.number(24))
		if a.err != nil {
			return "", a.err
		}
		n, err := d.UARsFrom(first)
		return strconv.Itoa(n), err
	}},
	"violations": {0, func(d *Device, a *benchArgs) (string, error) {
		return strconv.FormatUint(d.Report().Violations, 10), nil
	}},
	// forgive RULE: how often it was broken, on purpose, which is no violation any more
	"forgive": {1, func(d *Device, a *benchArgs) (string, error) {
		return strconv.FormatUint(d.eng.Forgive(a.next()), 10), nil
	}},
	// personality: in words
	"personality": {0, func(d *Device, a *benchArgs) (string, error) { return d.cfg.Personality.String(), nil }},
	// command NAME: how often it was given
	"command": {1, func(d *Device, a *benchArgs) (string, error) {
		return strconv.Itoa(d.Report().Commands[a.op().String()]), a.err
	}},
}

func init() { // the commands of a subnet are in a file of their own
	maps.Copy(benchCommands, subnetCommands)
}

// Bench executes a command of the test bench, for whoever is in the same process.
func (d *Device) Bench(text string) (string, error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return "", fmt.Errorf("no command")
	}
	c, known := benchCommands[words[0]]
	if !known {
		return "", fmt.Errorf("command %q is not known", words[0])
	}
	if len(words)-1 != c.args {
		return "", fmt.Errorf("%s takes %d arguments, not %d", words[0], c.args, len(words)-1)
	}
	return c.run(d, &benchArgs{words: words[1:]})
}

// benchArgs reads arguments one by one, and keeps the first error.
type benchArgs struct {
	words []string
	err   error
}

func (a *benchArgs) next() string {
	w := a.words[0]
	a.words = a.words[1:]
	return w
}

func (a *benchArgs) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

func (a *benchArgs) number(bits int) uint64 {
	n, err := strconv.ParseUint(a.next(), 0, bits)
	if err != nil {
		a.fail(err)
	}
	return n
}

func (a *benchArgs) share() float64 {
	w := a.next()
	x, err := strconv.ParseFloat(w, 64)
	if err == nil && !(x >= 0 && x <= 1) {
		err = fmt.Errorf("%s is not from 0 to 1", w)
	}
	if err != nil {
		a.fail(err)
	}
	return x
}

func (a *benchArgs) time() time.Duration {
	t, err := time.ParseDuration(a.next())
	if err == nil && t < 0 {
		err = fmt.Errorf("%v is less than nothing", t)
	}
	if err != nil {
		a.fail(err)
	}
	return t
}

// choice gives the number of the word.
func (a *benchArgs) choice(words ...string) int {
	w := a.next()
	for i, c := range words {
		if c == w {
			return i
		}
	}
	a.fail(fmt.Errorf("%q is none of %s", w, strings.Join(words, ", ")))
	return 0
}

// index is below n.
func (a *benchArgs) index(n int) int {
	i := int(a.number(31))
	if i >= n {
		a.fail(fmt.Errorf("%d is not below %d", i, n))
	}
	return i
}

func (a *benchArgs) address() [16]byte {
	addr, err := netip.ParseAddr(a.next())
	if err != nil {
		a.fail(err)
		return [16]byte{}
	}
	return addr.As16()
}

// port changes an InfiniBand port.
func (a *benchArgs) port(d *Device, change func(*engine.PortState)) (string, error) {
	if d.cfg.Mode != IB {
		a.fail(fmt.Errorf("a port of %s has no subnet manager", d.cfg.Mode))
	}
	if a.err != nil {
		return "", a.err
	}
	p := d.eng.Port()
	change(&p)
	d.eng.SetPort(p)
	return "ok", nil
}

func (a *benchArgs) op() prm.Op {
	w := a.next()
	for op := range commands {
		if op.String() == w {
			return op
		}
	}
	a.fail(fmt.Errorf("%q is no command of the card", w))
	return 0
}

func (a *benchArgs) object(f func(uint32) error) (string, error) {
	n := uint32(a.number(24))
	if a.err != nil {
		return "", a.err
	}
	return "ok", f(n)
}

func (a *benchArgs) done(f func(bool), v bool) (string, error) {
	if a.err == nil {
		f(v)
	}
	return "ok", a.err
}
