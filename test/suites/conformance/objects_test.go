package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// absentVerb is a verb that rxe does not have.
type absentVerb struct {
	feature string
	since   [2]int // the first kernel with it, if that is newer than 5.10
	ioctl   bool   // there is no command of write() for it
	do      func() error
}

// errOf returns the error of a verb that makes an object.
func errOf[T any](_ T, err error) error { return err }

// absentVerbs are the verbs that rxe does not have on any kernel so far.
func absentVerbs(t *testing.T, s *side) []absentVerb {
	f, err := os.Create(filepath.Join(t.TempDir(), "xrcd"))
	must(t, err)
	closeLater(t, f)
	specs := []flow.Spec{
		flow.Eth{Mask: flow.EthFilter{EtherType: 0xffff}}, flow.IPv4{}, flow.IPv6{}, flow.TCP{}, flow.UDP{},
		flow.VXLAN{}, flow.GRE{}, flow.MPLS{}, flow.ESP{}, flow.Tag{ID: 1}, flow.Drop{},
	}
	verbs := []absentVerb{
		{"OPEN_XRCD", [2]int{}, false, func() error { return errOf(s.dev.OpenXRCD(uverbs.XRCDOptions{})) }},
		{"OPEN_XRCD", [2]int{}, false, func() error {
			return errOf(s.dev.OpenXRCD(uverbs.XRCDOptions{File: f, Flags: os.O_CREATE | os.O_EXCL}))
		}},
		{"OPEN_XRCD", [2]int{}, false, func() error { return errOf(s.dev.OpenXRCD(uverbs.XRCDOptions{File: f})) }},
		{"CREATE_FLOW", [2]int{}, false, func() error { return errOf(s.qp.CreateFlow(uverbs.FlowOptions{})) }},
		{"CREATE_FLOW", [2]int{}, false, func() error { return errOf(s.qp.CreateFlow(uverbs.FlowOptions{Type: flow.Sniffer})) }},
		{"CREATE_SRQ with XRCD", [2]int{}, false, func() error { return errOf(s.pd.CreateSRQ(uverbs.SRQOptions{XRCD: &uverbs.XRCD{}, CQ: s.cq})) }},
		{"CREATE_WQ", [2]int{}, false, func() error { return errOf(s.pd.CreateWQ(uverbs.WQOptions{CQ: s.cq})) }},
		{"ALLOC_DM", [2]int{}, true, func() error { return errOf(s.dev.AllocDM(4096, uverbs.DMOptions{})) }},
		{"CREATE_COUNTERS", [2]int{}, true, func() error { return errOf(s.dev.CreateCounters()) }},
		{"ALLOC_DMAH", [2]int{6, 17}, true, func() error { return errOf(s.dev.AllocDMAH(uverbs.DMAHOptions{})) }},
		{"ALLOC_DMAH", [2]int{6, 17}, true, func() error {
			return errOf(s.dev.AllocDMAH(uverbs.DMAHOptions{CPU: new(0), MemType: uverbs.TPHMemVolatile, ProcessingHint: new(uint8(1))}))
		}},
		{"ALLOC_TD", [2]int{}, false, func() error { return errOf(s.dev.AllocTD()) }},
		{"ALLOC_PARENT_DOMAIN", [2]int{}, false, func() error { return errOf(s.pd.AllocParentDomain(nil)) }},
	}
	for feature, o := range map[string]uverbs.QPOptions{
		"QP type XRC_INI":         {Type: ib.XRCSend},
		"CREATE_QP with Flags":    {RecvCQ: s.cq, Flags: uverbs.QPBlockMulticastLoopback},
		"CREATE_QP with IndTable": {IndTable: &uverbs.RWQIndTable{}},
	} {
		o.SendCQ = s.cq
		verbs = append(verbs, absentVerb{feature, [2]int{}, false, func() error { return errOf(s.pd.CreateQP(o)) }})
	}
	for _, spec := range specs {
		verbs = append(verbs, absentVerb{"CREATE_FLOW", [2]int{}, false, func() error {
			return errOf(s.qp.CreateFlow(uverbs.FlowOptions{Specs: []flow.Spec{spec}}))
		}})
	}
	return verbs
}

// TestUnsupportedObjects checks that a verb that rxe does not support returns a FeatureError that
// names rxe, or the kernel if it is older than the verb. No other errno may come through, by any
// command path.
func TestUnsupportedObjects(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "unsupported objects", "rxe")
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		kernel := testenv.Kernel(t)
		for _, v := range absentVerbs(t, s) {
			err := v.do()
			var f *uverbs.FeatureError
			if !errors.As(err, &f) || !errors.Is(err, errors.ErrUnsupported) || f.Feature != v.feature {
				t.Errorf("%s: %v (%T), want a FeatureError", v.feature, err, err)
				continue
			}
			testenv.Lacks(t, err)
			want := uverbs.FeatureError{Feature: v.feature, Driver: rig.Driver}
			switch {
			case v.ioctl && os.Getenv("RDMAABI") == "write":
				want.Driver = ""
				says(t, err, "RDMAABI=write")
			case slices.Compare(kernel[:], v.since[:]) < 0:
				want.Driver, want.Since = "", v.since
				says(t, err, "by this kernel")
			default:
				says(t, err, "by driver rxe")
			}
			if f.Since != want.Since || f.Driver != want.Driver {
				t.Errorf("%s: %+v, want %+v", v.feature, *f, want)
			}
			if strings.Contains(err.Error(), "CAP_NET_RAW") || strings.Contains(err.Error(), "credentials") {
				t.Errorf("%s: a hint that does not help: %v", v.feature, err)
			}
		}
		// The device is as it was.
		must(t, s.qp.PostRecv(1))
	})
}

// TestRawPacketOnRxe checks that an old kernel creates a raw packet QP on rxe and changes its
// state, and that nothing can be posted to send.
func TestRawPacketOnRxe(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "raw packet QPs without a data path", "rxe")
		s := newSide(t, openDevice(t, deviceName), uverbs.QPOptions{})
		for _, o := range []uverbs.QPOptions{
			{},
			{MaxSendWR: 50, MaxRecvWR: 60, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 64},
		} {
			o.Type, o.SendCQ, o.RecvCQ = ib.RawPacket, s.cq, s.cq
			qp, err := s.pd.CreateQP(o)
			testenv.Skip(t, err)
			must(t, err)
			closeLater(t, qp)
			attr, err := qp.Query()
			must(t, err)
			if c := attr.Caps; attr.State != ib.QPReset || c.MaxSendWR < o.MaxSendWR || c.MaxRecvWR < o.MaxRecvWR || c.MaxSendSGE < o.MaxSendSGE || c.MaxRecvSGE < o.MaxRecvSGE || c.MaxInline < o.MaxInline {
				t.Errorf("of %+v the kernel made %+v in state %s", o, c, attr.State)
			}
			must(t, qp.ReadyUD(0))
			if attr, err = qp.Query(); err != nil || attr.State != ib.QPRTS {
				t.Errorf("state is %s, %v, want RTS", attr.State, err)
			}
			errorIs(t, qp.PostSend(send(1, s.mr.SGE(0, 64))), uverbs.ErrOpcode, "posting")
		}
	})
}
