package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs"
)

// goHeap is the part of the addresses that Go's heap has on Linux.
const goHeap = 0xc000000000

// mapped returns the bytes of memory that can be written and is not Go's heap, in the format of
// /proc/PID/maps.
func mapped(maps string) (bytes uint64, err error) {
	for line := range strings.Lines(maps) {
		var from, to uint64
		var rights string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights); err != nil {
			return 0, fmt.Errorf("%q: %w", line, err)
		}
		if strings.HasPrefix(rights, "rw") && (from < goHeap || from >= goHeap+1<<36) {
			bytes += to - from
		}
	}
	return bytes, nil
}

// usedMemory returns the bytes in use of Go's heap, and those mapped besides.
func usedMemory() (heap, others uint64, err error) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, 0, err
	}
	others, err = mapped(string(b))
	return m.HeapAlloc, others, err
}

// memoryCommand prints the memory of objects with default options.
func memoryCommand(args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("memory", flag.ContinueOnError)
	count := f.Int("n", 100, "make so many of each")
	if err := parse(f, args, "bench memory [flags]: the memory of an object with default options, on the first device\n", stdout); err != nil {
		return err
	}
	if f.NArg() > 0 || *count < 1 || *count > 10000 {
		return usageError{fmt.Errorf("memory has %d arguments and -n %d, want none and 1 to 10000", f.NArg(), *count)}
	}
	dev, err := uverbs.OpenFirst()
	if err != nil {
		return err
	}
	defer dev.CloseAll()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(uverbs.CQOptions{})
	if err != nil {
		return err
	}
	buf, err := uverbs.AllocBuffer(4096)
	if err != nil {
		return err
	}
	ctx := context.Background()
	l, err := cm.Listen(ctx, serverIP.String()+":7471", cm.ListenOptions{})
	if err != nil {
		return err
	}
	defer l.Close()
	for _, k := range []struct {
		name string
		make func() (any, error)
	}{
		{"PD", func() (any, error) { return dev.AllocPD() }},
		{"MR", func() (any, error) { return pd.RegMR(buf, uverbs.AccessLocalWrite) }},
		{"CQ", func() (any, error) { return dev.CreateCQ(uverbs.CQOptions{}) }},
		{"CQ with events", func() (any, error) { return dev.CreateCQ(uverbs.CQOptions{Events: true}) }},
		{"QP", func() (any, error) { return pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}) }},
		{"connection, both ends", func() (any, error) {
			done := make(chan error, 1)
			var ends [2]*cm.Conn
			go func() {
				var err error
				ends[1], err = l.Accept(ctx)
				done <- err
			}()
			var err error
			ends[0], err = cm.Dial(ctx, l.Addr().String(), cm.DialOptions{})
			return ends, errors.Join(err, <-done)
		}},
	} {
		objects := make([]any, *count)
		if _, err := k.make(); err != nil { // what is made once
			return fmt.Errorf("%s: %w", k.name, err)
		}
		heap, others, err := usedMemory()
		if err != nil {
			return err
		}
		for i := range objects {
			if objects[i], err = k.make(); err != nil {
				return fmt.Errorf("%s %d: %w", k.name, i+1, err)
			}
		}
		heapNow, othersNow, err := usedMemory()
		if err != nil {
			return err
		}
		per := func(before, now uint64) float64 { return (float64(now) - float64(before)) / float64(*count) / 1024 }
		fmt.Fprintf(stdout, "%-22s %6.1f KiB of Go's heap, %6.1f KiB mapped\n", k.name, per(heap, heapNow), per(others, othersNow))
		runtime.KeepAlive(objects)
	}
	return nil
}
