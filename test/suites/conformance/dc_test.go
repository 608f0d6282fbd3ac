package conformance

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/mlx5"
)

// errorIs checks which error a call returned.
var errorIs = testenv.ErrorIs

// errorOf returns the error of a call.
func errorOf[T any](_ T, err error) error { return err }

// dcKey is the access key of the targets in these tests.
const dcKey = 0x0123456789abcdef

// dcTarget is a DCT with an SRQ of its own.
type dcTarget struct {
	qp  *uverbs.QP
	srq *uverbs.SRQ
	ah  *uverbs.AH // the address, for initiators
}

// dcRig is an initiator and several targets, with the CQ of all of them and their memory.
type dcRig struct {
	*side
	dci     *uverbs.QP
	targets []dcTarget

	outOfOrder bool // as the initiator
}

// dcPath is a path on which a request without an answer soon fails.
func dcPath() uverbs.PathOptions {
	return uverbs.PathOptions{GIDIndex: new(ipv4Index), Timeout: 12, RetryCount: 2}
}

// newDC makes an initiator with options and n targets on one device.
func newDC(t *testing.T, o mlx5.DCIOptions, n int) *dcRig {
	t.Helper()
	testenv.Needs(t, "DC", "mlx5")
	return newDCOn(t, openDevice(t, deviceName), o, n)
}

// newDCOn does so on a device that is open.
func newDCOn(t *testing.T, dev *uverbs.Device, o mlx5.DCIOptions, n int) *dcRig {
	t.Helper()
	r := &dcRig{side: newSide(t, dev, uverbs.QPOptions{})}
	r.dci = r.newDCI(t, o)
	for range n {
		r.targets = append(r.targets, r.newTarget(t))
	}
	return r
}

// newDCI makes an initiator that is ready.
func (r *dcRig) newDCI(t *testing.T, o mlx5.DCIOptions) *uverbs.QP {
	t.Helper()
	o.SendCQ, o.Path = r.cq, dcPath()
	q, err := mlx5.CreateDCI(r.pd, o)
	testenv.Skip(t, err) // on a card without DC, or a kernel without streams or OutOfOrder
	must(t, err)
	closeLater(t, q)
	err = mlx5.ReadyDC(q)
	testenv.Skip(t, err) // on a card with OutOfOrder for other types
	must(t, err)
	r.outOfOrder = o.OutOfOrder
	return q
}

// newTarget makes a target that is ready.
func (r *dcRig) newTarget(t *testing.T) (d dcTarget) {
	t.Helper()
	var err error
	d.srq, err = r.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 32})
	must(t, err)
	closeLater(t, d.srq)
	d.qp, err = mlx5.CreateDCT(r.pd, mlx5.DCTOptions{RecvCQ: r.cq, SRQ: d.srq, AccessKey: dcKey, Path: dcPath(), OutOfOrder: r.outOfOrder})
	must(t, err)
	closeLater(t, d.qp)
	if n := d.qp.QPN(); n != 0 {
		t.Errorf("the DCT has number %d before it is ready", n)
	}
	must(t, mlx5.ReadyDC(d.qp))
	e, err := d.qp.Endpoint()
	must(t, err)
	if e.QPN == 0 || e.QPN != d.qp.QPN() {
		t.Fatalf("the DCT has number %d, and its endpoint %d", d.qp.QPN(), e.QPN)
	}
	d.ah = r.address(t, e)
	return d
}

// address makes the address of a target for the initiators of r.
func (r *dcRig) address(t *testing.T, target uverbs.Endpoint) *uverbs.AH {
	t.Helper()
	attr, err := r.dci.PathTo(target)
	must(t, err)
	ah, err := r.pd.CreateAH(attr)
	must(t, err)
	closeLater(t, ah)
	return ah
}

// to addresses a request to a target.
func (d *dcTarget) to(wr uverbs.SendWR) uverbs.SendWR {
	wr.AH, wr.RemoteQPN, wr.DCAccessKey = d.ah, d.qp.QPN(), dcKey
	return wr
}

// wants polls completions until each of the IDs has come, with its status.
func (r *dcRig) wants(t *testing.T, want map[uint64]uverbs.WCStatus) map[uint64]uverbs.WC {
	t.Helper()
	got := map[uint64]uverbs.WC{}
	for len(got) < len(want) {
		wc := r.next(t)
		if status, ok := want[wc.ID]; !ok || wc.Status != status {
			t.Fatalf("completion %+v, want %v", wc, want)
		}
		got[wc.ID] = wc
	}
	return got
}

// TestDC sends, writes, reads and does atomics from one DCI to two DCTs in turn, without waiting
// between them.
func TestDC(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		r := newDC(t, mlx5.DCIOptions{MaxInline: 64, MaxSendSGE: 2}, 2)
		for i := range uint64(40) {
			d := &r.targets[i%2]
			want := r.fill(0, 3000, byte(i))
			must(t, d.srq.PostRecv(1000+i, r.mr.SGE(8192, 3000)))
			wr := d.to(send(i, r.mr.SGE(0, 1000), r.mr.SGE(1000, 2000)))
			if i%3 == 1 {
				wr.SGL, wr.Inline, want = nil, bytes.Clone(want[:50]), want[:50]
			}
			if i%4 == 2 {
				wr.Opcode, wr.Imm = uverbs.WRSendWithImm, uint32(i)
			}
			must(t, r.dci.PostSend(wr))
			got := r.wants(t, map[uint64]uverbs.WCStatus{i: 0, 1000 + i: 0})
			if wc := got[1000+i]; wc.Opcode != uverbs.WCRecv || int(wc.ByteLen) != len(want) || wc.QPN != d.qp.QPN() || wc.Imm != wr.Imm {
				t.Fatalf("%d: completion %+v", i, wc)
			}
			if wc := got[i]; wc.Opcode != uverbs.WCSend || wc.QPN != r.dci.QPN() {
				t.Fatalf("%d: completion %+v", i, wc)
			}
			r.holds(t, 8192, want)
		}
		dcBatch(t, r)
		dcList(t, r)
		dcAtomics(t, r)
	})
}

// dcBatch posts operations to both targets in one batch, by the builder.
func dcBatch(t *testing.T, r *dcRig) {
	want := r.fill(0, 600, 55)
	r.fill(2000, 600, 0)
	must(t, r.targets[1].srq.PostRecv(9, r.mr.SGE(8192, 10)))
	b := r.dci.BeginSend()
	for i := range uint64(6) {
		d := &r.targets[i%2]
		b.Write(i, uverbs.SendSignaled, r.mr.Addr()+2000+100*i, r.mr.RKey())
		b.ToDCT(d.ah, d.qp.QPN(), dcKey)
		b.SGE(r.mr.SGE(int(100*i), 100))
	}
	b.WriteImm(6, uverbs.SendSignaled, r.mr.Addr(), r.mr.RKey(), 7)
	b.ToDCT(r.targets[1].ah, r.targets[1].qp.QPN(), dcKey)
	b.Read(7, uverbs.SendSignaled|uverbs.SendFence, r.mr.Addr()+2000, r.mr.RKey())
	b.ToDCT(r.targets[0].ah, r.targets[0].qp.QPN(), dcKey)
	b.SGE(r.mr.SGE(4000, 600))
	must(t, b.Post())
	got := r.wants(t, map[uint64]uverbs.WCStatus{0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0, 9: 0})
	if wc := got[9]; wc.Opcode != uverbs.WCRecvRDMAWrite || wc.Imm != 7 || wc.QPN != r.targets[1].qp.QPN() {
		t.Errorf("completion %+v", wc)
	}
	r.holds(t, 2000, want)
	r.holds(t, 4000, want)
}

// dcList posts SENDs to both targets, with and without data, in one list.
func dcList(t *testing.T, r *dcRig) {
	data := r.fill(0, 600, 99)
	r.fill(8192, 600, 0)
	var wrs []uverbs.SendWR
	want, sizes := map[uint64]uverbs.WCStatus{}, []int{100, 0, 20, 60}
	for i, size := range sizes {
		d, id := &r.targets[i%2], uint64(i)
		must(t, d.srq.PostRecv(100+id, r.mr.SGE(8192+100*i, 100)))
		wr := d.to(send(id))
		switch {
		case i == 2:
			wr.Inline = bytes.Clone(data[200:220])
		case size > 0:
			wr.SGL = []uverbs.SGE{r.mr.SGE(100*i, size)}
		}
		wrs = append(wrs, wr)
		want[id], want[100+id] = 0, 0
	}
	must(t, r.dci.PostSend(wrs...))
	got := r.wants(t, want)
	for i, size := range sizes {
		if wc := got[100+uint64(i)]; int(wc.ByteLen) != size || wc.QPN != r.targets[i%2].qp.QPN() {
			t.Errorf("completion %+v, want %d bytes by target %d", wc, size, i%2)
		}
		r.holds(t, 8192+100*i, data[100*i:100*i+size])
	}
}

// dcAtomics adds and swaps, if the device has atomics.
func dcAtomics(t *testing.T, r *dcRig) {
	if lacksAtomics(t, r.dev) {
		return
	}
	r.setWord(8192, 5)
	d := &r.targets[0]
	for i, op := range []uverbs.WROpcode{uverbs.WRFetchAdd, uverbs.WRCompareSwap} {
		wr := d.to(send(uint64(i), r.mr.SGE(64, 8)))
		wr.Opcode, wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.Swap = op, r.mr.Addr()+8192, r.mr.RKey(), []uint64{4, 9}[i], 77
		must(t, r.dci.PostSend(wr))
		r.wants(t, map[uint64]uverbs.WCStatus{uint64(i): 0})
		if old, now := r.word(64), r.word(8192); old != []uint64{5, 9}[i] || now != []uint64{9, 77}[i] {
			t.Errorf("%s: %d, and then %d", op, old, now)
		}
	}
}

// TestDCOnDemand sends and writes from memory that is on demand: from a page that nobody has touched, and from one
// with data.
func TestDCOnDemand(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		r := newDC(t, mlx5.DCIOptions{}, 1)
		d := &r.targets[0]
		buf := newBuffer(t, 8192)
		mr, err := r.pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessOnDemand})
		if !hasODP(t, r.dev) {
			absent(t, err, "on-demand paging")
			return
		}
		must(t, err)
		closeLater(t, mr)
		copy(buf.Bytes()[4096:], r.fill(8192, 100, 7))
		for _, at := range []int{0, 4096} {
			r.fill(0, 200, 9)
			write := d.to(send(2, mr.SGE(at, 100)))
			write.Opcode, write.RemoteAddr, write.RKey = uverbs.WRRDMAWrite, r.mr.Addr(), r.mr.RKey()
			must(t, d.srq.PostRecv(3, r.mr.SGE(100, 100)), r.dci.PostSend(d.to(send(1, mr.SGE(at, 100))), write))
			r.wants(t, map[uint64]uverbs.WCStatus{1: 0, 2: 0, 3: 0})
			for _, to := range []int{0, 100} {
				r.holds(t, to, buf.Bytes()[at:][:100])
			}
		}
	})
}

// TestDCByCM has the connection manager tell the number of a target to the initiator, and how to reach it.
func TestDCByCM(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	testenv.Guest(t)
	testenv.NeedsRoCE(t, "Ethernet")
	r := newDC(t, mlx5.DCIOptions{}, 1)
	d, addr := &r.targets[0], netip.MustParseAddr(peerName)
	id, e := connectByCM(t, addr, addr, rdmacm.ConnParam{QPN: r.dci.QPN()}, rdmacm.ConnParam{QPN: d.qp.QPN()})
	attr, _, err := id.QPAttr(ib.QPRTR)
	must(t, err)
	if e.Param.QPN != d.qp.QPN() || attr.DestQPN != d.qp.QPN() {
		t.Fatalf("the target is %#x, and the answer says %#x and %#x", d.qp.QPN(), e.Param.QPN, attr.DestQPN)
	}
	d.ah, err = r.pd.CreateAH(attr.AH)
	must(t, err)
	closeLater(t, d.ah)
	want := r.fill(0, 100, 4)
	must(t, d.srq.PostRecv(1, r.mr.SGE(8192, 100)), r.dci.PostSend(d.to(send(2, r.mr.SGE(0, 100)))))
	r.wants(t, map[uint64]uverbs.WCStatus{1: 0, 2: 0})
	r.holds(t, 8192, want)
}

// TestDCInitiators has several DCIs that send to one DCT.
func TestDCInitiators(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := newDC(t, mlx5.DCIOptions{}, 1)
		d := &r.targets[0]
		want := map[uint64]uverbs.WCStatus{}
		for i := range uint64(4) {
			q := r.newDCI(t, mlx5.DCIOptions{})
			for k := range uint64(4) {
				must(t, d.srq.PostRecv(100+4*i+k, r.mr.SGE(8192, 100)), q.PostSend(d.to(send(4*i+k, r.mr.SGE(0, 100)))))
				want[4*i+k], want[100+4*i+k] = 0, 0
			}
		}
		r.wants(t, want)
	})
}

// TestDCErrors: a wrong access key, a target that is gone and memory that is not there fail a
// request and its DCI, and not the target. The DCI can be reset.
func TestDCErrors(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := newDC(t, mlx5.DCIOptions{}, 2)
		good, gone := &r.targets[0], &r.targets[1]
		number := gone.qp.QPN()
		for i, tt := range []struct {
			name   string
			change func(wr *uverbs.SendWR)
			want   []uverbs.WCStatus
		}{
			{"access key", func(wr *uverbs.SendWR) { wr.DCAccessKey++ }, []uverbs.WCStatus{uverbs.WCRetryExcErr, uverbs.WCRemAccessErr}},
			{"gone", func(wr *uverbs.SendWR) {
				must(t, gone.qp.Close())
				wr.RemoteQPN = number
			}, []uverbs.WCStatus{uverbs.WCRetryExcErr}},
			{"rkey", func(wr *uverbs.SendWR) { wr.RKey += 1 << 8 }, []uverbs.WCStatus{uverbs.WCRemAccessErr}},
		} {
			wr := good.to(send(uint64(i), r.mr.SGE(0, 100)))
			wr.Opcode, wr.RemoteAddr, wr.RKey = uverbs.WRRDMAWrite, r.mr.Addr()+8192, r.mr.RKey()
			tt.change(&wr)
			must(t, r.dci.PostSend(wr))
			wc := r.next(t)
			if wc.Status != tt.want[0] && wc.Status != tt.want[len(tt.want)-1] {
				t.Fatalf("%s: completion %+v, want %v", tt.name, wc, tt.want)
			}
			if err := r.dci.Err(&wc); !errors.Is(err, wc.Status) {
				t.Errorf("%s: error %v", tt.name, err)
			}
			if attr, err := r.dci.Query(); err != nil || attr.State != ib.QPErr {
				t.Errorf("%s: state %s, %v", tt.name, attr.State, err)
			}
			must(t, r.dci.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState), mlx5.ReadyDC(r.dci))
			must(t, good.srq.PostRecv(50, r.mr.SGE(8192, 100)), r.dci.PostSend(good.to(send(51, r.mr.SGE(0, 100)))))
			r.wants(t, map[uint64]uverbs.WCStatus{50: 0, 51: 0})
		}
	})
}

// ends waits until the DCI is in state ERR, as after a failure of too many streams. A real card may need time for that.
func (r *dcRig) ends(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		attr, err := r.dci.Query()
		if err == nil && attr.State == ib.QPErr {
			return
		}
		if err != nil || testenv.Modelled() || time.Now().After(end) {
			t.Fatalf("the DCI is in state %s, %v", attr.State, err)
		}
	}
}

// TestDCStreams: with streams a failed request ends its stream, and not the DCI, until too many
// streams have failed.
func TestDCStreams(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := newDC(t, mlx5.DCIOptions{Streams: mlx5.DCIStreams{Concurrent: 4, Failed: 2}}, 1)
		d := &r.targets[0]
		write := func(id uint64, stream uint16, rkey uint32) {
			t.Helper()
			b := r.dci.BeginSend()
			b.Write(id, uverbs.SendSignaled, r.mr.Addr()+8192, rkey)
			b.ToDCTStream(d.ah, d.qp.QPN(), dcKey, stream)
			b.SGE(r.mr.SGE(0, 8))
			must(t, b.Post())
		}
		wrong := r.mr.RKey() + 1<<8
		write(1, 1, r.mr.RKey())
		write(2, 2, wrong)
		write(3, 3, r.mr.RKey())
		r.wants(t, map[uint64]uverbs.WCStatus{1: 0, 2: uverbs.WCRemAccessErr, 3: 0})
		write(4, 2, r.mr.RKey())
		write(5, 1, r.mr.RKey())
		r.wants(t, map[uint64]uverbs.WCStatus{4: uverbs.WCWRFlushErr, 5: 0})
		write(6, 1, wrong)
		r.wants(t, map[uint64]uverbs.WCStatus{6: uverbs.WCRemAccessErr})
		r.ends(t)
		for _, streams := range []mlx5.DCIStreams{{Concurrent: 1 << 31, Failed: 2}, {Concurrent: 2, Failed: 1 << 31}, {Failed: 2}, {Concurrent: 3}, {Concurrent: -4}, {Concurrent: 4, Failed: 3}} {
			_, err := mlx5.CreateDCI(r.pd, mlx5.DCIOptions{SendCQ: r.cq, Streams: streams})
			var arg *uverbs.ArgError
			if !errors.As(err, &arg) {
				t.Errorf("%+v: error %v", streams, err)
			}
		}
	})
}

// TestDCResetStream resets a failed stream, which then carries data again, while another stream stays
// failed and others go on. A stream that has been reset no longer counts towards the end of the DCI.
func TestDCResetStream(t *testing.T) {
	testenv.Tags(t, testenv.SpecialCard)
	eachPath(t, func(t *testing.T) {
		testenv.Needs(t, "DC", "mlx5")
		streams := mlx5.DCIStreams{Concurrent: 4, Failed: 2}
		r := newDCOn(t, openDEVX(t), mlx5.DCIOptions{Streams: streams}, 1)
		d := &r.targets[0]
		data := r.fill(0, 200, 1)
		post := func(id uint64, stream uint16, key uint64, rkey uint32) {
			t.Helper()
			b := r.dci.BeginSend()
			b.Write(id, uverbs.SendSignaled, r.mr.Addr()+8192, rkey)
			b.ToDCTStream(d.ah, d.qp.QPN(), key, stream)
			b.SGE(r.mr.SGE(int(id)*8, 8))
			must(t, b.Post())
		}
		write := func(id uint64, stream uint16) {
			t.Helper()
			post(id, stream, dcKey, r.mr.RKey())
			r.wants(t, map[uint64]uverbs.WCStatus{id: 0})
			r.holds(t, 8192, data[id*8:id*8+8])
		}
		// fails writes by a wrong rkey, and then flushes a request of the stream.
		fails := func(id uint64, stream uint16) {
			t.Helper()
			post(id, stream, dcKey, r.mr.RKey()+1<<8)
			post(id+1, stream, dcKey, r.mr.RKey())
			r.wants(t, map[uint64]uverbs.WCStatus{id: uverbs.WCRemAccessErr, id + 1: uverbs.WCWRFlushErr})
		}
		write(1, 2)
		fails(2, 2)
		write(4, 1)
		must(t, mlx5.ResetStream(r.dci, 2))
		write(5, 2)
		fails(6, 2) // again, and it is the only one that has failed
		must(t, mlx5.ResetStream(r.dci, 1))
		write(8, 1)
		post(9, 2, dcKey, r.mr.RKey())
		r.wants(t, map[uint64]uverbs.WCStatus{9: uverbs.WCWRFlushErr})
		must(t, mlx5.ResetStream(r.dci, 2))

		post(10, 0xffff, dcKey+1, r.mr.RKey()) // to which the target does not answer
		if wc := r.next(t); wc.Status != uverbs.WCRetryExcErr && wc.Status != uverbs.WCRemAccessErr {
			t.Errorf("a wrong access key: %+v", wc)
		}
		write(11, 2)
		must(t, mlx5.ResetStream(r.dci, 0xffff))
		write(12, 0xffff)

		fails(13, 3)
		fails(15, 4)                                                             // with a second failed stream the DCI fails, which the firmware knows first
		if err := mlx5.ResetStream(r.dci, 3); err != nil || testenv.Modelled() { // a real card may need time until the DCI fails
			firmwareRefuses(t, err, opRTS2RTSQP, "RTS2RTS_QP")
			r.ends(t)
		} else {
			must(t, r.dci.Modify(uverbs.QPAttr{State: ib.QPErr}, uverbs.AttrState))
		}
		argError(t, mlx5.ResetStream(r.dci, 3), "state")
		argError(t, mlx5.ResetStream(r.qp.QP, 3), "QP type")
		argError(t, mlx5.ResetStream(r.newDCI(t, mlx5.DCIOptions{}), 0), "stream")
		var feature *uverbs.FeatureError
		plain := newDC(t, mlx5.DCIOptions{Streams: streams}, 0)
		if err := mlx5.ResetStream(plain.dci, 1); !errors.As(err, &feature) || feature.Feature != "DEVX" {
			t.Errorf("a device that was opened without DEVX: %v, want a FeatureError", err)
		}
	})
}

// TestDCAttributes: what a DCT and a DCI are like, and what they refuse.
func TestDCAttributes(t *testing.T) {
	eachPath(t, func(t *testing.T) {
		r := newDC(t, mlx5.DCIOptions{}, 1)
		d := &r.targets[0]
		attr, err := d.qp.Query()
		must(t, err)
		port, err := r.dev.Port(1)
		must(t, err)
		if attr.State != ib.QPRTR || attr.Port != 1 || attr.MinRNRTimer != 12 || attr.PathMTU != port.ActiveMTU || attr.Access&uverbs.AccessRemoteWrite == 0 {
			t.Errorf("attributes of the DCT %+v", attr)
		}
		idle, err := mlx5.CreateDCT(r.pd, mlx5.DCTOptions{RecvCQ: r.cq, SRQ: d.srq})
		must(t, err)
		closeLater(t, idle)
		if attr, err := idle.Query(); err != nil || attr.State != ib.QPReset {
			t.Errorf("a new DCT is in state %s, %v", attr.State, err)
		}
		for name, err := range map[string]error{
			"reset":       d.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState),
			"ready again": mlx5.ReadyDC(d.qp),
			"connect":     r.dci.Connect(t.Context(), uverbs.Endpoint{QPN: 1}),
			"ready UD":    r.dci.ReadyUD(1),
			"ready RC":    mlx5.ReadyDC(r.qp.QP),
			"no SRQ":      errorOf(mlx5.CreateDCT(r.pd, mlx5.DCTOptions{RecvCQ: r.cq})),
			"no RecvCQ":   errorOf(mlx5.CreateDCT(r.pd, mlx5.DCTOptions{SRQ: d.srq})),
			"no SendCQ":   errorOf(mlx5.CreateDCI(r.pd, mlx5.DCIOptions{})),
			"MaxInline":   errorOf(mlx5.CreateDCI(r.pd, mlx5.DCIOptions{SendCQ: r.cq, MaxInline: 5000})),
			"by CreateQP": errorOf(r.pd.CreateQP(uverbs.QPOptions{Type: ib.DCI, SendCQ: r.cq})),
		} {
			var arg *uverbs.ArgError
			ofQP := slices.Contains([]string{"reset", "connect", "ready UD", "by CreateQP"}, name)
			if !errors.As(err, &arg) || (arg.Package == "mlx5") == ofQP || !ofQP && !strings.HasSuffix(arg.Op, "DC") && !strings.HasPrefix(arg.Op, "CreateDC") {
				t.Errorf("%s: error %v", name, err)
			}
		}
		if err := d.qp.PostSend(send(1)); !errors.Is(err, uverbs.ErrState) {
			t.Errorf("a send of a DCT: %v", err)
		}
		if err := d.qp.PostRecv(1); !errors.Is(err, uverbs.ErrNoRecvQueue) {
			t.Errorf("a receive of a DCT: %v", err)
		}
		if err := r.dci.PostRecv(1); !errors.Is(err, uverbs.ErrNoRecvQueue) {
			t.Errorf("a receive of a DCI: %v", err)
		}
		if err := r.dci.PostSend(send(1)); !wrongField(err, "AH", "needs an open AH") {
			t.Errorf("a send without a target: %v", err)
		}
		b := r.dci.BeginSend()
		b.Send(1, 0)
		b.To(d.ah, 1, 1)
		if err := b.Post(); !wrongField(err, "AH", "only UD and SRD QPs") {
			t.Errorf("a Q_Key: %v", err)
		}
	})
}
