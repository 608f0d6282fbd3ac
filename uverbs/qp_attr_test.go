package uverbs

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// kernelTables is qp_state_table of drivers/infiniband/core/verbs.c: what is required and
// what is optional, by names of the attributes. TestTransitionsOfKernel asks the kernel.
var kernelTables = map[ib.QPType]map[string][2]string{ib.RC: rcTable, ib.UC: ucTable, ib.UD: udTable, ib.SRD: srdTable()}

var rcTable = map[string][2]string{
	"RESET-RESET": {"", ""},
	"RESET-INIT":  {"PKeyIndex Port Access", ""},
	"INIT-RESET":  {"", ""},
	"INIT-ERR":    {"", ""},
	"INIT-INIT":   {"", "PKeyIndex Port Access"},
	"INIT-RTR":    {"AV PathMTU DestQPN RQPSN MaxDestRdAtomic MinRNRTimer", "AltPath Access PKeyIndex"},
	"RTR-RESET":   {"", ""},
	"RTR-ERR":     {"", ""},
	"RTR-RTS":     {"Timeout RetryCount RNRRetry SQPSN MaxRdAtomic", "CurState AltPath Access MinRNRTimer PathMigState"},
	"RTS-RESET":   {"", ""},
	"RTS-ERR":     {"", ""},
	"RTS-RTS":     {"", "CurState Access AltPath PathMigState MinRNRTimer"},
	"RTS-SQD":     {"", "EnSQDAsyncNotify"},
	"SQD-RESET":   {"", ""},
	"SQD-ERR":     {"", ""},
	"SQD-RTS":     {"", "CurState AltPath Access MinRNRTimer PathMigState"},
	"SQD-SQD":     {"", "Port AV Timeout RetryCount RNRRetry MaxRdAtomic MaxDestRdAtomic AltPath Access PKeyIndex MinRNRTimer PathMigState"},
	"SQE-RESET":   {"", ""},
	"SQE-ERR":     {"", ""},
	"SQE-RTS":     {"", ""},
	"ERR-RESET":   {"", ""},
	"ERR-ERR":     {"", ""},
}

var ucTable = map[string][2]string{
	"RESET-RESET": {"", ""},
	"RESET-INIT":  {"PKeyIndex Port Access", ""},
	"INIT-RESET":  {"", ""},
	"INIT-ERR":    {"", ""},
	"INIT-INIT":   {"", "PKeyIndex Port Access"},
	"INIT-RTR":    {"AV PathMTU DestQPN RQPSN", "AltPath Access PKeyIndex"},
	"RTR-RESET":   {"", ""},
	"RTR-ERR":     {"", ""},
	"RTR-RTS":     {"SQPSN", "CurState AltPath Access PathMigState"},
	"RTS-RESET":   {"", ""},
	"RTS-ERR":     {"", ""},
	"RTS-RTS":     {"", "CurState Access AltPath PathMigState"},
	"RTS-SQD":     {"", "EnSQDAsyncNotify"},
	"SQD-RESET":   {"", ""},
	"SQD-ERR":     {"", ""},
	"SQD-RTS":     {"", "CurState AltPath Access PathMigState"},
	"SQD-SQD":     {"", "AV AltPath Access PKeyIndex PathMigState"},
	"SQE-RESET":   {"", ""},
	"SQE-ERR":     {"", ""},
	"SQE-RTS":     {"", "CurState Access"},
	"ERR-RESET":   {"", ""},
	"ERR-ERR":     {"", ""},
}

var udTable = map[string][2]string{
	"RESET-RESET": {"", ""},
	"RESET-INIT":  {"PKeyIndex Port QKey", ""},
	"INIT-RESET":  {"", ""},
	"INIT-ERR":    {"", ""},
	"INIT-INIT":   {"", "PKeyIndex Port QKey"},
	"INIT-RTR":    {"", "PKeyIndex QKey"},
	"RTR-RESET":   {"", ""},
	"RTR-ERR":     {"", ""},
	"RTR-RTS":     {"SQPSN", "CurState QKey"},
	"RTS-RESET":   {"", ""},
	"RTS-ERR":     {"", ""},
	"RTS-RTS":     {"", "CurState QKey"},
	"RTS-SQD":     {"", "EnSQDAsyncNotify"},
	"SQD-RESET":   {"", ""},
	"SQD-ERR":     {"", ""},
	"SQD-RTS":     {"", "CurState QKey"},
	"SQD-SQD":     {"", "PKeyIndex QKey"},
	"SQE-RESET":   {"", ""},
	"SQE-ERR":     {"", ""},
	"SQE-RTS":     {"", "CurState QKey"},
	"ERR-RESET":   {"", ""},
	"ERR-ERR":     {"", ""},
}

// srdTable is srd_qp_state_table of drivers/infiniband/hw/efa/efa_verbs.c, which differs from that of UD in one row.
func srdTable() map[string][2]string {
	t := maps.Clone(udTable)
	t["RTR-RTS"] = [2]string{"SQPSN", "CurState QKey RNRRetry"}
	return t
}

// maskOf makes a mask from names.
func maskOf(t *testing.T, names string) (m QPAttrMask) {
	t.Helper()
	for _, name := range strings.Fields(names) {
		i := -1
		for j, n := range attrNames {
			if n == name {
				i = j
			}
		}
		if i < 0 {
			t.Fatalf("no attribute %s", name)
		}
		m |= 1 << i
	}
	return m
}

// TestTransitions tries every change of state with every attribute missing and every
// attribute too many, and with masks by chance, as ib_modify_qp_is_ok does.
func TestTransitions(t *testing.T) {
	for typ, table := range kernelTables {
		t.Run(typ.String(), func(t *testing.T) { testTransitions(t, typ, table) })
	}
}

func testTransitions(t *testing.T, typ ib.QPType, table map[string][2]string) {
	chance := rand.New(rand.NewPCG(1, 2))
	for from := ib.QPReset; from <= ib.QPErr; from++ {
		for to := ib.QPReset; to <= ib.QPErr; to++ {
			row, ok := table[from.String()+"-"+to.String()]
			required, optional := maskOf(t, row[0]), maskOf(t, row[1])
			masks := []QPAttrMask{AttrState | required, AttrState | required | optional, required | optional}
			for bit := range attrNames {
				masks = append(masks, masks[0]^1<<bit)
			}
			for range 200 {
				masks = append(masks, QPAttrMask(chance.Uint32()))
			}
			for _, mask := range masks {
				missing, extra := required&^mask, mask&^(AttrState|required|optional)
				want := ""
				switch {
				case !ok:
					want = "State is " + to.String()
				case missing != 0:
					want = "missing " + missing.String() + ";"
				case extra != 0:
					want = "superfluous " + extra.String() + ";"
				}
				err := checkModify(typ, from, to, mask)
				var arg *ArgError
				if want == "" && err != nil || want != "" && (!errors.As(err, &arg) || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s to %s with %s: %v, want %q", from, to, mask, err, want)
				}
			}
		}
	}
}

// TestReachable: who asks for a state that cannot be reached is told which can.
func TestReachable(t *testing.T) {
	for from, want := range map[ib.QPState]string{
		ib.QPReset: "RESET, INIT", ib.QPInit: "RESET, INIT, RTR, ERR", ib.QPRTR: "RESET, RTS, ERR", ib.QPRTS: "RESET, RTS, SQD, ERR", ib.QPSQD: "RESET, RTS, SQD, ERR",
		ib.QPSQE: "RESET, RTS, ERR", ib.QPErr: "RESET, ERR", 99: "RESET, ERR",
	} {
		if got := reachable(ib.RC, from); got != want {
			t.Errorf("from %s to %s, want %s", from, got, want)
		}
	}
}

func TestAttrRanges(t *testing.T) {
	d := &Device{attr: DeviceAttr{PhysPortCount: 2, MaxQPInitRdAtom: 16, MaxQPRdAtom: 16}}
	good := QPAttr{PathMTU: ib.MTU1024, Port: 2, AH: AHAttr{Port: 1}, AltAH: AHAttr{Port: 2}, AltPort: 2, RQPSN: maxPSN, MaxRdAtomic: 16, Timeout: 31, RetryCount: 7}
	all := QPAttrMask(1<<21 - 1)
	if err := good.check(d, all); err != nil {
		t.Errorf("good attributes: %v", err)
	}
	for field, change := range map[string]func(a *QPAttr){
		"RQPSN":            func(a *QPAttr) { a.RQPSN = maxPSN + 1 },
		"SQPSN":            func(a *QPAttr) { a.SQPSN = maxPSN + 1 },
		"DestQPN":          func(a *QPAttr) { a.DestQPN = maxQPN + 1 },
		"RetryCount":       func(a *QPAttr) { a.RetryCount = 8 },
		"RNRRetry":         func(a *QPAttr) { a.RNRRetry = 8 },
		"Timeout":          func(a *QPAttr) { a.Timeout = 32 },
		"MinRNRTimer":      func(a *QPAttr) { a.MinRNRTimer = 32 },
		"MaxRdAtomic":      func(a *QPAttr) { a.MaxRdAtomic = 17 },
		"MaxDestRdAtomic":  func(a *QPAttr) { a.MaxDestRdAtomic = 17 },
		"PathMTU":          func(a *QPAttr) { a.PathMTU = 6 },
		"Port":             func(a *QPAttr) { a.Port = 3 },
		"AH.Port":          func(a *QPAttr) { a.AH.Port = 0 },
		"AH.SL":            func(a *QPAttr) { a.AH.SL = 16 },
		"AH.GRH.FlowLabel": func(a *QPAttr) { a.AH.GRH.FlowLabel = 1 << 20 },
		"AltAH.Port":       func(a *QPAttr) { a.AltAH.Port = 3 },
		"AltPort":          func(a *QPAttr) { a.AltPort = 0 },
		"AltTimeout":       func(a *QPAttr) { a.AltTimeout = 32 },
		"PathMigState":     func(a *QPAttr) { a.PathMigState = 3 },
		"Access":           func(a *QPAttr) { a.Access = AccessOnDemand },
	} {
		a := good
		change(&a)
		var arg *ArgError
		if err := a.check(d, all); !errors.As(err, &arg) || arg.Field != field {
			t.Errorf("%s out of range: %v", field, err)
		}
		if err := a.check(d, 0); err != nil {
			t.Errorf("%s out of range but not in the mask: %v", field, err)
		}
	}
}

func TestMTU(t *testing.T) {
	for m := ib.MTU256; m <= ib.MTU4096; m++ {
		if got, err := MTUFromBytes(m.Bytes()); err != nil || got != m {
			t.Errorf("MTUFromBytes(%d) is %d, %v", m.Bytes(), got, err)
		}
	}
	if ib.MTU1024.Bytes() != 1024 || ib.MTU(0).Bytes() != 0 || ib.MTU(6).Bytes() != 0 {
		t.Error("sizes are wrong")
	}
	if _, err := MTUFromBytes(1500); err == nil || !strings.Contains(err.Error(), "1500") {
		t.Errorf("1500 bytes: %v", err)
	}
}

// TestNames: values out of range have a text too.
func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		QPAttrMask(0).String():             "none",
		QPAttrMask(1 << 30).String():       "bit 30",
		(AttrState | AttrDestQPN).String(): "State, DestQPN",
		WCSuccess.String():                 "success",
		WCStatus(200).String():             "unknown completion status 200",
		WCGeneralErr.Error():               "uverbs: general error",
		WCRecvRDMAWrite.String():           "RECV_RDMA_WITH_IMM",
		WCOpcode(77).String():              "opcode 77",
		WRRDMARead.String():                "RDMA_READ",
		WROpcode(200).String():             "opcode 200",
		ib.AtomicCap(9).String():           "atomic capability 9",
		Version{}.String():                 "unknown",
		Version{5, 12}.String():            "5.12",
		ib.AtomicNone.String():             "ATOMIC_NONE",
		ib.AtomicHCA.String():              "ATOMIC_HCA",
		ib.AtomicGlobal.String():           "ATOMIC_GLOB",
		ib.GIDTypeIB.String():              "IB",
		ib.GIDTypeRoCEv1.String():          "RoCE v1",
		ib.GIDTypeRoCEv2.String():          "RoCE v2",
		ib.GIDType(7).String():             "GID type 7",
		WCSend.String():                    "SEND",
		WCRDMAWrite.String():               "RDMA_WRITE",
		WCRDMARead.String():                "RDMA_READ",
		WCCompareSwap.String():             "COMP_SWAP",
		WCFetchAdd.String():                "FETCH_ADD",
		WCBindMW.String():                  "BIND_MW",
		WCLocalInv.String():                "LOCAL_INV",
		WCRecv.String():                    "RECV",
		Endpoint{LID: 3, QPN: 4}.String():  "LID 3 QP 4",
		WCStatus(1<<32 - 1).String():       "unknown completion status 4294967295",
	} {
		if got != want {
			t.Errorf("name is %q, want %q", got, want)
		}
	}
}

// TestStatusError: a status is an error without an allocation.
func TestStatusError(t *testing.T) {
	wc := &WC{Status: WCRetryExcErr}
	var err error
	if n := testing.AllocsPerRun(100, func() { err = wc.Err() }); n != 0 {
		t.Errorf("Err makes %v allocations, want 0", n)
	}
	errorIs(t, err, WCRetryExcErr, "error")
	if err := (&WC{}).Err(); err != nil {
		t.Errorf("success is %v", err)
	}
}

// TestQPErr: every status is explained, and the peer is named.
func TestQPErr(t *testing.T) {
	q := &QP{}
	q.dev = &Device{info: DeviceInfo{Name: "rxe0"}, driver: rxeDriver{}}
	if err := q.Err(&WC{}); err != nil {
		t.Errorf("success is %v", err)
	}
	wc := &WC{Status: WCRetryExcErr, QPN: 3}
	if err := q.Err(wc); !errors.Is(err, WCRetryExcErr) || strings.Contains(err.Error(), ", peer ") {
		t.Errorf("without a peer: %v", err)
	}
	q.recordPeer(&QPAttr{PathMTU: ib.MTU1024}, AttrPathMTU) // of a DCI
	if err := q.Err(wc); err.(*WCError).Peer != (Endpoint{}) || strings.Contains(err.Error(), ", peer ") {
		t.Errorf("without a peer, but with an MTU: %v", err)
	}
	q.recordPeer(&QPAttr{DestQPN: 18, AH: AHAttr{GRH: GRH{DGID: ib.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}}}}, AttrAH|AttrDestQPN)
	q.recordPeer(&QPAttr{Timeout: 14, RetryCount: 6, PathMTU: ib.MTU1024}, AttrTimeout|AttrRetryCount|AttrPathMTU)
	if err := q.Err(wc); !strings.Contains(err.Error(), "peer 10.0.0.1 QP 18") || !strings.Contains(err.Error(), "7 attempts of 67.11ms") || !strings.Contains(err.Error(), "path MTU, 1024 bytes") {
		t.Errorf("with a peer: %v", err)
	}
	for status, want := range map[WCStatus]string{
		WCRNRRetryExcErr: "no receive posted", WCRemAccessErr: "or its MR or MW is gone", WCRemInvReqErr: "receive is likely too short", WCLocProtErr: "AccessLocalWrite",
		WCLocLenErr: "longer than the device sends", WCWRFlushErr: "no completion polled so far says why", WCStatus(99): "unknown completion status 99",
	} {
		var e *WCError
		if err := q.Err(&WC{Status: status, ID: 5}); !errors.As(err, &e) || !strings.Contains(err.Error(), want) || !errors.Is(err, status) || e.Peer.QPN != 18 {
			t.Errorf("%s: %v, want %q", status, err, want)
		}
	}
	if !IsFlush(q.Err(&WC{Status: WCWRFlushErr})) || IsFlush(q.Err(wc)) {
		t.Error("IsFlush is wrong")
	}
}

// TestRateLimitsCheck: the error of a refused rate names the rates that are allowed, or the capability that is missing. Of a
// rate that is allowed it says nothing.
func TestRateLimitsCheck(t *testing.T) {
	d := &Device{driver: rxeDriver{}}
	if err := (RateLimits{}).check(d, 5); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "RateLimit") || !strings.Contains(err.Error(), "packet_pacing") {
		t.Errorf("without limits: %v", err)
	}
	limits := RateLimits{Min: 64, Max: 1000}
	for rate, want := range map[uint32]string{
		0: "<nil>", 64: "<nil>", 1000: "<nil>",
		63:   "uverbs: Modify: RateLimit is 63, allowed: 64 to 1000 kbit/s, or 0 for no limit",
		1001: "uverbs: Modify: RateLimit is 1001, allowed: 64 to 1000 kbit/s, or 0 for no limit",
	} {
		if err := limits.check(d, rate); fmt.Sprint(err) != want {
			t.Errorf("rate %d: %v, want %s", rate, err, want)
		}
	}
}
