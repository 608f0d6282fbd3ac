package soft_test

import (
	"context"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// errorIs checks which error a call returned.
var errorIs = testenv.ErrorIs

// second returns the error of a call.
func second[T any](_ T, err error) error { return err }

// TestRemoval closes a device under a program: waits end, commands fail with ErrDeviceRemoved, and
// what the program has can be closed. The peer on another device sees that the program is gone.
func TestRemoval(t *testing.T) {
	var devs [2]*soft.Device
	var sides [2]*side
	for i := range devs {
		dev, err := soft.New(soft.Options{})
		testenv.Must(t, err)
		t.Cleanup(func() { dev.Close() })
		devs[i] = dev
		sides[i] = newSide(t, dev, uverbs.QPOptions{Path: uverbs.PathOptions{Timeout: 1, RetryCount: 1}})
	}
	a, b := sides[0], sides[1]
	connect(t, a, b)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			ev, err := a.ctx.NextEvent(t.Context())
			if err != nil {
				t.Errorf("NextEvent: %v before the device was removed", err)
				return
			}
			if ev.Type == uverbs.EventDeviceFatal {
				break
			}
		}
		errorIs(t, second(a.ctx.NextEvent(t.Context())), uverbs.ErrDeviceRemoved, "NextEvent after the device was removed")
	})
	wg.Go(func() {
		var wc [1]uverbs.WC
		errorIs(t, second(a.cq.Wait(t.Context(), wc[:])), uverbs.ErrDeviceRemoved, "CQ.Wait")
	})
	testenv.Must(t, devs[0].Close())
	wg.Wait()
	errorIs(t, second(a.ctx.AllocPD()), uverbs.ErrDeviceRemoved, "AllocPD")
	errorIs(t, a.qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRSend}), uverbs.ErrDeviceRemoved, "PostSend")
	if err := a.ctx.CloseAll(); err != nil {
		t.Errorf("CloseAll: %v", err)
	}
	if _, err := uverbs.Open(devs[0].Name(), uverbs.OpenOptions{}); err == nil {
		t.Error("a device that was removed can be opened")
	}
	testenv.Must(t, b.qp.PostSend(uverbs.SendWR{ID: 7, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled}))
	var wc [1]uverbs.WC
	if _, err := b.cq.Wait(t.Context(), wc[:]); err != nil || wc[0].ID != 7 || wc[0].Status != uverbs.WCRetryExcErr {
		t.Errorf("the peer's send: %v, completion %+v", err, wc[0])
	}
}

// TestRemovalInUse closes a device while goroutines use it.
func TestRemovalInUse(t *testing.T) {
	for range 5 {
		dev, err := soft.New(soft.Options{})
		testenv.Must(t, err)
		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		connect(t, a, b)
		testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(1<<15, 1<<15)))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i, s := range []*side{a, b} {
			wg.Go(func() { s.exchange(ctx, 1<<30, 100, i == 0) }) // until it fails
		}
		wg.Go(func() {
			for {
				pd, err := a.ctx.AllocPD()
				if err == nil {
					err = pd.Close()
				}
				if err != nil {
					errorIs(t, err, uverbs.ErrDeviceRemoved, "a PD")
					return
				}
			}
		})
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		wg.Wait()
	}
}

// TestRemovalFromOptions: a rule removes the device without the program's doing, here
// with its third WRITE.
func TestRemovalFromOptions(t *testing.T) {
	var sides [2]*side
	for i, faults := range []soft.Faults{{Rules: []soft.Rule{{Direction: soft.Sent, Class: soft.ClassWrite, Remove: 3}}}, {}} {
		dev, err := soft.New(soft.Options{Faults: faults})
		testenv.Must(t, err)
		t.Cleanup(func() { dev.Close() })
		sides[i] = newSide(t, dev, uverbs.QPOptions{})
	}
	a, b := sides[0], sides[1]
	connect(t, a, b)
	write := uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	var wc [1]uverbs.WC
	for range 2 {
		testenv.Must(t, a.qp.PostSend(write))
		if _, err := a.cq.Wait(t.Context(), wc[:]); err != nil || wc[0].Err() != nil {
			t.Fatal(err, wc[0].Err())
		}
	}
	testenv.Must(t, a.qp.PostSend(write))
	errorIs(t, second(a.cq.Wait(t.Context(), wc[:])), uverbs.ErrDeviceRemoved, "CQ.Wait")
	errorIs(t, second(a.ctx.AllocPD()), uverbs.ErrDeviceRemoved, "AllocPD")
}
