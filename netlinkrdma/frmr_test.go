package netlinkrdma

import (
	"errors"
	"io/fs"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// goldenRaw is a reply with the dumps of two QPs.
var goldenRaw = nla(abi.RDMA_NLDEV_ATTR_RES_QP, slices.Concat(
	nla(abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, nla(abi.RDMA_NLDEV_ATTR_RES_RAW, []byte{1, 2, 3})),
	nla(abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, nla(abi.RDMA_NLDEV_ATTR_RES_RAW, nil))))

// goldenFRMR is a reply with two pools, as nldev_frmr_pools_get_dumpit of Linux 7.2 makes it. The second
// one has a key of the kernel.
var goldenFRMR = nla(abi.RDMA_NLDEV_ATTR_FRMR_POOLS, slices.Concat(
	nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_ENTRY, frmrEntry(0x20, 512, 1, nil, 7, 3, 1<<33, 10)),
	nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_ENTRY, frmrEntry(0, 1, 0, nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_KERNEL_VENDOR_KEY, u64(0xffff)), 0, 1, 1, 0))))

func frmrEntry(vendor, blocks uint64, ats byte, more []byte, free uint32, inUse, most uint64, pinned uint32) []byte {
	return slices.Concat(nest(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY,
		nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS, []byte{ats}),
		nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS, u32(0x100000)),
		nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY, u64(vendor)),
		nla(abi.RDMA_NLDEV_ATTR_PAD, nil), nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS, u64(blocks)), more),
		nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_QUEUE_HANDLES, u32(free)),
		nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_MAX_IN_USE, u64(most)),
		nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_IN_USE, u64(inUse)),
		nla(abi.RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES, u32(pinned)))
}

// TestFRMRPools: everything that the kernel reports about a pool arrives.
func TestFRMRPools(t *testing.T) {
	var details [][]byte
	onSystem(t, rxeKernel(func(r request) []datagram {
		details = append(details, r.attrs.attrs[abi.RDMA_NLDEV_ATTR_DRIVER_DETAILS])
		return r.all(goldenFRMR)
	}))
	want := []FRMRPool{
		{Key: FRMRKey{VendorKey: 0x20, DMABlocks: 512, AccessFlags: 0x100000, ATS: true}, Free: 7, InUse: 3, MaxInUse: 1 << 33, Pinned: 10},
		{Key: FRMRKey{DMABlocks: 1, AccessFlags: 0x100000}, KernelKey: 0xffff, InUse: 1, MaxInUse: 1},
	}
	for _, o := range []ListOptions{{}, {Driver: true}} {
		got, err := FRMRPools(fakeRXE, o)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	if want := [][]byte{nil, {1}}; !cmp.Equal(details, want) {
		t.Errorf("the requests have DRIVER_DETAILS %v, want %v", details, want)
	}
}

// TestDriverDetails: QPs and counts are queried with the driver's details, and without them. If the driver cannot
// describe a QP of its own, the list has the others. The QPs of efa are SRD, which it does not say.
func TestDriverDetails(t *testing.T) {
	var details [][]byte
	var errno unix.Errno
	onSystem(t, rxeKernel(func(r request) []datagram {
		detail := r.attrs.attrs[abi.RDMA_NLDEV_ATTR_DRIVER_DETAILS]
		details = append(details, detail)
		qp := slices.Concat(nla(abi.RDMA_NLDEV_ATTR_RES_LQPN, u32(uint32(len(detail)))), nla(abi.RDMA_NLDEV_ATTR_RES_TYPE, []byte{255}), nla(abi.RDMA_NLDEV_ATTR_RES_STATE, []byte{3}))
		switch {
		case detail != nil && errno != 0:
			return r.refuse(errno)
		case r.flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP:
			return r.one(qp)
		}
		return r.all(nla(abi.RDMA_NLDEV_ATTR_RES_QP, nla(abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, qp)))
	}))
	efa := fakeRXE
	efa.DriverID = DriverEFA
	all := ListOptions{Driver: true}
	check := func(dev Device, o ListOptions, want QP) {
		t.Helper()
		got, err := QPs(dev, o)
		if diff := cmp.Diff([]QP{want}, got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	with := QP{Num: 1, Type: ib.DriverQP, State: ib.QPRTS}
	without, srd := with, with
	without.Num, srd.Subtype = 0, "SRD"
	check(fakeRXE, all, with)
	check(efa, all, srd)
	check(fakeRXE, ListOptions{}, without)
	if got, err := QPByNum(efa, 1, 1); err != nil || got.Subtype != "SRD" {
		t.Errorf("by number: %+v, %v", got, err)
	}
	Resources(fakeRXE, all)
	Resources(fakeRXE, ListOptions{})
	errno = unix.EINVAL
	check(fakeRXE, all, without)
	errno = unix.EPERM
	if got, err := QPs(fakeRXE, all); !errors.Is(err, unix.EPERM) {
		t.Errorf("%+v, %v, want EPERM", got, err)
	}
	if want := [][]byte{{1}, {1}, nil, nil, {1}, nil, {1}, nil, {1}}; !cmp.Equal(details, want) {
		t.Errorf("the requests have DRIVER_DETAILS %v, want %v", details, want)
	}
}

// TestPinFRMRs: the kernel is told the key in a nested attribute, and the number.
func TestPinFRMRs(t *testing.T) {
	key := FRMRKey{VendorKey: 1 << 40, DMABlocks: 1 << 33, AccessFlags: 0x9f, ATS: true}
	var got *message
	c := fakeClient(t, rxeKernel(func(r request) []datagram {
		got = r.attrs
		return r.refuse(0)
	}))
	must(t, c.pinFRMRs(fakeRXE, key, 25000))
	k := parse(got.attrs[abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY])
	sent := FRMRKey{k.u64(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY), k.u64(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS),
		k.u32(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS), k.u8(abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS) == 1}
	if k.err != nil || sent != key || len(k.attrs) != 4 || got.u32(abi.RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES) != 25000 || len(got.attrs) != 3 {
		t.Errorf("sent are %+v with the key %+v, %v, want %+v", got.attrs, sent, k.err, key)
	}
}

// TestFRMRDriver: a driver without pools is told from a kernel without them.
func TestFRMRDriver(t *testing.T) {
	set := map[string]func(*client) error{
		"FRMR pools":              func(c *client) error { return c.setFRMRAging(fakeRXE, time.Second) },
		"FRMR pool with this key": func(c *client) error { return c.pinFRMRs(fakeRXE, FRMRKey{DMABlocks: 1}, 1) },
	}
	for name, set := range set {
		for _, old := range []bool{false, true} {
			c := fakeClient(t, rxeKernel(func(r request) []datagram {
				if r.cmd == abi.RDMA_NLDEV_CMD_FRMR_POOLS_SET || old {
					return r.refuse(unix.EINVAL)
				}
				return r.all()
			}))
			want := FeatureError{Feature: name, Driver: "rxe"}
			if old {
				want = FeatureError{Feature: name, Since: Version{7, 1}}
			}
			f, ok := errors.AsType[*FeatureError](set(c))
			if !ok || f.Feature != want.Feature || f.Driver != want.Driver || f.Since != want.Since || !errors.Is(f, unix.EINVAL) {
				t.Errorf("%s, an old kernel is %v: %v", name, old, f)
			}
		}
	}
}

// TestFRMRInvalid: what no kernel would take is not sent, and the error names the value and what is allowed.
func TestFRMRInvalid(t *testing.T) {
	c := fakeClient(t, func(r request) []datagram { t.Errorf("request %+v", r); return r.refuse(0) })
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"no blocks":      {c.pinFRMRs(fakeRXE, FRMRKey{}, 1), "DMABlocks is 0"},
		"no period":      {c.setFRMRAging(fakeRXE, 0), "period is 0s: invalid argument; allowed are whole seconds from 1 to 4294967295"},
		"half a second":  {c.setFRMRAging(fakeRXE, 1500*time.Millisecond), "period is 1.5s"},
		"too long":       {c.setFRMRAging(fakeRXE, (math.MaxUint32+1)*time.Second), "allowed are whole seconds"},
		"no kind":        {second(c.raw(fakeRXE, RawOptions{ID: 1})), "allowed are RawQP, RawCQ, RawMR and RawSRQ"},
		"kind of a list": {second(c.rawList(fakeRXE, 5)), "kind 5"},
		"port of a CQ":   {second(c.raw(fakeRXE, RawOptions{Kind: RawCQ, Port: 1})), "port 1: invalid argument; only a QP belongs to a port"},
		"type":           {c.addSubDevice(fakeRXE, "smi0", DeviceTypeNone), "type none: invalid argument; allowed is SMI"},
	} {
		if !errors.Is(tt.err, fs.ErrInvalid) || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, tt.err, tt.want)
		}
	}
	for _, name := range []string{"", "a b", "a/b", "smi%d", strings.Repeat("x", maxSubDeviceName+1)} {
		if err := c.addSubDevice(fakeRXE, name, DeviceTypeSMI); !errors.Is(err, errBadName) || !strings.Contains(err.Error(), "1 to 15 bytes") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := second(c.raw(fakeRXE, RawOptions{Kind: RawQP, ID: 1})); !errors.Is(err, noPort{}) {
		t.Errorf("a QP without a port: %v, want %v", err, noPort{})
	}
}

// TestFRMRKey: the text form is the same as in iproute2, and each wrong field is named.
func TestFRMRKey(t *testing.T) {
	for text, want := range map[string]FRMRKey{
		"0:1000:0:0":                    {DMABlocks: 0x1000},
		"ffffffffffffffff:1:ffffffff:1": {VendorKey: math.MaxUint64, DMABlocks: 1, AccessFlags: math.MaxUint32, ATS: true},
	} {
		if got, err := ParseFRMRKey(text); err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                "four hexadecimal numbers",
		"1:2:3":           "four hexadecimal numbers",
		"1:2:3:0:0":       "four hexadecimal numbers",
		"x:2:3:0":         `VENDOR_KEY is "x", allowed are 0 to ffffffffffffffff in hexadecimal`,
		"0:0:3:0":         `DMA_BLOCKS is "0", allowed are 1 to`,
		"0:1:100000000:0": `ACCESS_FLAGS is "100000000", allowed are 0 to ffffffff`,
		"0:1:0:2":         `ATS is "2", allowed are 0 to 1`,
		"0:-1:0:0":        `DMA_BLOCKS is "-1"`,
	} {
		if _, err := ParseFRMRKey(text); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestRaw: the bytes of the driver arrive as they are, of one object and of all.
func TestRaw(t *testing.T) {
	dump := []byte{0xde, 0xad, 0, 1}
	c := fakeClient(t, rxeKernel(func(r request) []datagram {
		if r.flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP {
			return r.all(goldenRaw)
		}
		if r.attrs.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX) != 2 || r.attrs.u32(abi.RDMA_NLDEV_ATTR_RES_LQPN) != 17 {
			return r.refuse(unix.EAGAIN)
		}
		return r.one(nla(abi.RDMA_NLDEV_ATTR_RES_RAW, dump))
	}))
	if got, err := c.raw(fakeRXE, RawOptions{Kind: RawQP, ID: 17, Port: 2}); err != nil || !slices.Equal(got, dump) {
		t.Errorf("%x, %v, want %x", got, err, dump)
	}
	if got, err := c.rawList(fakeRXE, RawQP); err != nil || !cmp.Equal(got, [][]byte{{1, 2, 3}, {}}) {
		t.Errorf("%x, %v", got, err)
	}
	if _, err := c.raw(fakeRXE, RawOptions{Kind: RawQP, ID: 17, Port: 1}); !errors.Is(err, unix.EAGAIN) || !strings.Contains(err.Error(), "not on port 1; one in state RESET") {
		t.Errorf("of another port: %v", err)
	}
	empty := fakeClient(t, rxeKernel(func(r request) []datagram { return r.one() }))
	if got, err := empty.raw(fakeRXE, RawOptions{Kind: RawMR, ID: 1}); err == nil || got != nil || !strings.Contains(err.Error(), "RES_RAW: missing") {
		t.Errorf("a reply without a dump: %x, %v", got, err)
	}
}

// TestQPOfPort: QP 1 of a port is found where the kernel has the port in its number, and where it has not.
func TestQPOfPort(t *testing.T) {
	for _, number := range []uint32{1, 2<<24 | 1} {
		c := fakeClient(t, rxeKernel(func(r request) []datagram {
			if r.attrs.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX) != 2 || r.attrs.u32(abi.RDMA_NLDEV_ATTR_RES_LQPN) != number {
				return r.refuse(unix.ENOENT)
			}
			return r.one(nla(abi.RDMA_NLDEV_ATTR_RES_RAW, []byte{7}))
		}))
		if got, err := c.raw(fakeRXE, RawOptions{Kind: RawQP, ID: 1, Port: 2}); err != nil || !slices.Equal(got, []byte{7}) {
			t.Errorf("number %#x: %x, %v", number, got, err)
		}
		if got, err := c.raw(fakeRXE, RawOptions{Kind: RawQP, ID: 2, Port: 2}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("QP 2: %x, %v", got, err)
		}
	}
}

// TestSubDeviceRefused: what it means that a sub-device cannot be made or deleted.
func TestSubDeviceRefused(t *testing.T) {
	for _, tt := range []struct {
		call  string
		errno unix.Errno
		is    error
		want  string
	}{
		{"add dev", unix.EEXIST, fs.ErrExist, "rxe0 has a device of type SMI already"},
		{"add dev", unix.ENFILE, fs.ErrExist, "an RDMA device smi0 exists already"},
		{"delete dev", unix.EOPNOTSUPP, unix.EOPNOTSUPP, "only a device that is part of another"},
	} {
		err := deviceCalls[tt.call](fakeClient(t, rxeKernel(refusing(tt.errno))), fakeRXE)
		if e, ok := errors.AsType[*Error](err); !ok || !errors.Is(err, tt.is) || !strings.Contains(e.Hint, tt.want) {
			t.Errorf("%s: %v, want %q", tt.call, err, tt.want)
		}
	}
	if err := deviceCalls["delete dev"](fakeClient(t, rxeKernel(refusing(unix.EOPNOTSUPP))), fakeRXE); errors.As(err, new(*FeatureError)) {
		t.Errorf("an ordinary device: %v, which blames the driver", err)
	}
}

// TestSubDeviceSent: the kernel is told the parent, the name and the type.
func TestSubDeviceSent(t *testing.T) {
	var got *message
	c := fakeClient(t, rxeKernel(func(r request) []datagram {
		got = r.attrs
		return r.refuse(0)
	}))
	must(t, c.addSubDevice(fakeRXE, strings.Repeat("s", maxSubDeviceName), DeviceTypeSMI))
	if got.u32(abi.RDMA_NLDEV_ATTR_DEV_INDEX) != 5 || got.name(abi.RDMA_NLDEV_ATTR_DEV_NAME) != strings.Repeat("s", maxSubDeviceName) ||
		got.u8(abi.RDMA_NLDEV_ATTR_DEV_TYPE) != abi.RDMA_DEVICE_TYPE_SMI || got.err != nil || len(got.attrs) != 3 {
		t.Errorf("sent are %+v, %v", got.attrs, got.err)
	}
}
