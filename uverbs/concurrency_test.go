package uverbs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// A use says beside which other methods of the same object a method may run.
type use string

// Uses. Methods of different objects may always run side by side.
const (
	freely use = "freely"   // beside all methods but those that are used alone
	sends  use = "sends"    // one goroutine at a time on the send side
	recvs  use = "receives" // one goroutine at a time on the receive side
	polls  use = "polls"    // one goroutine at a time of a CQ
	waits  use = "waits"    // one goroutine at a time that waits for the object's events
	reads  use = "reads"    // one goroutine at a time that reads counters
	alone  use = "alone"    // no other method at the same time
)

// concurrency is what the documentation of each type says. doc.go has the general rule.
var concurrency = []struct {
	object  any
	methods map[use]string
}{
	{(*Device)(nil), map[use]string{
		freely: `AHAttrFor AllocDM AllocDMAH AllocPD AllocTD ClockTime Close CloseAll CreateCQ CreateCompChannel CreateCounters
			CreateRWQIndTable DEVXCommand DataDirectPath File GIDTable Handles ImportDM ImportPD Info Name NullLKey OpenXRCD PKeyIndex
			PortCounters PortSpeed QueryDevice QueryGID QueryLAG QueryPKey QueryPort RateLimits ReadClock`,
		waits: "WaitEvent",
	}},
	{(*PD)(nil), map[use]string{
		freely: `AdviseMR AllocMW AllocParentDomain Close CreateAH CreateAHFor CreateDCI CreateDCT CreateQP CreateSRQ CreateWQ Device
			Handle ImportMR RegDM RegDMABuf RegImplicit RegMR RegMRWith RegSlice`,
	}},
	{(*QP)(nil), map[use]string{
		freely: `AttachMulticast Caps Close Connect CreateFlow DEVXModify DEVXQuery DataInOrder DetachMulticast Device Endpoint
			EndpointFor Err Init Modify PathTo QPN Query QueryECE QueryLAGPort ReadyDC ReadyUD ResetStream SetECE SetErrCause
			SetKernelState SetLAGPort SetUDPSourcePort State`,
		sends: "PostSend BeginSend",
		recvs: "PostRecv PostRecvs",
	}},
	{(*SendBuilder)(nil), map[use]string{
		sends: `Abandon AtomicWrite BindMW CompareSwap FetchAdd Flush Inline LocalInv Post Read ReadInv SGE Send SendImm SendInv To ToDCT
			ToDCTStream ToSRQ Write WriteImm`,
	}},
	{(*CQ)(nil), map[use]string{freely: "Cap Close", polls: "Modify Notify NotifySolicited Poll Resize Wait"}},
	{(*CompChannel)(nil), map[use]string{freely: "Close SetBusyWait Shutdown", waits: "Wait"}},
	{(*SRQ)(nil), map[use]string{freely: "Attr Close PostRecv PostRecvs Query Resize SRQN SetLimit"}},
	{(*WQ)(nil), map[use]string{freely: "Close MaxSGE MaxWR Modify ModifyFlags PostRecv PostRecvs State WQN"}},
	{(*RWQIndTable)(nil), map[use]string{freely: "Close"}},
	{(*AH)(nil), map[use]string{freely: "Attr Close"}},
	{(*MR)(nil), map[use]string{freely: "Access Addr Bytes Close Handle LKey Len Query RKey SGE", alone: "Rereg"}},
	{(*MW)(nil), map[use]string{freely: "Close RKey Type"}},
	{(*DM)(nil), map[use]string{freely: "Close ExportDMABuf Handle Len ReadAt WriteAt"}},
	{(*DMAH)(nil), map[use]string{freely: "Close"}},
	{(*Flow)(nil), map[use]string{freely: "Close"}},
	{(*Counters)(nil), map[use]string{freely: "Close", reads: "Read"}},
	{(*XRCD)(nil), map[use]string{freely: "Close CreateQP OpenQP"}},
	{(*TD)(nil), map[use]string{freely: "Close"}},
	{(*Buffer)(nil), map[use]string{freely: "Bytes Close Len"}},
	{(*BufferPool)(nil), map[use]string{freely: "Close Free Get MR Put"}},
}

// usesOf returns the uses of the methods of an object, by name.
func usesOf(typ reflect.Type) map[string]use {
	all := map[string]use{}
	for _, c := range concurrency {
		if reflect.TypeOf(c.object) != typ {
			continue
		}
		for use, names := range c.methods {
			for _, name := range strings.Fields(names) {
				all[name] = use
			}
		}
	}
	return all
}

// TestConcurrencyTable: the table has every exported method of every object, once.
func TestConcurrencyTable(t *testing.T) {
	var listed []string
	for _, c := range concurrency {
		typ := reflect.TypeOf(c.object)
		listed = append(listed, typ.Elem().Name())
		uses, n := usesOf(typ), 0
		for _, names := range c.methods {
			n += len(strings.Fields(names))
		}
		if n != len(uses) {
			t.Errorf("%s: a method is listed twice", typ)
		}
		for m := range typ.Methods() {
			if uses[m.Name] == "" {
				t.Errorf("the table does not say how %s.%s may be used", typ, m.Name)
			}
			delete(uses, m.Name)
		}
		for name := range uses {
			t.Errorf("the table has %s.%s, which there is not", typ, name)
		}
	}
	for _, name := range objectTypes(t) {
		if !slices.Contains(listed, name) {
			t.Errorf("the table does not have type %s", name)
		}
	}
}

// objectTypes returns the exported types with methods on a pointer, except errors.
func objectTypes(t *testing.T) (names []string) {
	t.Helper()
	packages, err := parser.ParseDir(token.NewFileSet(), ".", nil, parser.SkipObjectResolution)
	must(t, err)
	methods := map[string][]string{}
	for name, file := range packages["uverbs"].Files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || !f.Name.IsExported() {
				continue
			}
			if star, ok := f.Recv.List[0].Type.(*ast.StarExpr); ok {
				typ := star.X.(*ast.Ident).Name
				methods[typ] = append(methods[typ], f.Name.Name)
			}
		}
	}
	for typ, all := range methods {
		// Errors, completions and addresses are values: they are written before they are shared.
		if ast.IsExported(typ) && !slices.ContainsFunc(all, func(m string) bool { return m == "Error" || m == "Err" || strings.HasPrefix(m, "Unmarshal") }) {
			names = append(names, typ)
		}
	}
	return names
}
