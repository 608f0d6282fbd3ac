package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// unbind takes the driver off the PCI device of an RDMA device that is open, and returns what
// gives it back.
func unbind(t *testing.T, device string) (bind func()) {
	t.Helper()
	pci, err := filepath.EvalSymlinks("/sys/class/infiniband/" + device + "/device")
	must(t, err)
	driver, err := filepath.EvalSymlinks(pci + "/driver")
	must(t, err)
	name := []byte(filepath.Base(pci))
	restore := addresses(t, rig.Netdevs[1])
	must(t, os.WriteFile(driver+"/unbind", name, 0))
	return func() {
		must(t, os.WriteFile(driver+"/bind", name, 0))
		comesBack(t, device, restore)
	}
}

// comesBack waits until a device that was gone is there again, and gives it what it had.
func comesBack(t *testing.T, device string, restore func()) {
	t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		dev, err := uverbs.Open(device, uverbs.OpenOptions{})
		if err == nil {
			restore()
			if rig.InfiniBand() {
				active(t, dev)
			} else if setLink(t, dev, rig.Netdevs[1], true); gidIndex(t, dev, "10.1.0.2") != ipv4Index {
				t.Errorf("the GID of the address is not at %d any more", ipv4Index)
			}
			must(t, dev.Close())
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is not back: %v", device, err)
		}
	}
}

// active waits until the port is active.
func active(t *testing.T, dev *uverbs.Device) {
	t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		attr, err := dev.Port(1)
		if must(t, err); attr.State == ib.PortActive {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("port of %s does not become active", dev.Name())
		}
	}
}

// addresses notes the addresses of a network interface, if there is one, and returns what
// gives them to the one that has its name then.
func addresses(t *testing.T, netdev string) (restore func()) {
	t.Helper()
	if netdev == "" {
		return func() {}
	}
	link, err := netlink.LinkByName(netdev)
	must(t, err)
	had, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	must(t, err)
	return func() {
		var link netlink.Link
		for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
			var err error
			if link, err = netlink.LinkByName(netdev); err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		for _, a := range had {
			if !a.IP.IsLinkLocalUnicast() {
				addr := &netlink.Addr{IPNet: a.IPNet}
				if a.IP.To4() == nil {
					addr.Flags = unix.IFA_F_NODAD
				}
				if err := netlink.AddrAdd(link, addr); !errors.Is(err, unix.EEXIST) { // Linux 5.10 keeps the interface of a card that recovers
					must(t, err)
				}
			}
		}
		must(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+netdev+"/accept_dad", []byte("0"), 0), netlink.LinkSetUp(link))
	}
}

// TestDeviceRemoved takes a device away from a program that has it open, connected and waiting:
// it learns that by EventDeviceFatal, every call comes back, and all can be closed.
func TestDeviceRemoved(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	testenv.Needs(t, "driver unbinding", "mlx5")
	testenv.Tags(t, testenv.Machine)
	device := rig.Devices[1]
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	must(t, err)
	t.Run("removed in use", func(t *testing.T) {
		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 100)))
		var mapped, fresh *uverbs.DM
		if dev.Attr().MaxDMSize > 0 {
			mapped, fresh = deviceMemory(t, a, 64), deviceMemory(t, a, 64)
			must(t, errOf(mapped.WriteAt(make([]byte, 64), 0)))
		}
		waits := make(chan error, 1)
		must(t, a.cq.Notify())
		go func() {
			_, err := a.ch.Next(withDeadline(t))
			waits <- err
		}()
		done := make(chan func(), 1)
		go func() { done <- unbind(t, device) }()
		if ev := event(t, dev, uverbs.EventDeviceFatal); ev.QP != nil || ev.CQ != nil {
			t.Errorf("%+v has an object", ev)
		}
		var bind func()
		select {
		case bind = <-done:
		case <-time.After(deadline):
			t.Fatal("the driver waits for who has the device open")
		}
		defer bind()
		errorIs(t, <-waits, uverbs.ErrDeviceRemoved, "Wait of a CQ")
		errorIs(t, errorOf(dev.NextEvent(withDeadline(t))), uverbs.ErrDeviceRemoved, "NextEvent")
		for name, err := range map[string]error{
			"AllocPD":  errOf(dev.AllocPD()),
			"Port":     errOf(dev.Port(1)),
			"CreateCQ": errOf(dev.CreateCQ(uverbs.CQOptions{Size: 1})),
			"RegMR":    errOf(a.pd.RegMR(a.buf, uverbs.MROptions{})),
			"Query":    errOf(a.qp.Query()),
			"Modify":   a.qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState),
			"CreateQP": errOf(a.pd.CreateQP(uverbs.QPOptions{SendCQ: a.cq, RecvCQ: a.cq})),
		} {
			if !errors.Is(err, uverbs.ErrDeviceRemoved) || !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: %v, want ErrDeviceRemoved", name, err)
				continue
			}
			says(t, err, device, "removed")
		}
		// The data path does not notice. It must neither block nor fault.
		must(t, a.qp.PostSend(send(2, a.mr.SGE(0, 8))), b.qp.PostRecv(3, b.mr.SGE(0, 8)), a.cq.Notify())
		if n, err := a.cq.Poll(make([]uverbs.WC, 4)); n != 0 || err != nil {
			t.Errorf("%d completions, %v", n, err)
		}
		if mapped != nil {
			must(t, errOf(mapped.WriteAt(make([]byte, 64), 0)), errOf(mapped.ReadAt(make([]byte, 64), 0)))
			errorIs(t, errorOf(fresh.ReadAt(make([]byte, 64), 0)), uverbs.ErrDeviceRemoved, "memory of the device that was not mapped before")
		}
	})
	must(t, dev.Close())
}

// TestDeviceRemovedBusyWait: the removal of a device ends a busy wait, and does not only end the parked wait
// that follows it.
func TestDeviceRemovedBusyWait(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	testenv.Guest(t)
	testenv.Needs(t, "driver unbinding", "mlx5")
	testenv.Tags(t, testenv.Machine)
	const tries = 5 // Wait parks if the machine has no processor for other goroutines
	ended := false
	for try := 0; try < tries && !ended; try++ {
		ended = removedDuringBusyWait(t, rig.Devices[1])
	}
	if !ended {
		t.Errorf("no removal of %d has ended a busy wait", tries)
	}
}

// removedDuringBusyWait removes a device while a goroutine waits for events. It reports whether that has
// ended a busy wait, rather than a parked wait.
func removedDuringBusyWait(t *testing.T, device string) (busy bool) {
	t.Helper()
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	must(t, err)
	t.Run("removed in a busy wait", func(t *testing.T) {
		a := newSide(t, dev, uverbs.QPOptions{})
		must(t, a.cq.Notify())
		const longest = time.Second - time.Millisecond // of a series of busy waits
		type end struct {
			err  error
			took time.Duration
		}
		ended := make(chan end, 1)
		giveUp := time.Now().Add(deadline)
		for n := time.Duration(0); ; n++ {
			must(t, a.ch.SetBusyWait(longest+n%2*time.Millisecond)) // a time that changes makes the next wait a busy wait
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			go func() {
				begin := time.Now()
				_, err := a.ch.Next(ctx)
				ended <- end{err, time.Since(begin)}
			}()
			if inPpoll(t) {
				break
			}
			cancel()
			<-ended
			if time.Now().After(giveUp) {
				t.Fatal("no thread is in a busy wait")
			}
		}
		defer unbind(t, device)()
		select {
		case e := <-ended:
			if !errors.Is(e.err, uverbs.ErrDeviceRemoved) {
				t.Errorf("Wait: %v, want ErrDeviceRemoved", e.err)
			}
			busy = e.took < longest
		case <-time.After(deadline):
			t.Fatal("the removal does not end Wait")
		}
	})
	must(t, dev.Close())
	return busy
}

// inPpoll reports whether a thread of this process sleeps in ppoll after 5 and after 10 ms, as it does in a busy
// wait and nowhere else. One that ends early, because other processors are busy, takes 1 ms.
func inPpoll(t *testing.T) bool {
	for range 2 {
		time.Sleep(5 * time.Millisecond)
		if !threadInPpoll(t) {
			return false
		}
	}
	return true
}

// threadInPpoll reports whether a thread of this process sleeps in ppoll now.
func threadInPpoll(t *testing.T) bool {
	threads, err := filepath.Glob("/proc/self/task/*/syscall")
	if err != nil || len(threads) == 0 {
		t.Errorf("%d threads, %v", len(threads), err)
	}
	for _, thread := range threads {
		call, _ := os.ReadFile(thread) // the thread may have ended
		if strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_PPOLL)) {
			return true
		}
	}
	return false
}
