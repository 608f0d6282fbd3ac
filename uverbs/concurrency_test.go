package uverbs

import (
	"testing"

	"github.com/goverbs/goverbs/test/pairs"
)

// Uses of package pairs, and those of a single kind of object. Methods of different objects may always run side by side.
const (
	freely           = pairs.Freely
	alone            = pairs.Alone
	builds pairs.Use = "builds" // one goroutine at a time has a SendBuilder, and nobody calls PostSend
	polls  pairs.Use = "polls"  // one goroutine at a time of a CQ
	waits  pairs.Use = "waits"  // one goroutine at a time that waits for the object's events
	reads  pairs.Use = "reads"  // one goroutine at a time that reads counters
)

// concurrency is what doc.go says.
var concurrency = pairs.Table{
	{Object: (*Device)(nil), Methods: map[pairs.Use]string{
		freely: `AHAttrFor AllocDM AllocDMAH AllocPD AllocTD Close CloseAll CompCounterCaps CreateCQ CreateCompChannel CreateCompCounter CreateCounters
			CreateRWQIndTable File GIDTable Handles ImportDM ImportPD Info Name NullLKey OpenXRCD PKeyIndex
			PortCounters PortSpeed Attr EFA GID PKey Port RateLimits ReadClock`,
		waits: "Events NextEvent",
	}},
	{Object: (*PD)(nil), Methods: map[pairs.Use]string{
		freely: `AdviseMR AllocMW AllocParentDomain Close CreateAH CreateAHFor CreateQP CreateSRQ CreateWQ Device
			Handle ImportMR RegDM RegDMABuf RegImplicit RegMR RegSlice`,
	}},
	{Object: (*QP)(nil), Often: true, Methods: map[pairs.Use]string{
		freely: `AttachCompCounter AttachMulticast Caps Close Connect ConnectOver CreateFlow DataInOrder DetachMulticast Device Endpoint
			EndpointFor Err Init Modify PathTo PostRecv PostRecvs QPN Query ECE ReadyUD SetECE SetErrCause
			SetKernelState State`,
		builds:               "BeginSend",
		pairs.Beside(builds): "PostSend",
	}},
	{Object: (*SendBuilder)(nil), Methods: map[pairs.Use]string{
		builds: `Abandon AtomicWrite BindMW CompareSwap FetchAdd Flush Inline LocalInv Post Read ReadInv ReadSGE SGE Send SendImm SendInline
			SendInv SendSGE To ToDCT ToDCTStream ToSRQ Write WriteImm WriteInline WriteSGE`,
	}},
	{Object: (*CQ)(nil), Methods: map[pairs.Use]string{freely: "Close Err Size", polls: "Completions Modify Notify NotifySolicited Poll Resize Wait"}},
	{Object: (*CompChannel)(nil), Methods: map[pairs.Use]string{freely: "Close SetBusyWait Shutdown", waits: "Next"}},
	{Object: (*SRQ)(nil), Methods: map[pairs.Use]string{freely: "Attr Close PostRecv PostRecvs Query Resize SRQN SetLimit"}},
	{Object: (*WQ)(nil), Methods: map[pairs.Use]string{freely: "Close MaxSGE MaxWR Modify ModifyFlags PostRecv PostRecvs State WQN"}},
	{Object: (*RWQIndTable)(nil), Methods: map[pairs.Use]string{freely: "Close"}},
	{Object: (*AH)(nil), Methods: map[pairs.Use]string{freely: "Attr Close"}},
	{Object: (*MR)(nil), Methods: map[pairs.Use]string{freely: "Access Addr Bytes Close Handle LKey Len Query RKey SGE", alone: "Rereg"}},
	{Object: (*MW)(nil), Methods: map[pairs.Use]string{freely: "Close RKey Type"}},
	{Object: (*DM)(nil), Methods: map[pairs.Use]string{freely: "Close ExportDMABuf Handle Len ReadAt WriteAt"}},
	{Object: (*DMAH)(nil), Methods: map[pairs.Use]string{freely: "Close"}},
	{Object: (*Flow)(nil), Methods: map[pairs.Use]string{freely: "Close"}},
	{Object: (*CompCounter)(nil), Methods: map[pairs.Use]string{freely: "Add AddErrors Close Read Set SetErrors"}},
	{Object: (*Counters)(nil), Methods: map[pairs.Use]string{freely: "Close", reads: "Read"}},
	{Object: (*XRCD)(nil), Methods: map[pairs.Use]string{freely: "Close CreateQP OpenQP"}},
	{Object: (*TD)(nil), Methods: map[pairs.Use]string{freely: "Close"}},
	{Object: (*Buffer)(nil), Methods: map[pairs.Use]string{freely: "Bytes Close Len"}},
	{Object: (*BufferPool)(nil), Methods: map[pairs.Use]string{freely: "Close Free Get MR Put"}},
}

// TestConcurrencyTable: the table has every exported method of every object, once.
func TestConcurrencyTable(t *testing.T) { concurrency.Check(t) }
