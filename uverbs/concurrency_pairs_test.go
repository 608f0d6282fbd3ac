//go:build amd64 || arm64

package uverbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The test of this file runs random pairs and triples of methods that the table of concurrency_test.go permits side by
// side, on software devices and on rings whose other side the test plays. It proves most under the race detector.
// Afterwards the library and the device must agree.

// Environment variables: how long the test runs on each device, such as 10m, and the seed of an earlier run.
const (
	pairsEnv = "GOVERBS_PAIRS"
	seedEnv  = "GOVERBS_SEED"
)

// world is a device with the objects whose methods run side by side.
type world interface {
	// objects returns the objects, and what else is passed as an argument.
	objects() []any
	// override returns what to call instead of a method, or nil. Rings have no other side for some methods:
	// skip is true then.
	override(object any, name string) (call func(*rand.Rand), skip bool)
	// agree returns how the library and the device differ after a round. No method runs meanwhile.
	agree() error
	// exchange resets and connects the QPs and exchanges messages, if the objects are open. done means that the world
	// cannot be used any more.
	exchange() (done bool, err error)
	close()
}

// actor calls one method again and again.
type actor struct {
	name   string
	object any
	use    use
	closes bool
	call   func(*rand.Rand)
}

// mayRunBeside reports whether the table permits two actors at the same time.
func (a *actor) mayRunBeside(b *actor) bool {
	if a.object != b.object {
		return true
	}
	return a.use != alone && b.use != alone && (a.use == freely || a.use != b.use)
}

// actors returns the actors of a world.
func actors(t *testing.T, w world) (all []*actor) {
	t.Helper()
	objects := w.objects()
	for _, o := range objects {
		v := reflect.ValueOf(o)
		for name, use := range usesOf(v.Type()) {
			call, skip := w.override(o, name)
			if skip {
				continue
			}
			if call == nil {
				if call = byReflection(v.MethodByName(name), objects); call == nil {
					continue
				}
			}
			all = append(all, &actor{
				name: fmt.Sprintf("%s.%s", v.Type().Elem().Name(), name), object: o, use: use, closes: strings.HasPrefix(name, "Close"), call: call,
			})
		}
	}
	if d, ok := w.(interface{ serve(*rand.Rand) }); ok {
		all = append(all, &actor{name: "the device", object: w, use: sends, call: d.serve})
	}
	slices.SortFunc(all, func(a, b *actor) int { return strings.Compare(a.name, b.name) })
	return all
}

// byReflection returns a function that calls a method with random arguments, or nil if there are none for it. It closes
// what the method creates.
func byReflection(method reflect.Value, objects []any) func(*rand.Rand) {
	typ := method.Type()
	for in := range typ.Ins() {
		if _, ok := argument(rand.New(rand.NewPCG(0, 0)), in, objects); !ok {
			return nil
		}
	}
	return func(r *rand.Rand) {
		var args []reflect.Value
		for in := range typ.Ins() {
			v, _ := argument(r, in, objects)
			args = append(args, v)
		}
		call := method.Call
		if typ.IsVariadic() {
			call = method.CallSlice
		}
		for _, result := range call(args) {
			c, ok := result.Interface().(io.Closer)
			if ok && !result.IsNil() && !slices.Contains(objects, any(c)) {
				if err := c.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
					panic(fmt.Sprintf("Close of a new %T: %v", c, err))
				}
			}
		}
	}
}

// argument returns a random argument of a type; ok is false if there is none.
func argument(r *rand.Rand, typ reflect.Type, objects []any) (v reflect.Value, ok bool) {
	if typ == reflect.TypeFor[context.Context]() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(300))*time.Microsecond)
		context.AfterFunc(ctx, cancel)
		return reflect.ValueOf(ctx), true
	}
	if typ == reflect.TypeFor[error]() {
		return reflect.ValueOf(errors.New("a cause")), true
	}
	for _, o := range objects {
		if reflect.TypeOf(o) == typ {
			return reflect.ValueOf(o), true
		}
	}
	switch typ.Kind() {
	case reflect.Pointer:
		if typ == reflect.TypeFor[*WC]() {
			statuses := []WCStatus{WCSuccess, WCWRFlushErr, WCRNRRetryExcErr, WCRemAccessErr, WCLocProtErr, WCRetryExcErr}
			return reflect.ValueOf(&WC{ID: uint64(r.IntN(4)), Status: statuses[r.IntN(len(statuses))]}), true
		}
		return reflect.Value{}, false
	case reflect.Slice:
		n := r.IntN(3) + 1
		if typ.Elem().Kind() == reflect.Uint8 {
			n = 64
		}
		s := reflect.MakeSlice(typ, n, n)
		for i := range n {
			if v, ok := argument(r, typ.Elem(), objects); ok {
				s.Index(i).Set(v)
			}
		}
		return s, true
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v = reflect.New(typ).Elem()
		v.SetUint(uint64(r.IntN(4)))
	case reflect.Int, reflect.Int64:
		v = reflect.New(typ).Elem()
		v.SetInt(int64(r.IntN(8)))
	case reflect.Struct:
		v = reflect.New(typ).Elem()
		for i := range typ.NumField() {
			if f := v.Field(i); f.Type() == reflect.TypeFor[*CQ]() { // the options of queues need one
				if a, ok := argument(r, f.Type(), objects); ok {
					f.Set(a)
				}
			}
		}
	default:
		v = reflect.Zero(typ)
	}
	return v, true
}

// TestPairs runs pairs and triples on each device.
func TestPairs(t *testing.T) {
	d := 700 * time.Millisecond
	if testing.Short() {
		d /= 4
	}
	if env := os.Getenv(pairsEnv); env != "" {
		d = value(time.ParseDuration(env))(t)
	}
	seed := rand.Uint64()
	if env := os.Getenv(seedEnv); env != "" {
		seed = value(strconv.ParseUint(env, 10, 64))(t)
	}
	for name, build := range map[string]func(*testing.T) world{
		"soft": newSoftWorld, "rxe": newRxeWorld, "siw": newSiwWorld,
		"mlx5":    func(t *testing.T) world { return newMlx5World(t, false) },
		"mlx5SRQ": func(t *testing.T) world { return newMlx5World(t, true) },
	} {
		t.Run(name, func(t *testing.T) {
			p := &pairs{t: t, build: build, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), covered: map[[2]string]int{}}
			p.run(time.Now().Add(d))
		})
	}
}

// pairs is one run.
type pairs struct {
	t       *testing.T
	build   func(*testing.T) world
	seed    uint64
	r       *rand.Rand
	covered map[[2]string]int
}

// run plays rounds until a time.
func (p *pairs) run(end time.Time) {
	rounds, worlds, names := 0, 0, map[string]bool{}
	for time.Now().Before(end) && !p.t.Failed() {
		worlds++
		p.t.Run("", func(t *testing.T) { // which cleans up after each world
			w := p.build(t)
			defer w.close()
			all := actors(t, w)
			for _, a := range all {
				names[a.name] = true
			}
			for closed := false; !closed && time.Now().Before(end) && !t.Failed(); rounds++ {
				closed = p.round(t, w, all)
			}
		})
	}
	p.t.Logf("%d rounds on %d devices, %d methods, %d of %d pairs, %s=%d", rounds, worlds, len(names), len(p.covered), len(names)*(len(names)+1)/2, seedEnv, p.seed)
}

// round runs two or three actors, and reports whether an object was closed.
func (p *pairs) round(t *testing.T, w world, all []*actor) (closed bool) {
	var chosen []*actor
	for n := 2 + p.r.IntN(2); len(chosen) < n; {
		a := all[p.r.IntN(len(all))]
		if a.closes && p.r.IntN(4) != 0 { // a new device takes time
			continue
		}
		if p.r.IntN(2) == 0 { // the data path is one of few methods
			if _, qp := a.object.(*QP); !qp {
				continue
			}
		}
		if !slices.ContainsFunc(chosen, func(b *actor) bool { return !a.mayRunBeside(b) }) {
			chosen = append(chosen, a)
		}
	}
	var what []string
	for _, a := range chosen {
		what = append(what, a.name)
		closed = closed || a.closes
		for _, b := range chosen {
			if a != b && a.name <= b.name {
				p.covered[[2]string{a.name, b.name}]++
			}
		}
	}
	times, s1, s2 := 1+p.r.IntN(8), p.r.Uint64(), p.r.Uint64()
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i, a := range chosen {
		wg.Go(func() {
			defer func() {
				if e := recover(); e != nil {
					t.Errorf("%s beside %v: panic: %v\n%s", a.name, what, e, debug.Stack())
				}
			}()
			r := rand.New(rand.NewPCG(s1, s2+uint64(i)))
			<-start
			for range times {
				a.call(r)
			}
		})
	}
	close(start)
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		panic(fmt.Sprintf("%v do not return (%s=%d)", what, seedEnv, p.seed))
	}
	err := w.agree()
	if err == nil && (closed || p.r.IntN(8) == 0) {
		var done bool
		done, err = w.exchange()
		closed = closed || done
	}
	if err != nil {
		t.Errorf("after %v (%s=%d): %v", what, seedEnv, p.seed, err)
	}
	return closed
}

// qpTurns are the changes of state of a Modify that a test makes, each with its attributes.
var qpTurns = []struct {
	to   QPState
	mask QPAttrMask
}{
	{QPReset, 0}, {QPInit, AttrPKeyIndex | AttrPort | AttrAccess},
	{QPRTR, AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer},
	{QPRTS, AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic}, {QPSQD, 0}, {QPErr, 0},
}

// modifyRandomly moves a QP to a random state, most often the next one or RESET.
func modifyRandomly(r *rand.Rand, q *QP, attr QPAttr) error {
	turn := qpTurns[r.IntN(len(qpTurns))]
	if next := int(q.State()) + 1; r.IntN(3) != 0 && next < int(QPSQD) {
		turn = qpTurns[next]
	}
	attr.State = turn.to
	return q.Modify(attr, AttrState|turn.mask)
}

// postRandomly posts one to three sends with PostSend or the builder. Some batches are abandoned.
func postRandomly(r *rand.Rand, q *QP, sge SGE) {
	n := 1 + r.IntN(3)
	if r.IntN(2) == 0 {
		var wrs []SendWR
		for range n {
			wrs = append(wrs, SendWR{ID: staleID, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{sge}})
		}
		_ = q.PostSend(wrs...) // not in every state
		return
	}
	b := q.BeginSend()
	for range n {
		b.Send(staleID, SendSignaled)
		b.SGE(sge)
	}
	if r.IntN(4) == 0 {
		b.Abandon()
		return
	}
	_ = b.Post()
}

// IDs of work requests: of those that are posted at random, and of the exchange afterwards.
const (
	staleID = 1
	sendID  = 100
	recvID  = 101
)

// isExchange returns an error unless completions are those of one send and one receive of the exchange.
func isExchange(got []WC) error {
	ids := map[uint64]int{}
	for _, wc := range got {
		if wc.Status != WCSuccess {
			return fmt.Errorf("request %d of the exchange completed with %s", wc.ID, wc.Status)
		}
		ids[wc.ID]++
	}
	if len(got) != 2 || ids[sendID] != 1 || ids[recvID] != 1 {
		return fmt.Errorf("the exchange has completions %v, want one of request %d and one of %d", ids, sendID, recvID)
	}
	return nil
}
