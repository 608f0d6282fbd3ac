//go:build amd64 || arm64

package uverbs

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// dcCard is a card whose QP is a DCI, and an AH.
func dcCard(t testing.TB, userIndex bool) (*card, *AH) {
	t.Helper()
	return addressedCard(t, ib.DCI, userIndex)
}

// addressedCard is a card whose QP is a DCI or a UD QP, and an AH.
func addressedCard(t testing.TB, typ ib.QPType, userIndex bool) (*card, *AH) {
	t.Helper()
	c := newMlx5Card(t, userIndex, false, 64)
	q := &QP{kind: kindMlx5, typ: typ, sendCQ: c.cq, recvCQ: c.cq, qpn: cardQPN, noRecv: ErrNoRecvQueue}
	q.dev, q.object.kind = c.dev, "QP"
	ops, _ := mlx5Driver{}.operations(typ)
	q.setOps(ops)
	o := QPOptions{Type: typ, SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 8, MaxSendSGE: 2, MaxInline: 64}
	value(mlx5Driver{}.prepareQP(q, &qpSpec{QPOptions: o, pd: &PD{}, dc: &hook.DC{Streams: 2}}))(t)
	must(t, mlx5Driver{}.mapQP(q, udata{out: make([]byte, mlx5.QPRespSize)}))
	q.state.Store(uint32(ib.QPRTS))
	c.qp = q
	a := &AH{}
	a.dev = c.dev
	a.mlx5.av = mlx5.NewAV(&mlx5.AVAttr{LID: 0x55})
	return c, a
}

// TestDCPost: PostSend and the builder make the same WQE, with the target, its key and the stream.
func TestDCPost(t *testing.T) {
	const head = "0011223344556677" + "80123456" + "00000055"
	for name, post := range map[string]func(c *card, a *AH) error{
		"PostSend": func(c *card, a *AH) error {
			return c.qp.PostSend(SendWR{Opcode: WRSend, Inline: []byte{9}, AH: a, RemoteQPN: 0x123456, DCAccessKey: 0x0011223344556677, DCStream: 0x0102})
		},
		"builder": func(c *card, a *AH) error {
			b := c.qp.BeginSend()
			b.Send(0, 0)
			b.ToDCTStream(a, 0x123456, 0x0011223344556677, 0x0102)
			b.Inline([]byte{9})
			return b.Post()
		},
	} {
		c, a := dcCard(t, true)
		must(t, post(c, a))
		got := hex.EncodeToString(c.qp.sqRegion.Bytes()[:80])
		if want := "0000000a12345605" + "0001020000000000" + head; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "8000000109"+strings.Repeat("00", 11)) {
			t.Errorf("%s: the WQE is %s, want %s", name, got, want)
		}
	}
}

// TestUDPost: PostSend and the builder make the same WQE of a datagram, with the peer's number and Q_Key.
func TestUDPost(t *testing.T) {
	for name, post := range map[string]func(c *card, a *AH) error{
		"PostSend": func(c *card, a *AH) error {
			return c.qp.PostSend(SendWR{Opcode: WRSend, Inline: []byte{9}, AH: a, RemoteQPN: 0x123456, RemoteQKey: 0x00112233})
		},
		"builder": func(c *card, a *AH) error {
			b := c.qp.BeginSend()
			b.Send(0, 0)
			b.To(a, 0x123456, 0x00112233)
			b.Inline([]byte{9})
			return b.Post()
		},
	} {
		c, a := addressedCard(t, ib.UD, true)
		must(t, post(c, a))
		got := hex.EncodeToString(c.qp.sqRegion.Bytes()[:80])
		if want := "0000000a12345605" + "0000000000000000" + "0011223300000000" + "80123456" + "00000055"; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "8000000109"+strings.Repeat("00", 11)) {
			t.Errorf("%s: the WQE is %s, want %s", name, got, want)
		}
	}
}

// addressedList is a list of requests to two peers, in which no request has the fields of the one before.
func addressedList(typ ib.QPType, a, b *AH) []SendWR {
	sge := func(n uint32) SGE { return SGE{Addr: 0x1000 * uint64(n), Length: n, LKey: 7 * n} }
	wrs := []SendWR{
		{Opcode: WRSend, AH: a, SGL: []SGE{sge(100)}, Flags: SendSignaled},
		{Opcode: WRSend, AH: b},
		{Opcode: WRSendWithImm, AH: b, DCStream: 2, Inline: []byte{1, 2, 3}, Imm: 0x01020304},
		{Opcode: WRSend, AH: a, SGL: []SGE{sge(200), sge(300)}},
		{Opcode: WRRDMAWrite, AH: b, SGL: []SGE{sge(400)}, RemoteAddr: 0xabcd0, RKey: 55},
		{Opcode: WRRDMARead, AH: a, SGL: []SGE{sge(500)}, RemoteAddr: 0xef010, RKey: 66},
		{Opcode: WRSend, AH: b, SGL: []SGE{sge(600)}, DCStream: 0x0102},
	}
	if typ == ib.UD {
		wrs = slices.DeleteFunc(wrs, func(wr SendWR) bool { return wr.Opcode == WRRDMAWrite || wr.Opcode == WRRDMARead })
	}
	for i := range wrs {
		wr := &wrs[i]
		wr.ID, wr.RemoteQPN = uint64(70+i), 0xa
		if wr.AH == b {
			wr.RemoteQPN = 0xb
		}
		if typ == ib.UD {
			wr.RemoteQKey, wr.DCStream = 3*wr.RemoteQPN, 0
		} else {
			wr.DCAccessKey = 0x700000000 * uint64(wr.RemoteQPN)
		}
	}
	return wrs
}

// posted completes all work requests of a send queue and returns their IDs, and the queue's memory.
func (c *card) posted() (ids []uint64, ring []byte) {
	ring = c.qp.sqRegion.Bytes()
	for block := range len(ring) / 64 {
		if id, _, ok := c.qp.mlx5.sq.Complete(uint16(block)); ok {
			ids = append(ids, id)
		}
	}
	return ids, ring
}

// TestMlx5PostAddressed: a list of requests to two peers makes the WQEs that its requests make one by one by the
// builder. So it does after a list with a bad request, of which nothing is posted.
func TestMlx5PostAddressed(t *testing.T) {
	for _, typ := range []ib.QPType{ib.DCI, ib.UD} {
		make2 := func() (*card, []SendWR) {
			c, a := addressedCard(t, typ, true)
			b := &AH{}
			b.dev = c.dev
			b.mlx5.av = mlx5.NewAV(&mlx5.AVAttr{LID: 0x66})
			return c, addressedList(typ, a, b)
		}
		single, wrs := make2()
		for i := range wrs {
			must(t, single.qp.lockSide(&single.qp.sending), single.qp.postSlow(wrs[i:i+1]))
		}
		wantIDs, want := single.posted()
		if len(wantIDs) != len(wrs) || wantIDs[0] != 70 {
			t.Fatalf("%s: one by one the requests are %d", typ, wantIDs)
		}
		for bad := -1; bad < len(wrs); bad++ {
			c, wrs := make2()
			if bad >= 0 {
				list := slices.Clone(wrs)
				list[bad].AH = &AH{}
				list[bad].AH.dev = c.dev
				list[bad].AH.closed.Store(true)
				var post *PostError
				if err := c.qp.PostSend(list...); !errors.As(err, &post) || post.Index != bad || !errors.Is(err, errNoAddress) {
					t.Errorf("%s, request %d with a closed AH: error %v", typ, bad, err)
				}
			}
			must(t, c.qp.PostSend(wrs...))
			if ids, ring := c.posted(); !slices.Equal(ids, wantIDs) || !bytes.Equal(ring, want) {
				t.Errorf("%s, after a list with bad request %d: requests %d, want %d, and the ring is\n%x, want\n%x", typ, bad, ids, wantIDs, ring, want)
			}
		}
	}
}

// TestDCPostErrors: what a DCI, and other types of QP, do not take.
func TestDCPostErrors(t *testing.T) {
	c, a := dcCard(t, true)
	foreign, closed := &AH{}, &AH{}
	closed.dev = c.dev
	closed.closed.Store(true)
	for want, wr := range map[error]SendWR{
		errNoAddress: {Opcode: WRSend}, errForeignAH: {Opcode: WRRDMAWrite, AH: foreign}, ErrOpcode: {Opcode: WRFlush, AH: a},
		errInlineUse: {Opcode: WRRDMARead, AH: a, Inline: []byte{1}}, errNoInline: {Opcode: WRLocalInv, Inline: []byte{1}},
	} {
		if err := c.qp.PostSend(wr); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if err := c.qp.PostSend(SendWR{Opcode: WRSend, AH: closed}); !errors.Is(err, errNoAddress) {
		t.Errorf("a closed AH: %v", err)
	}
	must(t, c.qp.PostSend(SendWR{Opcode: WRLocalInv, InvalidateRKey: 5})) // it names no target
	plain, _ := dcCard(t, true)
	plain.qp.mlx5.streams = false
	a.dev = plain.dev
	if err := plain.qp.PostSend(SendWR{Opcode: WRSend, AH: a, DCStream: 1}); !errors.Is(err, errNoStreams) {
		t.Errorf("a stream of a DCI without any: %v", err)
	}
	must(t, plain.qp.PostSend(SendWR{Opcode: WRSend, AH: a}))
	a.dev = c.dev
	rc := newMlx5Card(t, true, false, 64)
	b := rc.qp.BeginSend()
	b.Send(1, 0)
	b.ToDCT(a, 1, 1)
	if err := b.Post(); !errors.Is(err, errNotDC) {
		t.Errorf("a DCT on RC: %v", err)
	}
	for _, q := range []*QP{c.qp, rc.qp} {
		b := q.BeginSend()
		b.Send(1, 0)
		b.To(a, 1, 1)
		if err := b.Post(); !errors.Is(err, errNotDatagram) {
			t.Errorf("a Q_Key on %s: %v", q.typ, err)
		}
	}
}

// TestDCTReceive: completions of a DCT have its number, and the receives of its SRQ, with and without
// user indices.
func TestDCTReceive(t *testing.T) {
	const dctn = 0x20001
	for _, userIndex := range []bool{false, true} {
		c := newMlx5Card(t, userIndex, true, 64)
		q := &QP{kind: kindMlx5, typ: ib.DCT, recvCQ: c.cq, srq: c.srq}
		q.dev, q.object.kind = c.dev, "QP"
		u := value(q.prepareDCT(&qpSpec{QPOptions: QPOptions{Type: ib.DCT, SRQ: c.srq}, pd: &PD{}, dc: &hook.DC{Key: 7}}))(t)
		if key := binary.LittleEndian.Uint64(u.in[40:]); key != 7 {
			t.Errorf("the access key is %d", key)
		}
		must(t, mlx5Driver{}.mapQP(q, udata{out: make([]byte, mlx5.QPRespSize)}))
		resp := q.dctUdata()
		binary.LittleEndian.PutUint32(resp.out[4:], dctn)
		must(t, q.dctReady(resp))
		if q.QPN() != dctn || q.label() != "QP 131073" {
			t.Errorf("the DCT has number %d, and is called %s", q.QPN(), q.label())
		}
		must(t, c.srq.PostRecv(5, c.sge(0, 100)), c.srq.PostRecv(6, c.sge(0, 100)))
		index := b32(cardSRQN)
		if userIndex {
			index = b32(q.mlx5.index)
		}
		c.put(2, map[int][]byte{60: b16(0), 44: b32(8), 32: index, 56: b32(dctn)})
		c.put(14, map[int][]byte{60: b16(1), 55: {0x01}, 32: index, 56: b32(dctn)})
		got := c.poll()
		if len(got) != 2 || got[0].ID != 5 || got[0].QPN != dctn || got[0].ByteLen != 8 || got[1].ID != 6 || got[1].Status != WCLocLenErr {
			t.Errorf("index %v: completions %+v", userIndex, got)
		}
		if q.first.Load() != nil {
			t.Error("the failure of one message counts as that of the DCT")
		}
		must(t, mlx5Driver{}.freeQP(q))
	}
}

// TestDCOptions: options that do not fit name the field, and drivers without DC the type.
func TestDCOptions(t *testing.T) {
	cq, srq := &CQ{}, &SRQ{}
	pdOf := func(dr driver) *PD {
		p := &PD{}
		p.dev = &Device{driver: dr, attr: DeviceAttr{MaxQPWR: 8, MaxSGE: 8}}
		return p
	}
	p := pdOf(mlx5Driver{})
	for field, create := range map[string]func() (*QP, error){
		"SRQ":       func() (*QP, error) { return p.createDC(QPOptions{Type: ib.DCT, RecvCQ: cq}, hook.DC{}) },
		"RecvCQ":    func() (*QP, error) { return p.createDC(QPOptions{Type: ib.DCT, SRQ: srq}, hook.DC{}) },
		"SendCQ":    func() (*QP, error) { return p.createDC(QPOptions{Type: ib.DCI, MaxSendWR: 1}, hook.DC{}) },
		"MaxSendWR": func() (*QP, error) { return p.createDC(QPOptions{Type: ib.DCI, SendCQ: cq, MaxSendWR: 9}, hook.DC{}) },
		"MaxInline": func() (*QP, error) {
			return p.createDC(QPOptions{Type: ib.DCI, SendCQ: cq, MaxSendWR: 1, MaxInline: -1}, hook.DC{})
		},
		"Type": func() (*QP, error) { return p.CreateQP(QPOptions{Type: ib.DCT, RecvCQ: cq, SRQ: srq}) },
	} {
		_, err := create()
		var arg *ArgError
		if !errors.As(err, &arg) || arg.Field != field {
			t.Errorf("%s: error %v", field, err)
		}
	}
	for _, dr := range []driver{rxeDriver{}, siwDriver{}} {
		p := pdOf(dr)
		_, dci := p.createDC(QPOptions{Type: ib.DCI, SendCQ: cq}, hook.DC{})
		_, dct := p.createDC(QPOptions{Type: ib.DCT, RecvCQ: cq, SRQ: srq}, hook.DC{})
		for typ, err := range map[ib.QPType]error{ib.DCI: dci, ib.DCT: dct} {
			var feature *FeatureError
			if !errors.As(err, &feature) || feature.Feature != "QP type "+typ.String() || feature.Driver != dr.name() {
				t.Errorf("%s on %s: %v", typ, dr.name(), err)
			}
		}
	}
	if err := noDC(ib.DCT, "mlx5"); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "capability dct") {
		t.Errorf("a card without DC: %v", err)
	}
}

// TestDCTAddress: a DCT whose GID cannot be had is not made ready with another one.
func TestDCTAddress(t *testing.T) {
	f := newFakeQP(t, QPOptions{Path: PathOptions{GIDIndex: new(200)}})
	if a, err := f.qp.ownAddress(1, PortAttr{LID: 5}); err == nil {
		t.Errorf("address %+v", a)
	}
}

// BenchmarkMlx5PostDC posts SENDs of 64 bytes by memory region, their doorbells included: with an RC QP, with a DCI to one
// target, and with a DCI to another one each time.
func BenchmarkMlx5PostDC(b *testing.B) {
	var rc float64
	run := func(name string, c *card, blocks int, aim func(i int, wr *SendWR)) {
		next := 0
		b.Run(name, func(b *testing.B) {
			wr := SendWR{ID: 1, Opcode: WRSend, Flags: SendSignaled, SGL: []SGE{c.sge(0, 64)}}
			for b.Loop() {
				aim(next, &wr)
				if err := c.qp.PostSend(wr); err != nil {
					b.Fatal(err)
				}
				if _, _, ok := c.qp.mlx5.sq.Complete(uint16(blocks * next)); !ok {
					b.Fatal("the completion is of nothing")
				}
				next++
			}
			each := float64(b.Elapsed()) / float64(b.N)
			if rc == 0 {
				rc = each
			}
			b.ReportMetric(each/rc, "x-RC")
		})
	}
	run("RC", newMlx5Card(b, true, false, 64), 1, func(int, *SendWR) {})
	for _, r := range []struct {
		name    string
		targets int
	}{{"DCI", 1}, {"DCI, another target each time", 1000}} {
		c, _ := dcCard(b, true)
		targets := make([]*AH, r.targets)
		for i := range targets {
			targets[i] = &AH{}
			targets[i].dev = c.dev
			targets[i].mlx5.av = mlx5.NewAV(&mlx5.AVAttr{LID: uint16(i)})
		}
		run(r.name, c, 2, func(i int, wr *SendWR) {
			n := i % len(targets)
			wr.AH, wr.RemoteQPN, wr.DCAccessKey = targets[n], uint32(n), 7
		})
	}
}

// TestMlx5DatagramPath: what a completion says about the path of a datagram. On Ethernet the bits of the
// service level have the kind of IP header, and the LID is undefined.
func TestMlx5DatagramPath(t *testing.T) {
	const grh, ipv4, sl, lid = 1 << 28, 2 << 24, 5 << 24, 0xbeef
	for name, f := range map[string]struct {
		link   ib.LinkLayer
		flags  uint32
		header byte
		vlan   uint16
		want   WC
	}{
		"untagged":   {ib.LinkLayerEthernet, grh | ipv4, 0, 0xffff, WC{Flags: WCWithGRH}},
		"tagged":     {ib.LinkLayerEthernet, grh | ipv4, 1, 6<<13 | 88, WC{Flags: WCWithGRH, SL: 6}},
		"InfiniBand": {ib.LinkLayerInfiniBand, sl, 1, 0xffff, WC{SL: 5, SLID: lid}},
	} {
		c := newMlx5Card(t, true, false, 64)
		c.dev.setLinkLayer(f.link)
		c.qp.typ = ib.UD
		c.qp.mlx5.owner.rq = nil // as for any QP but RC
		must(t, c.qp.PostRecv(1, c.sge(0, 64)))
		c.put(2, map[int][]byte{60: b16(0), 44: b32(44), 24: b32(f.flags | 0x11), 22: b16(lid), 29: {f.header}, 30: b16(f.vlan), 36: b32(0xffff)})
		want := f.want
		want.ID, want.Opcode, want.ByteLen, want.QPN, want.SrcQP = 1, WCRecv, 44, cardQPN, 0x11
		if got := c.poll(); len(got) != 1 || got[0] != want {
			t.Errorf("%s: completions %+v, want %+v", name, got, want)
		}
	}
}

// TestMlx5UDLinkLayer: the library knows the link layer before a UD QP has its first completion.
func TestMlx5UDLinkLayer(t *testing.T) {
	c := newMlx5Card(t, true, false, 64)
	c.dev.ports.ports[1].Store(nil)
	c.legacy = func(l *kernel.Legacy) syscall.Errno {
		if l.Number == abi.IB_USER_VERBS_CMD_QUERY_PORT {
			l.Out[linkLayerInQueryPort] = byte(ib.LinkLayerEthernet)
		}
		return 0
	}
	c.answer = func() syscall.Errno { return syscall.EPROTONOSUPPORT } // to QUERY_PORT by ioctl
	q := &QP{kind: kindMlx5, typ: ib.UD, sendCQ: c.cq, recvCQ: c.cq}
	q.dev, q.object.kind = c.dev, "QP"
	value(mlx5Driver{}.prepareQP(q, &qpSpec{QPOptions: QPOptions{Type: ib.UD, SendCQ: c.cq, RecvCQ: c.cq, MaxSendWR: 8, MaxRecvWR: 8}, pd: &PD{}}))(t)
	if !c.dev.mlx5Ethernet() {
		t.Error("the device is not known to have Ethernet ports")
	}
	must(t, mlx5Driver{}.freeQP(q))
}

// Offsets in the kernel's structs.
const (
	linkLayerInQueryPort = 37  // link_layer of struct ib_uverbs_query_port_resp
	readsInModify        = 101 // max_rd_atomic of struct ib_uverbs_modify_qp
)

// TestMlx5DCIReads: a DCI has a limit of its own for READs and atomics in flight. The library knows it from
// the firmware, or else tries fewer until the device accepts them.
func TestMlx5DCIReads(t *testing.T) {
	for name, f := range map[string]struct {
		most    uint8 // what the firmware says, 0 without DEVX
		option  uint8 // Path.MaxRdAtomic
		accepts uint8 // of the device
		answer  syscall.Errno
		sent    []byte // max_rd_atomic of each MODIFY_QP
		want    error
	}{
		"as RC":                {0, 0, 16, syscall.EINVAL, []byte{16}, nil},
		"fewer":                {0, 0, 4, syscall.EINVAL, []byte{16, 8, 4}, nil},
		"one":                  {0, 0, 1, syscall.EINVAL, []byte{16, 8, 4, 2, 1}, nil},
		"refused for another":  {0, 0, 0, syscall.EINVAL, []byte{16, 8, 4, 2, 1}, syscall.EINVAL},
		"another error":        {0, 0, 0, syscall.ENOMEM, []byte{16}, syscall.ENOMEM},
		"option":               {0, 4, 4, syscall.EINVAL, []byte{4}, nil},
		"option refused":       {0, 8, 4, syscall.EINVAL, []byte{8}, syscall.EINVAL},
		"firmware":             {8, 0, 8, syscall.EINVAL, []byte{8}, nil},
		"firmware, refused":    {8, 0, 0, syscall.EINVAL, []byte{8}, syscall.EINVAL},
		"firmware and option":  {8, 2, 8, syscall.EINVAL, []byte{2}, nil},
		"firmware, option big": {8, 9, 8, syscall.EINVAL, nil, &ArgError{}},
	} {
		c := newMlx5Card(t, true, false, 64)
		c.dev.attr.MaxQPRdAtom, c.dev.attr.MaxQPInitRdAtom = 16, 16
		c.qp.typ, c.qp.path.MaxRdAtomic = ib.DCI, f.option
		c.qp.state.Store(uint32(ib.QPRTR))
		var sent []byte
		c.legacy = func(l *kernel.Legacy) syscall.Errno {
			if l.Number != abi.IB_USER_VERBS_CMD_MODIFY_QP {
				return 0
			}
			reads := l.In[readsInModify]
			if sent = append(sent, reads); reads > f.accepts {
				return f.answer
			}
			return 0
		}
		err := c.qp.readyDCI(f.most)
		switch want := f.want.(type) {
		case *ArgError:
			isArg(t, err, "Path.MaxRdAtomic")
		default:
			errorIs(t, err, want, "%s", name)
			if f.want != nil && !strings.Contains(err.Error(), fmt.Sprintf("MaxRdAtomic %d", sent[0])) {
				t.Errorf("%s: %v, want the first attempt's value %d", name, err, sent[0])
			}
		}
		if !slices.Equal(sent, f.sent) {
			t.Errorf("%s: the request to the device has %d, want %d", name, sent, f.sent)
		}
	}
}
