package conformance

import (
	"maps"
	"runtime"
	"slices"
	"testing"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// hwCounts are counters of a QP or a port by name, without those that are 0.
type hwCounts map[string]uint64

func countsOf(list []netlinkrdma.Counter) hwCounts {
	all := hwCounts{}
	for _, c := range list {
		if c.Value != 0 {
			all[c.Name] = c.Value
		}
	}
	return all
}

// qpCounter returns the counter of QPs with a number, as the kernel lists it.
func qpCounter(t *testing.T, dev netlinkrdma.Device, id uint32) netlinkrdma.QPCounter {
	t.Helper()
	all, err := netlinkrdma.QPCounters(dev)
	return own(t, all, err, func(c netlinkrdma.QPCounter) bool { return c.ID == id })
}

// wantCounts checks what a counter of QPs has counted.
func wantCounts(t *testing.T, dev netlinkrdma.Device, what string, id uint32, want hwCounts) {
	t.Helper()
	if got := countsOf(qpCounter(t, dev, id).Counters); !maps.Equal(got, want) {
		t.Errorf("%s: counted %v, want %v", what, got, want)
	}
}

// needsQPCounters skips a test where a connected QP cannot have a counter. Otherwise the QP has no
// counter afterwards.
func needsQPCounters(t *testing.T, dev netlinkrdma.Device, s *side) {
	t.Helper()
	id, err := netlinkrdma.NewQPCounter(dev, 1, s.qp.QPN())
	testenv.Skip(t, err)
	must(t, err, netlinkrdma.UnbindQPCounter(dev, 1, s.qp.QPN(), id))
}

// oneAfterAnother posts a request on a and waits for its completion, n times.
func oneAfterAnother(t *testing.T, a *side, n int, wr uverbs.SendWR, op uverbs.WCOpcode) {
	t.Helper()
	wr.Flags |= uverbs.SendSignaled
	for i := range n {
		wr.ID = uint64(i)
		must(t, a.qp.PostSend(wr))
		a.want(t, uint64(i), op)
	}
}

// access returns a WRITE or READ of bytes of b.
func access(op uverbs.WROpcode, a, b *side, n int) uverbs.SendWR {
	return uverbs.SendWR{Opcode: op, SGL: []uverbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
}

// TestQPCounters gives the two QPs of a connection counters of their own, and reads from them what passed
// between the QPs. A QP can have its counter from when it is connected or before.
func TestQPCounters(t *testing.T) {
	testenv.Guest(t)
	testenv.Tags(t, testenv.SpecialCard, testenv.AnyLink)
	testenv.NeedsKernel(t, "counters over netlink")
	dev := tracked(t)
	for _, early := range []bool{false, true} {
		name := map[bool]string{false: "connected", true: "before"}[early]
		t.Run(name, func(t *testing.T) {
			o := uverbs.QPOptions{Path: uverbs.PathOptions{RNRRetry: 1, MinRNRTimer: 1}}
			a, b := pair(t, o)
			needsQPCounters(t, dev, b)
			var ids [2]uint32
			bind := func() {
				for i, s := range []*side{a, b} {
					var err error
					ids[i], err = netlinkrdma.NewQPCounter(dev, 1, s.qp.QPN())
					must(t, err)
				}
			}
			if early {
				a, b = newSide(t, a.dev, o), newSide(t, b.dev, o)
				bind()
				connect(t, a, b)
			} else {
				oneAfterAnother(t, a, 2, access(uverbs.WRRDMAWrite, a, b, 100), uverbs.WCRDMAWrite) // not counted
				bind()
			}
			checkQPCounters(t, dev, a, b, ids)
		})
	}
}

// checkQPCounters checks the counters of the QPs of a connection, which have counted nothing yet.
func checkQPCounters(t *testing.T, dev netlinkrdma.Device, a, b *side, ids [2]uint32) {
	t.Helper()
	for i, s := range []*side{a, b} {
		c := qpCounter(t, dev, ids[i])
		if c.Port != 1 || c.Mode != netlinkrdma.CounterModeManual || !slices.Equal(c.QPs, []uint32{s.qp.QPN()}) || c.ByQPType || len(countsOf(c.Counters)) != 0 {
			t.Errorf("counter %+v, want one of QP %d on port 1, in mode manual, that has counted nothing", c, s.qp.QPN())
		}
	}
	if set, err := netlinkrdma.QPCounterSetting(dev, 1); err != nil || set.Mode != netlinkrdma.CounterModeManual {
		t.Errorf("setting %+v, %v, want mode manual", set, err)
	}
	oneAfterAnother(t, a, 3, access(uverbs.WRRDMAWrite, a, b, 20000), uverbs.WCRDMAWrite)
	oneAfterAnother(t, a, 2, access(uverbs.WRRDMARead, a, b, 100), uverbs.WCRDMARead)
	if a.dev.Attr().AtomicCap != ib.AtomicNone {
		wr := access(uverbs.WRFetchAdd, a, b, 8)
		wr.CompareAdd = 1
		oneAfterAnother(t, a, 4, wr, uverbs.WCFetchAdd)
	}
	responder := hwCounts{"rx_write_requests": 3, "rx_read_requests": 2, "rx_atomic_requests": 4}
	if a.dev.Attr().AtomicCap == ib.AtomicNone {
		delete(responder, "rx_atomic_requests")
	}
	wantCounts(t, dev, "requester", ids[0], hwCounts{})
	wantCounts(t, dev, "responder", ids[1], responder)

	// Without a receive the SEND is sent again once, and fails.
	must(t, a.qp.PostSend(send(1, a.mr.SGE(0, 10))))
	if wc := a.next(t); wc.Status != uverbs.WCRNRRetryExcErr {
		t.Errorf("completion %v, want %s", wc.Err(), uverbs.WCRNRRetryExcErr)
	}
	a.reaches(t, ib.QPErr)
	requester := hwCounts{"rnr_nak_retry_err": 1, "req_cqe_error": 1}
	if names := qpCounter(t, dev, ids[0]).Counters; slices.ContainsFunc(names, func(c netlinkrdma.Counter) bool { return c.Name == "req_rnr_retries_exceeded" }) {
		requester["req_rnr_retries_exceeded"] = 1 // newer kernels
	}
	responder["out_of_buffer"] = 2
	wantCounts(t, dev, "requester after a failure", ids[0], requester)
	wantCounts(t, dev, "responder after a failure", ids[1], responder)

	before, err := netlinkrdma.PortCounters(dev, 1)
	must(t, err, netlinkrdma.UnbindQPCounter(dev, 1, b.qp.QPN(), ids[1]), a.qp.Close())
	if all, err := netlinkrdma.QPCounters(dev); err != nil || len(all) != 0 {
		t.Errorf("afterwards %+v, %v, want no counter: one QP has lost its counter, and the other is closed", all, err)
	}
	if set, err := netlinkrdma.QPCounterSetting(dev, 1); err != nil || set != (netlinkrdma.CounterSetting{}) {
		t.Errorf("setting %+v, %v, want mode none", set, err)
	}
	after, err := netlinkrdma.PortCounters(dev, 1)
	if was, is := countsOf(before), countsOf(after); err != nil || !maps.Equal(was, is) || is["out_of_buffer"] < 2 {
		t.Errorf("the port's counters are %v, %v, want %v: they keep what counters that are gone have counted", is, err, was)
	}
}

// TestQPCounterShared makes one counter count several QPs, and takes it from one of them.
func TestQPCounterShared(t *testing.T) {
	testenv.Guest(t)
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsKernel(t, "counters over netlink")
	dev := tracked(t)
	a, b := pair(t, uverbs.QPOptions{})
	c, d := pair(t, uverbs.QPOptions{})
	needsQPCounters(t, dev, b)
	write := func() {
		t.Helper()
		oneAfterAnother(t, a, 2, access(uverbs.WRRDMAWrite, a, b, 100), uverbs.WCRDMAWrite)
		oneAfterAnother(t, c, 3, access(uverbs.WRRDMAWrite, c, d, 100), uverbs.WCRDMAWrite)
	}
	portBefore, err := netlinkrdma.PortCounters(dev, 1)
	must(t, err)
	id, err := netlinkrdma.NewQPCounter(dev, 1, b.qp.QPN())
	must(t, err)
	write()
	wantCounts(t, dev, "one QP", id, hwCounts{"rx_write_requests": 2})
	must(t, netlinkrdma.BindQPCounter(dev, 1, d.qp.QPN(), id))
	if err := netlinkrdma.BindQPCounter(dev, 1, d.qp.QPN(), id); err == nil {
		t.Error("a QP took a counter twice")
	}
	write()
	wantCounts(t, dev, "two QPs", id, hwCounts{"rx_write_requests": 7})
	if got := qpCounter(t, dev, id).QPs; len(got) != 2 || !slices.Contains(got, b.qp.QPN()) || !slices.Contains(got, d.qp.QPN()) {
		t.Errorf("QPs %d of the counter, want %d and %d", got, b.qp.QPN(), d.qp.QPN())
	}
	if err := netlinkrdma.UnbindQPCounter(dev, 1, d.qp.QPN(), id+1); err == nil {
		t.Errorf("QP %d lost counter %d, and it has %d", d.qp.QPN(), id+1, id)
	}
	must(t, netlinkrdma.UnbindQPCounter(dev, 1, b.qp.QPN(), id))
	write()
	wantCounts(t, dev, "the other QP", id, hwCounts{"rx_write_requests": 10})
	if got := qpCounter(t, dev, id).QPs; !slices.Equal(got, []uint32{d.qp.QPN()}) {
		t.Errorf("QPs %d of the counter, want %d", got, d.qp.QPN())
	}
	if err := netlinkrdma.SetAutoQPCounters(dev, 1, netlinkrdma.GroupByQPType); err == nil {
		t.Error("mode auto was set while a QP has a counter")
	}
	must(t, netlinkrdma.UnbindQPCounter(dev, 1, d.qp.QPN(), id))
	portAfter, err := netlinkrdma.PortCounters(dev, 1)
	if n := countsOf(portAfter)["rx_write_requests"] - countsOf(portBefore)["rx_write_requests"]; err != nil || n != 15 {
		t.Errorf("the port has counted %d WRITEs, %v, want 15", n, err)
	}
}

// TestQPCountersAuto has the kernel count each new QP with the counter of its type and process.
func TestQPCountersAuto(t *testing.T) {
	testenv.Guest(t)
	testenv.Tags(t, testenv.AnyLink)
	testenv.NeedsKernel(t, "counters over netlink")
	dev := tracked(t)
	first, peer := pair(t, uverbs.QPOptions{})
	needsQPCounters(t, dev, first)
	runtime.LockOSThread() // the kernel compares threads, not processes
	defer runtime.UnlockOSThread()
	groups := netlinkrdma.GroupByQPType | netlinkrdma.GroupByPID
	must(t, netlinkrdma.SetAutoQPCounters(dev, 1, groups))
	if set, err := netlinkrdma.QPCounterSetting(dev, 1); err != nil || set.Mode != netlinkrdma.CounterModeAuto || set.Groups != groups {
		t.Errorf("setting %+v, %v, want mode auto by type and process", set, err)
	}
	a, b := pair(t, uverbs.QPOptions{})
	datagrams := newSide(t, a.dev, uverbs.QPOptions{Type: ib.UD})
	must(t, netlinkrdma.SetAutoQPCounters(dev, 1, 0))
	later, _ := pair(t, uverbs.QPOptions{}) // has no counter
	oneAfterAnother(t, a, 3, access(uverbs.WRRDMAWrite, a, b, 100), uverbs.WCRDMAWrite)
	oneAfterAnother(t, first, 1, access(uverbs.WRRDMARead, first, peer, 100), uverbs.WCRDMARead)
	all, err := netlinkrdma.QPCounters(dev)
	must(t, err)
	byType := func(typ ib.QPType) netlinkrdma.QPCounter {
		return own(t, all, nil, func(c netlinkrdma.QPCounter) bool { return c.QPType == typ })
	}
	rc, ud := byType(ib.RC), byType(ib.UD)
	for _, c := range all {
		if c.Mode != netlinkrdma.CounterModeAuto || !c.ByQPType || !ownedByUs(c.Owner) || slices.Contains(c.QPs, later.qp.QPN()) || slices.Contains(c.QPs, first.qp.QPN()) {
			t.Errorf("counter %+v", c)
		}
	}
	slices.Sort(rc.QPs)
	if want := slices.Sorted(slices.Values([]uint32{a.qp.QPN(), b.qp.QPN()})); !slices.Equal(rc.QPs, want) {
		t.Errorf("the counter of RC has QPs %d, want %d", rc.QPs, want)
	}
	if !slices.Equal(ud.QPs, []uint32{datagrams.qp.QPN()}) {
		t.Errorf("the counter of UD has QPs %d, want %d", ud.QPs, datagrams.qp.QPN())
	}
	if got := countsOf(rc.Counters); !maps.Equal(got, hwCounts{"rx_write_requests": 3}) {
		t.Errorf("the counter of RC has %v, want 3 WRITEs", got)
	}
	must(t, a.qp.Close(), b.qp.Close(), datagrams.qp.Close())
	if all, err := netlinkrdma.QPCounters(dev); err != nil || len(all) != 0 {
		t.Errorf("when the QPs are closed: %+v, %v", all, err)
	}
}
