package fault

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/uverbs/soft/internal/pcap"
	"github.com/goverbs/goverbs/uverbs/soft/internal/udp"
	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// tracer writes what happens to packets. It is guarded by Injector.mu.
type tracer struct {
	start   time.Time
	lines   io.Writer    // nil: none, or it failed
	capture *pcap.Writer // nil: none, or it failed
	failed  error        // of the writers
	line    []byte
	sealed  []byte
}

// newTracer returns a tracer. Either writer may be nil.
func newTracer(o *Options, start time.Time) (*tracer, error) {
	t := &tracer{lines: o.Trace, start: start}
	if o.Capture != nil {
		var err error
		if t.capture, err = pcap.NewWriter(o.Capture, "goverbs uverbs/soft", o.Device); err != nil {
			return nil, fmt.Errorf("fault: cannot begin the capture: %w", err)
		}
	}
	return t, nil
}

// traced is a packet with its verdict.
type traced struct {
	packet
	verdict
	at       time.Time
	from, to netip.AddrPort
	data     []byte
	ip       udp.IP
	id       uint16
}

// record writes a packet with its verdict, if there is a trace. Preconditions: f.mu is held.
func (f *Injector) record(now time.Time, p *Path, pk *packet, v *verdict, data []byte, ip udp.IP, id uint16) {
	if f.trace == nil {
		return
	}
	r := traced{*pk, *v, now, p.Local, pk.peer, data, ip, id}
	if pk.dir == Received {
		r.from, r.to = r.to, r.from
	}
	f.trace.write(&r)
}

// write writes a packet.
func (t *tracer) write(r *traced) {
	b := r.appendPlace(t.line[:0], t.start)
	words := len(b)
	b = r.appendText(b)
	text := string(b[words:])
	t.line = append(b, '\n')
	if t.lines != nil {
		if _, err := t.lines.Write(t.line); err != nil {
			t.lines, t.failed = nil, errors.Join(t.failed, err)
		}
	}
	if t.capture != nil && r.capturable() {
		if err := t.capture.Write(t.frame(r, text)); err != nil {
			t.capture, t.failed = nil, errors.Join(t.failed, err)
		}
	}
}

// appendPlace appends the part of a line before the verdict.
func (r *traced) appendPlace(b []byte, start time.Time) []byte {
	b = strconv.AppendFloat(b, r.at.Sub(start).Seconds(), 'f', 6, 64)
	b = append(b, ' ')
	b = append(b, r.dir.String()...)
	b = append(b, ' ')
	b = r.from.AppendTo(b)
	b = append(b, " > "...)
	b = r.to.AppendTo(b)
	b = append(b, ": "...)
	b = append(b, wire.Describe(r.data)...)
	return append(b, ": "...)
}

// capturable reports whether the format of captures can hold the packet.
func (r *traced) capturable() bool {
	const most = 65507 // bytes of UDP payload over IPv4
	from, to := r.from.Addr().Unmap(), r.to.Addr().Unmap()
	return len(r.data) >= minPacket && len(r.data) <= most &&
		from.IsValid() && to.IsValid() && from.Is4() == to.Is4()
}

// frame returns the packet for the capture. A packet that is sent has no ICRC yet, nor has one from a peer that leaves
// it out; the packet gets one, and then the damage of its first copy.
func (t *tracer) frame(r *traced, text string) *pcap.Packet {
	t.sealed = append(t.sealed[:0], r.data...)
	from := netip.AddrPortFrom(r.from.Addr().Unmap(), r.from.Port())
	to := netip.AddrPortFrom(r.to.Addr().Unmap(), r.to.Port())
	wire.SealICRC(from, to, r.id, t.sealed)
	if r.copies > 0 && r.fates[0].corrupt {
		bit := flip(r.fates[0].bit, len(t.sealed))
		t.sealed[bit/8] ^= 0x80 >> (bit % 8)
	}
	p := &pcap.Packet{
		Time: r.at, From: r.from, To: r.to, TrafficClass: r.ip.TrafficClass, HopLimit: r.ip.HopLimit, ID: r.id,
		Direction: pcap.Received, Data: t.sealed, Comment: text,
	}
	if r.dir == Sent {
		p.Direction = pcap.Sent
	}
	return p
}

// appendText appends the verdict in words, as "lost (rule 0, packet 17)".
func (r *traced) appendText(b []byte) []byte {
	switch {
	case r.parted:
		b = append(b, "partitioned"...)
	case r.lost:
		b = append(b, "lost"...)
	case r.copies == 2:
		b = append(b, "duplicated: "...)
		b = r.appendCopy(b, 0)
		b = append(b, "; "...)
		b = r.appendCopy(b, 1)
	default:
		b = r.appendCopy(b, 0)
	}
	if r.rule < 0 {
		return b
	}
	b = append(b, " (rule "...)
	b = strconv.AppendInt(b, int64(r.rule), 10)
	b = append(b, ", packet "...)
	b = strconv.AppendUint(b, r.n, 10)
	return append(b, ')')
}

// appendCopy appends what happens to a copy of the packet.
func (r *traced) appendCopy(b []byte, copy int) []byte {
	a := &r.fates[copy]
	if a.corrupt {
		b = append(b, "corrupted in bit "...)
		b = strconv.AppendInt(b, int64(flip(a.bit, r.size)), 10)
		b = append(b, ", "...)
		if r.dir == Received {
			return append(b, "dropped"...)
		}
	}
	switch {
	case r.full[copy]:
		return append(b, "dropped as too many packets are held"...)
	case r.verdict.held[copy] == nil:
		return append(b, "passed"...)
	case a.behind > 0:
		b = append(b, "held back behind "...)
		b = strconv.AppendInt(b, int64(a.behind), 10)
		return append(b, " of its stream"...)
	}
	b = append(b, "delayed by "...)
	return append(b, r.waits[copy].String()...)
}
