package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// A pair is a connection between two ends in this process. A message goes there and back.
type pair struct {
	there func() error // sends a message and waits for the answer
	back  func() error // waits for a message and answers
	close func() error // of both ends
}

// manyConns is how many connections exchange messages at once, and connBytes the size of these.
const (
	manyConns = 1000
	connBytes = 64
)

// conns has many connections exchange messages for a time, those of a software device and then those of TCP. It returns
// lines like those of a benchmark, of the time of a round trip by the clock and of the processor.
func conns(ctx context.Context, each time.Duration) (lines string, err error) {
	dev, err := soft.New(soft.Options{Auto: true})
	if err != nil {
		return "", err
	}
	defer dev.Close()
	l, err := cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{})
	if err != nil {
		return "", err
	}
	defer l.Close()
	t, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer t.Close()
	for _, kind := range []struct {
		name string
		make func() (pair, error)
	}{{"Conns", func() (pair, error) { return connPair(ctx, l) }}, {"TCPConns", func() (pair, error) { return tcpPair(t) }}} {
		var pairs []pair
		for len(pairs) < manyConns && err == nil {
			var p pair
			if p, err = kind.make(); err == nil {
				pairs = append(pairs, p)
			}
		}
		var clock, processor float64
		if err == nil {
			clock, processor, err = exchange(pairs, each)
		}
		for _, p := range pairs {
			err = errors.Join(err, p.close())
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", kind.name, err)
		}
		lines += fmt.Sprintf("Benchmark%s/clock 1 %g cpu-ns/op\nBenchmark%s/processor 1 %g cpu-ns/op\n", kind.name, clock, kind.name, processor)
	}
	return lines, nil
}

// exchange has all pairs exchange messages for a time, and returns the nanoseconds of a round trip.
func exchange(pairs []pair, each time.Duration) (clock, processor float64, err error) {
	var trips atomic.Int64
	var over atomic.Bool
	failed := make(chan error, len(pairs))
	var wg sync.WaitGroup
	for _, p := range pairs {
		go func() { // until the pair is closed
			for p.back() == nil {
			}
		}()
		wg.Go(func() {
			for !over.Load() {
				if err := p.there(); err != nil {
					failed <- err
					return
				}
				trips.Add(1)
			}
		})
	}
	time.Sleep(each) // what the first messages need is there
	n, begin, used := trips.Load(), time.Now(), processorTime()
	time.Sleep(each)
	n, took, used := trips.Load()-n, time.Since(begin), processorTime()-used
	over.Store(true)
	wg.Wait()
	select {
	case err := <-failed:
		return 0, 0, err
	default:
		return float64(took) / float64(n), float64(used) / float64(n), nil
	}
}

// processorTime is how long this process has run, in the kernel too.
func processorTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(os.NewSyscallError("getrusage", err)) // the arguments are valid
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// connPair connects two Conns.
func connPair(ctx context.Context, l *cm.Listener) (pair, error) {
	x, err := cm.Dial(ctx, l.Addr().String(), cm.DialOptions{})
	if err != nil {
		return pair{}, err
	}
	y, err := l.Accept(ctx)
	if err != nil {
		return pair{}, errors.Join(err, x.Close())
	}
	msg := make([]byte, connBytes)
	return pair{
		func() error {
			err := x.Send(ctx, msg)
			if err == nil {
				_, err = x.Recv(ctx)
			}
			return err
		},
		func() error {
			got, err := y.Recv(ctx)
			if err == nil {
				err = y.Send(ctx, got)
			}
			return err
		},
		func() error { return errors.Join(x.Close(), y.Close()) },
	}, nil
}

// tcpPair connects two ends of TCP.
func tcpPair(l net.Listener) (pair, error) {
	x, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return pair{}, err
	}
	y, err := l.Accept()
	if err != nil {
		return pair{}, errors.Join(err, x.Close())
	}
	msg, got, answer := make([]byte, connBytes), make([]byte, connBytes), make([]byte, connBytes)
	return pair{
		func() error {
			_, err := x.Write(msg)
			if err == nil {
				_, err = io.ReadFull(x, answer)
			}
			return err
		},
		func() error {
			_, err := io.ReadFull(y, got)
			if err == nil {
				_, err = y.Write(got)
			}
			return err
		},
		func() error { return errors.Join(x.Close(), y.Close()) },
	}, nil
}
