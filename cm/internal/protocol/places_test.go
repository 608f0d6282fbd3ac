package protocol

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
)

// TestPlacesShare: requests of an address that holds its share take the places of its own requests only, and
// others still find a place.
func TestPlacesShare(t *testing.T) {
	old := limits.Patience
	defer func() { limits.Patience = old }()
	limits.Patience = 0
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	p := NewPlaces(context.Background(), limits.Limits{Backlog: 100, HalfOpen: 8, Conns: 100, AddrShare: 75})
	admit := func(from netip.Addr) *Request {
		r, err := p.Admit(from)
		if err != nil {
			t.Fatal(err)
		}
		p.Answering(r)
		return r
	}
	honest := admit(b)
	var stranger []*Request
	for range 20 {
		stranger = append(stranger, admit(a))
	}
	gone := 0
	for _, r := range stranger {
		if errors.Is(context.Cause(r.Ctx), ErrEvicted) {
			gone++
		}
	}
	if _, _, halfOpen := p.Counts(); halfOpen != 7 || gone != 14 || honest.Ctx.Err() != nil {
		t.Errorf("%d requests are half open and %d were given up, want 7 and 14; that of another address: %v", halfOpen, gone, honest.Ctx.Err())
	}
	limits.Patience = time.Hour
	if _, err := p.Admit(a); !errors.Is(err, ErrManyWaiting) || err.Error() == ErrManyWaiting.Error() {
		t.Errorf("a request over the share: %v", err)
	}
	limits.Patience = 0
	other := []*Request{honest, admit(b), admit(b), admit(b)} // the last two take places of the address with the most
	limits.Patience = time.Hour
	if _, err := p.Admit(b); err == nil || err.Error() != ErrManyWaiting.Error() {
		t.Errorf("a request over HalfOpen, of an address with half of them: %v", err)
	}
	for _, r := range append(stranger, other...) {
		kept := context.Cause(r.Ctx) == nil
		if p.Completed(r) != kept {
			t.Errorf("completed is %t", !kept)
		}
		if kept {
			p.Accepted(r)
			p.Closed(r)
		}
	}
	if p.usage.Count != (limits.Count{}) {
		t.Errorf("%+v remains", p.usage)
	}
}
