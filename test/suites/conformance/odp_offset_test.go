package conformance

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// odpPage is the size of a page of memory with on-demand paging, in bytes.
const odpPage = 4096

// put writes data to memory as a device should, or as rxe of Linux 6.15 and newer does: it ignores the
// offset within a page, and begins each page with the first byte of the data.
func put(memory []byte, offset int, data []byte, bug bool) {
	if !bug {
		copy(memory[offset:], data)
		return
	}
	for done := 0; done < len(data); {
		n := min(len(data)-done, odpPage-(offset+done)%odpPage)
		copy(memory[(offset+done)/odpPage*odpPage:], data[:n])
		done += n
	}
}

// TestOnDemandOffsets writes to memory with on-demand paging, reads it, receives there and sends from
// there, within pages and over their ends. Every other byte stays as it is.
func TestOnDemandOffsets(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	a, b := pairOnce(t, uverbs.QPOptions{})
	buf := newBuffer(t, 4*odpPage)
	mr, err := b.pd.RegMR(buf, uverbs.MROptions{Access: remoteRights | uverbs.AccessOnDemand})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, mr)
	memory := buf.Bytes()
	// matches compares what is there with what a device should leave, or with what the bug does.
	matches := func(t *testing.T, got, want, wrong []byte) {
		t.Helper()
		if !bytes.Equal(got, want) && !(onRxe && since(t, 6, 15) && bytes.Equal(got, wrong) && testenv.KnownBug(t, "odp-offset")) {
			t.Error("the data are not where they should be, or other bytes have changed")
		}
	}
	for i, c := range []struct{ offset, n int }{{0, 1000}, {100, 600}, {odpPage + 3500, 1000}, {3*odpPage - 1, 500}, {4*odpPage - 700, 700}} {
		addr := mr.Addr() + uint64(c.offset)
		for name, write := range map[string]func(){
			"WRITE": func() {
				if st := a.rdma(t, uverbs.WRRDMAWrite, a.mr.SGE(0, c.n), addr, mr.RKey()); st != uverbs.WCSuccess {
					t.Fatalf("RDMA WRITE: %s", st)
				}
			},
			"receive": func() {
				must(t, b.qp.PostRecv(1, mr.SGE(c.offset, c.n)), a.qp.PostSend(send(2, a.mr.SGE(0, c.n))))
				a.want(t, 2, uverbs.WCSend)
				b.want(t, 1, uverbs.WCRecv)
			},
		} {
			t.Run(fmt.Sprintf("%s of %d bytes to byte %d", name, c.n, c.offset), func(t *testing.T) {
				clear(memory)
				data := a.fill(0, c.n, byte(i+1))
				want, wrong := slices.Clone(memory), slices.Clone(memory)
				put(want, c.offset, data, false)
				put(wrong, c.offset, data, true)
				write()
				matches(t, memory, want, wrong)
			})
		}
		for name, read := range map[string]func(){
			"READ": func() {
				if st := a.rdma(t, uverbs.WRRDMARead, a.mr.SGE(0, c.n), addr, mr.RKey()); st != uverbs.WCSuccess {
					t.Fatalf("RDMA READ: %s", st)
				}
			},
			"SEND": func() {
				must(t, a.qp.PostRecv(1, a.mr.SGE(0, c.n)), b.qp.PostSend(send(2, mr.SGE(c.offset, c.n))))
				b.want(t, 2, uverbs.WCSend)
				a.want(t, 1, uverbs.WCRecv)
			},
		} {
			t.Run(fmt.Sprintf("%s of %d bytes from byte %d", name, c.n, c.offset), func(t *testing.T) {
				for j := range memory {
					memory[j] = byte(j * 7 / 5)
				}
				got := a.fill(0, c.n, 0)
				read()
				// With the bug the parts of both pages lie over each other, and the rest is what was in the packet.
				begin, first := c.offset/odpPage*odpPage, min(c.n, odpPage-c.offset%odpPage)
				wrong := slices.Clone(got)
				copy(wrong, memory[begin:][:first])
				if rest := c.n - first; rest > 0 {
					copy(wrong, memory[begin+odpPage:][:rest])
				}
				matches(t, got, memory[c.offset:][:c.n], wrong)
			})
		}
	}
}
