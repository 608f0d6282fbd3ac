package rdmacm

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
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
		e, _ := other.Next(ctx)
		got <- e
	}()
	must(t, other.WriteEvent(7, 1), other.WriteEvent(-int32(syscall.ENOENT), 1<<63))
	if e := <-got; e == nil || e.ID != other || e.Status != 7 || e.Arg != 1 {
		t.Errorf("event is %+v", e)
	}
	if e := value(other.Next(ctx))(t); !errors.Is(e.Err(), syscall.ENOENT) || e.Arg != 1<<63 || e.Type != EventUser {
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
	if e := value(other.Next(ctx))(t); e.Type != EventUser || e.Arg != 9 {
		t.Errorf("event is %+v", e)
	}
	must(t, other.Migrate(c))
}

// TestServices: services are looked up in InfiniBand's fabric, and Ethernet is not part of one.
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
		checkServices(t, c)
		return
	}
	if err == nil || !strings.Contains(err.Error(), "InfiniBand") || !strings.Contains(err.Error(), "driver "+testenv.TheRig().Driver) {
		t.Errorf("on RoCE: %v", err)
	}
	must(t, id.Listen(0)) // the ID is as it was
	testenv.Skip(t, err)
}

// checkServices looks services up that the subnet administrator has on record.
func checkServices(t *testing.T, c *Channel) {
	t.Helper()
	port := value(umad.Open(testenv.TheRig().Devices[0], 1))(t)
	t.Cleanup(func() { must(t, port.Close()) })
	agent := value(port.Register(umad.AgentOptions{Class: mad.ClassSA, Timeout: 5 * time.Second}))(t)
	dev := value(uverbs.Open(testenv.TheRig().Devices[0], uverbs.OpenOptions{}))(t)
	defer dev.Close()
	attr := value(dev.Port(1))(t)
	gid := value(dev.GID(1, 0))(t).GID
	ask := func(m mad.Method, s *mad.ServiceRecord, mask mad.Mask) {
		t.Helper()
		_, err := agent.Do(context.Background(), umad.Addr{LID: attr.SMLID}, value(mad.NewSA(m, s, mask))(t))
		must(t, err)
	}
	want := map[uint64]Service{}
	const key = mad.ServiceID | mad.ServiceGID | mad.ServicePKey
	for _, number := range []uint64{0x10004712, 0x10004713} {
		s := mad.ServiceRecord{
			ServiceID: number, ServiceGID: ib.GID(gid), ServicePKey: 0xffff, ServiceLease: 60, ServiceName: "cm test",
			ServiceData8: [16]uint8{15: 7}, ServiceData16: [8]uint16{7: 0x1234}, ServiceData32: [4]uint32{0: uint32(number)}, ServiceData64: [2]uint64{1: 1 << 63},
		}
		ask(mad.MethodSet, &s, key|mad.ServiceLease|mad.ServiceKey|mad.ServiceName|mad.ServiceData)
		t.Cleanup(func() { ask(mad.MethodDelete, &s, key) })
		want[number] = Service{
			ID: number, GID: gid, PKey: 0xffff, Name: s.ServiceName,
			Data8: s.ServiceData8, Data16: s.ServiceData16, Data32: s.ServiceData32, Data64: s.ServiceData64,
		}
	}
	for _, q := range []struct {
		name    string
		service uint64
		want    int
	}{{"cm test", 0, 2}, {"", 0x10004713, 1}, {"cm test", 0x10004712, 1}} {
		id := newID(t, c, TCP) // it can ask once
		must(t, id.Bind(Addr{IP: first}), id.ResolveService(q.name, q.service))
		if e := next(t, c, EventAddrInfoResolved); e.ID != id || e.Err() != nil {
			t.Errorf("service %q, %#x: event %+v", q.name, q.service, e)
		}
		got := value(id.Services())(t)
		if len(got) != q.want {
			t.Errorf("service %q, %#x: %d records, want %d", q.name, q.service, len(got), q.want)
		}
		for _, s := range got {
			lease := s.Lease
			if s.Lease = 0; s != want[s.ID] || lease <= 0 || lease > time.Minute {
				t.Errorf("service %q, %#x: %+v with a lease of %s, want %+v", q.name, q.service, s, lease, want[s.ID])
			}
		}
	}
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
