package cm

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestUserEvent: a goroutine writes an event that another waits for.
func TestUserEvent(t *testing.T) {
	c := openKernel(t)
	id, other := newID(t, c, TCP), newID(t, c, UDP)
	testenv.Skip(t, id.WriteEvent(0, 0x1122334455667788))
	if e := next(t, c, EventUser); e.ID != id || e.Arg != 0x1122334455667788 || e.Err() != nil {
		t.Errorf("event is %+v", e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*timeout)
	defer cancel()
	got := make(chan *Event)
	go func() {
		e, _ := other.Wait(ctx)
		got <- e
	}()
	must(t, other.WriteEvent(7, 1), other.WriteEvent(-int32(syscall.ENOENT), 1<<63))
	if e := <-got; e == nil || e.ID != other || e.Status != 7 || e.Arg != 1 {
		t.Errorf("event is %+v", e)
	}
	if e := value(other.Wait(ctx))(t); !errors.Is(e.Err(), syscall.ENOENT) || e.Arg != 1<<63 || e.Type != EventUser {
		t.Errorf("event is %+v", e)
	}

	// A step that waits ends with it.
	must(t, id.WriteEvent(0, 5))
	var ended *EventError
	if _, err := id.waitFor(ctx, "connect", EventEstablished); !errors.As(err, &ended) || ended.Type != EventUser {
		t.Errorf("the step ends with %v", err)
	}
	// The event goes along to another channel.
	d := openKernel(t)
	must(t, other.WriteEvent(0, 9), other.Migrate(d))
	if e := value(other.Wait(ctx))(t); e.Type != EventUser || e.Arg != 9 {
		t.Errorf("event is %+v", e)
	}
	must(t, other.Migrate(c))
}

// TestServices: services are looked up in InfiniBand's fabric, and Ethernet is not of it.
func TestServices(t *testing.T) {
	c := openKernel(t)
	id := newID(t, c, TCP)
	err := id.ResolveService("printer", 0)
	testenv.Skip(t, err)
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "not bound") {
		t.Errorf("of an ID without a device: %v", err)
	}
	if _, err := id.Services(); !errors.Is(err, syscall.ENODATA) {
		t.Errorf("services: %v", err)
	}
	must(t, id.Bind(Addr{IP: first}))
	err = id.ResolveService("printer", 0x1234)
	if testenv.TheRig().InfiniBand() {
		must(t, err)
		if e := next(t, c, EventAddrInfoError); e.ID != id || e.Err() == nil {
			t.Errorf("of a service that nobody has: %+v, %v", e, e.Err())
		}
		return
	}
	if err == nil || !strings.Contains(err.Error(), "InfiniBand") || !strings.Contains(err.Error(), "driver "+testenv.TheRig().Driver) {
		t.Errorf("on RoCE: %v", err)
	}
	must(t, id.Listen(0)) // the ID is as it was
	testenv.Skip(t, err)
}

// TestServicesUnsupported: a kernel without services says so.
func TestServicesUnsupported(t *testing.T) {
	c := openKernel(t)
	_, err := newID(t, c, TCP).Services()
	testenv.Skip(t, err)
	if !errors.Is(err, syscall.ENODATA) {
		t.Errorf("services: %v", err)
	}
}
