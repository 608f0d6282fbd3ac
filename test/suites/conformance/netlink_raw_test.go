package conformance

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// leastDump is how many bytes a segment about an object has at least: as far as the tests read.
const leastDump = 48

// dumped returns the payload of the segment about an object in a dump of mlx5: segments of a length in
// words, a type, and more; those with types from 0xfff9 are about the dump itself. The payload has at least
// leastDump bytes.
func dumped(t *testing.T, raw []byte, number uint32) []byte {
	t.Helper()
	be := binary.BigEndian
	for rest := raw; len(rest) >= 4; {
		n, typ := 4*int(be.Uint16(rest)), be.Uint16(rest[2:])
		if n < 4 || n > len(rest) {
			t.Fatalf("a segment of %d bytes in %d of the dump %x", n, len(rest), raw)
		}
		if typ < 0xfff9 && n >= 16+leastDump && be.Uint32(rest[8:]) == number {
			return rest[16:n]
		}
		rest = rest[n:]
	}
	t.Fatalf("the dump has no segment about %#x: %x", number, raw)
	return nil
}

// TestNetlinkRaw: the driver's dumps of a QP, an MR and a CQ have what the card knows of them.
func TestNetlinkRaw(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "lists over netlink")
	firstUse(t, deviceName)
	dev := tracked(t)
	_, hadCQ := idsOf(t, dev)
	cq, err := openDevice(t, deviceName).CreateCQ(uverbs.CQOptions{Size: 100})
	must(t, err)
	t.Cleanup(func() { must(t, cq.Close()) })
	raw := func(kind netlinkrdma.RawKind, id, port uint32) []byte {
		t.Helper()
		got, err := netlinkrdma.Raw(dev, netlinkrdma.RawOptions{Kind: kind, ID: id, Port: port})
		testenv.Skip(t, err)
		must(t, err)
		return got
	}
	be := binary.BigEndian
	cqs, err := netlinkrdma.CQs(dev)
	listed := own(t, cqs, err, func(c netlinkrdma.CQ) bool { return !hadCQ[c.ID] })
	// The answers of QUERY_CQ, QUERY_QP and QUERY_MKEY: qpc is at byte 24, the others at 16. The kernel
	// knows the CQ by another number than the card, so its segment is the second one.
	rest := raw(netlinkrdma.RawCQ, listed.ID, 0)
	if len(rest) < 12 {
		t.Fatalf("the dump of the CQ is %x", rest)
	}
	number := be.Uint32(rest[8:]) // index1 of the command
	if size := 1 << (dumped(t, rest, number)[16+12] & 0x1f); size != 128 {
		t.Errorf("the CQ has %d entries, want 128", size)
	}
	a, b := pair(t, uverbs.QPOptions{})
	qp := dumped(t, raw(netlinkrdma.RawQP, a.qp.QPN(), 1), a.qp.QPN())
	if state, peer := qp[24]>>4, be.Uint32(qp[24+20:])&0xffffff; state != 3 || peer != b.qp.QPN() {
		t.Errorf("the QP is in state %d with peer %d, want RTS (3) and %d", state, peer, b.qp.QPN())
	}
	mrs, err := netlinkrdma.MRs(dev)
	mr := own(t, mrs, err, func(m netlinkrdma.MR) bool { return m.Kernel == "" && m.LKey == a.mr.LKey() })
	mkey := dumped(t, raw(netlinkrdma.RawMR, mr.ID, 0), mr.LKey>>8)
	if length := be.Uint64(mkey[16+24:]); length != bufferSize {
		t.Errorf("the MR has %d bytes, want %d", length, bufferSize)
	}
	all, err := netlinkrdma.RawList(dev, netlinkrdma.RawMR)
	if must(t, err); !slices.ContainsFunc(all, func(b []byte) bool { return slices.Equal(b, raw(netlinkrdma.RawMR, mr.ID, 0)) }) {
		t.Errorf("none of %d dumps of MRs belongs to MR %d", len(all), mr.ID)
	}
	errorIs(t, errorOf(netlinkrdma.Raw(dev, netlinkrdma.RawOptions{Kind: netlinkrdma.RawQP, ID: 0xfffffe, Port: 1})), fs.ErrNotExist, "a QP that does not exist")
	// mlx5 has no dump of SRQs, and kernels have none before Linux 6.7.
	srq, err := a.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1})
	must(t, err)
	t.Cleanup(func() { must(t, srq.Close()) })
	errorIs(t, errorOf(netlinkrdma.RawList(dev, netlinkrdma.RawSRQ)), errors.ErrUnsupported, "SRQs")
}

// TestNetlinkPools: an MR comes from a pool of the kernel and goes back to it, and a pool keeps what is
// pinned.
func TestNetlinkPools(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "lists over netlink")
	dev := tracked(t)
	_, err := netlinkrdma.FRMRPools(dev, withDrivers)
	testenv.Skip(t, err)
	must(t, err)
	pools := func() map[netlinkrdma.FRMRKey]netlinkrdma.FRMRPool {
		t.Helper()
		list, err := netlinkrdma.FRMRPools(dev, withDrivers)
		must(t, err)
		of := map[netlinkrdma.FRMRKey]netlinkrdma.FRMRPool{}
		for _, p := range list {
			of[p.Key] = p
		}
		return of
	}
	key := netlinkrdma.FRMRKey{DMABlocks: 777}
	err = netlinkrdma.PinFRMRs(dev, key, 3)
	testenv.Skip(t, err)
	must(t, err)
	if p := pools()[key]; p.Pinned != 3 || p.Free != 3 || p.InUse != 0 {
		t.Errorf("with three that are pinned the pool is %+v", p)
	}
	inUse := func() (n uint64) {
		for _, p := range pools() {
			n += p.InUse
		}
		return n
	}
	pd, err := openDevice(t, deviceName).AllocPD()
	must(t, err)
	defer pd.Close()
	before := inUse()
	mr, err := pd.RegSlice(make([]byte, 777<<12-4096), uverbs.AccessLocalWrite)
	must(t, err)
	with := pools()
	if got := inUse(); got != before+1 {
		t.Errorf("with an MR %d are in use, before %d: %+v", got, before, with)
	}
	must(t, mr.Close())
	if got := inUse(); got != before {
		t.Errorf("after the MR %d are in use, before %d: %+v", got, before, pools())
	}
	t.Logf("pools with an MR: %+v", with)

	// Nothing is pinned, and the period is short: the kernel frees what is not in use.
	must(t, netlinkrdma.PinFRMRs(dev, key, 0), netlinkrdma.SetFRMRAging(dev, time.Second))
	defer func() { must(t, netlinkrdma.SetFRMRAging(dev, time.Minute)) }()
	for end := time.Now().Add(deadline); ; time.Sleep(50 * time.Millisecond) {
		p := pools()[key]
		if p.Free == 0 && p.Pinned == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the pool keeps %+v", p)
		}
	}
	if err := netlinkrdma.PinFRMRs(dev, netlinkrdma.FRMRKey{DMABlocks: 1, VendorKey: 1 << 60}, 1); !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("a key that the driver does not know: %v, want errors.ErrUnsupported", err)
	}
	if err := netlinkrdma.PinFRMRs(dev, netlinkrdma.FRMRKey{DMABlocks: 1, AccessFlags: 1 << 31}, 1); !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, unix.EINVAL) {
		t.Errorf("access flags that there are not: %v, want errors.ErrUnsupported", err)
	}
}

// TestNetlinkSubDevice: a card with one plane has no device for the subnet management of others, and is
// not part of another device.
func TestNetlinkSubDevice(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "lists over netlink")
	dev := tracked(t)
	err := netlinkrdma.AddSubDevice(dev, "confsmi", netlinkrdma.DeviceTypeSMI)
	f, ok := errors.AsType[*netlinkrdma.FeatureError](err)
	old := netlinkrdma.Version{6, 11}
	if k := testenv.Kernel(t); !ok || (f.Since == old) != (slices.Compare(k[:], old[:]) < 0) || (f.Driver == rig.Driver) == (f.Since == old) {
		t.Errorf("on Linux %v: %v, want a FeatureError since 6.11 or of the driver", k, err)
	}
	if err := netlinkrdma.DeleteSubDevice(dev); !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("delete: %v", err)
	}
	errorIs(t, errorOf(netlinkrdma.DeviceByName("confsmi")), fs.ErrNotExist, "afterwards")
}

// TestNetlinkDriverQPs: QPs of the driver's own type are listed with ListOptions.Driver.
func TestNetlinkDriverQPs(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsKernel(t, "lists over netlink")
	if !onMLX5 {
		testenv.Needs(t, "DC", "mlx5")
	}
	r := newDC(t, mlx5.DCIOptions{}, 1)
	dev := tracked(t)
	some, err := netlinkrdma.QPs(dev, netlinkrdma.ListOptions{})
	must(t, err)
	with, err := netlinkrdma.QPs(dev, withDrivers)
	dci := own(t, with, err, func(q netlinkrdma.QP) bool { return q.Num == r.dci.QPN() })
	k := testenv.Kernel(t)
	newer := slices.Compare(k[:], []int{6, 10}) >= 0
	if dci.Type != ib.DriverQP || newer && dci.Subtype != "DCI" {
		t.Errorf("the DCI is %+v", dci)
	}
	counts := resources(t, dev)
	fewer, err := netlinkrdma.Resources(dev, netlinkrdma.ListOptions{})
	must(t, err)
	// Some older kernels list them in any case.
	hidden := uint64(len(with) - len(some))
	if counts.QPs != fewer.QPs+hidden || counts.QPs != uint64(len(with)) {
		t.Errorf("%d QPs with those of the driver and %d without, the lists have %d and %d", counts.QPs, fewer.QPs, len(with), len(some))
	}
	if newer && (hidden == 0 || slices.ContainsFunc(some, func(q netlinkrdma.QP) bool { return q.Type == ib.DriverQP })) {
		t.Errorf("without those of the driver the list has %+v", some)
	}
}
