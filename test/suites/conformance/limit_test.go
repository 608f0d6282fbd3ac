package conformance

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// maker creates objects of a kind, of which a device has a limit.
type maker struct {
	name  string
	limit uint32 // limit is how many the device has, without those of makers
	make  func() (closer, error)
}

// makers are for all kinds of objects that a program can have many of.
func makers(t *testing.T, dev *uverbs.Device) []maker {
	t.Helper()
	attr := dev.Attr()
	pd, buf := newPD(t, dev), newBuffer(t, 4096)
	ch, err := dev.CreateCompChannel()
	must(t, err)
	closeLater(t, ch)
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 1})
	must(t, err)
	closeLater(t, cq)
	gid := gidOf(t, dev)
	var cqs atomic.Int64
	return []maker{
		{"AH", attr.MaxAH, func() (closer, error) {
			return pd.CreateAH(uverbs.AHAttr{Port: 1, DLID: lidOf(t, gid.GID), Global: true, GRH: uverbs.GRH{DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1}})
		}},
		{"CQ", attr.MaxCQ - 1, func() (closer, error) { // of two kinds
			if cqs.Add(1)%2 == 0 {
				return dev.CreateCQ(uverbs.CQOptions{Size: 30, Channel: ch})
			}
			return dev.CreateCQ(uverbs.CQOptions{Size: 1})
		}},
		{"MR", attr.MaxMR, func() (closer, error) { return pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}) }},
		{"PD", attr.MaxPD - 1, func() (closer, error) { return dev.AllocPD() }},
		{"QP", attr.MaxQP, func() (closer, error) {
			return pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1})
		}},
		{"SRQ", attr.MaxSRQ, func() (closer, error) { return pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1}) }},
		{"MW", attr.MaxMW, func() (closer, error) { return pd.AllocMW(uverbs.MWType1) }},
		{"MW of type 2", attr.MaxMW, func() (closer, error) { return pd.AllocMW(uverbs.MWType2) }},
	}
}

// need keeps a test away from kernels that have no such objects.
func (m *maker) need(t *testing.T) {
	t.Helper()
	if m.limit == 0 && m.name != "SRQ" {
		testenv.NotOnEFA(t, "memory windows")
	} else if m.limit == 0 {
		testenv.NotOnEFA(t, m.name)
	}
	if m.limit == 0 {
		testenv.Skip(t, &uverbs.FeatureError{Feature: "ALLOC_MW", Since: uverbs.Version{5, 14}})
	}
}

// TestObjectLimits creates a thousand objects of a kind, fewer in a brief run, or
// as many as the device says that it has: rxe of Linux 5.10 has 100 AHs and 960 SRQs. The kernel refuses what is beyond, and
// takes it when another has been closed.
func TestObjectLimits(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.Long)
	testenv.NeedsIB(t, "GIDs")
	testenv.Guest(t)
	dev := openDevice(t, deviceName)
	for _, m := range makers(t, dev) {
		t.Run(m.name, func(t *testing.T) {
			m.need(t)
			n := min(int(m.limit), 1000)
			if testenv.Brief() {
				n = min(n, 250)
			}
			var all []closer
			defer func() {
				for _, c := range all {
					must(t, c.Close())
				}
			}()
			for i := range n {
				c, err := m.make()
				if err != nil {
					t.Fatalf("number %d of %d: %v", i+1, m.limit, err)
				}
				all = append(all, c)
			}
			if n < int(m.limit) {
				return
			}
			want := syscall.EINVAL
			if rig.EFA() { // the kernel's efa says ENOMEM where the card refuses a command
				want = syscall.ENOMEM
			}
			for range 2 {
				_, err := m.make()
				if !errors.Is(err, want) {
					t.Fatalf("one more than %d: %v, want %v", n, err, want)
				}
				if want == syscall.EINVAL {
					says(t, err, fmt.Sprintf("all %d %ss of %s may be in use", n, m.name, deviceName))
				}
				must(t, all[n/2].Close())
				c, err := m.make()
				must(t, err)
				all = append(slices.Delete(all, n/2, n/2+1), c)
			}
		})
	}
}

// TestManyOpens opens a device again and again, one after the other and at the same time.
// Each has objects of its own.
func TestManyOpens(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink, testenv.SpecialCard)
	testenv.Guest(t)
	open := func() (*uverbs.Device, error) {
		dev, err := uverbs.Open(deviceName, uverbs.OpenOptions{})
		if err != nil {
			return nil, err
		}
		pd, err := dev.AllocPD()
		if err != nil {
			return dev, err
		}
		return dev, errors.Join(pd.Close(), pd.Close())
	}
	const each, threads = 5, 10
	devs := make([]*uverbs.Device, each*(threads+1))
	errs := make([]error, len(devs))
	for i := range each {
		devs[i], errs[i] = open()
	}
	var group sync.WaitGroup
	for i := range threads {
		group.Go(func() {
			for j := each * (i + 1); j < each*(i+2); j++ {
				devs[j], errs[j] = open()
			}
		})
	}
	group.Wait()
	must(t, errs...)
	for _, dev := range devs {
		must(t, dev.Close())
	}
}

// TestForeignObjects checks that objects of another Open of the device, and closed objects, cannot
// be used.
func TestForeignObjects(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		a := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		b := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		_, srq := newSRQ(t, b.dev, uverbs.SRQOptions{})
		_, closed := newSRQ(t, a.dev, uverbs.SRQOptions{})
		must(t, closed.Close())
		qp := func(o uverbs.QPOptions) error {
			if o.SendCQ == nil {
				o.SendCQ = a.cq
			}
			if o.RecvCQ == nil {
				o.RecvCQ = a.cq
			}
			_, err := a.pd.CreateQP(o)
			return err
		}
		_, channelErr := a.dev.CreateCQ(uverbs.CQOptions{Size: 1, Channel: b.ch})
		key := a.mr.LKey()
		for name, err := range map[string]error{
			"CQ":          qp(uverbs.QPOptions{SendCQ: b.cq}),
			"SRQ":         qp(uverbs.QPOptions{SRQ: srq}),
			"CompChannel": channelErr,
			"PD":          a.mr.Rereg(uverbs.ReregOptions{PD: b.pd}),
		} {
			argError(t, err, name)
			says(t, err, fmt.Sprintf("another Open of %s", deviceName))
		}
		argError(t, qp(uverbs.QPOptions{RecvCQ: b.cq}), "CQ")
		errorIs(t, qp(uverbs.QPOptions{SRQ: closed}), os.ErrClosed, "a QP on an SRQ that is closed")
		other := newPD(t, openDevice(t, rig.Devices[1]))
		err := a.mr.Rereg(uverbs.ReregOptions{PD: other, Access: new(uverbs.AccessLocalWrite)})
		argError(t, err, "PD")
		says(t, err, "of "+rig.Devices[1], "a PD of "+deviceName)
		if got := a.mr.LKey(); got != key {
			t.Errorf("the region has key %#x after a refusal, want %#x", got, key)
		}
		usable(t, newPeer(t, a), a.mr, 0)
	})
}

// newPeer connects a side to a new one and returns that.
func newPeer(t *testing.T, s *side) *side {
	t.Helper()
	p := newSide(t, s.dev, uverbs.QPOptions{})
	connect(t, p, s)
	return p
}

// TestAdviseForeignMR checks that advice about an MR of another Open, or of another PD, is refused,
// if the driver takes advice at all.
func TestAdviseForeignMR(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		access := remoteRights
		if hasODP(t, dev) {
			access |= uverbs.AccessOnDemand
		}
		foreign, err := newPD(t, openDevice(t, deviceName)).RegMR(newBuffer(t, 8192), uverbs.MROptions{Access: access})
		must(t, err)
		closeLater(t, foreign)
		err = newPD(t, dev).AdviseMR(uverbs.AdvicePrefetch, []uverbs.SGE{foreign.SGE(0, 4096)}, uverbs.AdviseOptions{Flush: true})
		if !hasODP(t, dev) || os.Getenv("RDMAABI") == "write" {
			absent(t, err, "ADVISE_MR")
			return
		}
		var kernel *uverbs.Error
		if !errors.As(err, &kernel) {
			t.Fatalf("advice about a foreign region: %v, want the kernel's refusal", err)
		}
		says(t, err, "on-demand MR of this PD")
	})
}

// TestPutForeignSlot checks that a pool takes back its own slots only.
func TestPutForeignSlot(t *testing.T) {
	testenv.Guest(t)
	pd := newPD(t, openDevice(t, deviceName))
	var pools [2]*uverbs.BufferPool
	var slots [2]uverbs.Slot
	for i := range pools {
		var err error
		pools[i], err = uverbs.NewBufferPool(pd, uverbs.PoolOptions{Slots: 4, SlotSize: 256})
		must(t, err)
		closeLater(t, pools[i])
		slots[i], err = pools[i].Get()
		must(t, err)
	}
	if slots[0].Index() != slots[1].Index() {
		t.Fatalf("the first slots are %d and %d", slots[0].Index(), slots[1].Index())
	}
	for i := range pools {
		errorIs(t, pools[i].Put(slots[1-i]), uverbs.ErrSlotFree, "a slot of another pool")
		if n := pools[i].Free(); n != 3 {
			t.Errorf("%d slots are free after a refusal, want 3", n)
		}
	}
	must(t, pools[0].Put(slots[0]), pools[1].Put(slots[1]))
}

// TestForeignThreadDomain checks that a parent domain cannot have a thread domain of another Open.
func TestForeignThreadDomain(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "thread domains", "mlx5")
		td, err := openDevice(t, deviceName).AllocTD()
		testenv.Skip(t, err)
		must(t, err)
		closeLater(t, td)
		_, err = newPD(t, openDevice(t, deviceName)).AllocParentDomain(td)
		argError(t, err, "TD")
		says(t, err, "another Open of "+deviceName)
	})
}
