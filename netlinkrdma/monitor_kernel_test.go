package netlinkrdma

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/test/testenv"
)

func TestKernelMonitor(t *testing.T) {
	needKernel(t)
	m := openKernelMonitor(t)
	defer m.Close()
	major, minor := kernelVersion(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	makeVeth(t, "nlm0", "nlm1")
	must(t, AddLink("nlmrxe", RXE, "nlm0"))
	dev, err := DeviceByName("nlmrxe")
	must(t, err)
	if e := expectEvent(t, ctx, m, EventRegister); e.Device != "nlmrxe" || e.Index != dev.Index {
		t.Errorf("register: %+v", e)
	}
	l, err := netlink.LinkByName("nlm0")
	must(t, err)
	want := Event{EventNetdevAttach, "nlmrxe", dev.Index, 1, "nlm0", l.Attrs().Index}
	if e := expectEvent(t, ctx, m, EventNetdevAttach); e != want {
		t.Errorf("attach: %+v, want %+v", e, want)
	}
	if slices.Compare([]int{major, minor}, []int{6, 13}) >= 0 {
		must(t, RenameDevice(dev, "nlmrxe2"))
		if e := expectEvent(t, ctx, m, EventRename); e.Device != "nlmrxe2" || e.Index != dev.Index {
			t.Errorf("rename: %+v", e)
		}
		must(t, netlink.LinkSetName(l, "nlm2"))
		if e := expectEvent(t, ctx, m, EventNetdevRename); e.Netdev != "nlm2" || e.NetdevIndex != l.Attrs().Index {
			t.Errorf("netdev rename: %+v", e)
		}
		must(t, DeleteLink("nlmrxe2"))
	} else if err := DeleteLink("nlmrxe"); err != nil {
		t.Fatal(err)
	}
	if e := expectEvent(t, ctx, m, EventUnregister); e.Index != dev.Index {
		t.Errorf("unregister: %+v", e)
	}
	checkWaitEnds(t, ctx, m)
}

// openKernelMonitor opens a monitor that logs the messages that it receives, or skips the test.
func openKernelMonitor(t *testing.T) *Monitor {
	t.Helper()
	m, err := OpenMonitor()
	var f *FeatureError
	if errors.As(err, &f) && f.Since != (Version{6, 12}) {
		t.Errorf("%v, want that it needs Linux 6.12", err)
	}
	testenv.Skip(t, err)
	must(t, err)
	m.receive = func(fd int, b []byte) (int, bool, error) {
		n, kernel, err := receiveEvent(fd, b)
		if err == nil {
			t.Logf("capture events %x", b[:min(n, len(b))])
		}
		return n, kernel, err
	}
	return m
}

// expectEvent waits for an event of a type.
func expectEvent(t *testing.T, ctx context.Context, m *Monitor, want EventType) Event {
	t.Helper()
	for {
		e, err := m.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %v: %v", want, err)
		}
		t.Logf("%+v", e)
		if e.Type == want {
			return e
		}
	}
}

// checkWaitEnds checks that the context and Close end a wait.
func checkWaitEnds(t *testing.T, ctx context.Context, m *Monitor) {
	t.Helper()
	short, cancelShort := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancelShort)
	var err error
	for {
		if _, err = m.Next(short); err != nil {
			break
		}
	}
	errorIs(t, err, context.Canceled, "after cancel")
	time.AfterFunc(50*time.Millisecond, func() { m.Close() })
	errorIs(t, second(m.Next(ctx)), os.ErrClosed, "after Close")
}
