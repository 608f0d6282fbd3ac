package conformance

import (
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
)

// objects makes one of each kind of object, users after what they use.
func objects(t *testing.T, dev *uverbs.Device) []closer {
	t.Helper()
	var all []closer
	add := func(c closer, err error) {
		t.Helper()
		must(t, err)
		all = append(all, c)
	}
	pd, err := dev.AllocPD()
	add(pd, err)
	buf, err := uverbs.AllocBuffer(4096)
	add(buf, err)
	mr, err := pd.RegMR(buf, uverbs.AccessLocalWrite)
	add(mr, err)
	ch, err := dev.CreateCompChannel()
	add(ch, err)
	cq, err := dev.CreateCQ(10, uverbs.CQOptions{Channel: ch})
	add(cq, err)
	srq, err := pd.CreateSRQ(uverbs.SRQOptions{})
	add(srq, err)
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	add(qp, err)
	ah, err := pd.CreateAH(uverbs.AHAttr{Port: 1, DLID: lidOf(t, gidOf(t, dev).GID), Global: true, GRH: uverbs.GRH{DGID: gidOf(t, dev).GID, SGIDIndex: uint8(ipv4Index), HopLimit: 1}})
	add(ah, err)
	pool, err := uverbs.NewBufferPool(pd, uverbs.PoolOptions{SlotSize: 64, Slots: 4, Access: uverbs.AccessLocalWrite})
	add(pool, err)
	if !rxeBefore(t, 5, 14) {
		mw, err := pd.AllocMW(uverbs.MWType2)
		add(mw, err)
	}
	return all
}

// inert are methods that tell nothing about the object: Err explains a completion, and a
// builder tells its error when it posts.
var inert = []string{"Close", "BeginSend", "Err"}

// TestAfterClose calls every method of every object after Close, with zero values, nil
// among them. What can fail fails with os.ErrClosed, or with an error about an argument;
// nothing panics.
func TestAfterClose(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		all := append([]closer{dev}, objects(t, dev)...)
		for _, o := range slices.Backward(all) {
			must(t, o.Close())
		}
		calls := 0
		for _, o := range all {
			v := reflect.ValueOf(o)
			for i := range v.NumMethod() {
				name := v.Type().Method(i).Name
				if slices.Contains(inert, name) {
					continue
				}
				calls++
				err, fails := call(t, v.Type().String()+"."+name, v.Method(i))
				var arg *uverbs.ArgError
				if fails && !errors.Is(err, os.ErrClosed) && !errors.As(err, &arg) {
					t.Errorf("%T.%s after Close: %v", o, name, err)
				}
			}
		}
		if calls < 5*len(all) { // reflection has found next to nothing
			t.Errorf("only %d methods were called", calls)
		}
	})
}

// call calls a method with zero values. It returns its error, if it has one.
func call(t *testing.T, name string, method reflect.Value) (err error, fails bool) {
	t.Helper()
	for _, out := range results(t, name, method) {
		if out.Type() == reflect.TypeFor[error]() {
			err, _ = out.Interface().(error)
			return err, true
		}
	}
	return nil, false
}

// TestZeroArguments calls every method of open objects with zero values: no panic, and
// what refuses says which argument is at fault, or what the kernel does not like.
func TestZeroArguments(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		all := objects(t, dev)
		for _, o := range slices.Backward(all) {
			v := reflect.ValueOf(o)
			for i := range v.NumMethod() {
				switch name := v.Type().Method(i).Name; name {
				case "Close", "Wait", "WaitEvent", "Get": // they wait, or take something
				default:
					// What it makes is closed again.
					for _, out := range results(t, v.Type().String()+"."+name, v.Method(i)) {
						if c, ok := out.Interface().(closer); ok && !reflect.ValueOf(c).IsNil() && c != closer(dev) && !slices.Contains(all, c) {
							must(t, c.Close())
						}
					}
				}
			}
		}
		for _, o := range slices.Backward(all) {
			must(t, o.Close())
		}
	})
}

// results calls a method with zero values, and ends no test if it panics.
func results(t *testing.T, name string, method reflect.Value) (out []reflect.Value) {
	t.Helper()
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("%s panics: %v", name, r)
		}
	}()
	var args []reflect.Value
	for i := range method.Type().NumIn() {
		in := method.Type().In(i)
		if method.Type().IsVariadic() && i == method.Type().NumIn()-1 {
			break
		}
		if in == reflect.TypeFor[context.Context]() {
			args = append(args, reflect.ValueOf(t.Context()))
			continue
		}
		args = append(args, reflect.Zero(in))
	}
	return method.Call(args)
}

// TestCloseAtOnce closes each object from many goroutines: it is closed once, and none of
// them gets an error.
func TestCloseAtOnce(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		all := append([]closer{dev}, objects(t, dev)...)
		for _, o := range slices.Backward(all) {
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					if err := o.Close(); err != nil {
						t.Errorf("close %T: %v", o, err)
					}
				})
			}
			group.Wait()
		}
	})
}
