package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
)

// TestZeroValues: objects that this package did not make, and nil arguments, are errors and no panics.
func TestZeroValues(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	args := idArgs{ctx: ctx, addr: Addr{IP: netip.AddrFrom4([4]byte{192, 0, 2, 1})}, group: netip.AddrFrom4([4]byte{239, 7, 1, 1}), to: &Channel{}, pd: &uverbs.PD{}}
	for m := range reflect.TypeFor[*ID]().Methods() {
		err, _ := args.call(&ID{}, m.Name)
		switch m.Name {
		case "ECE", "SetECE", "SetQPAckTimeout", "SetRNRRetryCount", "SetRetryCount", "ShareEvents": // need nothing
		default:
			if err == nil {
				t.Errorf("%s of a zero ID succeeds", m.Name)
			}
		}
	}
	c, _ := newFake(t)
	id := value(c.NewID(TCP))(t)
	for name, err := range map[string]error{
		"NewID":              second1((&Channel{}).NewID(TCP)),
		"Next":               second1((&Channel{}).Next(t.Context())),
		"Read":               second1((&Channel{}).Read(t.Context())),
		"Close of a Channel": (&Channel{}).Close(),
		"Close of a Group":   (&Group{}).Close(),
		"Migrate":            id.Migrate(&Channel{}),
		"Migrate to nil":     id.Migrate(nil),
		"CheckRemote":        id.CheckRemote(nil),
		"CreateQP":           second1(id.CreateQP(nil, uverbs.QPOptions{})),
		"CreateQP, zero PD":  second1(id.CreateQP(&uverbs.PD{}, uverbs.QPOptions{})),
		"CreateSRQ":          second1(id.CreateSRQ(&uverbs.PD{}, uverbs.SRQOptions{})),
		"Bind":               id.Bind(Addr{}),
		"Bind, zone":         id.Bind(Addr{IP: netip.MustParseAddr("fe80::1%nosuch0")}),
		"SetPath":            id.SetPath(Path{}),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	id.queues.bound.Store(&boundDevice{port: 1})
	var arg *ArgError
	if _, err := id.CreateQP(&uverbs.PD{}, uverbs.QPOptions{}); !errors.As(err, &arg) || arg.Field != "pd" {
		t.Errorf("CreateQP on a device, with a zero PD: %v", err)
	}
	must(t, id.Close())
	for typ := range EventInternal + 2 {
		for _, status := range []int32{0, 1, -1, 1000, -1 << 31} {
			for _, id := range []*ID{nil, {}, id} {
				e := &Event{ID: id, Type: typ, Status: status}
				e.AdvanceQP()
				e.AdvanceQP()
				if err := e.Err(); err != nil && err.Error() == "" {
					t.Errorf("%+v has an empty error", e)
				}
			}
		}
	}
}
