package cm

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// deviceOffers returns the options of the first device; the zero value is none.
func deviceOffers(t *testing.T) rdmacm.ECE {
	t.Helper()
	c := openKernel(t)
	_, addr := listen(t, c, rdmacm.TCP, first)
	id := newID(t, c, rdmacm.TCP)
	resolve(t, c, id, addr)
	offers, err := newEnd(t, id, ib.RC).qp.ECE()
	switch {
	case errors.Is(err, errors.ErrUnsupported) && !testenv.CardIs("ece"):
		return rdmacm.ECE{}
	case err != nil || offers.Options == 0:
		t.Fatalf("the device offers %+v, %v", offers, err)
	}
	return offers
}

// TestConnECE connects with all pairs of modes. The sides agree on options only if both take part,
// and a side that requires options does not connect without.
func TestConnECE(t *testing.T) {
	offers := deviceOffers(t)
	modes := []rdmacm.ECEMode{rdmacm.ECEOff, rdmacm.ECEOptional, rdmacm.ECERequired}
	for _, there := range modes {
		refusals := make(chan error, 10)
		l := newListener(t, ListenOptions{ConnOptions: ConnOptions{Tuning: Tuning{ECE: there}}, Refused: func(_ rdmacm.Addr, err error) { refusals <- err }})
		for _, here := range modes {
			o := DialOptions{ConnOptions: ConnOptions{Tuning: Tuning{ECE: here}}}
			takePart := here != rdmacm.ECEOff && there != rdmacm.ECEOff && offers.Options != 0
			if (here == rdmacm.ECERequired || there == rdmacm.ECERequired) && !takePart {
				c, err := Dial(within(t), l.Addr().String(), o)
				if err == nil {
					t.Errorf("%s to %s: connected, with %+v", here, there, c.ECE())
					c.Close()
				}
				noDevice := here == rdmacm.ECERequired && offers.Options == 0
				if errors.Is(err, errors.ErrUnsupported) != noDevice || !noDevice && !testenv.TheRig().IWARP() && (!errors.Is(err, rdmacm.ErrNoECE) || there == rdmacm.ECERequired && !errors.Is(err, syscall.ECONNREFUSED)) {
					t.Errorf("%s to %s: %v", here, there, err)
				}
				if !noDevice {
					select {
					case why := <-refusals:
						if there == rdmacm.ECERequired && !errors.Is(why, rdmacm.ErrNoECE) {
							t.Errorf("%s to %s: the listener reports %v", here, there, why)
						}
					case <-within(t).Done():
						t.Fatalf("%s to %s: the listener reports nothing", here, there)
					}
				}
				continue
			}
			client, server := connect(t, l, o)
			want := rdmacm.ECE{}
			if takePart {
				want = offers
			}
			if client.ECE() != want || server.ECE() != want {
				t.Errorf("%s to %s: options %+v and %+v, want %+v", here, there, client.ECE(), server.ECE(), want)
			}
			flood(t, within(t), client, server)
			flood(t, within(t), server, client)
		}
	}
	for _, o := range []ConnOptions{{Tuning: Tuning{ECE: 3}}, {Tuning: Tuning{ECE: 255}}} {
		var arg *ArgError
		if _, err := Listen(within(t), net.JoinHostPort(first.String(), "0"), ListenOptions{ConnOptions: o}); !errors.As(err, &arg) || arg.Field != "ECE" {
			t.Errorf("%s: %v", o.ECE, err)
		}
	}
}

// TestECENoFallback: a program that requires options does not get a connection by TCP where a
// device does not have them.
func TestECENoFallback(t *testing.T) {
	missing := &uverbs.FeatureError{Feature: "ECE", Driver: "rxe"}
	if !isNoRDMA(missing) || isNoRDMA(fmt.Errorf("%w: %w", rdmacm.ErrNoECE, missing)) {
		t.Error("a device without options counts as none")
	}
}
