package conformance

import (
	"errors"
	"io/fs"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestCloseAll closes a device with an object of each kind, among them a bound memory window, in one
// call, beside goroutines that use or wait for some of them.
func TestCloseAll(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		others := 0
		if !rig.Soft {
			others = programCQs(t)
		}
		dev, err := uverbs.Open(deviceName, uverbs.OpenOptions{})
		must(t, err)
		all := objects(t, dev)
		var cq *uverbs.CQ
		var ch *uverbs.CompChannel
		for _, o := range all {
			switch o := o.(type) {
			case *uverbs.CQ:
				cq = o
			case *uverbs.CompChannel:
				ch = o
			}
		}
		var group sync.WaitGroup
		until := func(name string, call func() error) {
			group.Go(func() {
				err := call()
				for err == nil {
					err = call()
				}
				errorIs(t, err, os.ErrClosed, "%s", name)
			})
		}
		until("Next", func() error { _, err := ch.Next(t.Context()); return err })
		until("NextEvent", func() error { _, err := dev.NextEvent(t.Context()); return err })
		until("Poll", func() error { _, err := cq.Poll(make([]uverbs.WC, 1)); return err })
		until("AllocPD", func() error {
			pd, err := dev.AllocPD()
			if err != nil {
				return err
			}
			if time.Now().UnixNano()%2 == 0 {
				return nil // CloseAll closes it
			}
			return pd.Close()
		})
		time.Sleep(10 * time.Millisecond)
		must(t, dev.CloseAll(), dev.CloseAll(), dev.Close())
		group.Wait()
		for _, o := range all {
			must(t, o.Close())
		}
		if !rig.Soft {
			if n := programCQs(t); n > others {
				t.Errorf("programs have %d CQs, %d before the test", n, others)
			}
		}
	})
}

// programCQs counts the CQs of programs on the device: those of this one, and of others that use it meanwhile.
func programCQs(t *testing.T) (n int) {
	t.Helper()
	nl, err := netlinkrdma.DeviceByName(deviceName)
	must(t, err)
	cqs, err := netlinkrdma.CQs(nl)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, cq := range cqs {
		if cq.Owner.Kernel == "" {
			n++
		}
	}
	return n
}

// TestCloseAllBoundWindow closes a memory window that is bound before the QP and the MR that it is
// bound to, in whichever order they were made.
func TestCloseAllBoundWindow(t *testing.T) {
	testenv.NeedsIB(t, "memory windows")
	a, _ := pairOnce(t, uverbs.QPOptions{})
	mw, mr := window(t, a, uverbs.MWType2)
	must(t, a.qp.PostSend(uverbs.SendWR{ID: 1, Opcode: uverbs.WRBindMW, Flags: uverbs.SendSignaled, Bind: uverbs.BindInfo{
		MW: mw, MR: mr, Addr: mr.Addr(), Length: 100, Access: uverbs.AccessRemoteRead,
	}}))
	a.want(t, 1, uverbs.WCBindMW)
	must(t, a.dev.CloseAll())
	errorIs(t, a.qp.PostRecv(1), os.ErrClosed, "PostRecv afterwards")
}
