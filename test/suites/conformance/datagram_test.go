package conformance

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// wayTo makes an AH from a side to another.
func wayTo(t *testing.T, from, to *side) *uverbs.AH {
	t.Helper()
	return wayToGID(t, from, gidOf(t, to.dev))
}

// gidOf returns the IPv4 GID of a device.
func gidOf(t *testing.T, dev *uverbs.Device) uverbs.GIDEntry {
	t.Helper()
	e, err := dev.GID(1, ipv4Index)
	must(t, err)
	if rig.InfiniBand() || rig.EFA() {
		return e
	}
	if !e.GID.Addr().Is4() || e.Type != ib.GIDTypeRoCEv2 {
		t.Fatalf("%s has %s, want an IPv4 GID", dev.Name(), e)
	}
	return e
}

// lidOf returns the LID of the port that has a GID on InfiniBand, else 0.
func lidOf(t *testing.T, gid ib.GID) uint16 {
	t.Helper()
	for _, name := range rig.Devices {
		dev, err := uverbs.Open(name, uverbs.OpenOptions{})
		must(t, err)
		own, err := dev.GID(1, 0)
		port, perr := dev.Port(1)
		must(t, err, perr, dev.Close())
		if own.GID == gid && rig.InfiniBand() {
			return port.LID
		}
	}
	return 0
}

// wayToGID makes an AH to a GID.
func wayToGID(t *testing.T, from *side, to uverbs.GIDEntry) *uverbs.AH {
	t.Helper()
	ah, err := from.pd.CreateAH(uverbs.AHAttr{Port: 1, DLID: lidOf(t, to.GID), Global: true, GRH: uverbs.GRH{
		DGID: to.GID, SGIDIndex: uint8(gidOf(t, from.dev).Index), HopLimit: 64, TrafficClass: 0x20,
	}})
	must(t, err)
	closeLater(t, ah)
	return ah
}

// datagram is a signalled SEND to a peer.
func datagram(id uint64, ah *uverbs.AH, to *side, sgl ...uverbs.SGE) uverbs.SendWR {
	wr := send(id, sgl...)
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, to.qp.QPN(), testQKey
	return wr
}

// datagrams sends one message each way and checks what comes before the data.
func datagrams(t *testing.T, a, b *side) {
	t.Helper()
	ah := wayTo(t, a, b)
	want := a.fill(0, 500, 3)
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)))
	if rig.EFA() { // where the doorbell of a may overtake that of another card, which a command cannot
		must(t, second(b.qp.Query()))
	}
	wr := datagram(2, ah, b, a.mr.SGE(0, 500))
	wr.Opcode, wr.Imm = uverbs.WRSendWithImm, 0xabcdef01
	must(t, a.qp.PostSend(wr))
	a.want(t, 2, uverbs.WCSend)
	wc := b.want(t, 1, uverbs.WCRecv)
	if int(wc.ByteLen) != uverbs.GRHSize+500 || wc.SrcQP != a.qp.QPN() || wc.Flags&uverbs.WCWithGRH == 0 && !rig.EFA() || wc.Imm != wr.Imm {
		t.Fatalf("completion %+v, want 540 bytes from QP %d with a GRH and immediate %#x", wc, a.qp.QPN(), wr.Imm)
	}
	if !rig.EFA() { // which has the number of an AH in place of the LID
		checkUntagged(t, &wc)
	}
	b.holds(t, uverbs.GRHSize, want)
	if rig.EFA() {
		testenv.NotSupported(t, "GRHs of datagrams that are documented")
		return
	}
	grh, err := uverbs.ParseGRH(b.buf.Bytes())
	must(t, err)
	if grh.IPv4 == rig.InfiniBand() || grh.SGID != gidOf(t, a.dev).GID || grh.DGID != gidOf(t, b.dev).GID || grh.TrafficClass&^3 != 0x20 {
		t.Fatalf("GRH %+v, want one from %s to %s with traffic class 0x20", grh, gidOf(t, a.dev).GID, gidOf(t, b.dev).GID)
	}

	// The receiver answers to where it came from.
	back, err := b.pd.CreateAHFor(1, &wc, b.buf.Bytes())
	must(t, err)
	defer func() { must(t, back.Close()) }()
	if got := back.Attr(); got.GRH.DGID != gidOf(t, a.dev).GID || got.SL != 0 {
		t.Fatalf("the way back leads to %s with service level %d, want 0", got.GRH.DGID.Addr(), got.SL)
	}
	must(t, a.qp.PostRecv(3, a.mr.SGE(2000, 1000)))
	must(t, b.qp.PostSend(datagram(4, back, a, b.mr.SGE(uverbs.GRHSize, 500))))
	b.want(t, 4, uverbs.WCSend)
	wc = a.want(t, 3, uverbs.WCRecv)
	checkUntagged(t, &wc)
	a.holds(t, 2000+uverbs.GRHSize, want)
}

// checkUntagged checks the completion of a datagram that was sent with service level 0 and without a VLAN tag.
func checkUntagged(t *testing.T, wc *uverbs.WC) {
	t.Helper()
	if wc.SL != 0 || wc.PKeyIndex != 0 || wc.SLID != 0 && !rig.InfiniBand() {
		t.Errorf("a datagram without a VLAN tag has SL %d, SLID %#x and P_Key index %d, want 0", wc.SL, wc.SLID, wc.PKeyIndex)
	}
}

func TestDatagram(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		datagrams(t, newSide(t, dev, uverbs.QPOptions{Type: ib.UD}), newSide(t, dev, uverbs.QPOptions{Type: ib.UD}))
	})
}

// TestDatagramAcross sends from one device to the other.
func TestDatagramAcross(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		datagrams(t, newSide(t, openDevice(t, rig.Devices[0]), uverbs.QPOptions{Type: ib.UD}),
			newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{Type: ib.UD}))
	})
}

// TestDatagramQKey: what has another Q_Key does not arrive.
func TestDatagramQKey(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		a, b := newSide(t, dev, uverbs.QPOptions{Type: ib.UD}), newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
		ah := wayTo(t, a, b)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)))
		wr := datagram(2, ah, b, a.mr.SGE(0, 10))
		wr.RemoteQKey++
		must(t, a.qp.PostSend(wr))
		a.want(t, 2, uverbs.WCSend)
		b.none(t)
		must(t, a.qp.PostSend(datagram(3, ah, b, a.mr.SGE(0, 10))))
		a.want(t, 3, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
	})
}

// TestPrivilegedQKey has QPs of a privileged process use a Q_Key with the highest bit set.
func TestPrivilegedQKey(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		const qkey = 1<<31 | testQKey
		dev := openDevice(t, deviceName)
		a, b := newSide(t, dev, uverbs.QPOptions{Type: ib.UD}), newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
		for _, s := range []*side{a, b} {
			must(t, s.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState), s.qp.ReadyUD(qkey))
			if attr, err := s.qp.Query(); err != nil || attr.QKey != qkey {
				t.Errorf("the Q_Key is %#x, %v, want %#x", attr.QKey, err, uint32(qkey))
			}
		}
		wr := datagram(2, wayTo(t, a, b), b, a.mr.SGE(0, 10))
		wr.RemoteQKey = qkey
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 1000)), a.qp.PostSend(wr))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)
	})
}

// TestDatagramErrors: what no datagram can be is refused before it is posted.
func TestDatagramErrors(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		a := newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
		rc := newSide(t, dev, uverbs.QPOptions{})
		other := newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{Type: ib.UD})
		ah, foreign := wayTo(t, a, a), wayTo(t, other, other)
		closed := wayTo(t, a, a)
		must(t, closed.Close(), closed.Close())
		sge := a.mr.SGE(0, 10)
		write := datagram(1, ah, a, sge)
		write.Opcode = uverbs.WRRDMAWrite
		for _, c := range []struct {
			wr          uverbs.SendWR
			field, text string
		}{
			{send(1, sge), "AH", "needs an open AH"},
			{datagram(1, closed, a, sge), "AH", "needs an open AH"},
			{datagram(1, foreign, a, sge), "AH", "another device"},
			{write, "Opcode", uverbs.ErrOpcode.Error()},
		} {
			var post *uverbs.PostError
			if err := a.qp.PostSend(datagram(7, ah, a, sge), c.wr); !errors.As(err, &post) || post.Index != 1 || !wrongField(err, c.field, c.text) {
				t.Errorf("%v, want %s: %s at index 1", err, c.field, c.text)
			}
		}
		a.none(t)
		if !rig.EFA() {
			argError(t, rc.qp.ReadyUD(1), "QP type")
		}
		argError(t, a.qp.Connect(t.Context(), uverbs.Endpoint{}), "QP type")
		argError(t, a.qp.Init(), "QP type")
		for field, attr := range map[string]uverbs.AHAttr{
			"Port": {Port: 2}, "SL": {Port: 1, SL: 16}, "GRH.FlowLabel": {Port: 1, GRH: uverbs.GRH{FlowLabel: 1 << 20}},
		} {
			_, err := a.pd.CreateAH(attr)
			argError(t, err, field)
		}
		var kernel *uverbs.Error
		attr := ah.Attr()
		attr.GRH.SGIDIndex = 99
		if _, err := a.pd.CreateAH(attr); !errors.As(err, &kernel) {
			t.Errorf("an AH from GID 99: %v, want the kernel's refusal", err)
		}
		if err := a.pd.Close(); err == nil {
			t.Error("a PD with an AH was closed")
		}
	})
}

// TestMulticast sends to a group that a QP of the other device is attached to.
func TestMulticast(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.NeedsRoCE(t, "Ethernet")
		a := newSide(t, openDevice(t, rig.Devices[0]), uverbs.QPOptions{Type: ib.UD})
		b := newSide(t, openDevice(t, rig.Devices[1]), uverbs.QPOptions{Type: ib.UD})
		group := netip.MustParseAddr("ff0e::7:1")
		gid := ib.GID(group.As16())
		v6 := func(s *side) uverbs.GIDEntry {
			table, err := s.dev.GIDTable(1)
			must(t, err)
			e, ok := uverbs.ChooseGID(table, gid)
			if !ok || e.GID.Addr().Is4() {
				t.Fatalf("%s has no IPv6 GID", s.dev.Name())
			}
			return e
		}
		join(t, b.dev, group)
		must(t, b.qp.AttachMulticast(gid, 0))
		ah, err := a.pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: gid, SGIDIndex: uint8(v6(a).Index), HopLimit: 4}})
		must(t, err)
		closeLater(t, ah)
		want := a.fill(0, 700, 9)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 2000)))
		wr := send(2, a.mr.SGE(0, 700))
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, 0xffffff, testQKey
		must(t, a.qp.PostSend(wr))
		a.want(t, 2, uverbs.WCSend)
		if wc := b.want(t, 1, uverbs.WCRecv); int(wc.ByteLen) != 740 {
			t.Fatalf("received %d bytes, want 740", wc.ByteLen)
		}
		b.holds(t, uverbs.GRHSize, want)
		grh, err := uverbs.ParseGRH(b.buf.Bytes())
		must(t, err)
		if grh.DGID != gid || grh.SGID != v6(a).GID {
			t.Errorf("GRH from %s to %s, want from %s to %s", grh.SGID, grh.DGID, v6(a).GID, gid)
		}

		must(t, b.qp.DetachMulticast(gid, 0), b.qp.PostRecv(3, b.mr.SGE(0, 2000)), a.qp.PostSend(wr))
		a.want(t, 2, uverbs.WCSend)
		b.none(t)
		if err := b.qp.DetachMulticast(gid, 0); err == nil {
			t.Error("a QP was detached twice")
		}
		argError(t, b.qp.AttachMulticast(v6(b).GID, 0), "GID")
		must(t, b.qp.Close())
		errorIs(t, b.qp.AttachMulticast(gid, 0), os.ErrClosed, "attach after Close")
	})
}

// TestMulticastSideBySide: a QP leaves a group while a QP of another context joins it. Each stays attached from its
// join to its leave, which the bug attach-race would prevent.
func TestMulticastSideBySide(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "Ethernet")
	sides := []*side{newSide(t, openDevice(t, deviceName), uverbs.QPOptions{Type: ib.UD}), newSide(t, openDevice(t, deviceName), uverbs.QPOptions{Type: ib.UD})}
	var group sync.WaitGroup
	for i, s := range sides {
		group.Go(func() {
			gid := ib.GID{0xff, 0x0e, 13: 7, 15: 9}
			for round, start := 1, time.Now(); time.Since(start) < time.Second; round++ {
				if err := errors.Join(s.qp.AttachMulticast(gid, 0), s.qp.DetachMulticast(gid, 0)); err != nil {
					t.Errorf("QP %d, round %d: %v", i, round, err)
					return
				}
			}
		})
	}
	group.Wait()
}

// join makes the second device of the rig a member of a group until the end of the test: packets to the group
// arrive for the QPs that are attached to it. The kernel's devices receive what their interface has joined.
func join(t *testing.T, dev *uverbs.Device, group netip.Addr) {
	t.Helper()
	if rig.Soft {
		d := soft.ByName(dev.Name())
		must(t, d.JoinGroup(group))
		t.Cleanup(func() { must(t, d.LeaveGroup(group)) })
	} else {
		ifi, err := net.InterfaceByName(rig.Netdevs[1])
		must(t, err)
		c, err := net.ListenMulticastUDP("udp", ifi, &net.UDPAddr{IP: group.AsSlice(), Port: 40000})
		must(t, err)
		closeLater(t, c)
	}
}
