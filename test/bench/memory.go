package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

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

// usedMemory returns the bytes in use of Go's heap and stacks, and those mapped besides.
func usedMemory() (own, others uint64, err error) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, 0, err
	}
	others, err = mapped(string(b))
	return m.HeapAlloc + m.StackInuse, others, err
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
	return memory(stdout, dev, serverAny, *count, 2500*time.Millisecond)
}

// memory makes so many of each object, and listens at an address of the device. Connections have the time
// settle to allocate memory for large messages, which they do within a second or not at all.
func memory(out io.Writer, dev *uverbs.Device, at string, count int, settle time.Duration) error {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	cq, err := dev.CreateCQ(uverbs.CQOptions{})
	if err != nil {
		return err
	}
	buf, err := uverbs.AllocBuffer(4096, uverbs.BufferOptions{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	l, err := cm.Listen(ctx, at, cm.ListenOptions{})
	if err != nil {
		return err
	}
	defer l.Close()
	conn := func() (ends [2]*cm.Conn, err error) {
		ends[0], ends[1], err = connected(ctx, l, cm.ConnOptions{})
		return ends, err
	}
	for _, k := range []struct {
		name string
		per  int // objects that make makes
		wait time.Duration
		make func() (any, error)
	}{
		{"PD", 1, 0, func() (any, error) { return dev.AllocPD() }},
		{"MR", 1, 0, func() (any, error) { return pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}) }},
		{"CQ", 1, 0, func() (any, error) { return dev.CreateCQ(uverbs.CQOptions{}) }},
		{"CQ with events", 1, 0, func() (any, error) { return dev.CreateCQ(uverbs.CQOptions{Events: true}) }},
		{"QP", 1, 0, func() (any, error) { return pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}) }},
		{"Conn, a goroutine in Recv", 2, settle, func() (any, error) {
			ends, err := conn()
			for _, c := range ends {
				if err == nil {
					go c.Recv(ctx)
				}
			}
			return ends, err
		}},
		{"Conn, no goroutine", 2, settle, func() (any, error) { return conn() }},
	} {
		if _, err := k.make(); err != nil { // what is made once
			return fmt.Errorf("%s: %w", k.name, err)
		}
		time.Sleep(k.wait)
		own, others, err := usedMemory()
		if err != nil {
			return err
		}
		objects := make([]any, count)
		for i := range objects {
			if objects[i], err = k.make(); err != nil {
				return fmt.Errorf("%s %d: %w", k.name, i+1, err)
			}
		}
		time.Sleep(k.wait)
		ownNow, othersNow, err := usedMemory()
		if err != nil {
			return err
		}
		each := func(before, now uint64) float64 {
			return (float64(now) - float64(before)) / float64(count*k.per) / 1024
		}
		fmt.Fprintf(out, "%-26s %6.1f KiB of Go's heap and stacks, %6.1f KiB mapped\n", k.name, each(own, ownNow), each(others, othersNow))
		runtime.KeepAlive(objects)
	}
	return nil
}
