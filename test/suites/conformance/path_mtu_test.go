package conformance

import (
	"bytes"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestPathMTU: two sides that allow different path MTUs use the smaller one, so that messages, WRITEs
// and READs of many packets work both ways.
func TestPathMTU(t *testing.T) {
	testenv.NeedsIB(t, "path MTUs")
	const size = 32 << 10 // bytes; one half of the buffer is the source, the other one the destination
	for name, mtus := range map[string][2]ib.MTU{"256 and the port's": {ib.MTU256, 0}, "the port's and 512": {0, ib.MTU512}} {
		t.Run(name, func(t *testing.T) {
			testenv.Guest(t)
			dev := openDevice(t, deviceName)
			option := func(mtu ib.MTU) uverbs.QPOptions {
				return uverbs.QPOptions{Path: uverbs.PathOptions{MTU: mtu}}
			}
			a, b := newSide(t, dev, option(mtus[0])), newSide(t, dev, option(mtus[1]))
			connect(t, a, b)
			want := max(mtus[0], mtus[1]) // the other one is 0
			for i, s := range []*side{a, b} {
				attr, err := s.qp.Query()
				must(t, err)
				if attr.PathMTU != want {
					t.Errorf("side %d has path MTU %d, want %d", i, attr.PathMTU.Bytes(), want.Bytes())
				}
			}
			for i, sides := range [][2]*side{{a, b}, {b, a}} {
				from, to := sides[0], sides[1]
				source, dest := from.mr.SGE(0, size), to.mr.SGE(size, size)
				for j := range size {
					from.buf.Bytes()[j] = byte(j>>8 + j + i)
				}
				arrived := func(op string, wr uverbs.WROpcode, remote *side, local uverbs.SGE, at uint64) {
					t.Helper()
					clear(to.buf.Bytes()[size:])
					poster := from
					if remote == from {
						poster = to
					}
					must(t, poster.qp.PostSend(uverbs.SendWR{ID: 1, Opcode: wr, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{local},
						RemoteAddr: remote.mr.SGE(0, 0).Addr + at, RKey: remote.mr.RKey()}))
					if wc := poster.next(t); wc.Status != uverbs.WCSuccess {
						t.Fatalf("%s: %v", op, poster.qp.Err(&wc))
					}
					if !bytes.Equal(to.buf.Bytes()[size:2*size], from.buf.Bytes()[:size]) {
						t.Errorf("%s: other bytes arrive", op)
					}
				}
				arrived("WRITE", uverbs.WRRDMAWrite, to, source, size)
				arrived("READ", uverbs.WRRDMARead, from, dest, 0)
				clear(to.buf.Bytes()[size:])
				must(t, to.qp.PostRecv(2, dest))
				must(t, from.qp.PostSend(uverbs.SendWR{ID: 3, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{source}}))
				to.want(t, 2, uverbs.WCRecv)
				from.want(t, 3, uverbs.WCSend)
				if !bytes.Equal(to.buf.Bytes()[size:2*size], from.buf.Bytes()[:size]) {
					t.Error("SEND: other bytes arrive")
				}
			}
		})
	}
}
