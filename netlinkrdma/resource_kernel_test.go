package netlinkrdma

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// errorIs checks which error a call returned.
var errorIs = testenv.ErrorIs

// rxe0 returns the VM's first device.
func rxe0(t *testing.T) Device {
	t.Helper()
	needKernel(t)
	dev, err := DeviceByName("rxe0")
	must(t, err)
	return dev
}

// What a kernel answers, in the form of the files in testdata; with -test.v it is
// shown. Run it beside programs that hold objects to record more.
func TestKernelCapture(t *testing.T) {
	dev := rxe0(t)
	s, err := system.open()
	must(t, err)
	defer s.close()
	index := u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, dev.Index)
	port := u32Attr(abi.RDMA_NLDEV_ATTR_PORT_INDEX, 1)
	resQP := u32Attr(abi.RDMA_NLDEV_ATTR_STAT_RES, abi.RDMA_NLDEV_ATTR_RES_QP)
	show := func(name string, replies [][]byte, err error) {
		for _, b := range replies {
			t.Logf("capture %s %x", name, b)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, cmd := range map[string]int{"qp": qps.cmd, "cq": cqs.cmd, "mr": mrs.cmd, "pd": pds.cmd,
		"cm_id": cmIDs.cmd, "ctx": contexts.cmd, "srq": srqs.cmd} {
		replies, err := s.dump(cmd, index)
		show(name, replies, err)
	}
	for name, request := range map[string]struct {
		cmd   int
		attrs []*nl.RtAttr
	}{
		"counts":   {abi.RDMA_NLDEV_CMD_RES_GET, []*nl.RtAttr{index}},
		"one_pd":   {abi.RDMA_NLDEV_CMD_RES_PD_GET, []*nl.RtAttr{index, u32Attr(abi.RDMA_NLDEV_ATTR_RES_PDN, 0)}},
		"counters": {abi.RDMA_NLDEV_CMD_STAT_GET, []*nl.RtAttr{index, port}},
		"status":   {abi.RDMA_NLDEV_CMD_STAT_GET_STATUS, []*nl.RtAttr{index, port}},
		"mode":     {abi.RDMA_NLDEV_CMD_STAT_GET, []*nl.RtAttr{index, port, resQP, u32Attr(abi.RDMA_NLDEV_ATTR_STAT_MODE, 2)}},
		"settings": {abi.RDMA_NLDEV_CMD_SYS_GET, nil},
	} {
		b, err := s.get(request.cmd, request.attrs...)
		if err != nil {
			show(name, nil, err)
			continue
		}
		show(name, [][]byte{b}, nil)
	}
}

// The kernel's own objects are always there: ib_core has a PD, a CQ and QP 1 for
// each port.
func TestKernelResources(t *testing.T) {
	dev := rxe0(t)
	counts, err := Resources(dev, ListOptions{})
	must(t, err)
	t.Logf("%+v", counts)
	all, err := QPs(dev, ListOptions{})
	must(t, err)
	i := slices.IndexFunc(all, func(q QP) bool { return q.Type == ib.GSI })
	if i < 0 || all[i].Num != 1 || all[i].State != ib.QPRTS || all[i].Kernel != "ib_core" || all[i].PID != 0 {
		t.Errorf("QPs %+v, want QP 1 of ib_core", all)
	}
	cqList, err := CQs(dev)
	if err != nil || len(cqList) == 0 {
		t.Fatalf("CQs %+v, %v", cqList, err)
	}
	if cq := cqList[0]; cq.PollContext != PollWorkqueue || cq.Users != 2 || cq.CQE == 0 {
		t.Errorf("CQ %+v, want ib_core's", cq)
	}
	// Linux 5.10 reports no port for QP 1, and so does not find it on one.
	if qp, err := QPByNum(dev, 1, 1); all[i].Port == 1 && (err != nil || qp.Type != ib.GSI) || all[i].Port == 0 && !errors.Is(err, unix.EAGAIN) {
		t.Errorf("QP by number: %+v, %v", qp, err)
	}
	if cq, err := CQByID(dev, cqList[0].ID); err != nil || cq.CQE != cqList[0].CQE {
		t.Errorf("CQ by id: %+v, %v", cq, err)
	}
	pdList, err := PDs(dev)
	if err != nil || len(pdList) == 0 {
		t.Fatalf("PDs %+v, %v", pdList, err)
	}
	if pd := pdList[0]; !pd.Keys || pd.Users == 0 || pd.Kernel != "ib_core" {
		t.Errorf("PD %+v, want ib_core's", pd)
	}
	if pd, err := PDByID(dev, pdList[0].ID); err != nil || pd != pdList[0] {
		t.Errorf("PD by id: %+v, %v", pd, err)
	}
	if counts.QPs != uint64(len(all)) || counts.CQs != uint64(len(cqList)) || counts.PDs != uint64(len(pdList)) {
		t.Errorf("%+v, but %d QPs, %d CQs, %d PDs", counts, len(all), len(cqList), len(pdList))
	}
	for what, err := range map[string]error{
		"PD":   second(PDByID(dev, 4711)),
		"CQ":   second(CQByID(dev, 4711)),
		"MR":   second(MRByID(dev, 4711)),
		"QP":   second(QPByNum(dev, 1, 0xabcdef)),
		"CMID": second(CMIDByID(dev, 1, 4711)),
	} {
		errorIs(t, err, fs.ErrNotExist, "%s that is not there", what)
	}
	if err := second(QPByNum(dev, 2, 1)); !errors.Is(err, noPort{}) {
		t.Errorf("port 2: %v", err)
	}
}

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// TestKernelNewLists: the lists of contexts and SRQs came with Linux 5.13.
func TestKernelNewLists(t *testing.T) {
	dev := rxe0(t)
	_, errContexts := Contexts(dev)
	_, errSRQs := SRQs(dev)
	if testenv.Lacks(t, errContexts) {
		if !errors.Is(errSRQs, errors.ErrUnsupported) {
			t.Errorf("the list of SRQs, where there is none of contexts: %v", errSRQs)
		}
		return
	}
	must(t, errors.Join(errContexts, errSRQs))
	errorIs(t, second(ContextByID(dev, 4711)), fs.ErrNotExist, "no such context")
	errorIs(t, second(SRQByID(dev, 4711)), fs.ErrNotExist, "no such SRQ")
}

// TestKernelNoRaw: rxe has no dump of its own, which the error says; an object that does not exist is not
// found.
func TestKernelNoRaw(t *testing.T) {
	dev := rxe0(t)
	cqList, err := CQs(dev)
	if err != nil || len(cqList) == 0 {
		t.Fatalf("CQs %+v, %v", cqList, err)
	}
	for what, err := range map[string]error{
		"raw dump of CQs": second(Raw(dev, RawOptions{Kind: RawCQ, ID: cqList[0].ID})),
		"list of CQs":     second(RawList(dev, RawCQ)), "list of QPs": second(RawList(dev, RawQP)),
	} {
		if f, ok := errors.AsType[*FeatureError](err); !ok || f.Driver != "rxe" || !strings.HasPrefix(f.Feature, "raw dump of") {
			t.Errorf("%s: %v, want that the driver rxe does not have it", what, err)
		}
	}
	for what, o := range map[string]RawOptions{"CQ": {Kind: RawCQ, ID: 4711}, "MR": {Kind: RawMR, ID: 4711}, "QP": {Kind: RawQP, ID: 4711, Port: 1}} {
		errorIs(t, second(Raw(dev, o)), fs.ErrNotExist, "no such %s", what)
	}
}

// TestKernelPools: rxe has no pools of memory regions. Since Linux 7.1 its list is empty.
func TestKernelPools(t *testing.T) {
	dev := rxe0(t)
	key := FRMRKey{DMABlocks: 1}
	setting := map[string]error{"aging": SetFRMRAging(dev, time.Minute), "pin": PinFRMRs(dev, key, 1)}
	pools, err := FRMRPools(dev, ListOptions{Driver: true})
	lacks := testenv.Lacks(t, err)
	if !lacks && (err != nil || len(pools) != 0) {
		t.Errorf("pools %+v, %v, want none", pools, err)
	}
	for what, err := range setting {
		f, ok := errors.AsType[*FeatureError](err)
		if !ok || lacks != (f.Since == Version{7, 1}) || lacks == (f.Driver == "rxe") {
			t.Errorf("%s: %v, want that the kernel does not have it: %v, or rxe", what, err, lacks)
		}
	}
}

// TestKernelSubDevice: rxe has no sub-devices, and is none.
func TestKernelSubDevice(t *testing.T) {
	dev := rxe0(t)
	add, remove := AddSubDevice(dev, "nlsmi", DeviceTypeSMI), DeleteSubDevice(dev)
	f, ok := errors.AsType[*FeatureError](add)
	if !ok {
		t.Fatalf("add: %v, want a FeatureError", add)
	}
	if major, minor := kernelVersion(t); slices.Compare([]int{major, minor}, []int{6, 11}) < 0 {
		g, ok := errors.AsType[*FeatureError](remove)
		if f.Since != (Version{6, 11}) || !ok || g.Since != f.Since {
			t.Errorf("on Linux %d.%d: %v; %v, want that both are there since 6.11", major, minor, add, remove)
		}
	} else if f.Driver != "rxe" || !errors.Is(remove, unix.EOPNOTSUPP) || errors.As(remove, &f) {
		t.Errorf("add: %v, delete: %v, want that rxe does not have it, and EOPNOTSUPP", add, remove)
	}
}

// Every query reports a Device that does not fit any more.
func TestKernelStaleDevice(t *testing.T) {
	dev := rxe0(t)
	other, gone := dev, dev
	other.Name = "rxe7"
	gone.Index = 4711
	for _, d := range []Device{other, gone} {
		for what, err := range map[string]error{
			"resources": second(Resources(d, ListOptions{})), "QPs": second(QPs(d, ListOptions{})), "SRQs": second(SRQs(d)),
			"counters": second(PortCounters(d, 1)), "mode": second(QPCounterSetting(d, 1)),
			"rename": RenameDevice(d, "rxe9"), "moderation": SetAdaptiveModeration(d, false),
		} {
			errorIs(t, err, fs.ErrNotExist, "%s of %s with index %d", what, d.Name, d.Index)
		}
	}
}

func TestKernelCounters(t *testing.T) {
	dev := rxe0(t)
	counters, err := PortCounters(dev, 1)
	must(t, err)
	if !slices.ContainsFunc(counters, func(c Counter) bool { return c.Name == "sent_pkts" }) {
		t.Errorf("counters of rxe: %+v", counters)
	}
	status, err := PortCounterStatus(dev, 1)
	major, minor := kernelVersion(t)
	if slices.Compare([]int{major, minor}, []int{5, 16}) < 0 {
		if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "needs Linux 5.16") {
			t.Errorf("status on Linux %d.%d: %v", major, minor, err)
		}
	} else {
		if err != nil || len(status) != len(counters) {
			t.Errorf("status %+v, %v, want one for each of %d counters", status, err, len(counters))
		}
		for i, s := range status {
			if s.Optional || !s.Enabled || s.index != uint32(i) || s.Name != counters[i].Name {
				t.Errorf("status %d: %+v", i, s)
			}
		}
		if err := SetOptionalCounters(dev, 1, "sent_pkts"); !errors.Is(err, errNoCounter) || !strings.Contains(err.Error(), "has no optional counters") {
			t.Errorf("enable a counter that is not optional: %v", err)
		}
		if err := SetOptionalCounters(dev, 1); err != nil {
			t.Errorf("disable all optional counters: %v", err)
		}
	}
	if all, err := QPCounters(dev); err != nil || len(all) != 0 {
		t.Errorf("QP counters %+v, %v", all, err)
	}
	if all, err := CountersOfMRs(dev); err != nil || len(all) != 0 {
		t.Errorf("MR counters %+v, %v", all, err)
	}
}

// rxe takes the mode, and has no counters for it.
func TestKernelCounterMode(t *testing.T) {
	dev := rxe0(t)
	check := func(want CounterSetting) {
		t.Helper()
		if got, err := QPCounterSetting(dev, 1); err != nil || got != want {
			t.Errorf("setting %+v, %v, want %+v", got, err, want)
		}
	}
	check(CounterSetting{})
	must(t, SetAutoQPCounters(dev, 1, GroupByQPType|GroupByPID))
	check(CounterSetting{Mode: CounterModeAuto, Groups: GroupByQPType | GroupByPID})
	if err := second(NewQPCounter(dev, 1, 1)); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "mode auto") {
		t.Errorf("bind in mode auto: %v", err)
	}
	must(t, SetAutoQPCounters(dev, 1, 0))
	check(CounterSetting{})
	for what, err := range map[string]error{
		"new": second(NewQPCounter(dev, 1, 0xabcdef)), "bind": BindQPCounter(dev, 1, 0xabcdef, 3),
		"unbind": UnbindQPCounter(dev, 1, 0xabcdef, 3),
	} {
		errorIs(t, err, fs.ErrNotExist, "%s for a QP that is not there", what)
	}
	err := SetAutoQPCountersOptional(dev, 1, GroupByQPType)
	if major, minor := kernelVersion(t); slices.Compare([]int{major, minor}, []int{6, 15}) < 0 {
		errorIs(t, err, errors.ErrUnsupported, "optional counters on Linux %d.%d", major, minor)
	} else if err := errors.Join(err, SetAutoQPCounters(dev, 1, 0)); err != nil {
		t.Errorf("optional counters: %v", err)
	}
}

func TestKernelSettings(t *testing.T) {
	needKernel(t)
	major, minor := kernelVersion(t)
	atLeast := func(v ...int) bool { return slices.Compare([]int{major, minor}, v) >= 0 }
	want := Settings{NetNSMode: NetNSShared, CopyOnFork: atLeast(5, 12), Monitor: atLeast(6, 12)}
	check := func() {
		t.Helper()
		if got, err := SystemSettings(); err != nil || got != want {
			t.Errorf("settings %+v, %v, want %+v", got, err, want)
		}
	}
	check()
	// Distributions have it in older kernels, too.
	err := SetPrivilegedQKey(true)
	switch {
	case err == nil:
		want.PrivilegedQKey = true
		check()
		if err := SetPrivilegedQKey(false); err != nil {
			t.Error(err)
		}
		want.PrivilegedQKey = false
		check()
	case atLeast(6, 7) || !errors.Is(err, errors.ErrUnsupported):
		t.Errorf("privileged Q_Key mode on Linux %d.%d: %v", major, minor, err)
	}
	setNetNSMode(t, NetNSExclusive)
	want.NetNSMode = NetNSExclusive
	check()
	setNetNSMode(t, NetNSShared)
	want.NetNSMode = NetNSShared
	check()
	errorIs(t, SetNetNSMode(2), fs.ErrInvalid, "netns mode 2")
	inNewNetNS(t, func(*os.File) {
		err := SetNetNSMode(NetNSExclusive)
		if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "other network namespaces") {
			t.Errorf("exclusive with another namespace: %v", err)
		}
	})
}

// inNewNetNS runs f while there is another network namespace, whose file it gets.
func inNewNetNS(t *testing.T, f func(netns *os.File)) {
	t.Helper()
	made, end := make(chan *os.File), make(chan struct{})
	go onThread(func() {
		defer close(made)
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			t.Error(err)
			return
		}
		made <- ns
		<-end
	})
	if ns := <-made; ns != nil {
		f(ns)
		ns.Close()
		close(end)
	}
}

// setNetNSMode sets the mode as soon as namespaces of earlier tests are gone: they
// go with their last user, but not at once.
func setNetNSMode(t *testing.T, mode NetNSMode) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := SetNetNSMode(mode)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestKernelModeration(t *testing.T) {
	dev := rxe0(t)
	for _, on := range []bool{!dev.AdaptiveModeration, dev.AdaptiveModeration} {
		must(t, SetAdaptiveModeration(dev, on))
		if d, err := DeviceByName("rxe0"); err != nil || d.AdaptiveModeration != on {
			t.Errorf("set to %t: %+v, %v", on, d, err)
		}
	}
}

func TestKernelRename(t *testing.T) {
	dev := rxe0(t)
	errorIs(t, RenameDevice(dev, "rxe1"), fs.ErrExist, "to the name of another")
	errorIs(t, RenameDevice(dev, "a/b"), errBadName, "to a bad name")
	must(t, RenameDevice(dev, "nlren"))
	errorIs(t, RenameDevice(dev, "nlren2"), fs.ErrNotExist, "of an old name")
	now, err := DeviceByName("nlren")
	if err != nil || now.Index != dev.Index {
		t.Fatalf("%+v, %v", now, err)
	}
	must(t, RenameDevice(now, "rxe0"))
}

// TestKernelMove moves a device into another network namespace, from which it comes back when the namespace ends.
func TestKernelMove(t *testing.T) {
	needKernel(t)
	name := testenv.TheRig().Devices[0]
	dev, err := DeviceByName(name)
	must(t, err)
	inNewNetNS(t, func(ns *os.File) {
		err := MoveDevice(dev, ns)
		t.Log(err)
		errorIs(t, err, errors.ErrUnsupported, "in mode shared")
		errorIs(t, MoveDeviceAs(dev, "nlmoved", ns), errors.ErrUnsupported, "under another name in mode shared")
		if _, err := DeviceByName(name); err != nil {
			t.Errorf("a device that is not moved has lost its name: %v", err)
		}
	})
	errorIs(t, MoveDeviceToPID(dev, 1<<22+1), fs.ErrNotExist, "no such process")
	// In mode exclusive the driver decides; rxe cannot.
	setNetNSMode(t, NetNSExclusive)
	t.Cleanup(func() { setNetNSMode(t, NetNSShared) })
	moved := false
	inNewNetNS(t, func(ns *os.File) {
		err := MoveDeviceAs(dev, "nlmoved", ns)
		if moved = err == nil; testenv.Lacks(t, err) {
			return
		}
		if err != nil {
			t.Errorf("in mode exclusive: %v", err)
			return
		}
		if d, err := DeviceByName(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("in its old namespace it is still %+v, %v", d, err)
		}
		onThread(func() {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				t.Errorf("setns: %v", err)
				return
			}
			if d, err := DeviceByName("nlmoved"); err != nil || d.Index != dev.Index {
				t.Errorf("in its new namespace it is %+v, %v", d, err)
			}
		})
	})
	if !moved {
		if _, err := DeviceByName(name); err != nil {
			t.Errorf("a device that is not moved has lost its name: %v", err)
		}
		return
	}
	var d Device
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		d, err = DeviceByName("nlmoved")
		if err == nil {
			break
		}
	}
	if err != nil || d.Index != dev.Index {
		t.Errorf("after the end of the namespace it is %+v, %v", d, err)
	}
	must(t, RenameDevice(d, name))
}

// Keys are for those who may administer the network, lists for everybody.
func TestKernelUnprivileged(t *testing.T) {
	dev := rxe0(t)
	onThread(func() {
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			t.Errorf("capset: %v", err)
			return
		}
		all, err := PDs(dev)
		if err != nil || len(all) == 0 || all[0].Keys || all[0].LocalDMALKey != 0 {
			t.Errorf("PDs %+v, %v, want some without keys", all, err)
		}
		if err := second(Resources(dev, ListOptions{})); err != nil {
			t.Error(err)
		}
		for what, err := range map[string]error{
			"rename": RenameDevice(dev, "rxe9"), "moderation": SetAdaptiveModeration(dev, true),
			"netns mode": SetNetNSMode(NetNSExclusive), "Q_Key": SetPrivilegedQKey(true),
			"mode": SetAutoQPCounters(dev, 1, GroupByQPType), "raw": second(Raw(dev, RawOptions{Kind: RawQP, ID: 1, Port: 1})),
		} {
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
				t.Errorf("%s: %v, want fs.ErrPermission and what is missing", what, err)
			}
		}
	})
}
