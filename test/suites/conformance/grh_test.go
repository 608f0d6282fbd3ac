package conformance

import (
	"os"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// TestGRH: where a port needs a GRH in every packet the endpoints have GIDs, and the addresses of
// connections and of datagrams are global and keep their LIDs. Where it does not there is neither.
func TestGRH(t *testing.T) {
	testenv.NotOnEFA(t, "connections")
	eachPath(t, func(t *testing.T) {
		testenv.NeedsIB(t, "GIDs")
		dev := openDevice(t, deviceName)
		port, err := dev.Port(1)
		must(t, err)
		required := port.GRHRequired()
		if required != (port.Flags&1 != 0) || !required && port.LinkLayer == ib.LinkLayerEthernet {
			t.Errorf("the flags of the %s port are %#x", port.LinkLayer, port.Flags)
		}
		a, b := newSide(t, dev, uverbs.QPOptions{}), newSide(t, dev, uverbs.QPOptions{})
		ea, err := a.qp.Endpoint()
		must(t, err)
		eb, err := b.qp.EndpointFor(ea)
		must(t, err)
		if os.Getenv("RDMAABI") == "write" { // the sides have a fixed GID, so there is one in any case
			required = true
		}
		if ea.GID.IsZero() == required || eb.GID.IsZero() == required || ea.LID != port.LID {
			t.Errorf("the endpoints are %+v and %+v; a GRH is required: %v", ea, eb, required)
		}
		must(t, a.qp.Connect(t.Context(), eb), b.qp.Connect(t.Context(), ea))
		attr, err := a.qp.Query()
		must(t, err)
		if attr.AH.Global != required || required && attr.AH.GRH.DGID != eb.GID || attr.AH.DLID != eb.LID {
			t.Errorf("the way to %+v is %+v", eb, attr.AH)
		}
		must(t, b.qp.PostRecv(1, b.mr.SGE(0, 100)), a.qp.PostSend(send(2, a.mr.SGE(0, 100))))
		a.want(t, 2, uverbs.WCSend)
		b.want(t, 1, uverbs.WCRecv)

		if rig.InfiniBand() {
			checkGRHOfAH(t, dev, port)
		}
	})
}

// checkGRHOfAH sends a datagram to an address without Global, as it may be on a port that does not need a GRH.
func checkGRHOfAH(t *testing.T, dev *uverbs.Device, port uverbs.PortAttr) {
	t.Helper()
	from, to := newSide(t, dev, uverbs.QPOptions{Type: ib.UD}), newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
	gid := gidOf(t, dev)
	ah, err := from.pd.CreateAH(uverbs.AHAttr{Port: 1, DLID: port.LID, GRH: uverbs.GRH{DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 1}})
	must(t, err)
	closeLater(t, ah)
	if ah.Attr().Global != port.GRHRequired() {
		t.Errorf("the AH is global: %v", ah.Attr().Global)
	}
	must(t, to.qp.PostRecv(3, to.mr.SGE(0, 1000)))
	wr := send(4, from.mr.SGE(0, 500))
	wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, to.qp.QPN(), testQKey
	must(t, from.qp.PostSend(wr))
	from.want(t, 4, uverbs.WCSend)
	if wc := to.want(t, 3, uverbs.WCRecv); wc.Flags&uverbs.WCWithGRH != 0 != port.GRHRequired() {
		t.Errorf("the datagram has a GRH: %v", wc.Flags&uverbs.WCWithGRH != 0)
	}
	if port.GRHRequired() {
		_, err := from.pd.CreateAH(uverbs.AHAttr{Port: 1, DLID: port.LID})
		argError(t, err, "GRH.DGID")
	}
}
