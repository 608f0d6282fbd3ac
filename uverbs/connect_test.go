package uverbs

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// connectable is a QP on a port with an IPv4 and an IPv6 address.
func connectable(t *testing.T, o QPOptions) *fakeQP {
	t.Helper()
	f := newFakeQP(t, o)
	for i, addr := range []string{"fe80::1", "10.1.0.1", "fd00:1::1"} {
		e := abi.GIDEntry{GIDIndex: uint32(i), PortNum: 1, GIDType: 2, NetdevIfindex: 3}
		g := gid(t, addr)
		copy(bytesOf(&e.GID), g[:])
		f.gids = append(f.gids, e)
	}
	return f
}

// modifies returns what the kernel got by MODIFY_QP.
func (k *fakeKernel) modifies() []abi.ModifyQP {
	var all []abi.ModifyQP
	for _, c := range k.calls {
		if c.verb == "MODIFY_QP" {
			var m abi.ModifyQP
			copy(bytesOf(&m), c.in)
			all = append(all, m)
		}
	}
	k.calls = nil
	return all
}

// TestConnect: the three steps with the defaults, and with every option.
func TestConnect(t *testing.T) {
	peer := Endpoint{QPN: 77, PSN: 88, GID: gid(t, "10.1.0.2")}
	for _, c := range []struct {
		name string
		path PathOptions
		want []abi.ModifyQP
	}{
		{"defaults", PathOptions{}, []abi.ModifyQP{
			{QPAccessFlags: 2 | 4 | 8, PortNum: 1, QPState: 1},
			{Dest: abi.QPDest{DGID: peer.GID, SGIDIndex: 1, HopLimit: 64, IsGlobal: 1, PortNum: 1}, RQPSN: 88, DestQPNum: 77, QPState: 2, PathMTU: 3,
				MaxDestRDAtomic: 8, MinRNRTimer: 12},
			{QPState: 3, MaxRDAtomic: 8, Timeout: 14, RetryCnt: 6, RNRRetry: 7},
		}},
		{"options", PathOptions{Port: 1, GIDIndex: new(2), MTU: ib.MTU512, SL: 3, TrafficClass: 4, FlowLabel: 5, StaticRate: ib.Rate10G, HopLimit: 6, Timeout: 7, RetryCount: 2, RNRRetry: 1,
			MinRNRTimer: 8, MaxRdAtomic: 2, Access: AccessRemoteRead}, []abi.ModifyQP{
			{QPAccessFlags: 4, PortNum: 1, QPState: 1},
			{Dest: abi.QPDest{DGID: peer.GID, SGIDIndex: 2, HopLimit: 6, TrafficClass: 4, FlowLabel: 5, SL: 3, StaticRate: 3, IsGlobal: 1, PortNum: 1}, RQPSN: 88,
				DestQPNum: 77, QPState: 2, PathMTU: 2, MaxDestRDAtomic: 2, MinRNRTimer: 8},
			{QPState: 3, MaxRDAtomic: 2, Timeout: 7, RetryCnt: 2, RNRRetry: 1},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := connectable(t, QPOptions{Path: c.path})
			must(t, f.qp.Connect(t.Context(), peer))
			for i, mask := range []QPAttrMask{
				AttrState | AttrPKeyIndex | AttrPort | AttrAccess,
				AttrState | AttrAH | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
				AttrState | AttrTimeout | AttrRetryCount | AttrRNRRetry | AttrSQPSN | AttrMaxRdAtomic,
			} {
				c.want[i].QPHandle, c.want[i].AttrMask = f.qp.handle, uint32(mask)
			}
			c.want[2].SQPSN = f.qp.firstPSN()
			got := f.modifies()
			for i := range max(len(got), len(c.want)) {
				if i >= len(got) || i >= len(c.want) || got[i] != c.want[i] {
					t.Errorf("step %d of %d, want %d:\n got %+v\nwant %+v", i, len(got), len(c.want), got, c.want)
					break
				}
			}
			if f.qp.State() != ib.QPRTS {
				t.Errorf("state is %s, want RTS", f.qp.State())
			}
			local := value(f.qp.Endpoint())(t)
			want := "10.1.0.1"
			if c.path.GIDIndex != nil {
				want = "fd00:1::1" // at index 2
			}
			if local.QPN != f.qp.QPN() || local.PSN != f.qp.firstPSN() || local.GID.Addr().String() != want {
				t.Errorf("the local endpoint is %+v", local)
			}
		})
	}
}

// TestConnectSteps: from Init the first step is left out, a QP that is connected is not
// connected again, and a context that is done stops between the steps.
func TestConnectSteps(t *testing.T) {
	f := connectable(t, QPOptions{})
	peer := Endpoint{QPN: 77, GID: gid(t, "fd00:1::2")}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.qp.Connect(ctx, peer); !errors.Is(err, context.Canceled) || f.qp.State() != ib.QPReset {
		t.Errorf("Connect with a context that is done: %v, state %s", err, f.qp.State())
	}
	must(t, f.qp.Init())
	f.calls = nil
	must(t, f.qp.Connect(t.Context(), peer))
	if got := f.modifies(); len(got) != 2 || got[0].Dest.SGIDIndex != 2 {
		t.Errorf("from Init: %+v, want two steps, with the IPv6 GID", got)
	}
	if err := f.qp.Connect(t.Context(), peer); err == nil || !strings.Contains(err.Error(), "connect to fd00:1::2 QP 77") || !strings.Contains(err.Error(), "QP in RTS: State is RTR") {
		t.Errorf("Connect again: %v", err)
	}
}

func TestConnectRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		path   PathOptions
		peer   string
		change func(f *fakeQP, e *Endpoint)
		want   string
	}{
		{"QPN", PathOptions{}, "10.1.0.2", func(_ *fakeQP, e *Endpoint) { e.QPN = 1 << 24 }, "remote QPN is 16777216, allowed: 0 to 16777215"},
		{"PSN", PathOptions{}, "10.1.0.2", func(_ *fakeQP, e *Endpoint) { e.PSN = 1 << 24 }, "remote PSN is 16777216"},
		{"no GID", PathOptions{}, "::", nil, "remote GID is zero"},
		{"GID index", PathOptions{GIDIndex: new(3)}, "10.1.0.2", nil, "GID index is 3, allowed: 0 to 3, if it is in use; in use are 0: fe80:"},
		{"negative GID index", PathOptions{GIDIndex: new(-1)}, "10.1.0.2", nil, "GID index is -1, allowed: 0 to 3"},
		{"long GID table", PathOptions{GIDIndex: new(300)}, "10.1.0.2", func(f *fakeQP, _ *Endpoint) { f.gids[1].GIDIndex, f.port.GIDTblLen = 300, 400 }, "GID index is 300, allowed: 0 to 255"},
		{"empty table", PathOptions{}, "10.1.0.2", func(f *fakeQP, _ *Endpoint) { f.gids = nil }, "the GID table of port 1 of rxe0 is empty"},
		{"other family", PathOptions{}, "10.1.0.2", func(f *fakeQP, _ *Endpoint) { f.gids = f.gids[2:] }, "remote GID is 10.1.0.2, allowed: an address of the family of a local GID"},
		{"MTU", PathOptions{MTU: ib.MTU4096}, "10.1.0.2", nil, "Path.MTU is 4096, allowed: up to 1024, the active MTU of port 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := connectable(t, QPOptions{Path: c.path})
			e := Endpoint{QPN: 1, GID: gid(t, c.peer)}
			if c.change != nil {
				c.change(f, &e)
			}
			var arg *ArgError
			if err := f.qp.Connect(t.Context(), e); !errors.As(err, &arg) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %s", err, c.want)
			}
			if got := f.modifies(); len(got) != 0 || f.qp.State() != ib.QPReset {
				t.Errorf("the QP is in %s after %d steps", f.qp.State(), len(got))
			}
		})
	}
}

// TestPortDown: without an active port nothing connects, and the port is described.
func TestPortDown(t *testing.T) {
	f := connectable(t, QPOptions{})
	f.port.State, f.port.PhysState = uint8(ib.PortDown), 3
	_, endpointErr := f.qp.Endpoint()
	for name, err := range map[string]error{"Connect": f.qp.Connect(t.Context(), Endpoint{}), "Init": f.qp.Init(), "Endpoint": endpointErr} {
		if !errors.Is(err, syscall.ENETDOWN) || !strings.Contains(err.Error(), "port 1 is DOWN (DISABLED)") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConnectFromEndpoint: Connect sends from the GID that Endpoint has returned, whatever is chosen for
// the peer by then, and Endpoint returns the GID that Connect has chosen.
func TestConnectFromEndpoint(t *testing.T) {
	entry := func(index uint32, addr string) abi.GIDEntry {
		e := abi.GIDEntry{GIDIndex: index, PortNum: 1, GIDType: 2, NetdevIfindex: 1}
		g := gid(t, addr)
		copy(bytesOf(&e.GID), g[:])
		return e
	}
	old := []abi.GIDEntry{entry(1, "10.1.0.1"), entry(2, "fd00:1::1"), entry(3, "fe80::1")}
	// 127.0.0.1 is an address of this network namespace, which 10.1.0.1 is not.
	moved := []abi.GIDEntry{entry(0, "127.0.0.1"), entry(1, "fe80::1"), entry(2, "fd00:1::1"), entry(5, "10.1.0.1")}
	for _, c := range []struct {
		name  string
		told  string // the peer that EndpointFor gets, empty for no call
		table []abi.GIDEntry
		peer  string
		from  int // the index that Connect uses, -1 for an error
		after string
	}{
		{"peer not told", "", moved, "10.1.0.2", 0, "127.0.0.1"},
		{"told to an unknown peer", "::", moved, "10.1.0.2", 5, "10.1.0.1"},
		{"told to the peer", "10.1.0.2", moved, "10.1.0.2", 5, "10.1.0.1"},
		{"told to an IPv6 peer", "fd00:1::2", moved, "fd00:1::2", 2, "fd00:1::1"},
		{"the peer has the other family", "::", moved, "fd00:1::2", 2, "fd00:1::1"},
		{"the peer is link-local", "fd00:1::2", moved, "fe80::2", 1, "fe80::1"},
		{"the GID is gone", "::", moved[:3], "10.1.0.2", -1, "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := connectable(t, QPOptions{})
			use := func(table []abi.GIDEntry) {
				f.gids = table
				f.dev.ports.gids.Store(nil)
			}
			use(old)
			if c.told != "" {
				value(f.qp.EndpointFor(Endpoint{GID: gid(t, c.told)}))(t)
			}
			use(c.table)
			f.calls = nil
			err := f.qp.Connect(t.Context(), Endpoint{QPN: 77, GID: gid(t, c.peer)})
			if c.from < 0 {
				if err == nil || !strings.Contains(err.Error(), "local GID is 10.1.0.1, allowed: the GID that Endpoint returned, if port 1 of rxe0 still has it; it has only 0:") {
					t.Errorf("error %v", err)
				}
			} else {
				must(t, err)
				if from := f.modifies()[1].Dest.SGIDIndex; int(from) != c.from {
					t.Errorf("sends from GID %d, want %d", from, c.from)
				}
			}
			if e := value(f.qp.Endpoint())(t); e.GID != gid(t, c.after) {
				t.Errorf("then Endpoint has %s, want %s", e.GID.Addr(), c.after)
			}
		})
	}
}

// TestEndpointAfterReset: a new connection of a QP chooses its GID anew.
func TestEndpointAfterReset(t *testing.T) {
	f := connectable(t, QPOptions{})
	must(t, f.qp.Connect(t.Context(), Endpoint{QPN: 77, GID: gid(t, "fd00:1::2")}))
	if e := value(f.qp.EndpointFor(Endpoint{GID: gid(t, "10.1.0.2")}))(t); e.GID != gid(t, "fd00:1::1") {
		t.Errorf("the endpoint of a connected QP has %s, want the GID that it sends from", e.GID.Addr())
	}
	must(t, f.qp.Modify(QPAttr{State: ib.QPReset}, AttrState))
	if e := value(f.qp.Endpoint())(t); e.GID != gid(t, "10.1.0.1") {
		t.Errorf("the endpoint of a reset QP has %s, want 10.1.0.1", e.GID.Addr())
	}
}
