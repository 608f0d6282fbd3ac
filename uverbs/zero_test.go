package uverbs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestZeroObjects: an object that nobody made is of no use, and says so where it can.
func TestZeroObjects(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, o := range []any{
		&AH{}, &Buffer{}, &BufferPool{}, &CompChannel{}, &CompCounter{}, &Counters{}, &CQ{}, &DM{}, &DMAH{}, &Device{}, &Flow{},
		&MR{}, &MW{}, &PD{}, &QP{}, &RWQIndTable{}, &SRQ{}, &SendBuilder{}, &TD{}, &WQ{}, &XRCD{},
	} {
		v := reflect.ValueOf(o)
		for k := range 2 * v.NumMethod() {
			i, others := k/2, k%2 == 1 // with other objects that nobody made, or none
			name := v.Type().Elem().Name() + "." + v.Type().Method(i).Name
			m := v.Method(i)
			var args []reflect.Value
			for j := range m.Type().NumIn() {
				in := m.Type().In(j)
				switch {
				case m.Type().IsVariadic() && j == m.Type().NumIn()-1:
				case in == reflect.TypeFor[context.Context]():
					args = append(args, reflect.ValueOf(ctx))
				case in == reflect.TypeFor[*WC]():
					args = append(args, reflect.ValueOf(&WC{Status: WCLocLenErr}))
				case others && in == reflect.TypeFor[*os.File]():
					args = append(args, reflect.ValueOf(os.Stdin))
				case others && in.Kind() == reflect.Pointer:
					args = append(args, reflect.New(in.Elem()))
				default:
					args = append(args, reflect.Zero(in))
				}
			}
			results, panicked := calls(m, args)
			if panicked != nil {
				t.Errorf("%s: panic: %v", name, panicked)
				continue
			}
			for _, r := range results {
				err, ok := r.Interface().(error)
				if !ok {
					continue
				}
				if text := err.Error(); strings.HasSuffix(name, ".Close") && !errors.As(err, new(*ArgError)) || text == "" {
					t.Errorf("%s: %q, want an ArgError", name, text)
				}
			}
		}
	}
}

// calls calls a function and returns what it panicked with.
func calls(f reflect.Value, args []reflect.Value) (results []reflect.Value, panicked error) {
	defer func() {
		if v := recover(); v != nil {
			panicked = fmt.Errorf("%v", v)
		}
	}()
	return f.Call(args), nil
}
