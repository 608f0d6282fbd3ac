package main

import (
	"bytes"
	"errors"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// softDevice makes a device, and returns its name and an address to listen at.
func softDevice(t *testing.T) (name, at string) {
	t.Helper()
	dev, err := soft.New(soft.Options{Auto: true})
	must(t, err)
	t.Cleanup(func() { dev.Close() })
	return dev.Name(), net.JoinHostPort(dev.Addr().String(), "0")
}

// TestChildren: what is timed beside the C programs works, and prints as many figures as they do.
func TestChildren(t *testing.T) {
	name, at := softDevice(t)
	for what, c := range map[string]struct {
		figures int
		err     func(*bytes.Buffer) error
	}{
		"qps":   {3, func(b *bytes.Buffer) error { return many(b, name, 3, 1, 1, 5) }},
		"cqs":   {3, func(b *bytes.Buffer) error { return many(b, name, 3, 3, 1, 5) }},
		"mrs":   {3, func(b *bytes.Buffer) error { return many(b, name, 1, 1, 3, 5) }},
		"conns": {1, func(b *bytes.Buffer) error { return conns(b, at, 3, 5) }},
		"calls": {3, func(b *bytes.Buffer) error { return calls(b, name, 64, 8, 1) }},
		"mr":    {2, func(b *bytes.Buffer) error { return registrations(b, name, 4096, 1) }},
	} {
		var out bytes.Buffer
		if err := c.err(&out); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if f := strings.Fields(out.String()); len(f) != c.figures || strings.Contains(out.String(), " 0.0") {
			t.Errorf("%s prints %q, want %d figures above 0", what, out.String(), c.figures)
		}
	}
}

// TestHasDC: a software device has no DC, and that is no error.
func TestHasDC(t *testing.T) {
	name, _ := softDevice(t)
	if has, err := hasDC(name); has || err != nil {
		t.Errorf("%v, %v", has, err)
	}
}

// TestTimed: only the series that are counted are timed, and an error ends them.
func TestTimed(t *testing.T) {
	calls := 0
	slow := func(int) error { calls++; time.Sleep(time.Millisecond); return nil }
	if d, err := timed(2, []series{{3, slow}}); d != 0 || err != nil || calls != 3 {
		t.Errorf("not counted: %s, %v, %d calls", d, err, calls)
	}
	if d, err := timed(3, []series{{3, slow}, {1, slow}}); d < 3*time.Millisecond || err != nil {
		t.Errorf("counted: %s, %v", d, err)
	}
	bad := errors.New("bad")
	if _, err := timed(1, []series{{2, func(i int) error { return []error{nil, bad}[i] }}, {1, func(int) error { panic("not reached") }}}); !errors.Is(err, bad) || !strings.Contains(err.Error(), "object 2 of 2") {
		t.Errorf("%v, want object 2 of 2 and %v", err, bad)
	}
}

// TestMemory: objects with rings have memory of their own, which is found wherever it is.
func TestMemory(t *testing.T) {
	name, at := softDevice(t)
	dev, err := uverbs.Open(name, uverbs.OpenOptions{})
	must(t, err)
	defer dev.CloseAll()
	var out bytes.Buffer
	must(t, memory(&out, dev, at, 10, 0))
	for name, least := range map[string]float64{"PD": 0, "MR": 0, "CQ": 30, "CQ with events": 30, "QP": 40, "Conn, a goroutine in Recv": 30, "Conn, no goroutine": 30} {
		m := regexp.MustCompile(`(?m)^` + name + ` +(-?[0-9.]+) KiB of Go's heap and stacks, +(-?[0-9.]+) KiB mapped$`).FindStringSubmatch(out.String())
		if m == nil {
			t.Errorf("%s is missing in\n%s", name, out.String())
			continue
		}
		own, _ := strconv.ParseFloat(m[1], 64)
		others, _ := strconv.ParseFloat(m[2], 64)
		if own+others < least {
			t.Errorf("%s has %g and %g KiB, want at least %g", name, own, others, least)
		}
	}
}
