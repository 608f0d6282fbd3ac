package perf

import (
	"net/netip"
	"testing"
	"time"
)

// TestLimitsHang: while the device for one address does not answer, clients at that address wait for the
// answer, and others have theirs.
func TestLimitsHang(t *testing.T) {
	slow, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	hangs := &asked{at: time.Now().Add(time.Hour), done: make(chan struct{})}
	d := &devices{server: &Server{}, device: "nothing", asked: map[netip.Addr]*asked{slow: hangs}}
	type answer struct {
		limits Limits
		err    error
	}
	waits := make(chan answer)
	go func() {
		l, err := d.limits(slow)
		waits <- answer{l, err}
	}()
	if _, err := d.limits(other); err == nil {
		t.Error("there is no device, and no error")
	}
	first := d.asked[other]
	first.at = time.Now().Add(time.Hour) // fresh, however slow this machine is
	if _, err := d.limits(other); err != first.err || d.asked[other] != first {
		t.Errorf("asked again at once: %v, first %v", err, first.err)
	}
	first.at = time.Now().Add(-2 * fresh)
	if d.limits(other); d.asked[other] == first {
		t.Error("an old answer holds")
	}
	hangs.limits.MaxQPs = 7
	close(hangs.done)
	if a := <-waits; a.err != nil || a.limits.MaxQPs != 7 {
		t.Errorf("%+v, want the answer of the device", a)
	}
}
