package rstream

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rsocket"
	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
)

// mapped is what a program of riostream does with its peer: each side maps memory, and writes into that of
// the other. The last byte, a number that both sides count, says that all has arrived.
type mapped struct {
	transfer
	options string // of riostream, besides those of the transfer
}

// run plays one side.
func (r *mapped) run(c *rsocket.Conn, client bool) error {
	const hello = 16
	m, err := c.Map(r.size, 0)
	if err != nil {
		return err
	}
	in, out, last := m.Bytes(), make([]byte, r.size), r.size-1
	in[last] = 0xff
	greet := make([]byte, hello)
	steps := []func() error{
		func() error { _, err := c.Write(greet); return err },
		func() error { _, err := io.ReadFull(c, greet); return err },
	}
	if !client {
		steps[0], steps[1] = steps[1], steps[0]
	}
	if err := errors.Join(steps[0](), steps[1]()); err != nil {
		return err
	}
	marker := byte(0)
	send := func() error {
		out[last] = in[last] // until all has been written, not the next number
		for i := range r.count {
			if i == r.count-1 {
				out[last] = marker
				for i := range out[:last] {
					if r.verify {
						out[i] = r.sent
						r.sent++
					}
				}
			}
			if n, err := c.WriteAt(out, 0); err != nil {
				return fmt.Errorf("%d of %d bytes: %w", n, len(out), err)
			}
		}
		marker++
		return nil
	}
	receive := func() error {
		for end := time.Now().Add(program.Patience); in[last] != marker; runtime.Gosched() {
			if time.Now().After(end) {
				return fmt.Errorf("the last byte is %d, want %d", in[last], marker)
			}
		}
		for i := range in[:last] {
			if r.verify && in[i] != r.received {
				return fmt.Errorf("byte %d is %d, want %d", i, in[i], r.received)
			}
			r.received++
		}
		marker++
		return nil
	}
	first, second := receive, send
	if client {
		first, second = send, receive
	}
	for range r.iterations {
		if err := first(); err != nil {
			return err
		}
		if err := second(); err != nil {
			return err
		}
	}
	return nil
}

// name returns the options of riostream.
func (r *mapped) name() string {
	return strings.TrimSpace(fmt.Sprintf("-S %d -C %d -I %d -T v %s", r.size, r.count, r.iterations, r.options))
}

// mappedRuns are runs with the options of riostream that concern mapped memory.
var mappedRuns = []mapped{
	{transfer: transfer{size: 64, count: 1, iterations: 100, verify: true}},
	{transfer: transfer{size: 5000, count: 20, iterations: 5, verify: true}, options: "-T b"},
	{transfer: transfer{size: 300000, count: 3, iterations: 2, verify: true}, options: "-T a -i 0"},
	{transfer: transfer{size: 1000000, count: 2, iterations: 2, verify: true}, options: "-T b -B 65536"},
}

// checkRiostream waits for the end of riostream, and looks at what it prints.
func checkRiostream(t *testing.T, p *program.Program) {
	t.Helper()
	if out := p.Wait(t); !strings.Contains(out, "custom") || strings.Contains(out, "failed") {
		t.Errorf("riostream prints %s", out)
	}
}

// TestRiostreamServer: riostream's server and our client.
func TestRiostreamServer(t *testing.T) {
	testenv.Guest(t)
	for i, r := range mappedRuns {
		t.Run(r.name(), func(t *testing.T) {
			port := strconv.Itoa(7900 + i)
			for attempt := 1; ; attempt++ {
				server := program.Launch(t, append([]string{"riostream", "-b", address(), "-p", port}, strings.Fields(r.name())...)...)
				c := dial(t, server, port, rsocket.Options{Mappings: 1})
				err := r.run(c.(*rsocket.Conn), true)
				if errors.Is(err, syscall.ENOSPC) && attempt < 20 {
					// It makes room for mappings only after it listens, so the first that comes may find none.
					c.Close()
					server.Signal(syscall.SIGKILL)
					<-server.Ended
					continue
				}
				must(t, err, c.Close())
				checkRiostream(t, server)
				break
			}
		})
	}
}

// TestRiostreamClient: riostream's client and our server.
func TestRiostreamClient(t *testing.T) {
	testenv.Guest(t)
	for i, r := range mappedRuns {
		t.Run(r.name(), func(t *testing.T) {
			port := strconv.Itoa(7950 + i)
			l := listen(t, port, rsocket.Options{Mappings: 1})
			client := program.Launch(t, append([]string{"riostream", "-s", address(), "-p", port}, strings.Fields(r.name())...)...)
			c := accept(t, l).(*rsocket.Conn)
			must(t, r.run(c, false))
			if n, err := c.Read(make([]byte, 1)); err != io.EOF { // rshutdown
				t.Errorf("after the last byte: %d bytes, %v", n, err)
			}
			must(t, c.Close())
			checkRiostream(t, client)
		})
	}
}
