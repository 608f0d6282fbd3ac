package conformance

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// tracked returns the device that most tests use as netlinkrdma lists it, and trackedDevice one with a
// name.
func tracked(t *testing.T) netlinkrdma.Device { return trackedDevice(t, deviceName) }

func trackedDevice(t *testing.T, name string) netlinkrdma.Device {
	t.Helper()
	dev, err := netlinkrdma.DeviceByName(name)
	must(t, err)
	return dev
}

// withDrivers includes QPs of drivers: SRD, DC.
var withDrivers = netlinkrdma.ListOptions{Driver: true}

// resources returns the counts of a device.
func resources(t *testing.T, dev netlinkrdma.Device) netlinkrdma.ResourceCounts {
	t.Helper()
	counts, err := netlinkrdma.Resources(dev, withDrivers)
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// own returns the one element of a list that is ours by that test.
func own[T any](t *testing.T, list []T, err error, mine func(T) bool) T {
	t.Helper()
	must(t, err)
	i := slices.IndexFunc(list, mine)
	if i < 0 || slices.ContainsFunc(list[i+1:], mine) {
		t.Fatalf("%+v does not have one that is ours", list)
	}
	return list[i]
}

// firstUse uses a device, so that what is counted afterwards is only what the test has:
// mlx5_ib of newer kernels has CQs and SRQs of its own, from when a region, an SRQ or a QP first needs them.
func firstUse(t *testing.T, name string) {
	t.Helper()
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	must(t, err)
	pd, err := dev.AllocPD()
	must(t, err)
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 1})
	must(t, err)
	srq, err := pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1})
	if !rig.EFA() {
		must(t, err)
	}
	qp, err := pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq})
	must(t, err)
	mr, err := pd.RegSlice(make([]byte, 64), uverbs.AccessLocalWrite)
	must(t, err)
	must(t, mr.Close(), qp.Close(), cq.Close())
	if srq != nil {
		must(t, srq.Close())
	}
	must(t, pd.Close(), dev.Close())
}

// TestNetlinkResources holds objects and looks for them in the lists of the kernel.
func TestNetlinkResources(t *testing.T) {
	testenv.NeedsIB(t, "states of QPs over netlink")
	testenv.NeedsKernel(t, "lists over netlink")
	eachPath(t, func(t *testing.T) {
		firstUse(t, deviceName)
		dev := tracked(t)
		before := resources(t, dev)
		t.Run("objects in use", func(t *testing.T) { checkResources(t, dev, before) })
		for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
			after := resources(t, dev)
			if after == before {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("afterwards %+v, before %+v", after, before)
			}
		}
	})
}

// netlinkObjects are objects of this process as netlink lists them.
type netlinkObjects struct {
	pd netlinkrdma.PD
	cq netlinkrdma.CQ
	mr netlinkrdma.MR
	qp netlinkrdma.QP
}

// checkResources creates objects and checks what netlink reports of them.
func checkResources(t *testing.T, dev netlinkrdma.Device, before netlinkrdma.ResourceCounts) {
	hadPD, hadCQ := idsOf(t, dev)
	s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
	want := before
	want.Contexts++
	want.PDs++
	want.MRs++
	want.CQs++
	want.QPs++
	if got := resources(t, dev); got != want {
		t.Errorf("counts %+v, want %+v", got, want)
	}
	held := checkLists(t, dev, s, hadPD, hadCQ)
	checkByID(t, dev, held)
	checkContext(t, dev, held)
	mrCounters, err := netlinkrdma.CountersOfMRs(dev)
	own(t, mrCounters, err, func(m netlinkrdma.MRCounters) bool { return m.ID == held.mr.ID })

	// rxe counts for ports only. TestQPCounters has the counters of ConnectX.
	if !onMLX5 {
		errorIs(t, errorOf(netlinkrdma.NewQPCounter(dev, 1, held.qp.Num)), errors.ErrUnsupported, "counter for a QP")
	}
	checkConnected(t, dev)
}

// idsOf returns the IDs of the PDs and CQs of a device, so that new ones can be told from those that a
// failed test may have left.
func idsOf(t *testing.T, dev netlinkrdma.Device) (pds, cqs map[uint32]bool) {
	t.Helper()
	pds, cqs = map[uint32]bool{}, map[uint32]bool{}
	allPDs, err := netlinkrdma.PDs(dev)
	must(t, err)
	for _, p := range allPDs {
		pds[p.ID] = true
	}
	allCQs, err := netlinkrdma.CQs(dev)
	must(t, err)
	for _, c := range allCQs {
		cqs[c.ID] = true
	}
	return pds, cqs
}

// ownedByUs reports whether an object is of this process. The kernel names the thread that created an
// object, as long as the thread lives.
func ownedByUs(o netlinkrdma.Owner) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", o.PID))
	return o.Kernel == "" && (o.PID == 0 || err == nil)
}

// checkLists finds the objects of a side in the lists of a device and checks their attributes.
func checkLists(t *testing.T, dev netlinkrdma.Device, s *side, hadPD, hadCQ map[uint32]bool) (held netlinkObjects) {
	t.Helper()
	pds, err := netlinkrdma.PDs(dev)
	pd := own(t, pds, err, func(p netlinkrdma.PD) bool { return !hadPD[p.ID] })
	if pd.Users != 2 || !pd.Keys || !ownedByUs(pd.Owner) {
		t.Errorf("PD %+v, want two users and us as its owner", pd)
	}
	cqs, err := netlinkrdma.CQs(dev)
	cq := own(t, cqs, err, func(c netlinkrdma.CQ) bool { return !hadCQ[c.ID] })
	if int(cq.CQE) != s.cq.Size() || cq.Users != 2 || cq.Context != pd.Context || !ownedByUs(cq.Owner) {
		t.Errorf("CQ %+v, want capacity %d, two users, the context of %+v and us as its owner", cq, s.cq.Size(), pd)
	}
	mrs, err := netlinkrdma.MRs(dev)
	mr := own(t, mrs, err, func(m netlinkrdma.MR) bool { return m.Owner.Kernel == "" && m.LKey == s.mr.LKey() })
	if mr.Length != bufferSize || !mr.Keys || mr.PD != pd.ID || !ownedByUs(mr.Owner) {
		t.Errorf("MR %+v, want length %d, key %#x, PD %d", mr, bufferSize, s.mr.LKey(), pd.ID)
	}
	qps, err := netlinkrdma.QPs(dev, withDrivers)
	qp := own(t, qps, err, func(q netlinkrdma.QP) bool { return q.Num == s.qp.QPN() })
	wantQP := netlinkrdma.QP{Num: s.qp.QPN(), Port: 1, Type: ib.RC, State: ib.QPInit, PD: pd.ID, Owner: qp.Owner}
	if reliable == ib.SRD {
		wantQP.Type, wantQP.Subtype, wantQP.State, wantQP.SQPSN = ib.DriverQP, "SRD", ib.QPRTS, qp.SQPSN
	}
	if diff := cmp.Diff(wantQP, qp); diff != "" || !ownedByUs(qp.Owner) {
		t.Errorf("QP of %+v: %s", qp.Owner, diff)
	}
	return netlinkObjects{pd, cq, mr, qp}
}

// checkByID checks that each object is the same when it is queried by its ID.
func checkByID(t *testing.T, dev netlinkrdma.Device, held netlinkObjects) {
	t.Helper()
	onePD, err := netlinkrdma.PDByID(dev, held.pd.ID)
	if err != nil || onePD != held.pd {
		t.Errorf("PD by id: %+v, %v, want %+v", onePD, err, held.pd)
	}
	oneCQ, err := netlinkrdma.CQByID(dev, held.cq.ID)
	if diff := cmp.Diff(held.cq, oneCQ); err != nil || diff != "" {
		t.Errorf("CQ by id: %v\n%s", err, diff)
	}
	oneMR, err := netlinkrdma.MRByID(dev, held.mr.ID)
	if diff := cmp.Diff(held.mr, oneMR); err != nil || diff != "" {
		t.Errorf("MR by id: %v\n%s", err, diff)
	}
	oneQP, err := netlinkrdma.QPByNum(dev, 1, held.qp.Num)
	if diff := cmp.Diff(held.qp, oneQP); err != nil || diff != "" {
		t.Errorf("QP by number: %v\n%s", err, diff)
	}
	errorIs(t, errorOf(netlinkrdma.QPByNum(dev, 1, 0xfffffe)), fs.ErrNotExist, "QP that is not there")
}

// checkContext checks the context of the objects, which netlink lists since Linux 5.13.
func checkContext(t *testing.T, dev netlinkrdma.Device, held netlinkObjects) {
	t.Helper()
	contexts, err := netlinkrdma.Contexts(dev)
	if k := testenv.Kernel(t); slices.Compare(k[:], []int{5, 13}) < 0 {
		errorIs(t, err, errors.ErrUnsupported, "contexts on Linux %v", k)
	} else {
		ctx := own(t, contexts, err, func(c netlinkrdma.Context) bool { return c.ID == held.pd.Context })
		if one, err := netlinkrdma.ContextByID(dev, ctx.ID); err != nil || one != ctx || !ownedByUs(ctx.Owner) {
			t.Errorf("context %+v, by id %+v, %v, want number %d", ctx, one, err, held.pd.Context)
		}
	}
}

// sentPackets is the number of packets that the port has sent. mlx5_ib counts requests and errors instead.
func sentPackets(t *testing.T, dev netlinkrdma.Device) uint64 {
	t.Helper()
	if onMLX5 && testenv.Lacks(t, &uverbs.FeatureError{Feature: "a counter of packets", Driver: rig.Driver}) {
		return 0
	}
	counters, err := netlinkrdma.PortCounters(dev, 1)
	name := map[bool]string{false: "sent_pkts", true: "tx_pkts"}[rig.EFA()]
	return own(t, counters, err, func(c netlinkrdma.Counter) bool { return c.Name == name }).Value
}

// checkConnected checks that netlink reports the peer of a connected QP, and that packets are counted.
func checkConnected(t *testing.T, dev netlinkrdma.Device) {
	t.Helper()
	sent := sentPackets(t, dev)
	a, b := pair(t, uverbs.QPOptions{})
	qps, err := netlinkrdma.QPs(dev, withDrivers)
	qp := own(t, qps, err, func(q netlinkrdma.QP) bool { return q.Num == a.qp.QPN() })
	if qp.State != ib.QPRTS || qp.RemoteNum != b.qp.QPN() && reliable != ib.SRD {
		t.Errorf("connected QP %+v, want RTS and peer %d", qp, b.qp.QPN())
	}
	must(t, b.qp.PostRecv(1, b.mr.SGE(0, 64)), a.qp.PostSend(send(2, a.mr.SGE(0, 64))))
	a.want(t, 2, uverbs.WCSend)
	b.want(t, 1, uverbs.WCRecv)
	if now := sentPackets(t, dev); now < sent+2 && !onMLX5 && !rig.EFA() || now == sent && rig.EFA() {
		t.Errorf("sent_pkts went from %d to %d, want a packet and its acknowledgement", sent, now)
	}
}

// srqWithQPs makes an SRQ, two QPs that receive from it, and one that does not.
func srqWithQPs(t *testing.T) (srq *uverbs.SRQ, qps [2]*uverbs.QP) {
	t.Helper()
	dev := openDevice(t, deviceName)
	pd, srq := newSRQ(t, dev, uverbs.SRQOptions{MaxWR: 8})
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 8})
	must(t, err)
	closeLater(t, cq)
	for i, o := range []uverbs.QPOptions{{SRQ: srq}, {}, {SRQ: srq}} {
		o.SendCQ, o.RecvCQ = cq, cq
		qp, err := pd.CreateQP(o)
		must(t, err, initQP(qp))
		closeLater(t, qp)
		if o.SRQ != nil {
			qps[i/2] = qp
		}
	}
	return srq, qps
}

// listening makes an identifier of the connection manager that listens on the device.
func listening(t *testing.T) netip.AddrPort {
	t.Helper()
	testenv.NeedsRoCE(t, "Ethernet")
	ch, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	must(t, err)
	closeLater(t, ch)
	id, err := ch.NewID(rdmacm.TCP)
	must(t, err)
	closeLater(t, id)
	addr := netip.AddrPortFrom(netip.MustParseAddr(peerName), 7600)
	must(t, id.Bind(rdmacm.AddrOf(addr)), id.Listen(1))
	return addr
}

// TestNetlinkSRQ holds an SRQ and looks for it in the kernel's list, with the QPs that receive
// from it.
func TestNetlinkSRQ(t *testing.T) {
	testenv.NeedsKernel(t, "lists over netlink")
	eachPath(t, func(t *testing.T) {
		firstUse(t, deviceName)
		dev := tracked(t)
		before, err := netlinkrdma.SRQs(dev)
		had := map[uint32]bool{}
		for _, s := range before {
			had[s.ID] = true
		}
		_, qps := srqWithQPs(t)
		testenv.Skip(t, err)
		must(t, err)
		all, err := netlinkrdma.SRQs(dev)
		srq := own(t, all, err, func(s netlinkrdma.SRQ) bool { return !had[s.ID] })
		q, err := netlinkrdma.QPByNum(dev, 1, qps[0].QPN())
		must(t, err)
		first, last := min(qps[0].QPN(), qps[1].QPN()), max(qps[0].QPN(), qps[1].QPN())
		if srq.Type != netlinkrdma.SRQBasic || srq.PD != q.PD || srq.Kernel != "" {
			t.Errorf("SRQ %+v, want a basic one of PD %d", srq, q.PD)
		}
		if diff := cmp.Diff([]netlinkrdma.QPRange{{First: first, Last: first}, {First: last, Last: last}}, srq.QPs); diff != "" {
			t.Errorf("QPs of the SRQ (-want +got):\n%s", diff)
		}
		one, err := netlinkrdma.SRQByID(dev, srq.ID)
		if diff := cmp.Diff(srq, one); err != nil || diff != "" {
			t.Errorf("SRQ by id: %v\n%s", err, diff)
		}
	})
}

// TestNetlinkCMID holds an identifier that listens and looks for it in the kernel's list.
func TestNetlinkCMID(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "lists over netlink")
	addr := listening(t)
	dev := tracked(t)
	all, err := netlinkrdma.CMIDs(dev)
	id := own(t, all, err, func(c netlinkrdma.CMID) bool { return c.Src == addr })
	if id.State != netlinkrdma.CMListen || id.PortSpace != netlinkrdma.PortSpaceTCP || !id.Dst.Addr().IsUnspecified() || id.QPNum != 0 || id.Kernel != "" {
		t.Errorf("%+v, want a listener of TCP on %s", id, addr)
	}
	one, err := netlinkrdma.CMIDByID(dev, id.Port, id.ID)
	if diff := cmp.Diff(id, one, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); err != nil || diff != "" {
		t.Errorf("by id: %v\n%s", err, diff)
	}
}
