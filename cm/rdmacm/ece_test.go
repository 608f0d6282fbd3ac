package rdmacm

import (
	"errors"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// mlx5Vendor is the vendor of the options of mlx5, the only driver with ECE.
const mlx5Vendor = 0x15b3

// deviceOffers returns the options of the first device; the zero value is none.
func deviceOffers(t *testing.T) ECE {
	t.Helper()
	c := openKernel(t)
	_, addr := listen(t, c, TCP, first)
	id := newID(t, c, TCP)
	resolve(t, c, id, addr)
	offers, err := newEnd(t, id, ib.RC).qp.ECE()
	switch {
	case errors.Is(err, errors.ErrUnsupported) && !testenv.CardIs("ece"):
		return ECE{}
	case err != nil || offers.Options == 0:
		t.Fatalf("the device offers %+v, %v", offers, err)
	}
	return offers
}

// TestECEAnswer: an ID answers with the options that its device has, and with none to another vendor.
func TestECEAnswer(t *testing.T) {
	testenv.NeedsIB(t, "options for enhanced connections")
	offers := deviceOffers(t)
	c := openKernel(t)
	_, addr := listen(t, c, TCP, first)
	for _, f := range []struct {
		name       string
		mode       ECEMode
		asked      ECE
		want, uses uint32
		fails      bool
	}{
		{name: "nothing", mode: ECEOptional},
		{name: "nothing, but required", mode: ECERequired, fails: true},
		{name: "another vendor", mode: ECEOptional, asked: ECE{VendorID: 0x1234, Options: 7}},
		{name: "another vendor, but required", mode: ECERequired, asked: ECE{VendorID: 0x1234, Options: 7}, fails: true},
		{name: "no option", mode: ECEOptional, asked: ECE{VendorID: mlx5Vendor}},
		{name: "only the version", mode: ECEOptional, asked: ECE{VendorID: mlx5Vendor, Options: 0x10000000}},
		{name: "only the version, but required", mode: ECERequired, asked: ECE{VendorID: mlx5Vendor, Options: 0x10000000}, fails: true},
		{name: "off", mode: ECEOff, asked: ECE{VendorID: mlx5Vendor, Options: 5}},
		{name: "some", mode: ECERequired, asked: ECE{VendorID: mlx5Vendor, Options: 0x10000005}, want: 0x10000005 & offers.Options, uses: 0x10000005 & offers.Options, fails: offers.Options == 0},
		{name: "more than there are", mode: ECEOptional, asked: ECE{VendorID: mlx5Vendor, Options: 0x10000035}, want: 0x10000035 & offers.Options, uses: 0x10000035 & offers.Options},
	} {
		t.Run(f.name, func(t *testing.T) {
			id := newID(t, c, TCP)
			resolve(t, c, id, addr)
			client := newEnd(t, id, ib.RC)
			must(t, id.Connect(ConnParam{RetryCount: 7, RNRRetryCount: 6, QPN: client.qp.QPN(), ECE: f.asked}))
			request := next(t, c, EventConnectRequest)
			t.Cleanup(func() { must(t, request.ID.Close()) })
			must(t, request.ID.SetECE(f.mode))
			end := newEnd(t, id, ib.RC) // its PD and CQ
			qp, err := request.ID.CreateQP(end.pd, uverbs.QPOptions{SendCQ: end.cq, RecvCQ: end.cq})
			if f.mode == ECERequired && offers.Options == 0 {
				if !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("CreateQP: %v", err)
				}
				return
			}
			must(t, err)
			t.Cleanup(func() { must(t, request.ID.Close()) }) // before what the QP uses
			err = request.ID.Accept(ConnParam{RNRRetryCount: 7})
			if f.fails {
				if !errors.Is(err, ErrNoECE) {
					t.Errorf("Accept: %v", err)
				}
				if e := refuse(t, c, request, nil, ReasonVendorOption); !errors.Is(e.Err(), ErrNoECE) {
					t.Errorf("the peer learns %v", e.Err())
				}
				return
			}
			must(t, err)
			want := ECE{VendorID: f.asked.VendorID, Options: f.want}
			if f.mode == ECEOff {
				want = ECE{}
			}
			if e := next(t, c, EventConnectResponse); e.Param.ECE != want {
				t.Errorf("the answer has %+v, want %+v", e.Param.ECE, want)
			}
			if got := request.ID.ECE(); got.Options != f.uses {
				t.Errorf("the QP uses %+v, want %#x", got, f.uses)
			}
			if f.mode != ECEOff && offers.Any() {
				if got := value(qp.ECE())(t); got.Options != f.uses {
					t.Errorf("the QP says that it uses %+v, want %#x", got, f.uses)
				}
			}
			must(t, id.Establish())
			next(t, c, EventEstablished)
		})
	}
}

// TestECEBadAnswer: an answer with options of a vendor that this side has not named ends the connection,
// and the peer is told why. The device ignores options that it does not have.
func TestECEBadAnswer(t *testing.T) {
	testenv.NeedsIB(t, "options for enhanced connections")
	offers := deviceOffers(t)
	c := openKernel(t)
	_, addr := listen(t, c, TCP, first)
	for _, answer := range []ECE{{VendorID: 0x1234, Options: 1}, {VendorID: mlx5Vendor, Options: ^uint32(0)}} {
		id := newID(t, c, TCP)
		resolve(t, c, id, addr)
		must(t, id.SetECE(ECEOptional))
		end := newEnd(t, id, ib.RC)
		value(id.CreateQP(end.pd, uverbs.QPOptions{SendCQ: end.cq, RecvCQ: end.cq}))(t)
		t.Cleanup(func() { must(t, id.Close()) }) // before what the QP uses
		must(t, id.Connect(ConnParam{RetryCount: 7, RNRRetryCount: 6}))
		request := next(t, c, EventConnectRequest)
		t.Cleanup(func() { must(t, request.ID.Close()) })
		if request.Param.ECE != offers {
			t.Errorf("the request has %+v, want %+v", request.Param.ECE, offers)
		}
		server := newEnd(t, request.ID, ib.RC)
		server.to(t, ib.QPRTR)
		server.to(t, ib.QPRTS)
		must(t, request.ID.Accept(ConnParam{RNRRetryCount: 7, QPN: server.qp.QPN(), ECE: answer}))
		seen := map[EventType]error{}
		if answer.VendorID == offers.VendorID {
			next(t, c, EventEstablished)
			next(t, c, EventEstablished)
			if got := id.ECE(); got != offers {
				t.Errorf("%+v: the QP uses %+v, want %+v", answer, got, offers)
			}
			continue
		}
		for range 2 {
			e := value(c.Next(within(t)))(t)
			seen[e.Type] = e.Err()
		}
		if err := seen[EventConnectError]; !errors.Is(err, ErrNoECE) || !strings.Contains(err.Error(), "this side has offered") {
			t.Errorf("%+v: this side gets %v", answer, seen)
		}
		if err := seen[EventRejected]; !errors.Is(err, ErrNoECE) {
			t.Errorf("%+v: the peer gets %v", answer, seen)
		}
		if got := id.ECE(); got != (ECE{}) {
			t.Errorf("%+v: the QP uses %+v", answer, got)
		}
	}
}

// TestECEArguments: modes that there are not, or not for datagrams.
func TestECEArguments(t *testing.T) {
	c := openKernel(t)
	var arg *ArgError
	if err := newID(t, c, TCP).SetECE(3); !errors.As(err, &arg) || arg.Given != "ECE mode 3" {
		t.Errorf("mode 3: %v", err)
	}
	datagrams := newID(t, c, UDP)
	if err := datagrams.SetECE(ECEOptional); !errors.As(err, &arg) || arg.Field != "mode" || arg.Given != "ECEOptional" {
		t.Errorf("datagrams: %v", err)
	}
	must(t, datagrams.SetECE(ECEOff))
}
