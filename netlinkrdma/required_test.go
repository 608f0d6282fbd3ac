package netlinkrdma

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// containers are the attributes that have attributes. That of a driver is no set, but a list of names and values.
var containers = []int{
	abi.RDMA_NLDEV_ATTR_RES_SUMMARY, abi.RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY, abi.RDMA_NLDEV_ATTR_RES_QP, abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY,
	abi.RDMA_NLDEV_ATTR_RES_CM_ID, abi.RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY, abi.RDMA_NLDEV_ATTR_RES_CQ, abi.RDMA_NLDEV_ATTR_RES_CQ_ENTRY,
	abi.RDMA_NLDEV_ATTR_RES_MR, abi.RDMA_NLDEV_ATTR_RES_MR_ENTRY, abi.RDMA_NLDEV_ATTR_RES_PD, abi.RDMA_NLDEV_ATTR_RES_PD_ENTRY,
	abi.RDMA_NLDEV_ATTR_RES_CTX, abi.RDMA_NLDEV_ATTR_RES_CTX_ENTRY, abi.RDMA_NLDEV_ATTR_RES_SRQ, abi.RDMA_NLDEV_ATTR_RES_SRQ_ENTRY,
	abi.RDMA_NLDEV_ATTR_STAT_COUNTER, abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY, abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS,
	abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY, abi.RDMA_NLDEV_ATTR_FRMR_POOLS, abi.RDMA_NLDEV_ATTR_FRMR_POOL_ENTRY,
	abi.RDMA_NLDEV_ATTR_FRMR_POOL_KEY,
}

// rewrite passes each attribute at each depth to change and returns what remains of the reply.
func rewrite(t *testing.T, b []byte, change func(typ int, data []byte) (attr []byte)) []byte {
	t.Helper()
	var out []byte
	for a, err := range attributes(b) {
		must(t, err)
		if slices.Contains(containers, a.typ) {
			a.data = rewrite(t, a.data, change)
		}
		out = append(out, change(a.typ, a.data)...)
	}
	return out
}

// TestRequiredAttributes: a reply without an attribute that every kernel sends is an error that names
// the attribute. Without any other, the reply is complete.
func TestRequiredAttributes(t *testing.T) {
	required := map[string]string{
		"qp":          "RES_LQPN RES_QP RES_STATE RES_TYPE",
		"cq":          "RES_CQ RES_CQE RES_CQN RES_USECNT",
		"mr":          "RES_MR RES_MRLEN RES_MRN",
		"pd":          "RES_PD RES_PDN RES_USECNT",
		"cm_id":       "RES_CM_ID RES_CM_IDN RES_PS RES_STATE",
		"ctx":         "RES_CTX RES_CTXN",
		"srq":         "MAX_RANGE MIN_RANGE RES_SRQ RES_SRQN",
		"one_pd":      "RES_PDN RES_USECNT",
		"counts":      "RES_SUMMARY RES_SUMMARY_ENTRY_CURR RES_SUMMARY_ENTRY_NAME",
		"mode":        "STAT_MODE",
		"settings":    "NETNS_MODE",
		"status":      "STAT_HWCOUNTERS STAT_HWCOUNTER_ENTRY_NAME STAT_HWCOUNTER_INDEX",
		"counters":    "STAT_HWCOUNTERS STAT_HWCOUNTER_ENTRY_NAME STAT_HWCOUNTER_ENTRY_VALUE",
		"qp_counters": "RES_LQPN STAT_COUNTER STAT_COUNTER_ID STAT_HWCOUNTERS STAT_HWCOUNTER_ENTRY_NAME STAT_HWCOUNTER_ENTRY_VALUE",
		"mr_counters": "RES_MR RES_MRN STAT_HWCOUNTER_ENTRY_NAME STAT_HWCOUNTER_ENTRY_VALUE",
		"raw":         "RES_QP RES_RAW",
		"frmr": "FRMR_POOLS FRMR_POOL_IN_USE FRMR_POOL_KEY FRMR_POOL_KEY_ACCESS_FLAGS FRMR_POOL_KEY_ATS FRMR_POOL_KEY_NUM_DMA_BLOCKS " +
			"FRMR_POOL_KEY_VENDOR_KEY FRMR_POOL_MAX_IN_USE FRMR_POOL_PINNED_HANDLES FRMR_POOL_QUEUE_HANDLES",
	}
	for name, messages := range seeds(t) {
		if name == "events" {
			continue // has a header; TestEventWithoutType
		}
		types := map[int]bool{}
		missing := map[string]bool{}
		for _, b := range messages {
			rewrite(t, b, func(typ int, _ []byte) []byte { types[typ] = true; return nil })
		}
		for typ := range types {
			for _, b := range messages {
				_, err := tables[name](rewrite(t, b, func(of int, data []byte) []byte {
					if of == typ {
						return nil
					}
					return nla(of, data)
				}))
				if err == nil {
					continue
				}
				attr, ok := strings.CutSuffix(strings.TrimPrefix(err.Error(), "the kernel's reply: attribute "), ": missing")
				if !ok || attr != attrNames[typ] {
					t.Errorf("%s without %s: %v", name, attrNames[typ], err)
				}
				missing[attr] = true
			}
		}
		if got := strings.Join(slices.Sorted(maps.Keys(missing)), " "); got != required[name] {
			t.Errorf("%s requires %s, want %s", name, got, required[name])
		}
	}
}

// TestUnknownAttributes: attributes that a newer kernel adds to a table or an entry do not matter.
func TestUnknownAttributes(t *testing.T) {
	unknown := nest(0x3ffe, []byte{1, 2, 3})
	for name, messages := range seeds(t) {
		if name == "events" {
			continue
		}
		for _, b := range messages {
			want, err := tables[name](b)
			must(t, err)
			got, err := tables[name](rewrite(t, b, func(typ int, data []byte) []byte {
				if slices.Contains(containers, typ) {
					data = slices.Concat(unknown, data, unknown)
				}
				return nla(typ, data)
			}))
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(CounterStatus{}), comparePorts); err != nil || diff != "" {
				t.Errorf("%s: %v\n%s", name, err, diff)
			}
		}
	}
}

// TestSRQNumbers: the kernel lists the QPs of an SRQ as single numbers and as ranges.
func TestSRQNumbers(t *testing.T) {
	entry := func(attrs ...[]byte) []byte { return nest(abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, attrs...) }
	all, err := srqs.decodeTable(nest(abi.RDMA_NLDEV_ATTR_RES_SRQ, nest(abi.RDMA_NLDEV_ATTR_RES_SRQ_ENTRY,
		nla(abi.RDMA_NLDEV_ATTR_RES_SRQN, u32(6)), nest(abi.RDMA_NLDEV_ATTR_RES_QP,
			entry(nla(abi.RDMA_NLDEV_ATTR_RES_LQPN, u32(17))),
			entry(nla(abi.RDMA_NLDEV_ATTR_MIN_RANGE, u32(20)), nla(abi.RDMA_NLDEV_ATTR_MAX_RANGE, u32(23)))))))
	if want := []QPRange{{17, 17}, {20, 23}}; err != nil || len(all) != 1 || all[0].ID != 6 || !slices.Equal(all[0].QPs, want) {
		t.Errorf("%+v, %v, want SRQ 6 with %v", all, err, want)
	}
}

// TestSettingsRefused: what a setting that cannot be changed is due to.
func TestSettingsRefused(t *testing.T) {
	netns := func(mode NetNSMode) func(*client) error {
		return func(c *client) error { return c.setNetNSMode(mode) }
	}
	qkey := func(c *client) error { return c.setPrivilegedQKey(false) }
	for _, tt := range []struct {
		name string
		set  func(*client) error
		c    *client
		is   error
		want string
	}{
		{"netns mode", netns(NetNSExclusive), fakeClient(t, refusing(unix.EPERM)), fs.ErrPermission, "this needs CAP_NET_ADMIN"},
		{"netns mode", netns(NetNSShared), fakeClient(t, refusing(unix.EBUSY)), syscall.EBUSY, "other network namespaces; set it at boot: options ib_core netns_mode=0 in /etc/modprobe.d"},
		{"netns mode", netns(NetNSShared), deafClient(unix.EPROTONOSUPPORT, nil), unix.EPROTONOSUPPORT, "modprobe ib_uverbs"},
		{"netns mode 2", netns(NetNSShared + 1), fakeClient(t, nil), fs.ErrInvalid, "allowed are exclusive and shared"},
		{"privileged Q_Key", qkey, fakeClient(t, refusing(unix.EPERM)), fs.ErrPermission, "this needs CAP_NET_ADMIN"},
		{"privileged Q_Key", qkey, deafClient(unix.EPROTONOSUPPORT, nil), unix.EPROTONOSUPPORT, "modprobe ib_uverbs"},
	} {
		if err := tt.set(tt.c); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %v with %q", tt.name, err, tt.is, tt.want)
		}
	}
}

// TestSettingsSent: what the kernel is told.
func TestSettingsSent(t *testing.T) {
	for _, tt := range []struct {
		set  func(*client) error
		attr int
		want uint8
	}{
		{func(c *client) error { return c.setNetNSMode(NetNSExclusive) }, abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE, 0},
		{func(c *client) error { return c.setNetNSMode(NetNSShared) }, abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE, 1},
		{func(c *client) error { return c.setPrivilegedQKey(false) }, abi.RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE, 0},
		{func(c *client) error { return c.setPrivilegedQKey(true) }, abi.RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE, 1},
	} {
		var sent []request
		err := tt.set(fakeClient(t, func(r request) []datagram {
			sent = append(sent, r)
			return r.refuse(0)
		}))
		if err != nil || len(sent) != 1 || sent[0].cmd != abi.RDMA_NLDEV_CMD_SYS_SET || len(sent[0].attrs.attrs) != 1 || !slices.Equal(sent[0].attrs.attrs[tt.attr], []byte{tt.want}) {
			t.Errorf("attribute %d: %v, requests %+v, want the value %d", tt.attr, err, sent, tt.want)
		}
	}
}

// TestRenameRefused: a name that the kernel would take apart, or cut, is not sent.
func TestRenameRefused(t *testing.T) {
	for _, name := range []string{"", "a b", "a/b", "rxe%d", strings.Repeat("x", maxDeviceName+1)} {
		err := fakeClient(t, func(r request) []datagram { t.Errorf("%q: request %+v", name, r); return r.refuse(0) }).renameDevice(fakeRXE, name)
		if !errors.Is(err, errBadName) || !strings.Contains(err.Error(), "rxe0") {
			t.Errorf("%q: %v", name, err)
		}
	}
	renamed := fakeClient(t, rxeKernel(func(r request) []datagram { return r.refuse(0) }))
	if err := renamed.renameDevice(fakeRXE, strings.Repeat("x", maxDeviceName)); err != nil {
		t.Errorf("a name of %d bytes: %v", maxDeviceName, err)
	}
}

// TestMoveAs: a kernel before Linux 7.3 obeys the name alone, so that the device is moved by a second request, and gets its
// old name back if that fails. A newer kernel has done both.
func TestMoveAs(t *testing.T) {
	const name, ns = abi.RDMA_NLDEV_ATTR_DEV_NAME, abi.RDMA_NLDEV_NET_NS_FD
	for _, tt := range []struct {
		kernel string
		refuse unix.Errno // the second request
		want   string
	}{{"7.3", 0, "rxe7+ns"}, {"7.2", 0, "rxe7+ns ns"}, {"7.2", unix.EBUSY, "rxe7+ns ns rxe0"}} {
		now, gone, sent := "rxe0", false, []string{}
		c := fakeClient(t, func(r request) []datagram {
			if r.cmd != abi.RDMA_NLDEV_CMD_SET {
				if gone {
					return r.refuse(unix.EINVAL)
				}
				return r.one(deviceReply(5, now, 2))
			}
			text := strings.TrimRight(string(r.attrs.attrs[name]), "\x00")
			if r.attrs.attrs[ns] == nil {
				sent, now = append(sent, text), text
				return r.refuse(0)
			}
			if text == "" {
				sent = append(sent, "ns")
				return r.refuse(tt.refuse)
			}
			sent, now, gone = append(sent, text+"+ns"), text, tt.kernel == "7.3"
			return r.refuse(0)
		})
		err := c.moveDeviceAs(fakeRXE, "rxe7", os.Stdin)
		if got := strings.Join(sent, " "); got != tt.want || (err != nil) != (tt.refuse != 0) || tt.refuse != 0 && !errors.Is(err, tt.refuse) {
			t.Errorf("Linux %s: %q, %v, want %q", tt.kernel, got, err, tt.want)
		}
	}
	if err := fakeClient(t, rxeKernel(refusing(0))).moveDeviceAs(fakeRXE, "a/b", os.Stdin); !errors.Is(err, errBadName) {
		t.Error(err)
	}
}

// TestMoveToNoProcess: the process whose namespace is meant does not exist.
func TestMoveToNoProcess(t *testing.T) {
	err := MoveDeviceToPID(fakeRXE, 1<<30)
	if e, ok := errors.AsType[*Error](err); !ok || !errors.Is(err, fs.ErrNotExist) || e.Op != "move" || e.Device != "rxe0" {
		t.Errorf("%v, want an Error of rxe0 that matches fs.ErrNotExist", err)
	}
}

// TestNoOptionalCounters: the error says that the driver does not have optional counters.
func TestNoOptionalCounters(t *testing.T) {
	c := fakeClient(t, rxeKernel(func(r request) []datagram {
		if r.cmd == abi.RDMA_NLDEV_CMD_STAT_GET {
			return r.one(nest(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS, goldenCounter))
		}
		return r.one(nest(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS))
	}))
	if err := c.setOptionalCounters(fakeRXE, 1, []string{"cc_rx_ce_pkts"}); !errors.Is(err, errNoCounter) || !strings.Contains(err.Error(), "this driver has no optional counters") {
		t.Errorf("%v, want %v", err, errNoCounter)
	}
}

// TestPCIDriver: the driver of a PCI function tells which RDMA driver its device has.
func TestPCIDriver(t *testing.T) {
	for name, want := range map[string]DriverID{
		"mlx5_core": DriverMLX5, "mlx4_core": DriverMLX4, "bnxt_en": DriverBNXTRE, "ice": DriverIRDMA, "i40e": DriverIRDMA,
		"vmw_pvrdma": DriverVMWPVRDMA, "hfi1": DriverHFI1, "efa": DriverEFA, "erdma": DriverERDMA,
		"cxgb4": DriverUnknown, "": DriverUnknown, // two RDMA drivers, and none
	} {
		if got := pciDriver(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
