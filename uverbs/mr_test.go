package uverbs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

func TestAccessNames(t *testing.T) {
	for access, want := range map[Access]string{
		0: "local reading only",
		AccessLocalWrite | AccessRemoteRead | AccessMWBind:                       "LOCAL_WRITE|REMOTE_READ|MW_BIND",
		AccessZeroBased | AccessHugeTLB | AccessRelaxedOrdering | AccessOnDemand: "ZERO_BASED|ON_DEMAND|HUGETLB|RELAXED_ORDERING",
		AccessFlushGlobal | AccessFlushPersistent | AccessRemoteWrite | 1<<31:    "REMOTE_WRITE|FLUSH_GLOBAL|FLUSH_PERSISTENT|0x80000000",
		AccessRemoteAtomic: "REMOTE_ATOMIC",
	} {
		if got := access.String(); got != want {
			t.Errorf("%#x is %q, want %q", uint32(access), got, want)
		}
	}
}

// memory returns a PD and a buffer of four pages, which are closed at the end.
func memory(t *testing.T, d *Device) (pd *PD, buf *Buffer, page int) {
	t.Helper()
	page = os.Getpagesize()
	pd, buf = value(d.AllocPD())(t), value(AllocBuffer(4*page, BufferOptions{}))(t)
	t.Cleanup(func() { must(t, buf.Close(), pd.Close()) })
	return pd, buf, page
}

// request returns the last command's core struct.
func request[T any](k *fakeKernel, verb string) T {
	k.t.Helper()
	var req T
	copy(bytesOf(&req), k.last(verb).in)
	return req
}

// TestClosesFast: a region is deregistered without telling the scheduler only if the kernel need not wait
// for a peer or page through much memory.
func TestClosesFast(t *testing.T) {
	for _, test := range []struct {
		length uint64
		access Access
		want   bool
	}{
		{4096, 0, true}, {1 << 20, AccessLocalWrite | AccessRelaxedOrdering, true}, {1<<20 + 1, AccessLocalWrite, false},
		{1, AccessLocalWrite | AccessRemoteWrite, false}, {1, AccessRemoteRead, false}, {1, AccessMWBind, false}, {1, AccessOnDemand, false},
	} {
		m := MR{length: test.length, mem: region{access: test.access}}
		if got := m.closesFast(); got != test.want {
			t.Errorf("%d bytes with access %s: %t, want %t", test.length, test.access, got, test.want)
		}
	}
}

func TestRegMRAt(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, buf, page := memory(t, d)
	start, p := addrOf(buf.Bytes()), uint64(page)
	for _, c := range []struct {
		name string
		o    MROptions
		want abi.RegMR
	}{
		{"all", MROptions{}, abi.RegMR{Start: start, HCAVA: start, Length: 4 * p}},
		{"part", MROptions{Offset: 100, Length: 50}, abi.RegMR{Start: start + 100, HCAVA: start + 100, Length: 50}},
		{"rest", MROptions{Offset: 100}, abi.RegMR{Start: start + 100, HCAVA: start + 100, Length: 4*p - 100}},
		{"last byte", MROptions{Offset: 4*page - 1}, abi.RegMR{Start: start + 4*p - 1, HCAVA: start + 4*p - 1, Length: 1}},
		{"address", MROptions{Offset: 100, IOVA: new(uint64(1<<40 + 100))}, abi.RegMR{Start: start + 100, HCAVA: 1<<40 + 100, Length: 4*p - 100}},
		{"address 0", MROptions{IOVA: new(uint64(0))}, abi.RegMR{Start: start, Length: 4 * p}},
		{"zero based", MROptions{Access: AccessZeroBased, Offset: page}, abi.RegMR{Start: start + p, Length: 3 * p, AccessFlags: 32}},
		{"both", MROptions{Access: AccessZeroBased, IOVA: new(uint64(0))}, abi.RegMR{Start: start, Length: 4 * p, AccessFlags: 32}},
		{"highest", MROptions{Length: page, IOVA: new(uint64(math.MaxUint64 - 2*p + 1))}, abi.RegMR{Start: start, HCAVA: math.MaxUint64 - 2*p + 1, Length: p}},
		{"wishes", MROptions{Access: AccessRelaxedOrdering | 1<<29 | AccessMWBind | AccessHugeTLB}, abi.RegMR{Start: start, HCAVA: start, Length: 4 * p, AccessFlags: 1<<20 | 1<<29 | 16 | 128}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mr := value(pd.RegMR(buf, c.o))(t)
			c.want.PDHandle = pd.handle
			if got := request[abi.RegMR](k, "REG_MR"); got != c.want {
				t.Errorf("request is %+v, want %+v", got, c.want)
			}
			if mr.Addr() != c.want.HCAVA || mr.Len() != int(c.want.Length) || addrOf(mr.Bytes()) != c.want.Start || len(mr.Bytes()) != mr.Len() || cap(mr.Bytes()) != mr.Len() || mr.Access() != c.o.Access {
				t.Errorf("region is %+v with %d bytes", mr, len(mr.Bytes()))
			}
			if sge := mr.SGE(0, 1); sge != (SGE{Addr: c.want.HCAVA, Length: 1, LKey: 0x1111}) {
				t.Errorf("SGE is %+v", sge)
			}
			must(t, mr.Close())
		})
	}
}

func TestRegMRAtRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, buf, page := memory(t, d)
	k.took()
	for _, c := range []struct {
		o     MROptions
		field string
		given string
	}{
		{MROptions{Offset: -1}, "Offset", "-1"},
		{MROptions{Offset: 4 * page}, "Offset", fmt.Sprint(4 * page)},
		{MROptions{Length: -1}, "Length", "-1"},
		{MROptions{Length: 4*page + 1}, "Length", fmt.Sprint(4*page + 1)},
		{MROptions{Offset: 1, Length: 4 * page}, "Length", fmt.Sprint(4 * page)},
		{MROptions{Offset: page, Length: math.MaxInt}, "Length", fmt.Sprint(math.MaxInt)},
		{MROptions{IOVA: new(uint64(1))}, "IOVA", "0x1"},
		{MROptions{Offset: 1, IOVA: new(uint64(0))}, "IOVA", "0x0"},
		{MROptions{Offset: 1, Access: AccessZeroBased}, "IOVA", "0x0"},
		{MROptions{Access: AccessZeroBased, IOVA: new(uint64(1 << 20))}, "IOVA", "0x100000"},
		{MROptions{Length: page + 1, IOVA: new(uint64(math.MaxUint64 - uint64(page) + 1))}, "IOVA", fmt.Sprintf("%#x", math.MaxUint64-uint64(page)+1)},
		{MROptions{Access: 1 << 10}, "access", "0x400"},
		{MROptions{Access: AccessRemoteAtomic}, "access", "REMOTE_ATOMIC"},
		{MROptions{Access: AccessOnDemand | AccessHugeTLB}, "access", "ON_DEMAND|HUGETLB"},
	} {
		var arg *ArgError
		if _, err := pd.RegMR(buf, c.o); !errors.As(err, &arg) || arg.Op != "RegMR" || arg.Field != c.field || arg.Given != c.given {
			t.Errorf("%+v: %v, want %s %s", c.o, err, c.field, c.given)
		}
	}
	var arg *ArgError
	if _, err := pd.RegSlice(make([]byte, 1), 1<<10); !errors.As(err, &arg) || arg.Op != "RegSlice" {
		t.Errorf("RegSlice: %v", err)
	}
	if _, err := pd.RegSlice(buf.Bytes()[1:], AccessZeroBased); !errors.As(err, &arg) || arg.Op != "RegSlice" || arg.Field != "IOVA" {
		t.Errorf("RegSlice: %v", err)
	}
	if _, err := pd.RegMR(nil, MROptions{}); !errors.As(err, &arg) || arg.Op != "RegMR" {
		t.Errorf("no buffer: %v", err)
	}
	for access, feature := range map[Access]string{AccessFlushGlobal: "access FLUSH_GLOBAL", AccessFlushPersistent: "access FLUSH_PERSISTENT", AccessOnDemand: "on-demand paging"} {
		var f *FeatureError
		if _, err := pd.RegMR(buf, MROptions{Access: access}); !errors.As(err, &f) || f.Feature != feature || f.Driver != "rxe" {
			t.Errorf("%s: %v", access, err)
		}
	}
	k.sent()
}

// TestRegMRCapabilities: requests for capabilities of the device reach the kernel.
func TestRegMRCapabilities(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, buf, _ := memory(t, d)
	d.attr.ODPGeneralCaps = abi.IB_UVERBS_ODP_SUPPORT
	d.attr.CapFlags = abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL | abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT
	for _, access := range []Access{AccessOnDemand, AccessFlushGlobal, AccessFlushPersistent} {
		mr := value(pd.RegMR(buf, MROptions{Access: access}))(t)
		if got := request[abi.RegMR](k, "REG_MR").AccessFlags; got != uint32(access) {
			t.Errorf("access is %#x, want %#x", got, uint32(access))
		}
		must(t, mr.Close())
	}
	k.refuse["REG_MR"] = syscall.EINVAL
	if _, err := pd.RegMR(buf, MROptions{Access: AccessFlushPersistent}); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "persistent memory only") {
		t.Errorf("EINVAL: %v", err)
	}
	k.refuse["REG_MR"] = syscall.EOPNOTSUPP
	var f *FeatureError
	if _, err := pd.RegMR(buf, MROptions{Access: AccessLocalWrite | AccessHugeTLB}); !errors.As(err, &f) || f.Feature != "REG_MR with access HUGETLB" || f.Driver != "rxe" || !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("EOPNOTSUPP: %v", err)
	}
	if _, err := pd.RegMR(buf, MROptions{Access: AccessLocalWrite}); !errors.As(err, &f) || f.Feature != "REG_MR" {
		t.Errorf("EOPNOTSUPP: %v", err)
	}
}

func TestCloseMRBound(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, buf, _ := memory(t, d)
	mr := value(pd.RegMR(buf, MROptions{Access: AccessMWBind}))(t)
	for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.EBUSY} {
		k.refuse["DEREG_MR"] = errno
		if err := mr.Close(); !errors.Is(err, errno) || !strings.Contains(err.Error(), "memory window") {
			t.Errorf("Close: %v, want %v and a hint", err, errno)
		}
	}
	delete(k.refuse, "DEREG_MR")
	must(t, mr.Close())
}

func TestRereg(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		pd, buf, page := memory(t, d)
		pd2, buf2, _ := memory(t, d)
		b := make([]byte, 10)
		mr := value(pd.RegSlice(b, AccessLocalWrite))(t)
		k.took()

		must(t, mr.Rereg(ReregOptions{Access: new(Access)}))
		want := abi.ReregMR{MRHandle: mr.handle, Flags: 4}
		if got := request[abi.ReregMR](k, "REREG_MR"); got != want {
			t.Errorf("access: request is %+v, want %+v", got, want)
		}
		if mr.LKey() != 0x3333 || mr.RKey() != 0x4444 || mr.Access() != 0 || mr.Addr() != addrOf(b) || mr.Len() != 10 {
			t.Errorf("access: region is %+v", mr)
		}

		must(t, mr.Rereg(ReregOptions{PD: pd2}))
		want = abi.ReregMR{MRHandle: mr.handle, Flags: 2, PDHandle: pd2.handle}
		if got := request[abi.ReregMR](k, "REREG_MR"); got != want {
			t.Errorf("PD: request is %+v, want %+v", got, want)
		}
		if err := pd2.Close(); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "1 MR") {
			t.Errorf("close the new PD: %v", err)
		}
		if pd.users.any() {
			t.Errorf("the old PD is used by %v", pd.users)
		}

		must(t, mr.Rereg(ReregOptions{Buffer: buf, Offset: page, Length: 7, IOVA: new(uint64(0)), Access: new(AccessLocalWrite | AccessRemoteRead), PD: pd}))
		want = abi.ReregMR{MRHandle: mr.handle, Flags: 7, PDHandle: pd.handle, AccessFlags: 5, Start: addrOf(buf.Bytes()) + uint64(page), Length: 7}
		if got := request[abi.ReregMR](k, "REREG_MR"); got != want {
			t.Errorf("all: request is %+v, want %+v", got, want)
		}
		if mr.Addr() != 0 || mr.Len() != 7 || addrOf(mr.Bytes()) != want.Start || mr.Access() != 5 {
			t.Errorf("all: region is %+v", mr)
		}
		if _, kept := pinnedMRs.Load(mr); kept || buf.mrs != 1 || pd2.users.any() || pd.users.of("MR") != 1 {
			t.Errorf("the slice is kept: %t, the buffer is held %d times, the PDs are used by %v and %v", kept, buf.mrs, pd.users, pd2.users)
		}

		must(t, mr.Rereg(ReregOptions{Buffer: buf2, Access: new(AccessZeroBased)}))
		if mr.Addr() != 0 || mr.Len() != 4*page || buf.mrs != 0 || buf2.mrs != 1 {
			t.Errorf("other buffer: region is %+v, the buffers are held %d and %d times", mr, buf.mrs, buf2.mrs)
		}
		must(t, mr.Close())
		if buf2.mrs != 0 || pd.users.any() {
			t.Errorf("after Close the buffer is held %d times, the PD used by %v", buf2.mrs, pd.users)
		}
		r := legacy + " REREG_MR"
		k.sent(r, r, r, r, method+" DEREG_MR")
		errorIs(t, mr.Rereg(ReregOptions{PD: pd2}), os.ErrClosed, "Rereg after Close")
		k.sent()
	})
}

// TestReregRefused: the region stays as it was.
func TestReregRefused(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	other, _ := fakeDevice(t, pathAuto)
	pd, buf, _ := memory(t, d)
	pd2, buf2, page := memory(t, d)
	foreign, _, _ := memory(t, other)
	closed := value(AllocBuffer(1, BufferOptions{}))(t)
	gone := value(d.AllocPD())(t)
	must(t, closed.Close(), gone.Close())
	mr := value(pd.RegMR(buf, MROptions{Access: AccessLocalWrite}))(t)
	before := *mr.state()
	same := func(name string) {
		t.Helper()
		if *mr.state() != before || buf.mrs != 1 || buf2.mrs != 0 || pd.users.of("MR") != 1 || pd2.users.any() || foreign.users.any() || len(mr.parents) != 1 {
			t.Errorf("%s: region is %+v", name, mr)
		}
	}
	k.took()
	for _, c := range []struct {
		field string
		o     ReregOptions
	}{
		{"options", ReregOptions{}},
		{"Buffer", ReregOptions{PD: pd2, Length: 1}},
		{"Buffer", ReregOptions{PD: pd2, Offset: 1}},
		{"Buffer", ReregOptions{PD: pd2, IOVA: new(uint64(0))}},
		{"PD", ReregOptions{PD: foreign, Buffer: buf2}},
		{"access", ReregOptions{Access: new(AccessRemoteWrite), Buffer: buf2}},
		{"Offset", ReregOptions{Buffer: buf2, Offset: 4 * page}},
		{"IOVA", ReregOptions{Buffer: buf2, IOVA: new(uint64(1))}},
	} {
		var arg *ArgError
		if err := mr.Rereg(c.o); !errors.As(err, &arg) || arg.Op != "Rereg" || arg.Field != c.field {
			t.Errorf("%+v: %v, want an ArgError about %s", c.o, err, c.field)
		}
		same(c.field)
	}
	for name, o := range map[string]ReregOptions{"buffer": {Buffer: closed}, "PD": {PD: gone, Buffer: buf2}} {
		errorIs(t, mr.Rereg(o), os.ErrClosed, "closed %s", name)
		same(name)
	}
	k.sent()

	all := ReregOptions{PD: pd2, Buffer: buf2, Access: new(AccessRemoteRead)}
	for errno, words := range map[syscall.Errno]string{
		syscall.EACCES: "for reading only", syscall.ENOMEM: "RLIMIT_MEMLOCK", syscall.EOPNOTSUPP: "REREG_MR not supported by driver rxe",
	} {
		k.refuse["REREG_MR"] = errno
		if err := mr.Rereg(all); !errors.Is(err, errno) || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %v, want %q in it", errno, err, words)
		}
		same(errno.Error())
	}
	must(t, mr.Close())
	errorIs(t, new(MR).Rereg(all), syscall.EINVAL, "a zero MR")
}

// state returns what Rereg changes, in a form that can be compared.
func (m *MR) state() *[6]uint64 {
	return &[6]uint64{uint64(m.lkey)<<32 | uint64(m.rkey), m.addr, m.length, m.mem.start, uint64(m.mem.access), addrOf(m.Bytes())}
}

func TestQueryMR(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		pd, buf, _ := memory(t, d)
		mr := value(pd.RegMR(buf, MROptions{}))(t)
		k.took()
		got, err := mr.Query()
		if method != "ioctl" {
			var f *FeatureError
			since := Version{5, 9}
			if legacy == "write" {
				since = Version{} // the kernel was not asked
			}
			if !errors.As(err, &f) || f.Feature != "QUERY_MR" || f.Since != since {
				t.Errorf("error is %v, want a FeatureError since %s", err, since)
			}
		} else if want := (MRAttr{LKey: 0x1112, RKey: 0x2223, Length: 0x3334, IOVA: 0x4445}); err != nil || got != want {
			t.Errorf("attributes are %+v, %v, want %+v", got, err, want)
		} else if call := k.last("QUERY_MR"); call.attr(abi.UVERBS_ATTR_QUERY_MR_HANDLE).Data != uint64(mr.handle) {
			t.Errorf("the command is %+v, want handle %d", call, mr.handle)
		}
		must(t, mr.Close())
		errorIs(t, second(mr.Query()), os.ErrClosed, "Query after Close")
	})
}

func TestAdviseMR(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, buf, _ := memory(t, d)
	mr := value(pd.RegMR(buf, MROptions{}))(t)
	k.took()
	sgl := []SGE{mr.SGE(0, 10), mr.SGE(20, 30)}
	var list []byte // the kernel's copy
	k.seen = func(c *kernel.Command, _ bool) {
		list = slices.Clone(c.Attr(abi.UVERBS_ATTR_ADVISE_MR_SGE_LIST).In)
	}
	for flags, o := range []AdviseOptions{{}, {Flush: true}} {
		must(t, pd.AdviseMR(AdvicePrefetchWrite, sgl, o))
		call := k.last("ADVISE_MR")
		for id, want := range map[uint16]uint64{
			abi.UVERBS_ATTR_ADVISE_MR_PD_HANDLE: uint64(pd.handle),
			abi.UVERBS_ATTR_ADVISE_MR_ADVICE:    1,
			abi.UVERBS_ATTR_ADVISE_MR_FLAGS:     uint64(flags),
		} {
			if got := call.attr(id).Data; got != want {
				t.Errorf("attribute %d is %d, want %d", id, got, want)
			}
		}
		want := sliceBytes([]abi.SGE{{Addr: mr.Addr(), Length: 10, LKey: 0x1111}, {Addr: mr.Addr() + 20, Length: 30, LKey: 0x1111}})
		if diff := cmp.Diff(want, list); diff != "" {
			t.Errorf("SGEs (-want +got):\n%s", diff)
		}
	}
	k.seen = nil
	k.took()
	var arg *ArgError
	for name, err := range map[string]error{
		"advice":  pd.AdviseMR(3, sgl, AdviseOptions{}),
		"no SGE":  pd.AdviseMR(0, nil, AdviseOptions{}),
		"4096":    pd.AdviseMR(0, make([]SGE, 4096), AdviseOptions{}),
		"no SGEs": pd.AdviseMR(0, []SGE{}, AdviseOptions{}),
	} {
		if !errors.As(err, &arg) || arg.Op != "AdviseMR" {
			t.Errorf("%s: %v, want an ArgError", name, err)
		}
	}
	if err := pd.AdviseMR(0, []SGE{sgl[0], mr.SGE(-1, 1)}, AdviseOptions{}); !errors.Is(err, ErrSGERange) || !strings.Contains(err.Error(), "SGE 1") {
		t.Errorf("an SGE outside of the MR: %v", err)
	}
	k.sent()
	must(t, pd.AdviseMR(0, make([]SGE, 4095), AdviseOptions{}))
	for _, errno := range []syscall.Errno{syscall.EINVAL, syscall.EFAULT, syscall.ENOENT, syscall.EPERM} {
		k.refuse["ADVISE_MR"] = errno
		if err := pd.AdviseMR(AdvicePrefetch, sgl, AdviseOptions{}); !errors.Is(err, errno) || !strings.Contains(err.Error(), "on-demand MR of this PD") {
			t.Errorf("%v: %v", errno, err)
		}
	}
	k.refuse["ADVISE_MR"] = syscall.EOPNOTSUPP
	errorIs(t, pd.AdviseMR(AdvicePrefetch, sgl, AdviseOptions{}), errors.ErrUnsupported, "EOPNOTSUPP")
	must(t, mr.Close())
	gone := value(d.AllocPD())(t)
	must(t, gone.Close())
	errorIs(t, gone.AdviseMR(AdvicePrefetch, sgl, AdviseOptions{}), os.ErrClosed, "closed PD")
	if AdvicePrefetchNoFault.String() != "PREFETCH_NO_FAULT" || Advice(3).String() != "advice 3" {
		t.Errorf("names are %s and %s", AdvicePrefetchNoFault, Advice(3))
	}
}

func TestRegDMABuf(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, _, page := memory(t, d)
	fd := value(unix.MemfdCreate("dmabuf", unix.MFD_CLOEXEC))(t)
	f := os.NewFile(uintptr(fd), "dmabuf")
	defer f.Close()
	var arg *ArgError
	if _, err := pd.RegDMABuf(f, MROptions{}); !errors.As(err, &arg) || arg.Field != "file" {
		t.Errorf("an empty file: %v", err)
	}
	must(t, f.Truncate(int64(4*page)))
	for _, c := range []struct {
		o                    MROptions
		offset, length, iova uint64
	}{
		{MROptions{}, 0, uint64(4 * page), 0},
		{MROptions{Offset: page + 5, Length: 9, Access: AccessLocalWrite | AccessRemoteWrite}, uint64(page + 5), 9, uint64(page + 5)},
		{MROptions{Offset: 5, IOVA: new(uint64(1<<40 + 5))}, 5, uint64(4*page - 5), 1<<40 + 5},
	} {
		mr := value(pd.RegDMABuf(f, c.o))(t)
		call := k.last("REG_DMABUF_MR")
		for id, want := range map[uint16]uint64{
			abi.UVERBS_ATTR_REG_DMABUF_MR_HANDLE:       uint64(mr.handle),
			abi.UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE:    uint64(pd.handle),
			abi.UVERBS_ATTR_REG_DMABUF_MR_OFFSET:       c.offset,
			abi.UVERBS_ATTR_REG_DMABUF_MR_LENGTH:       c.length,
			abi.UVERBS_ATTR_REG_DMABUF_MR_IOVA:         c.iova,
			abi.UVERBS_ATTR_REG_DMABUF_MR_FD:           uint64(fd),
			abi.UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS: uint64(c.o.Access),
		} {
			if got := call.attr(id).Data; got != want {
				t.Errorf("%+v: attribute %d is %d, want %d", c.o, id, got, want)
			}
		}
		if mr.LKey() != 0x5556 || mr.RKey() != 0x6667 || mr.Addr() != c.iova || mr.Len() != int(c.length) || mr.Bytes() != nil {
			t.Errorf("%+v: region is %+v", c.o, mr)
		}
		must(t, mr.Close())
	}
	k.took()
	for field, o := range map[string]MROptions{"access": {Access: AccessMWBind}, "Offset": {Offset: 4 * page}, "IOVA": {IOVA: new(uint64(5))}} {
		if _, err := pd.RegDMABuf(f, o); !errors.As(err, &arg) || arg.Op != "RegDMABuf" || arg.Field != field {
			t.Errorf("%+v: %v, want an ArgError about %s", o, err, field)
		}
	}
	if _, err := pd.RegDMABuf(nil, MROptions{}); !errors.As(err, &arg) {
		t.Errorf("no file: %v", err)
	}
	k.sent()
	k.refuse["REG_DMABUF_MR"] = syscall.EINVAL
	if _, err := pd.RegDMABuf(f, MROptions{}); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "not be a dma-buf") {
		t.Errorf("EINVAL: %v", err)
	}
	k.refuse["REG_DMABUF_MR"] = syscall.EPROTONOSUPPORT
	var feature *FeatureError
	if _, err := pd.RegDMABuf(f, MROptions{}); !errors.As(err, &feature) || feature.Since != (Version{5, 12}) {
		t.Errorf("EPROTONOSUPPORT: %v", err)
	}
	f.Close()
	errorIs(t, second(pd.RegDMABuf(f, MROptions{})), os.ErrClosed, "a closed file")
}

// TestRegImplicit: the request for all memory is the same as libibverbs', and is sent only to a
// device that supports it.
func TestRegImplicit(t *testing.T) {
	d, k := fakeDevice(t, pathAuto)
	pd, _, _ := memory(t, d)
	var f *FeatureError
	for caps, want := range map[uint64]string{0: "on-demand paging", abi.IB_UVERBS_ODP_SUPPORT: "implicit on-demand paging"} {
		d.attr.ODPGeneralCaps = caps
		if _, err := pd.RegImplicit(AccessLocalWrite); !errors.As(err, &f) || f.Feature != want || f.Driver != "rxe" || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("caps %#x: %v, want that %s is missing", caps, err, want)
		}
	}
	d.attr.ODPGeneralCaps = abi.IB_UVERBS_ODP_SUPPORT | abi.IB_UVERBS_ODP_SUPPORT_IMPLICIT
	mr := value(pd.RegImplicit(AccessLocalWrite | AccessRemoteRead))(t)
	want := abi.RegMR{Length: math.MaxUint64, PDHandle: pd.handle, AccessFlags: uint32(AccessLocalWrite | AccessRemoteRead | AccessOnDemand)}
	if got := request[abi.RegMR](k, "REG_MR"); got.Start != 0 || got.HCAVA != 0 || got.Length != want.Length || got.PDHandle != want.PDHandle || got.AccessFlags != want.AccessFlags {
		t.Errorf("REG_MR is %+v, want %+v", got, want)
	}
	if mr.Addr() != 0 || mr.Len() != math.MaxInt || mr.Bytes() != nil {
		t.Errorf("the region begins at %#x and has %d bytes, %d of them here", mr.Addr(), mr.Len(), len(mr.Bytes()))
	}
	if got, want := mr.SGE(1<<46, 100), (SGE{Addr: 1 << 46, Length: 100, LKey: mr.LKey()}); got != want {
		t.Errorf("the SGE of an address is %+v, want %+v", got, want)
	}
	must(t, mr.Close())
	var arg *ArgError
	for _, access := range []Access{AccessMWBind, AccessHugeTLB, AccessZeroBased, AccessRemoteWrite} {
		if _, err := pd.RegImplicit(access); !errors.As(err, &arg) || arg.Op != "RegImplicit" || arg.Field != "access" {
			t.Errorf("%s: %v, want an ArgError about the access", access, err)
		}
	}
	k.refuse["REG_MR"] = syscall.EINVAL
	errorIs(t, second(pd.RegImplicit(0)), syscall.EINVAL, "EINVAL")
}
