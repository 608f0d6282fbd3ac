package conformance

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestOnDemandQueues: atomics change memory that is on demand, receives of an SRQ go there,
// and datagrams come from there. Each has a page that nobody has touched, and begins at its
// start, see TestOnDemandPaging.
func TestOnDemandQueues(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	testenv.NeedsIB(t, "on-demand paging")
	a, b := pairOnce(t, uverbs.QPOptions{})
	const page = 4096
	buf := newBuffer(t, 16*page)
	mr, err := b.pd.RegMR(buf, uverbs.MROptions{Access: remoteRights | uverbs.AccessRemoteAtomic | uverbs.AccessOnDemand})
	testenv.Skip(t, err)
	must(t, err)
	closeLater(t, mr)
	atomics := []uverbs.WROpcode{uverbs.WRFetchAdd, uverbs.WRCompareSwap}
	if lacksAtomics(t, a.dev) {
		atomics = nil
	}
	for i, op := range atomics {
		wr := send(1, a.mr.SGE(0, 8))
		wr.Opcode, wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.Swap = op, mr.Addr()+uint64(i*page), mr.RKey(), 7, 40
		if op == uverbs.WRCompareSwap {
			wr.CompareAdd = 0 // what a new page holds
		}
		a.setWord(0, 99)
		must(t, a.qp.PostSend(wr))
		wc := a.next(t)
		must(t, a.qp.Err(&wc))
		want := map[uverbs.WROpcode]uint64{uverbs.WRFetchAdd: 7, uverbs.WRCompareSwap: 40}[op]
		if got := binary.NativeEndian.Uint64(buf.Bytes()[i*page:]); got != want || a.word(0) != 0 {
			t.Errorf("%s: there is %d and was %d, want %d and 0", op, got, a.word(0), want)
		}
	}

	g := newSRQGroup(t, a.dev, 1, 4, uverbs.QPOptions{})
	srqMR, err := g.takes[0].pd.RegMR(buf, uverbs.MROptions{Access: remoteRights | uverbs.AccessOnDemand})
	must(t, err)
	closeLater(t, srqMR)
	for i := 2; i < 5; i++ {
		want := g.from[0].fill(0, 1000, byte(i))
		must(t, g.srq.PostRecv(uint64(i), srqMR.SGE(i*page, 1000)), g.from[0].qp.PostSend(send(9, g.from[0].mr.SGE(0, 1000))))
		// The receiver first: a device may end the receive with an error, and whoever polls posts it
		// again.
		g.takes[0].want(t, uint64(i), uverbs.WCRecv)
		g.from[0].want(t, 9, uverbs.WCSend)
		if !bytes.Equal(buf.Bytes()[i*page:][:1000], want) {
			t.Errorf("what the SRQ received on page %d is not what was sent", i)
		}
	}

	from, to, ah := udPair(t, uverbs.QPOptions{})
	udMR, err := from.pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessOnDemand})
	must(t, err)
	closeLater(t, udMR)
	for i := 4; i < 7; i++ { // a page with data, and some without
		must(t, to.qp.PostRecv(uint64(i), to.mr.SGE(0, 1040)), from.qp.PostSend(datagram(9, ah, to, udMR.SGE(i*page, 1000))))
		from.want(t, 9, uverbs.WCSend)
		to.want(t, uint64(i), uverbs.WCRecv)
		to.holds(t, uverbs.GRHSize, buf.Bytes()[i*page:][:1000])
	}
}

// TestOnDemandRequests: a SEND takes data from memory that is on demand and from memory that is pinned, and is received
// in both; ATOMIC_WRITE and FLUSH reach memory on demand, if the device has them for it. See TestOnDemandQueues.
func TestOnDemandRequests(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	testenv.NeedsIB(t, "on-demand paging")
	testenv.Guest(t)
	access := remoteRights | uverbs.AccessFlushGlobal
	caps := openDevice(t, deviceName).Attr().ODPCapsRC
	if caps&uverbs.ODPFlush == 0 {
		access = remoteRights
	}
	a, b := pairOnce(t, uverbs.QPOptions{MaxSendSGE: 2, MaxRecvSGE: 2, Path: uverbs.PathOptions{Access: access}})
	const page = 4096
	var paged [2]*uverbs.MR // of a, of b
	for i, s := range []*side{a, b} {
		mr, err := s.pd.RegMR(newBuffer(t, 8*page), uverbs.MROptions{Access: access | uverbs.AccessOnDemand})
		testenv.Skip(t, err)
		must(t, err)
		closeLater(t, mr)
		paged[i] = mr
	}
	for i := range 3 {
		head, tail := a.fill(0, 500, byte(i)), paged[0].Bytes()[i*page:][:300] // of which nobody has touched the last
		if i < 2 {
			copy(tail, a.fill(1000, 300, byte(i+50)))
		}
		must(t, b.qp.PostRecv(1, paged[1].SGE(i*page, 400), b.mr.SGE(0, 1000)), a.qp.PostSend(send(2, a.mr.SGE(0, 500), paged[0].SGE(i*page, 300))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
		if got := slices.Concat(paged[1].Bytes()[i*page:][:400], b.buf.Bytes()[:400]); !bytes.Equal(got, slices.Concat(head, tail)) {
			t.Errorf("message %d is not what was sent from both regions", i)
		}
	}

	word := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	for _, c := range []struct {
		cap  uverbs.ODPCaps
		wr   uverbs.SendWR
		want uverbs.WCOpcode
	}{
		{uverbs.ODPAtomicWrite, uverbs.SendWR{Opcode: uverbs.WRAtomicWrite, Inline: word}, uverbs.WCAtomicWrite},
		{uverbs.ODPFlush, uverbs.SendWR{Opcode: uverbs.WRFlush, Length: 100, Placement: uverbs.FlushGlobal}, uverbs.WCFlush},
		{uverbs.ODPFlush, uverbs.SendWR{Opcode: uverbs.WRFlush, Placement: uverbs.FlushGlobal, Level: uverbs.FlushMR}, uverbs.WCFlush},
	} {
		if caps&c.cap == 0 {
			testenv.Skip(t, &uverbs.FeatureError{Feature: "on-demand paging of ATOMIC_WRITE and FLUSH", Driver: rig.Driver})
		}
		c.wr.ID, c.wr.Flags, c.wr.RemoteAddr, c.wr.RKey = 7, uverbs.SendSignaled, paged[1].Addr()+5*page, paged[1].RKey()
		must(t, a.qp.PostSend(c.wr))
		a.want(t, 7, c.want)
		if got := paged[1].Bytes()[5*page:][:8]; !bytes.Equal(got, word) {
			t.Errorf("after %s there is %x, want %x", c.wr.Opcode, got, word)
		}
	}
}
