package uverbs

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/uverbs/flow"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// specWords returns a labelled spec.
func specWords(typ, size uint64, fields ...word) []word {
	return append([]word{{"type", 4, typ}, {"size", 2, size}, {"reserved", 2, 0}}, fields...)
}

// be turns an integer around, to compare fields in network byte order.
func be(n int, v uint64) uint64 {
	var r uint64
	for range n {
		r, v = r<<8|v&0xff, v>>8
	}
	return r
}

// be16 and be32 are labelled integers in network byte order.
func be16(name string, v uint64) word { return word{name, 2, be(2, v)} }
func be32(name string, v uint64) word { return word{name, 4, be(4, v)} }

// flowSpecs are specs and what they are to the kernel (rdma/ib_user_verbs.h).
var flowSpecs = []struct {
	name string
	spec flow.Spec
	want []word
}{
	{"Eth", flow.Eth{Val: flow.EthFilter{DstMAC: [6]byte{1, 2, 3, 4, 5, 6}, SrcMAC: [6]byte{7, 8, 9, 10, 11, 12}, EtherType: 0x0800, VLANTag: 0x2005},
		Mask: flow.EthFilter{DstMAC: [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EtherType: 0xffff, VLANTag: 0x0fff}},
		specWords(0x20, 40, word{"dst_mac", 4, 0x04030201}, word{"dst_mac+4", 2, 0x0605}, word{"src_mac", 4, 0x0a090807}, word{"src_mac+4", 2, 0x0c0b},
			be16("ether_type", 0x0800), be16("vlan_tag", 0x2005),
			word{"mask dst_mac", 4, 0xffffffff}, word{"mask dst_mac+4", 2, 0xffff}, word{"mask src_mac", 4, 0}, word{"mask src_mac+4", 2, 0},
			be16("mask ether_type", 0xffff), be16("mask vlan_tag", 0x0fff))},
	{"Eth inner", flow.Eth{Inner: true}, specWords(0x120, 40, word{"val", 8, 0}, word{"val+8", 8, 0}, word{"mask", 8, 0}, word{"mask+8", 8, 0})},
	{"IPv4", flow.IPv4{Val: flow.IPv4Filter{Src: [4]byte{10, 1, 0, 1}, Dst: [4]byte{10, 1, 0, 2}, Proto: 17, TOS: 3, TTL: 64, Flags: 2},
		Mask: flow.IPv4Filter{Dst: [4]byte{255, 255, 0, 0}, Proto: 255}},
		specWords(0x30, 32, be32("src_ip", 0x0a010001), be32("dst_ip", 0x0a010002), word{"proto", 1, 17}, word{"tos", 1, 3}, word{"ttl", 1, 64}, word{"flags", 1, 2},
			be32("mask src_ip", 0), be32("mask dst_ip", 0xffff0000), word{"mask proto", 1, 255}, word{"mask tos", 1, 0}, word{"mask ttl", 1, 0}, word{"mask flags", 1, 0})},
	{"IPv6 inner", flow.IPv6{Inner: true, Val: flow.IPv6Filter{Src: [16]byte{0xfe, 0x80, 15: 1}, Dst: [16]byte{15: 2}, FlowLabel: 0xabcde, NextHeader: 6, TrafficClass: 7, HopLimit: 8},
		Mask: flow.IPv6Filter{FlowLabel: 0xfffff, HopLimit: 0xff}},
		specWords(0x131, 88, word{"src_ip", 8, 0x80fe}, word{"src_ip+8", 8, 1 << 56}, word{"dst_ip", 8, 0}, word{"dst_ip+8", 8, 2 << 56},
			be32("flow_label", 0xabcde), word{"next_hdr", 1, 6}, word{"traffic_class", 1, 7}, word{"hop_limit", 1, 8}, word{"reserved", 1, 0},
			word{"mask src_ip", 8, 0}, word{"mask src_ip+8", 8, 0}, word{"mask dst_ip", 8, 0}, word{"mask dst_ip+8", 8, 0},
			be32("mask flow_label", 0xfffff), word{"mask next_hdr", 1, 0}, word{"mask traffic_class", 1, 0}, word{"mask hop_limit", 1, 255}, word{"reserved", 1, 0})},
	{"TCP", flow.TCP{Val: flow.Ports{Dst: 80, Src: 0x1234}, Mask: flow.Ports{Dst: 0xffff}},
		specWords(0x40, 16, be16("dst_port", 80), be16("src_port", 0x1234), be16("mask dst_port", 0xffff), be16("mask src_port", 0))},
	{"UDP inner", flow.UDP{Inner: true, Val: flow.Ports{Dst: 4791}, Mask: flow.Ports{Src: 0xff00}},
		specWords(0x141, 16, be16("dst_port", 4791), be16("src_port", 0), be16("mask dst_port", 0), be16("mask src_port", 0xff00))},
	{"VXLAN", flow.VXLAN{Val: 0x123456, Mask: 0xffffff}, specWords(0x50, 16, be32("tunnel_id", 0x123456), be32("mask tunnel_id", 0xffffff))},
	{"GRE", flow.GRE{Val: flow.GREFilter{Flags: 0xa000, Protocol: 0x6558, Key: 0x01020304}, Mask: flow.GREFilter{Key: 0xffffffff}},
		specWords(0x51, 24, be16("c_ks_res0_ver", 0xa000), be16("protocol", 0x6558), be32("key", 0x01020304),
			be16("mask c_ks_res0_ver", 0), be16("mask protocol", 0), be32("mask key", 0xffffffff))},
	{"MPLS", flow.MPLS{Val: 0x12345678, Mask: 0xfffff000}, specWords(0x60, 16, be32("label", 0x12345678), be32("mask label", 0xfffff000))},
	{"ESP", flow.ESP{Val: flow.ESPFilter{SPI: 0x01020304, Seq: 5}, Mask: flow.ESPFilter{SPI: 0xffffffff}},
		specWords(0x34, 24, be32("spi", 0x01020304), be32("seq", 5), be32("mask spi", 0xffffffff), be32("mask seq", 0))},
	{"ActionTag", flow.Tag{ID: 0x010203}, specWords(0x1000, 16, word{"tag_id", 4, 0x010203}, word{"reserved1", 4, 0})},
	{"ActionDrop", flow.Drop{}, specWords(0x1001, 8)},
}

func TestFlowSpecs(t *testing.T) {
	for _, c := range flowSpecs {
		t.Run(c.name, func(t *testing.T) { compare(t, value(flow.Encode([]flow.Spec{c.spec}))(t), c.want) })
	}
}

func TestFlow(t *testing.T) {
	eachFakePath(t, func(t *testing.T, d *Device, k *fakeKernel, method, legacy string) {
		k.withObjects(d)
		pd, cq := value(d.AllocPD())(t), value(d.CreateCQ(CQOptions{Size: 7}))(t)
		qp := value(pd.CreateQP(QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
		k.took()
		f := value(qp.CreateFlow(FlowOptions{Type: flow.Sniffer, Priority: 0x1234, Port: 2, Flags: flow.DontTrap | flow.Egress}))(t)
		want := []word{{"comp_mask", 4, 0}, {"qp_handle", 4, uint64(qp.handle)}, {"type", 4, 3}, {"size", 2, 0}, {"priority", 2, 0x1234},
			{"num_of_specs", 1, 0}, {"reserved", 2, 0}, {"port", 1, 2}, {"flags", 4, 6}}
		compare(t, k.last("CREATE_FLOW").in, want)
		busy(t, qp.Close(), "1 Flow")
		must(t, f.Close(), f.Close())
		f = value(qp.CreateFlow(FlowOptions{Specs: []flow.Spec{flow.UDP{Val: flow.Ports{Dst: 1}}, flow.Drop{}}}))(t)
		want = []word{{"comp_mask", 4, 0}, {"qp_handle", 4, uint64(qp.handle)}, {"type", 4, 0}, {"size", 2, 24}, {"priority", 2, 0},
			{"num_of_specs", 1, 2}, {"reserved", 2, 0}, {"port", 1, 1}, {"flags", 4, 0}}
		want = append(want, specWords(0x41, 16, be16("dst_port", 1), word{"src_port", 2, 0}, word{"mask", 4, 0})...)
		compare(t, k.last("CREATE_FLOW").in, append(want, specWords(0x1001, 8)...))
		must(t, f.Close())
		k.sent(legacy+" CREATE_FLOW", method+" DESTROY_FLOW", legacy+" CREATE_FLOW", method+" DESTROY_FLOW")
		must(t, qp.Close(), cq.Close(), pd.Close())
		errorIs(t, second(qp.CreateFlow(FlowOptions{})), os.ErrClosed, "CreateFlow on a closed QP")
	})
}

func TestFlowRefused(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	f.took()
	for _, c := range []struct {
		o     FlowOptions
		field string
	}{
		{FlowOptions{Type: 4}, "Type"},
		{FlowOptions{Flags: 1}, "Flags"},
		{FlowOptions{Type: flow.MCDefault, Flags: flow.DontTrap}, "Flags"},
		{FlowOptions{Port: 3}, "Port"},
		{FlowOptions{Specs: make([]flow.Spec, 256)}, "number of Specs"},
		{FlowOptions{Specs: []flow.Spec{flow.Eth{}, nil}}, "Specs[1]"},
		{FlowOptions{Specs: []flow.Spec{flow.IPv6{Mask: flow.IPv6Filter{FlowLabel: 1 << 20}}}}, "IPv6.FlowLabel"},
		{FlowOptions{Specs: []flow.Spec{flow.VXLAN{Val: 1 << 24}}}, "VXLAN.Val"},
		{FlowOptions{Specs: []flow.Spec{flow.Tag{ID: 1 << 24}}}, "Tag.ID"},
		{FlowOptions{Specs: make([]flow.Spec, 255), Counters: &Counters{}}, "number of Specs"},
		{FlowOptions{Counters: &Counters{}}, "object to use"},
	} {
		_, err := f.qp.CreateFlow(c.o)
		wantArg(t, err, c.field)
	}
	f.sent()
	for errno, hint := range map[syscall.Errno]string{syscall.EPERM: "CAP_NET_RAW", syscall.EINVAL: "this one is RC"} {
		f.refuse["CREATE_FLOW"] = errno
		if _, err := f.qp.CreateFlow(FlowOptions{}); !errors.Is(err, errno) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// TestFlowUses: a flow keeps what its specs name from being closed.
func TestFlowUses(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	f.withObjects(f.dev)
	counters := value(f.dev.CreateCounters())(t)
	rule := value(f.qp.CreateFlow(FlowOptions{Counters: counters}))(t)
	busy(t, counters.Close(), "1 Flow")
	must(t, rule.Close(), counters.Close())
	errorIs(t, second(f.qp.CreateFlow(FlowOptions{Counters: counters})), os.ErrClosed, "closed counters")
}

// TestFlowCounters: the first flow that uses counters has the driver's part of CREATE_FLOW, which says
// what to count, and so has the first after the last.
func TestFlowCounters(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	f.withObjects(f.dev)
	f.dev.mlx5 = &mlx5Context{}
	with := 0
	f.seen = func(cmd *kernel.Command, _ bool) {
		if l, ok := cmd.Legacy(); ok && len(l.DrvIn) > 0 {
			with++
		}
	}
	counters := value(f.dev.CreateCounters())(t)
	want := func(n int) {
		t.Helper()
		if with != n {
			t.Errorf("%d flows had the driver's part, want %d", with, n)
		}
	}
	o := FlowOptions{Counters: counters}
	must(t, value(f.qp.CreateFlow(FlowOptions{}))(t).Close())
	want(0)
	f.refuse["CREATE_FLOW"] = syscall.EINVAL
	if _, err := f.qp.CreateFlow(o); err == nil {
		t.Error("a flow that the kernel refuses")
	}
	want(1)
	delete(f.refuse, "CREATE_FLOW")
	first := value(f.qp.CreateFlow(o))(t)
	want(2)
	second := value(f.qp.CreateFlow(o))(t)
	must(t, first.Close())
	third := value(f.qp.CreateFlow(o))(t)
	want(2)
	must(t, second.Close(), third.Close(), third.Close())
	must(t, value(f.qp.CreateFlow(o))(t).Close())
	want(3)
	must(t, counters.Close())
}

// TestFlowCountersTogether: flows that use the same counters come and go at the same time.
func TestFlowCountersTogether(t *testing.T) {
	f := newFakeQP(t, QPOptions{})
	f.withObjects(f.dev)
	counters := value(f.dev.CreateCounters())(t)
	o := FlowOptions{Counters: counters}
	use := func() {
		for range 100 {
			rule, err := f.qp.CreateFlow(o)
			if err == nil {
				err = rule.Close()
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	rule := value(f.qp.CreateFlow(o))(t)
	held := false
	f.after(func(c *fakeCall, _ syscall.Errno) {
		if c.verb == "DESTROY_FLOW" && !held {
			if held = !counters.mu.TryLock(); !held {
				counters.mu.Unlock()
			}
		}
	})
	if must(t, rule.Close()); !held {
		t.Error("a flow is destroyed while another one may use its counters first")
	}
	together(use, use, use, use)
	if counters.flows != 0 {
		t.Errorf("%d flows use the counters after all were closed", counters.flows)
	}
	must(t, counters.Close())
}
