// Package pairs runs random pairs and triples of the methods of objects side by side, if the documentation permits it. It
// proves most under the race detector.
package pairs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Environment variables: how long the test runs on each device, such as 10m, and the seed of an earlier run.
const (
	pairsEnv = "GOVERBS_PAIRS"
	seedEnv  = "GOVERBS_SEED"
)

// World is a device with the objects whose methods run side by side.
type World interface {
	// Objects returns the objects, and what else is passed as an argument.
	Objects() []any
	// Override returns what to call instead of a method, or nil. skip says that the method is not called.
	Override(object any, name string) (call func(*rand.Rand), skip bool)
	// Agree returns how the library and the device differ after a round. No method runs meanwhile.
	Agree() error
	// Exchange exchanges messages, if the objects are open. done means that the world cannot be used any more.
	Exchange() (done bool, err error)
	// End closes everything.
	End()
}

// An arguer is a world that makes arguments of some types itself.
type arguer interface {
	Argument(r *rand.Rand, typ reflect.Type) (v reflect.Value, ok bool)
}

// A checker is a world that looks at the errors of methods.
type checker interface {
	Check(method string, err error)
}

// actor calls one method again and again.
type actor struct {
	name   string
	object any
	use    Use
	often  bool
	closes bool
	call   func(*rand.Rand)
}

// mayRunBeside reports whether the table permits two actors at the same time.
func (a *actor) mayRunBeside(b *actor) bool {
	return a.object != b.object || a.use.permits(b.use)
}

// actors returns the actors of a world.
func actors(t *testing.T, table Table, w World) (all []*actor) {
	t.Helper()
	objects := w.Objects()
	for _, o := range objects {
		v := reflect.ValueOf(o)
		for name, use := range table.usesOf(v.Type()) {
			call, skip := w.Override(o, name)
			if skip {
				continue
			}
			if call == nil {
				if call = byReflection(w, name, v.MethodByName(name)); call == nil {
					continue
				}
			}
			all = append(all, &actor{
				name: fmt.Sprintf("%s.%s", v.Type().Elem().Name(), name), object: o, use: use, often: table.often(v.Type()), closes: strings.HasPrefix(name, "Close"), call: call,
			})
		}
	}
	if d, ok := w.(interface{ Serve(*rand.Rand) }); ok {
		all = append(all, &actor{name: "the device", object: w, use: Alone, call: d.Serve})
	}
	slices.SortFunc(all, func(a, b *actor) int { return strings.Compare(a.name, b.name) })
	return all
}

// byReflection returns a function that calls a method with random arguments, or nil if there are none for it. It closes
// what the method creates.
func byReflection(w World, name string, method reflect.Value) func(*rand.Rand) {
	typ, objects := method.Type(), w.Objects()
	for in := range typ.Ins() {
		if _, ok := argument(rand.New(rand.NewPCG(0, 0)), in, w); !ok {
			return nil
		}
	}
	return func(r *rand.Rand) {
		var args []reflect.Value
		for in := range typ.Ins() {
			v, _ := argument(r, in, w)
			args = append(args, v)
		}
		call := method.Call
		if typ.IsVariadic() {
			call = method.CallSlice
		}
		check := func(err error) {
			if c, ok := w.(checker); ok {
				c.Check(name, err)
			}
		}
		for _, result := range call(args) {
			switch v := result.Interface().(type) {
			case error:
				check(v)
			case io.Closer:
				if result.IsNil() || slices.Contains(objects, any(v)) {
					continue
				}
				if err := v.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
					if _, ok := w.(checker); !ok {
						panic(fmt.Sprintf("Close of a new %T: %v", v, err))
					}
					check(err)
				}
			}
		}
	}
}

// argument returns a random argument of a type; ok is false if there is none.
func argument(r *rand.Rand, typ reflect.Type, w World) (v reflect.Value, ok bool) {
	if a, of := w.(arguer); of {
		if v, ok := a.Argument(r, typ); ok {
			return v, true
		}
	}
	if typ == reflect.TypeFor[context.Context]() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.IntN(300))*time.Microsecond)
		context.AfterFunc(ctx, cancel)
		return reflect.ValueOf(ctx), true
	}
	if typ == reflect.TypeFor[error]() {
		return reflect.ValueOf(errors.New("a cause")), true
	}
	for _, o := range w.Objects() {
		if reflect.TypeOf(o) == typ {
			return reflect.ValueOf(o), true
		}
	}
	switch typ.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Func:
		return reflect.Value{}, false
	case reflect.Slice:
		n := r.IntN(3) + 1
		if typ.Elem().Kind() == reflect.Uint8 {
			n = 64
		}
		s := reflect.MakeSlice(typ, n, n)
		for i := range n {
			if v, ok := argument(r, typ.Elem(), w); ok {
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
	default:
		v = reflect.Zero(typ)
	}
	return v, true
}

// Run runs pairs and triples of the methods of a table in each world.
func Run(t *testing.T, table Table, builds map[string]func(*testing.T) World) {
	d := 700 * time.Millisecond
	if testing.Short() {
		d /= 4
	}
	var err error
	if env := os.Getenv(pairsEnv); env != "" {
		if d, err = time.ParseDuration(env); err != nil {
			t.Fatal(err)
		}
	}
	seed := rand.Uint64()
	if env := os.Getenv(seedEnv); env != "" {
		if seed, err = strconv.ParseUint(env, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for name, build := range builds {
		t.Run(name, func(t *testing.T) {
			p := &pairs{t: t, table: table, build: build, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), covered: map[[2]string]int{}}
			p.run(time.Now().Add(d))
		})
	}
}

// pairs is one run.
type pairs struct {
	t       *testing.T
	table   Table
	build   func(*testing.T) World
	seed    uint64
	r       *rand.Rand
	covered map[[2]string]int
}

// run plays rounds until a time.
func (p *pairs) run(end time.Time) {
	rounds, worlds, names := 0, 0, map[string]bool{}
	for skipped := false; time.Now().Before(end) && !p.t.Failed() && !skipped; {
		worlds++
		p.t.Run("", func(t *testing.T) { // which cleans up after each world
			defer func() { skipped = t.Skipped() }()
			goroutines, files := inUse()
			w := p.build(t)
			defer func() {
				w.End()
				if _, ok := w.(checker); ok && worlds > 1 { // what is made once is there
					nothingIsLeft(t, goroutines, files)
				}
			}()
			all := actors(t, p.table, w)
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
func (p *pairs) round(t *testing.T, w World, all []*actor) (closed bool) {
	var chosen []*actor
	for n := 2 + p.r.IntN(2); len(chosen) < n; {
		a := all[p.r.IntN(len(all))]
		if a.closes && p.r.IntN(4) != 0 { // a new device takes time
			continue
		}
		if p.r.IntN(2) == 0 { // the data path is one of few methods
			if !a.often && slices.ContainsFunc(all, func(a *actor) bool { return a.often }) {
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
	err := w.Agree()
	if err == nil && (closed || p.r.IntN(8) == 0) {
		var done bool
		done, err = w.Exchange()
		closed = closed || done
	}
	if err != nil {
		t.Errorf("after %v (%s=%d): %v", what, seedEnv, p.seed, err)
	}
	return closed
}

// inUse returns how many goroutines and open files there are.
func inUse() (goroutines, files int) {
	all, _ := os.ReadDir("/proc/self/fd") // which only Linux has
	return runtime.NumGoroutine(), len(all)
}

// nothingIsLeft fails the test if there are more than before, after a while.
func nothingIsLeft(t *testing.T, goroutines, files int) {
	t.Helper()
	var g, f int
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if g, f = inUse(); g <= goroutines && f <= files {
			return
		}
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("there were %d goroutines and %d files, and are %d and %d\n%s", goroutines, files, g, f, stacks[:runtime.Stack(stacks, true)])
}
