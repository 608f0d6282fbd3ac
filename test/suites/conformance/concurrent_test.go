package conformance

import (
	"context"
	"errors"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// oneGoroutine has the methods that one goroutine at a time may call, each with what it has in common
// with others.
var oneGoroutine = map[string]string{
	"*uverbs.QP.PostSend": "sends", "*uverbs.QP.BeginSend": "sends",
	"*uverbs.QP.PostRecv": "receives", "*uverbs.QP.PostRecvs": "receives",
	"*uverbs.CQ.Poll": "completions", "*uverbs.CQ.Resize": "completions", "*uverbs.CQ.Size": "completions", "*uverbs.CQ.Notify": "completions", "*uverbs.CQ.NotifySolicited": "completions", "*uverbs.CQ.Wait": "completions",
	"*uverbs.CompChannel.Next": "events", "*uverbs.Device.NextEvent": "events", "*uverbs.Counters.Read": "values",
}

// roomyCQ is a size at which a CQ has room for all that a QP can have under way, polled or not.
const roomyCQ = 2000

// goodArguments are arguments of methods with which they do something; others get zero values.
func goodArguments(t *testing.T, dev *uverbs.Device, all []closer) map[string][]any {
	pd, buf, mr, cq := all[0].(*uverbs.PD), all[1].(*uverbs.Buffer), all[2].(*uverbs.MR), all[4].(*uverbs.CQ)
	gid := gidOf(t, dev)
	write := uverbs.SendWR{ID: 1, Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{mr.SGE(0, 8)}, RemoteAddr: mr.Addr() + 64, RKey: mr.RKey()}
	ah := uverbs.AHAttr{Port: 1, DLID: lidOf(t, gid.GID), Global: true, GRH: uverbs.GRH{DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1}}
	return map[string][]any{
		"*uverbs.Device.Port": {uint8(1)}, "*uverbs.Device.GIDTable": {uint8(1)}, "*uverbs.Device.GID": {uint8(1), gid.Index},
		"*uverbs.Device.PKey": {uint8(1), 0}, "*uverbs.Device.PKeyIndex": {uint8(1), uint16(0xffff)}, "*uverbs.Device.CreateCQ": {uverbs.CQOptions{Size: 8}},
		"*uverbs.PD.RegMR": {buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}}, "*uverbs.PD.AllocMW": {uverbs.MWType1},
		"*uverbs.PD.CreateAH": {ah}, "*uverbs.PD.CreateQP": {uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}}, "*uverbs.PD.CreateSRQ": {uverbs.SRQOptions{MaxWR: 8}},
		"*uverbs.QP.PostSend": {write}, "*uverbs.QP.PostRecv": {uint64(1), mr.SGE(0, 8)}, "*uverbs.QP.PostRecvs": {uverbs.RecvWR{ID: 2}},
		"*uverbs.QP.Modify": {uverbs.QPAttr{MinRNRTimer: 12}, uverbs.AttrMinRNRTimer},
		"*uverbs.QP.Err":    {&uverbs.WC{ID: 1, Status: uverbs.WCLocProtErr}},
		"*uverbs.CQ.Poll":   {make([]uverbs.WC, 4)}, "*uverbs.CQ.Resize": {roomyCQ},
		"*uverbs.SRQ.PostRecv": {uint64(1), mr.SGE(0, 8)}, "*uverbs.SRQ.PostRecvs": {uverbs.RecvWR{ID: 2}}, "*uverbs.SRQ.SetLimit": {1}, "*uverbs.SRQ.Resize": {100},
		"*uverbs.MR.SGE": {0, 8}, "*uverbs.MR.Rereg": {uverbs.ReregOptions{PD: pd}},
	}
}

// TestConcurrentMethods calls all methods of every object concurrently: each from two goroutines,
// or from one where the documentation requires that, first of an open object, and then while it is
// closed. Nothing panics or hangs, and no result is one that a single goroutine could not have got.
func TestConcurrentMethods(t *testing.T) {
	testenv.NotOnEFA(t, "connections")
	testenv.Tags(t, testenv.AnyLink, testenv.Long)
	testenv.NeedsIB(t, "memory windows")
	testenv.Guest(t)
	testenv.Skip(t, resizes(t, deviceName))
	dev, err := uverbs.Open(deviceName, uverbs.OpenOptions{})
	must(t, err)
	all := objects(t, dev)
	must(t, all[4].(*uverbs.CQ).Resize(roomyCQ))
	qp := all[6].(*uverbs.QP)
	end, err := qp.Endpoint()
	must(t, err)
	must(t, qp.Connect(t.Context(), end))
	a := &atOnce{t: t, args: goodArguments(t, dev, all)}
	rereg, err := all[0].(*uverbs.PD).RegMR(all[1].(*uverbs.Buffer), uverbs.MROptions{Access: uverbs.AccessLocalWrite})
	must(t, err)
	// An MR that is registered again is for one goroutine: that of the others is not.
	a.beside(rereg, "Rereg")
	for _, o := range append([]closer{dev}, all...) {
		a.open(o)
	}
	for _, o := range slices.Backward(append([]closer{dev}, all...)) {
		a.beside(o, "")
	}
	if n := a.calls.Load(); n < 1000 {
		t.Errorf("only %d calls were made", n)
	}
}

// atOnce calls methods of objects from goroutines.
type atOnce struct {
	t     *testing.T
	args  map[string][]any
	calls atomic.Int64
}

// turns returns what each goroutine calls: only the method of a name, or all but Close, CloseAll and Rereg.
func (a *atOnce) turns(o closer, only string) [][]string {
	v := reflect.TypeOf(o)
	groups := map[string][]string{}
	var turns [][]string
	for i := range v.NumMethod() {
		name := v.Method(i).Name
		switch group := oneGoroutine[v.String()+"."+name]; {
		case only != "" && name == only:
			turns = append(turns, []string{name})
		case only != "" || name == "Close" || name == "CloseAll" || name == "Rereg":
		case group != "":
			groups[group] = append(groups[group], name)
		default:
			turns = append(turns, []string{name}, []string{name})
		}
	}
	for _, names := range groups {
		turns = append(turns, names)
	}
	return turns
}

// start has goroutines call methods until they are stopped.
func (a *atOnce) start(ctx context.Context, o closer, turns [][]string, rounds int) *sync.WaitGroup {
	var group sync.WaitGroup
	for _, names := range turns {
		group.Go(func() {
			for n := 0; ctx.Err() == nil && n < rounds; n++ {
				for _, name := range names {
					a.call(ctx, o, name)
				}
			}
		})
	}
	return &group
}

// open calls the methods of an object that stays open.
func (a *atOnce) open(o closer) {
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Second)
	defer cancel()
	a.start(ctx, o, a.turns(o, ""), 3).Wait()
}

// beside calls the methods of an object while it is closed, which has to wait until nothing of what
// they make is left. Where there is always something, they end first.
func (a *atOnce) beside(o closer, only string) {
	ctx, cancel := context.WithTimeout(a.t.Context(), deadline)
	defer cancel()
	group := a.start(ctx, o, a.turns(o, only), 1<<30)
	time.Sleep(time.Millisecond)
	const patience = 500 * time.Millisecond
	begin := time.Now()
	err := o.Close()
	for errors.Is(err, syscall.EBUSY) && time.Since(begin) < patience {
		time.Sleep(100 * time.Microsecond)
		err = o.Close()
	}
	if errors.Is(err, syscall.EBUSY) {
		cancel()
		group.Wait()
		err = o.Close()
	}
	if err != nil {
		a.t.Errorf("close %T beside its methods: %v", o, err)
	}
	time.Sleep(time.Millisecond)
	cancel()
	group.Wait()
}

// call calls one method, and closes what it makes.
func (a *atOnce) call(ctx context.Context, o closer, name string) {
	full := reflect.TypeOf(o).String() + "." + name
	defer func() {
		if r := recover(); r != nil {
			a.t.Errorf("%s panics: %v", full, r)
		}
	}()
	a.calls.Add(1)
	if name == "Wait" || name == "Next" || name == "NextEvent" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
	}
	method := reflect.ValueOf(o).MethodByName(name)
	out := method.Call(a.arguments(ctx, full, method.Type()))
	if err, _ := failure(out); err != nil {
		for _, allowed := range []error{os.ErrClosed, context.Canceled, context.DeadlineExceeded, uverbs.ErrQueueFull, uverbs.ErrPoolEmpty, uverbs.ErrDeviceRemoved} {
			if errors.Is(err, allowed) {
				return
			}
		}
		if full != "*uverbs.QP.Err" && !refuses(err) {
			a.t.Errorf("%s: %T: %v", full, err, err)
		}
		return
	}
	for _, r := range out {
		made := r.Interface()
		if slot, ok := made.(uverbs.Slot); ok {
			if err := o.(*uverbs.BufferPool).Put(slot); err != nil && !errors.Is(err, os.ErrClosed) {
				a.t.Errorf("Put: %v", err)
			}
		}
		if c, ok := made.(closer); ok && name != "Device" && name != "MR" && name != "Next" && !r.IsNil() {
			if err := c.Close(); err != nil {
				a.t.Errorf("close what %s has made: %v", full, err)
			}
		}
	}
}

// arguments returns what a method is called with.
func (a *atOnce) arguments(ctx context.Context, full string, method reflect.Type) (args []reflect.Value) {
	for _, arg := range a.args[full] {
		args = append(args, reflect.ValueOf(arg))
	}
	for i := len(args); i < method.NumIn(); i++ {
		in := method.In(i)
		switch {
		case method.IsVariadic() && i == method.NumIn()-1:
		case in == reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(ctx))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	return args
}
