package conformance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
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
	buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
	add(buf, err)
	mr, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	add(mr, err)
	ch, err := dev.CreateCompChannel()
	add(ch, err)
	cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 10, Channel: ch})
	add(cq, err)
	srq, err := pd.CreateSRQ(uverbs.SRQOptions{})
	if rig.EFA() {
		lacksFeature(t, err, "SRQ")
	} else {
		add(srq, err)
	}
	qp, err := pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq})
	add(qp, err)
	pool, err := uverbs.NewBufferPool(pd, uverbs.PoolOptions{SlotSize: 64, Slots: 4, Access: uverbs.AccessLocalWrite})
	add(pool, err)
	if rig.IWARP() { // it has nothing else
		return all
	}
	ah, err := pd.CreateAH(uverbs.AHAttr{Port: 1, DLID: lidOf(t, gidOf(t, dev).GID), Global: true, GRH: uverbs.GRH{DGID: gidOf(t, dev).GID, SGIDIndex: uint8(ipv4Index), HopLimit: 1}})
	add(ah, err)
	if !rxeBefore(t, 5, 14) && !rig.EFA() {
		mw, err := pd.AllocMW(uverbs.MWType2)
		add(mw, err)
	}
	datagrams, err := pd.CreateQP(uverbs.QPOptions{Type: ib.UD, SendCQ: cq, RecvCQ: cq})
	add(datagrams, err)
	must(t, datagrams.ReadyUD(testQKey))
	// Objects that only some devices have; other tests know which.
	may := func(c closer, err error) bool {
		t.Helper()
		if errors.Is(err, errors.ErrUnsupported) {
			return false
		}
		add(c, err)
		return true
	}
	onDemand, err := pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessOnDemand})
	may(onDemand, err)
	counters, err := dev.CreateCounters()
	may(counters, err)
	if xrcd, err := dev.OpenXRCD(uverbs.XRCDOptions{}); may(xrcd, err) {
		qp, err := xrcd.CreateQP(uverbs.XRCRecvOptions{})
		add(qp, err)
	}
	if td, err := dev.AllocTD(); may(td, err) {
		domain, err := pd.AllocParentDomain(td)
		add(domain, err)
	}
	if !rig.InfiniBand() {
		if wq, err := pd.CreateWQ(uverbs.WQOptions{CQ: cq}); may(wq, err) {
			table, err := dev.CreateRWQIndTable([]*uverbs.WQ{wq})
			add(table, err)
		}
	}
	return all
}

// mlx5Functions are the functions of package mlx5 about an object. The tests call them like methods.
var mlx5Functions = []struct {
	name string
	f    any
}{
	{"ClockTime", mlx5.ClockTime}, {"CreateDCI", mlx5.CreateDCI}, {"CreateDCT", mlx5.CreateDCT}, {"DataDirectPath", mlx5.DataDirectPath},
	{"DEVXCommand", mlx5.DEVXCommand}, {"DEVXModify", mlx5.DEVXModify}, {"DEVXQuery", mlx5.DEVXQuery}, {"QueryLAG", mlx5.QueryLAG},
	{"QueryLAGPort", mlx5.QueryLAGPort}, {"ReadyDC", mlx5.ReadyDC}, {"ResetStream", mlx5.ResetStream}, {"SetLAGPort", mlx5.SetLAGPort},
	{"SetUDPSourcePort", mlx5.SetUDPSourcePort},
}

// methods returns the methods of an object, and the functions of package mlx5 about it.
func methods(o any) iter.Seq2[string, reflect.Value] {
	v := reflect.ValueOf(o)
	return func(yield func(string, reflect.Value) bool) {
		for m, method := range v.Methods() {
			if !yield(m.Name, method) {
				return
			}
		}
		for _, m := range mlx5Functions {
			f := reflect.ValueOf(m.f)
			if f.Type().In(0) != v.Type() {
				continue
			}
			typ := reflect.FuncOf(slices.Collect(f.Type().Ins())[1:], slices.Collect(f.Type().Outs()), false)
			bound := reflect.MakeFunc(typ, func(args []reflect.Value) []reflect.Value { return f.Call(slices.Insert(args, 0, v)) })
			if !yield(m.name, bound) {
				return
			}
		}
	}
}

// inert are methods that tell nothing about the object: Err explains a completion, and a
// builder tells its error when it posts.
var inert = []string{"Close", "CloseAll", "BeginSend", "Err"}

// argumentFirst are methods that look at their arguments before they look at the object; a zero one
// is refused, closed or not.
var argumentFirst = []string{
	"*uverbs.Device.AllocDM", "*uverbs.Device.CreateCQ", "*uverbs.Device.CreateRWQIndTable",
	"*uverbs.PD.AdviseMR", "*uverbs.PD.AllocMW", "*uverbs.PD.CreateAH", "*uverbs.PD.CreateQP", "*uverbs.PD.CreateWQ",
	"*uverbs.PD.RegDMABuf", "*uverbs.PD.RegDM", "*uverbs.PD.RegMR", "*uverbs.PD.RegSlice",
	"*uverbs.Counters.Read", "*uverbs.XRCD.OpenQP", "*uverbs.WQ.ModifyFlags",
	"*uverbs.QP.Init", // the argument is the QP's type
}

// TestAfterClose calls every method of every object after Close, with zero values, nil
// among them. Methods that return an error return os.ErrClosed, or if they check arguments first,
// an error about one. None panics.
func TestAfterClose(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		all := append([]closer{dev}, objects(t, dev)...)
		for _, o := range slices.Backward(all) {
			must(t, o.Close())
		}
		calls := 0
		for _, o := range all {
			for name, method := range methods(o) {
				if slices.Contains(inert, name) {
					continue
				}
				calls++
				full := fmt.Sprintf("%T.%s", o, name)
				err, fails := call(t, full, method)
				var arg *uverbs.ArgError
				switch {
				case !fails || errors.Is(err, os.ErrClosed):
				case !slices.Contains(argumentFirst, full) || !errors.As(err, &arg):
					t.Errorf("%s after Close: %v", full, err)
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
	return failure(results(t, name, method))
}

// failure returns the error among results, if there is one.
func failure(results []reflect.Value) (err error, fails bool) {
	for _, out := range results {
		if out.Type() == reflect.TypeFor[error]() {
			err, _ = out.Interface().(error)
			return err, true
		}
	}
	return nil, false
}

// refuses reports whether an error is one with which a method refuses what it is given: it
// names the argument, the work request or the command, or what is missing, or it is a
// sentinel that says all.
func refuses(err error) bool {
	var arg *uverbs.ArgError
	var post *uverbs.PostError
	var kernel *uverbs.Error
	var feature *uverbs.FeatureError
	switch {
	case errors.As(err, &arg):
		return arg.Op != "" && arg.Field != "" && arg.Given != "" && arg.Allowed != ""
	case errors.As(err, &post):
		return post.Err != nil
	case errors.As(err, &kernel):
		return kernel.Op != "" && kernel.Device != "" && kernel.Errno != 0
	case errors.As(err, &feature):
		return feature.Feature != ""
	}
	return errors.Is(err, uverbs.ErrState) || errors.Is(err, uverbs.ErrSlotFree) || errors.Is(err, uverbs.ErrNoRecvQueue)
}

// TestZeroArguments calls every method of open objects with zero values: no panic, and
// what refuses says which argument is at fault, or what the kernel does not like.
func TestZeroArguments(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		all := objects(t, dev)
		refused := 0
		for _, o := range slices.Backward(all) {
			for name, method := range methods(o) {
				if slices.Contains([]string{"Close", "CloseAll", "Wait", "Next", "NextEvent", "Get"}, name) {
					continue // they wait, or take something
				}
				full := fmt.Sprintf("%T.%s", o, name)
				out := results(t, full, method)
				if err, _ := failure(out); err != nil {
					if refused++; !refuses(err) {
						t.Errorf("%s: %T: %v", full, err, err)
					}
					continue
				}
				// Close the objects that it makes.
				for _, out := range out {
					if c, ok := out.Interface().(closer); ok && !reflect.ValueOf(c).IsNil() && c != closer(dev) && !slices.Contains(all, c) {
						must(t, c.Close())
					}
				}
			}
		}
		if refused < 2*len(all) {
			t.Errorf("only %d calls were refused", refused)
		}
		for _, o := range slices.Backward(all) {
			must(t, o.Close())
		}
	})
}

// results calls a method with zero values, one for what is variadic, and ends no test if it
// panics.
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
			in = in.Elem()
		}
		if in == reflect.TypeFor[context.Context]() {
			args = append(args, reflect.ValueOf(t.Context()))
			continue
		}
		args = append(args, reflect.Zero(in))
	}
	return method.Call(args)
}

// TestConcurrentClose closes each object from many goroutines: it is closed once, and none of
// them gets an error.
func TestConcurrentClose(t *testing.T) {
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

// TestBuilderAfterClose: a builder that was begun before Close is as closed as its QP.
func TestBuilderAfterClose(t *testing.T) {
	testenv.Tags(t, testenv.AnyLink)
	eachPath(t, func(t *testing.T) {
		a, _ := pair(t, uverbs.QPOptions{})
		b := a.qp.BeginSend()
		b.Send(1, 0)
		must(t, a.qp.Close())
		errorIs(t, b.Post(), os.ErrClosed, "Post of what was begun before Close")
	})
}

func TestUseAfterClose(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		dev, err := uverbs.Open(deviceName, uverbs.OpenOptions{})
		must(t, err)
		pd, err := dev.AllocPD()
		must(t, err)
		buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
		must(t, err)
		mr, err := pd.RegMR(buf, uverbs.MROptions{})
		must(t, err)
		ch, err := dev.CreateCompChannel()
		must(t, err)
		cq, err := dev.CreateCQ(uverbs.CQOptions{Size: 8, Channel: ch})
		must(t, err)
		qp, err := pd.CreateQP(uverbs.QPOptions{Type: reliable, SendCQ: cq, RecvCQ: cq})
		must(t, err)

		// Wrong order: who is used says by whom, and goes on working.
		for _, c := range []struct {
			object closer
			words  []string
		}{
			{buf, []string{"1 MR"}},
			{dev, []string{"1 CQ", "1 CompChannel", "1 PD"}},
			{pd, []string{"1 MR", "1 QP"}},
			{cq, []string{"1 QP"}},
			{ch, []string{"1 CQ"}},
		} {
			err := c.object.Close()
			errorIs(t, err, syscall.EBUSY, "close %T", c.object)
			says(t, err, c.words...)
		}
		must(t, initQP(qp), qp.PostRecv(1, mr.SGE(0, 0)), cq.Notify())

		for _, c := range []closer{qp, cq, ch, mr, buf, pd, dev} {
			must(t, c.Close(), c.Close()) // closing twice is fine
		}
		ctx := withDeadline(t)
		for name, err := range map[string]error{
			"AllocPD":     func() error { _, err := dev.AllocPD(); return err }(),
			"CreateCQ":    func() error { _, err := dev.CreateCQ(uverbs.CQOptions{Size: 1}); return err }(),
			"Channel":     func() error { _, err := dev.CreateCompChannel(); return err }(),
			"Port":        func() error { _, err := dev.Port(1); return err }(),
			"GIDTable":    func() error { _, err := dev.GIDTable(1); return err }(),
			"RegMR":       func() error { _, err := pd.RegMR(buf, uverbs.MROptions{}); return err }(),
			"RegSlice":    func() error { _, err := pd.RegSlice(make([]byte, 1), 0); return err }(),
			"CreateQP":    func() error { _, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}); return err }(),
			"Poll":        func() error { _, err := cq.Poll(make([]uverbs.WC, 1)); return err }(),
			"Notify":      cq.Notify(),
			"Next":        func() error { _, err := ch.Next(ctx); return err }(),
			"PostSend":    qp.PostSend(uverbs.SendWR{}),
			"PostRecv":    qp.PostRecv(1),
			"PostRecvs":   qp.PostRecvs(uverbs.RecvWR{}),
			"Modify":      qp.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState),
			"Query":       func() error { _, err := qp.Query(); return err }(),
			"Endpoint":    func() error { _, err := qp.Endpoint(); return err }(),
			"Connect":     qp.Connect(ctx, uverbs.Endpoint{}),
			"Init":        qp.Init(),
			"SendInvalid": qp.PostSend(),
		} {
			errorIs(t, err, os.ErrClosed, "%s after Close", name)
		}
		if buf.Bytes() != nil {
			t.Error("a closed Buffer has bytes")
		}
	})
}
