package conformance

import (
	"errors"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// TestECE connects two QPs that agree on options for enhanced connections, and a pair that does not
// ask. Without such options the errors say so, and the QPs connect as always.
func TestECE(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		dev := openDevice(t, deviceName)
		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		offers, err := a.qp.ECE()
		var feature *uverbs.FeatureError
		switch {
		case errors.As(err, &feature):
			if testenv.CardIs("ece") || feature.Feature != "ECE" {
				t.Errorf("the card has ECE: %v", err)
			}
			errorIs(t, a.qp.SetECE(uverbs.ECE{VendorID: mlx5Vendor, Options: 1}), errors.ErrUnsupported, "SetECE")
			connect(t, a, b)
		case err != nil:
			t.Fatal(err)
		default:
			if offers.VendorID != mlx5Vendor || offers.Options == 0 {
				t.Errorf("the device offers %+v", offers)
			}
			agree(t, a, b, offers)
		}
		eceTraffic(t, a, b)
		c, d := pair(t, uverbs.QPOptions{})
		if e, err := c.qp.ECE(); err == nil && e != offers {
			t.Errorf("a QP that has not set any has %+v, want %+v", e, offers)
		}
		eceTraffic(t, c, d)
	})
}

// mlx5Vendor is the vendor of the options of mlx5, the only driver with ECE.
const mlx5Vendor = 0x15b3

// agree connects two sides with the options that both accept.
func agree(t *testing.T, a, b *side, offers uverbs.ECE) {
	t.Helper()
	ea, err := a.qp.Endpoint()
	must(t, err)
	eb, err := b.qp.EndpointFor(ea)
	must(t, err)
	asked := offers
	if testenv.Modelled() {
		asked.Options |= 0x20 // which it does not have
	}
	must(t, b.qp.SetECE(asked))
	hasECE(t, b, uverbs.ECE{VendorID: offers.VendorID})
	must(t, b.qp.Connect(t.Context(), ea))
	agreed, err := b.qp.ECE()
	must(t, err)
	if agreed.VendorID != offers.VendorID || agreed.Options&^offers.Options != 0 || testenv.Modelled() && agreed != offers {
		t.Errorf("of %+v the device accepts %+v", offers, agreed)
	}
	argError(t, a.qp.SetECE(uverbs.ECE{VendorID: 1, Options: agreed.Options}), "VendorID")
	must(t, a.qp.SetECE(agreed), a.qp.Connect(t.Context(), eb))
	hasECE(t, a, agreed)
}

// hasECE checks the options of a QP.
func hasECE(t *testing.T, s *side, want uverbs.ECE) {
	t.Helper()
	if e, err := s.qp.ECE(); err != nil || e != want {
		t.Errorf("the QP has %+v, %v, want %+v", e, err, want)
	}
}

// eceTraffic sends a message each way.
func eceTraffic(t *testing.T, a, b *side) {
	t.Helper()
	for _, s := range [][2]*side{{a, b}, {b, a}} {
		from, to := s[0], s[1]
		want := from.fill(0, 3000, 7)
		must(t, to.qp.PostRecv(1, to.mr.SGE(4096, 3000)), from.qp.PostSend(send(2, from.mr.SGE(0, 3000))))
		from.want(t, 2, uverbs.WCSend)
		to.want(t, 1, uverbs.WCRecv)
		to.holds(t, 4096, want)
	}
}
