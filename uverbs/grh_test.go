package uverbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// infiniBand is a QP on an InfiniBand port with LID 5 and two GIDs, of which the second is of
// another subnet. required says that every packet of the port needs a GRH.
func infiniBand(t *testing.T, required bool, o QPOptions) *fakeQP {
	t.Helper()
	f := newFakeQP(t, o)
	f.ahNum = 9 // the kernel knows the AH by a number, and the library needs no Ethernet address
	f.port.LinkLayer, f.port.LID = uint8(ib.LinkLayerInfiniBand), 5
	if required {
		f.port.Flags = abi.IB_UVERBS_QPF_GRH_REQUIRED
	}
	for i, addr := range []string{"fe80::1", "fec0:0:0:7::1"} {
		e := abi.GIDEntry{GIDIndex: uint32(i), PortNum: 1}
		g := gid(t, addr)
		copy(bytesOf(&e.GID), g[:])
		f.gids = append(f.gids, e)
	}
	return f
}

// TestGRHRequired: on an InfiniBand port that needs a GRH an endpoint has a GID, and every address
// is global and keeps its LID. On another one a GRH is used only if the peer has a GID.
func TestGRHRequired(t *testing.T) {
	local, peer := gid(t, "fe80::1"), gid(t, "fe80::2")
	for _, c := range []struct {
		name     string
		required bool
		peer     ib.GID
		endpoint ib.GID // that EndpointFor the peer has
		global   uint8
	}{
		{"required", true, peer, local, 1},
		{"not required", false, ib.GID{}, ib.GID{}, 0},
		{"required by the peer", false, peer, local, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := infiniBand(t, c.required, QPOptions{})
			if attr := value(f.dev.Port(1))(t); attr.GRHRequired() != c.required {
				t.Errorf("GRHRequired is %v", attr.GRHRequired())
			}
			first := value(f.qp.Endpoint())(t)
			if want := map[bool]ib.GID{true: local}[c.required]; first.GID != want || first.LID != 5 {
				t.Errorf("the endpoint is %+v, want GID %s", first, want)
			}
			remote := Endpoint{QPN: 77, LID: 6, GID: c.peer}
			if e := value(f.qp.EndpointFor(remote))(t); e.GID != c.endpoint || e.LID != 5 {
				t.Errorf("the endpoint for %s is %+v, want GID %s", remote, e, c.endpoint)
			}
			f.calls = nil
			must(t, f.qp.Connect(t.Context(), remote))
			want := abi.QPDest{DLID: 6, PortNum: 1}
			if c.global != 0 {
				want.IsGlobal, want.DGID, want.HopLimit = 1, c.peer, 64
			}
			if steps := f.modifies(); steps[1].Dest != want {
				t.Errorf("the address is %+v, want %+v", steps[1].Dest, want)
			}
			ah := value(f.pd.CreateAH(AHAttr{Port: 1, DLID: 6, GRH: GRH{DGID: c.peer}}))(t)
			var req abi.CreateAH
			copy(bytesOf(&req), f.last("CREATE_AH").in)
			if global := map[bool]uint8{true: 1}[c.required]; req.Attr.IsGlobal != global || req.Attr.DLID != 6 || ah.Attr().Global != c.required {
				t.Errorf("the AH is %+v, want global %d", req.Attr, global)
			}
			f.calls = nil
			must(t, f.qp.Modify(QPAttr{State: ib.QPReset}, AttrState), f.qp.Init(), ah.Close())
			f.calls = nil
			must(t, f.qp.Modify(QPAttr{State: ib.QPRTR, PathMTU: ib.MTU1024, AH: AHAttr{Port: 1, DLID: 6, GRH: GRH{DGID: c.peer}}},
				AttrState|AttrAH|AttrPathMTU|AttrDestQPN|AttrRQPSN|AttrMaxDestRdAtomic|AttrMinRNRTimer))
			if dest := f.modifies()[0].Dest; dest.IsGlobal != map[bool]uint8{true: 1}[c.required] || dest.DLID != 6 {
				t.Errorf("Modify has %+v", dest)
			}
		})
	}
}

// TestGRHMissing: without the peer's GID there is an error that says what needs it, and the kernel
// is not asked.
func TestGRHMissing(t *testing.T) {
	f := infiniBand(t, true, QPOptions{})
	value(f.dev.Port(1))(t)
	f.calls = nil
	_, ah := f.pd.CreateAH(AHAttr{Port: 1, DLID: 6})
	f.state(ib.QPInit)
	for name, err := range map[string]error{
		"Connect":  f.qp.Connect(t.Context(), Endpoint{QPN: 77, LID: 6}),
		"CreateAH": ah,
		"Modify": f.qp.Modify(QPAttr{State: ib.QPRTR, PathMTU: ib.MTU1024, AH: AHAttr{Port: 1, DLID: 6}},
			AttrState|AttrAH|AttrPathMTU|AttrDestQPN|AttrRQPSN|AttrMaxDestRdAtomic|AttrMinRNRTimer),
	} {
		var arg *ArgError
		if !errors.As(err, &arg) || !strings.Contains(err.Error(), "GID is zero, allowed: the peer's GID, as port 1 of rxe0 needs a GRH in every packet") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range f.took() {
		if !strings.Contains(c, "QUERY_PORT") {
			t.Errorf("the kernel got %s", c)
		}
	}
}

// TestGRHHint: where the kernel refuses an address without a GRH on a port that needs one, the error
// says so.
func TestGRHHint(t *testing.T) {
	f := newFakeQP(t, QPOptions{}) // on Ethernet
	f.port.Flags = abi.IB_UVERBS_QPF_GRH_REQUIRED
	f.refuse["CREATE_AH"] = syscall.EINVAL
	if _, err := f.pd.CreateAH(AHAttr{Port: 1}); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "port 1 of rxe0 needs a GRH in every packet: Global is not set") {
		t.Errorf("CreateAH: %v", err)
	}
}

// TestPortFacts: attributes of a port that do not change are queried once.
func TestPortFacts(t *testing.T) {
	f := infiniBand(t, true, QPOptions{})
	f.calls = nil
	for range 3 {
		value(f.dev.facts(1))(t)
		value(f.dev.GID(1, 1))(t)
	}
	asked := 0
	for _, c := range f.took() {
		if strings.Contains(c, "QUERY_PORT") {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("the kernel got %d queries of the port, want 1", asked)
	}
	if _, err := f.dev.facts(3); err == nil {
		t.Error("a device of two ports has facts about port 3")
	}
}
