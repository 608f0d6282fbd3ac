package netlinkrdma

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// onSystem has the package's functions ask a fake kernel until the test ends.
func onSystem(t *testing.T, kernel fakeKernel) {
	t.Helper()
	before := system
	t.Cleanup(func() { system = before })
	system = fakeClient(t, kernel)
}

// TestExported: every function of the package sends the command that it is for, with the number that
// it was given, and returns the kernel's refusal.
func TestExported(t *testing.T) {
	number := u32(17)
	for _, tt := range []struct {
		name string
		call func() error
		cmd  int
		attr int // which has the number 17; 0 if the function takes none
	}{
		{"QPs", func() error { return second(QPs(fakeRXE, ListOptions{})) }, abi.RDMA_NLDEV_CMD_RES_QP_GET, 0},
		{"QPByNum", func() error { return second(QPByNum(fakeRXE, 1, 17)) }, abi.RDMA_NLDEV_CMD_RES_QP_GET, abi.RDMA_NLDEV_ATTR_RES_LQPN},
		{"CQs", func() error { return second(CQs(fakeRXE)) }, abi.RDMA_NLDEV_CMD_RES_CQ_GET, 0},
		{"CQByID", func() error { return second(CQByID(fakeRXE, 17)) }, abi.RDMA_NLDEV_CMD_RES_CQ_GET, abi.RDMA_NLDEV_ATTR_RES_CQN},
		{"MRs", func() error { return second(MRs(fakeRXE)) }, abi.RDMA_NLDEV_CMD_RES_MR_GET, 0},
		{"MRByID", func() error { return second(MRByID(fakeRXE, 17)) }, abi.RDMA_NLDEV_CMD_RES_MR_GET, abi.RDMA_NLDEV_ATTR_RES_MRN},
		{"PDs", func() error { return second(PDs(fakeRXE)) }, abi.RDMA_NLDEV_CMD_RES_PD_GET, 0},
		{"PDByID", func() error { return second(PDByID(fakeRXE, 17)) }, abi.RDMA_NLDEV_CMD_RES_PD_GET, abi.RDMA_NLDEV_ATTR_RES_PDN},
		{"CMIDs", func() error { return second(CMIDs(fakeRXE)) }, abi.RDMA_NLDEV_CMD_RES_CM_ID_GET, 0},
		{"CMIDByID", func() error { return second(CMIDByID(fakeRXE, 1, 17)) }, abi.RDMA_NLDEV_CMD_RES_CM_ID_GET, abi.RDMA_NLDEV_ATTR_RES_CM_IDN},
		{"Contexts", func() error { return second(Contexts(fakeRXE)) }, abi.RDMA_NLDEV_CMD_RES_CTX_GET, 0},
		{"ContextByID", func() error { return second(ContextByID(fakeRXE, 17)) }, abi.RDMA_NLDEV_CMD_RES_CTX_GET, abi.RDMA_NLDEV_ATTR_RES_CTXN},
		{"SRQs", func() error { return second(SRQs(fakeRXE)) }, abi.RDMA_NLDEV_CMD_RES_SRQ_GET, 0},
		{"SRQByID", func() error { return second(SRQByID(fakeRXE, 17)) }, abi.RDMA_NLDEV_CMD_RES_SRQ_GET, abi.RDMA_NLDEV_ATTR_RES_SRQN},
		{"Resources", func() error { return second(Resources(fakeRXE, ListOptions{})) }, abi.RDMA_NLDEV_CMD_RES_GET, 0},
		{"PortCounters", func() error { return second(PortCounters(fakeRXE, 1)) }, abi.RDMA_NLDEV_CMD_STAT_GET, 0},
		{"PortCounterStatus", func() error { return second(PortCounterStatus(fakeRXE, 1)) }, abi.RDMA_NLDEV_CMD_STAT_GET, 0},
		{"SetOptionalCounters", func() error { return SetOptionalCounters(fakeRXE, 1, "a") }, abi.RDMA_NLDEV_CMD_STAT_GET, 0},
		{"QPCounterSetting", func() error { return second(QPCounterSetting(fakeRXE, 1)) }, abi.RDMA_NLDEV_CMD_STAT_GET, 0},
		{"SetAutoQPCounters", func() error { return SetAutoQPCounters(fakeRXE, 1, 17) }, abi.RDMA_NLDEV_CMD_STAT_SET, abi.RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK},
		{"SetAutoQPCountersOptional", func() error { return SetAutoQPCountersOptional(fakeRXE, 1, 17) }, abi.RDMA_NLDEV_CMD_STAT_SET, abi.RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK},
		{"QPCounters", func() error { return second(QPCounters(fakeRXE)) }, abi.RDMA_NLDEV_CMD_STAT_GET, 0},
		{"CountersOfMRs", func() error { return second(CountersOfMRs(fakeRXE)) }, abi.RDMA_NLDEV_CMD_STAT_GET, 0},
		{"NewQPCounter", func() error { return second(NewQPCounter(fakeRXE, 1, 17)) }, abi.RDMA_NLDEV_CMD_STAT_SET, abi.RDMA_NLDEV_ATTR_RES_LQPN},
		{"BindQPCounter", func() error { return BindQPCounter(fakeRXE, 1, 4, 17) }, abi.RDMA_NLDEV_CMD_STAT_SET, abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID},
		{"UnbindQPCounter", func() error { return UnbindQPCounter(fakeRXE, 1, 17, 4) }, abi.RDMA_NLDEV_CMD_STAT_DEL, abi.RDMA_NLDEV_ATTR_RES_LQPN},
		{"RenameDevice", func() error { return RenameDevice(fakeRXE, "rxe7") }, abi.RDMA_NLDEV_CMD_SET, 0},
		{"MoveDevice", func() error { return MoveDevice(fakeRXE, os.Stdin) }, abi.RDMA_NLDEV_CMD_SET, 0},
		{"MoveDeviceAs", func() error { return MoveDeviceAs(fakeRXE, "rxe7", os.Stdin) }, abi.RDMA_NLDEV_CMD_SET, 0},
		{"MoveDeviceToPID", func() error { return MoveDeviceToPID(fakeRXE, os.Getpid()) }, abi.RDMA_NLDEV_CMD_SET, 0},
		{"SetAdaptiveModeration", func() error { return SetAdaptiveModeration(fakeRXE, true) }, abi.RDMA_NLDEV_CMD_SET, 0},
		{"QPs with Driver", func() error { return second(QPs(fakeRXE, ListOptions{Driver: true})) }, abi.RDMA_NLDEV_CMD_RES_QP_GET, 0},
		{"Resources with Driver", func() error { return second(Resources(fakeRXE, ListOptions{Driver: true})) }, abi.RDMA_NLDEV_CMD_RES_GET, 0},
		{"Raw of a QP", func() error { return second(Raw(fakeRXE, RawOptions{Kind: RawQP, ID: 17, Port: 1})) }, abi.RDMA_NLDEV_CMD_RES_QP_GET_RAW, abi.RDMA_NLDEV_ATTR_RES_LQPN},
		{"Raw of a CQ", func() error { return second(Raw(fakeRXE, RawOptions{Kind: RawCQ, ID: 17})) }, abi.RDMA_NLDEV_CMD_RES_CQ_GET_RAW, abi.RDMA_NLDEV_ATTR_RES_CQN},
		{"Raw of an MR", func() error { return second(Raw(fakeRXE, RawOptions{Kind: RawMR, ID: 17})) }, abi.RDMA_NLDEV_CMD_RES_MR_GET_RAW, abi.RDMA_NLDEV_ATTR_RES_MRN},
		{"Raw of an SRQ", func() error { return second(Raw(fakeRXE, RawOptions{Kind: RawSRQ, ID: 17})) }, abi.RDMA_NLDEV_CMD_RES_SRQ_GET_RAW, abi.RDMA_NLDEV_ATTR_RES_SRQN},
		{"RawList", func() error { return second(RawList(fakeRXE, RawMR)) }, abi.RDMA_NLDEV_CMD_RES_MR_GET_RAW, 0},
		{"FRMRPools", func() error { return second(FRMRPools(fakeRXE, ListOptions{})) }, abi.RDMA_NLDEV_CMD_FRMR_POOLS_GET, 0},
		{"PinFRMRs", func() error { return PinFRMRs(fakeRXE, FRMRKey{DMABlocks: 1}, 17) }, abi.RDMA_NLDEV_CMD_FRMR_POOLS_SET, abi.RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES},
		{"SetFRMRAging", func() error { return SetFRMRAging(fakeRXE, 17*time.Second) }, abi.RDMA_NLDEV_CMD_FRMR_POOLS_SET, abi.RDMA_NLDEV_ATTR_FRMR_POOLS_AGING_PERIOD},
		{"AddSubDevice", func() error { return AddSubDevice(fakeRXE, "smi0", DeviceTypeSMI) }, abi.RDMA_NLDEV_CMD_NEWDEV, 0},
		{"DeleteSubDevice", func() error { return DeleteSubDevice(fakeRXE) }, abi.RDMA_NLDEV_CMD_DELDEV, 0},
		{"SystemSettings", func() error { return second(SystemSettings()) }, abi.RDMA_NLDEV_CMD_SYS_GET, 0},
		{"SetNetNSMode", func() error { return SetNetNSMode(NetNSShared) }, abi.RDMA_NLDEV_CMD_SYS_SET, 0},
		{"SetPrivilegedQKey", func() error { return SetPrivilegedQKey(true) }, abi.RDMA_NLDEV_CMD_SYS_SET, 0},
	} {
		var got []request
		onSystem(t, rxeKernel(func(r request) []datagram {
			got = append(got, r)
			return r.refuse(unix.EBUSY)
		}))
		errorIs(t, tt.call(), unix.EBUSY, "%s", tt.name)
		if len(got) != 1 || got[0].cmd != tt.cmd {
			t.Errorf("%s: requests are %+v, want one with command %d", tt.name, got, tt.cmd)
		} else if b := got[0].attrs.attrs[tt.attr]; tt.attr != 0 && !slices.Equal(b, number) {
			t.Errorf("%s: attribute %d is %x, want %x", tt.name, tt.attr, b, number)
		}
	}
}

// TestSetAutoQPCountersOptional: the one function asks for optional counters, the other does not, and
// only what asks for them names the kernel that has them.
func TestSetAutoQPCountersOptional(t *testing.T) {
	for name, c := range map[string]struct {
		set      func(Device, uint32, CounterGroups) error
		optional bool
		since    Version
	}{
		"SetAutoQPCounters":         {SetAutoQPCounters, false, Version{}},
		"SetAutoQPCountersOptional": {SetAutoQPCountersOptional, true, Version{6, 15}},
	} {
		onSystem(t, rxeKernel(func(r request) []datagram {
			if _, ok := r.attrs.attrs[abi.RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED]; ok != c.optional {
				t.Errorf("%s asks for optional counters: %v, want %v", name, ok, c.optional)
			}
			return r.one()
		}))
		if err := c.set(fakeRXE, 1, GroupByPID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		onSystem(t, rxeKernel(refusing(unix.EINVAL)))
		err := c.set(fakeRXE, 1, GroupByPID)
		f, ok := errors.AsType[*FeatureError](err)
		if ok != c.optional || ok && f.Since != c.since {
			t.Errorf("%s: EINVAL became %v, want a FeatureError since %s: %v", name, err, c.since, c.optional)
		}
	}
}

// TestSince: what newer kernels list is missing in older ones, which the error says.
func TestSince(t *testing.T) {
	onSystem(t, rxeKernel(refusing(unix.EINVAL)))
	for name, c := range map[string]struct {
		err   error
		since Version
	}{
		"list of SRQs":     {second(SRQs(fakeRXE)), Version{5, 13}},
		"list of contexts": {second(Contexts(fakeRXE)), Version{5, 13}},
	} {
		if f, ok := errors.AsType[*FeatureError](c.err); !ok || f.Feature != name || f.Since != c.since {
			t.Errorf("%s: %v, want a FeatureError since %s", name, c.err, c.since)
		}
	}
}

// TestCounterMode: a mode is one byte.
func TestCounterMode(t *testing.T) {
	for mode, valid := range map[uint32]bool{0: true, 2: true, 0xff: true, 0x100: false, 0x101: false, 1<<32 - 1: false} {
		set, err := decodeCounterSetting(slices.Concat(nla(abi.RDMA_NLDEV_ATTR_STAT_MODE, u32(mode)), nla(abi.RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK, u32(3))))
		if (err == nil) != valid || valid && (uint32(set.Mode) != mode || set.Groups != 3) {
			t.Errorf("mode %d: %+v, %v", mode, set, err)
		}
	}
}

// TestUverbsDevNeither: where neither netlink nor sysfs answers, the error has both reasons.
func TestUverbsDevNeither(t *testing.T) {
	_, err := deafClient(unix.EPROTONOSUPPORT, fstest.MapFS{}).uverbsDev(fakeRXE)
	if !errors.Is(err, unix.EPROTONOSUPPORT) || !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "from sysfs") {
		t.Errorf("%v, want both reasons", err)
	}
}

// TestEntryError: the first error is kept, be it of a table or of one of its entries.
func TestEntryError(t *testing.T) {
	table := nla(abi.RDMA_NLDEV_ATTR_RES_QP, slices.Concat(nla(abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, nil), nla(abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, nil)))
	for name, c := range map[string]struct {
		read func(m, e *message)
		want string
		seen int
	}{
		"none":         {func(_, _ *message) {}, "", 2},
		"of an entry":  {func(_, e *message) { e.need(abi.RDMA_NLDEV_ATTR_RES_LQPN) }, "RES_LQPN: missing", 1},
		"of the table": {func(m, _ *message) { m.need(abi.RDMA_NLDEV_ATTR_RES_PDN) }, "RES_PDN: missing", 1},
		"of both": {func(m, e *message) {
			m.need(abi.RDMA_NLDEV_ATTR_RES_PDN)
			e.need(abi.RDMA_NLDEV_ATTR_RES_LQPN)
		}, "RES_PDN: missing", 1},
	} {
		m, seen := parse(table), 0
		for e := range m.entries(abi.RDMA_NLDEV_ATTR_RES_QP, abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY) {
			seen++
			c.read(m, e)
		}
		if seen != c.seen || (m.err == nil) != (c.want == "") || m.err != nil && !strings.Contains(m.err.Error(), c.want) {
			t.Errorf("error %s: %v after %d entries, want %q after %d", name, m.err, seen, c.want, c.seen)
		}
	}
}

// TestEventWithoutType: an event says what it is about.
func TestEventWithoutType(t *testing.T) {
	if e, err := decodeEvent(nla(abi.RDMA_NLDEV_ATTR_DEV_NAME, cstr("rxe0"))); err == nil || !strings.Contains(err.Error(), "EVENT_TYPE: missing") {
		t.Errorf("%+v, %v, want that the type is missing", e, err)
	}
}
