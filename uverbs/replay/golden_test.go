//go:build unix

package replay_test

import (
	"bytes"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/replay"
)

// The tests here do through the library what programs of rdma-core did, and compare the commands with theirs, on
// each way of giving commands.

// game is what the ping-pongs have in common.
type game struct {
	*testing.T
	dev  *uverbs.Device
	pd   *uverbs.PD
	mr   *uverbs.MR
	cq   *uverbs.CQ
	peer []uverbs.Endpoint // the peer's
	psn  []uint32          // of this side
}

// replayGame plays a ping-pong against the record of rdma-core's client. The function play gets a device with a
// PD, an MR of size bytes and a CQ. The library does all that was recorded but the verbs in left.
func replayGame(t *testing.T, program string, size, cqe int, event bool, play func(g *game), left ...string) {
	for _, path := range []string{"ioctl", "write"} {
		t.Run(path, func(t *testing.T) {
			t.Setenv("RDMAABI", path)
			file := program + "_" + path
			r, d := start(t, read(t, file+".record"), replay.Options{
				// No ping-pong asks what the device can do, and their contexts ask for less.
				Also: []io.Reader{bytes.NewReader(read(t, "devinfo_"+path+".record"))},
				// The size of a work request. The doorbell has no work requests.
				MayDiffer: []string{"wqe_size"},
			})
			text := string(read(t, file+".txt"))
			g := &game{T: t, dev: d, pd: value(d.AllocPD())(t)}
			g.peer, _ = side(t, text, "remote")
			_, g.psn = side(t, text, "local")
			o := uverbs.CQOptions{Size: cqe}
			if event {
				o.Channel = value(d.CreateCompChannel())(t)
			}
			buf := value(uverbs.AllocBuffer(size, uverbs.BufferOptions{}))(t)
			g.mr = value(g.pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}))(t)
			g.cq = value(d.CreateCQ(o))(t)
			value(d.Port(1))(t)
			play(g)
			must(t, g.cq.Close())
			if event {
				must(t, o.Channel.Close())
			}
			must(t, g.mr.Close(), buf.Close(), g.pd.Close(), d.Close(), r.Err())
			for _, c := range r.Unused() {
				if verb, _, _ := strings.Cut(c, " ("); !slices.Contains(left, verb) {
					t.Errorf("recorded, but not done: %s", c)
				}
			}
		})
	}
}

// side finds the endpoints of a side in what a ping-pong printed.
func side(t *testing.T, text, side string) (ends []uverbs.Endpoint, psns []uint32) {
	t.Helper()
	form := regexp.MustCompile(side + ` address: +LID 0x0000, QPN 0x(\w+), PSN 0x(\w+)[,:] GID (\S+)`)
	for _, m := range form.FindAllStringSubmatch(text, -1) {
		e := uverbs.Endpoint{
			QPN: uint32(value(strconv.ParseUint(m[1], 16, 24))(t)),
			PSN: uint32(value(strconv.ParseUint(m[2], 16, 24))(t)),
			GID: value(ib.ParseGID(m[3]))(t),
		}
		ends, psns = append(ends, e), append(psns, e.PSN)
	}
	if len(ends) == 0 {
		t.Fatalf("no %s address in what the program printed", side)
	}
	return ends, psns
}

// connect does what the connected ping-pongs do, with their attributes.
func (g *game) connect(q *uverbs.QP, typ ib.QPType, i int) {
	g.Helper()
	rtr := uverbs.QPAttr{
		State: ib.QPRTR, PathMTU: ib.MTU1024, DestQPN: g.peer[i].QPN, RQPSN: g.peer[i].PSN,
		AH: uverbs.AHAttr{Global: true, Port: 1, GRH: uverbs.GRH{DGID: g.peer[i].GID, HopLimit: 1, SGIDIndex: 1}},
	}
	rtrMask := uverbs.AttrState | uverbs.AttrAH | uverbs.AttrPathMTU | uverbs.AttrDestQPN | uverbs.AttrRQPSN
	rts := uverbs.QPAttr{State: ib.QPRTS, SQPSN: g.psn[i]}
	rtsMask := uverbs.AttrState | uverbs.AttrSQPSN
	if typ == ib.RC {
		rtr.MaxDestRdAtomic, rtr.MinRNRTimer = 1, 12
		rtrMask |= uverbs.AttrMaxDestRdAtomic | uverbs.AttrMinRNRTimer
		rts.Timeout, rts.RetryCount, rts.RNRRetry, rts.MaxRdAtomic = 14, 7, 7, 1
		rtsMask |= uverbs.AttrTimeout | uverbs.AttrRetryCount | uverbs.AttrRNRRetry | uverbs.AttrMaxRdAtomic
	}
	must(g.T, q.Modify(rtr, rtrMask), q.Modify(rts, rtsMask))
}

// Differences of rdma-core from the tests: it asks for a QP's limits, where we read the answer to
// the creation, and for the GID that the ping-pong prints; and most of the tests send no message.
const (
	queryQP  = "query QP"
	queryGID = "query GID entry"
	postSend = "post send"
)

// initAttrs are what the connected ping-pongs name in the step to INIT.
const initAttrs = uverbs.AttrState | uverbs.AttrPKeyIndex | uverbs.AttrPort | uverbs.AttrAccess

// TestGoldenRC does what ibv_rc_pingpong -e does.
func TestGoldenRC(t *testing.T) {
	replayGame(t, "rc_pingpong", 64, 501, true, func(g *game) {
		qp := value(g.pd.CreateQP(uverbs.QPOptions{SendCQ: g.cq, RecvCQ: g.cq, MaxSendWR: 1, MaxRecvWR: 500}))(g.T)
		must(g.T, qp.Modify(uverbs.QPAttr{State: ib.QPInit, Port: 1}, initAttrs))
		g.connect(qp, ib.RC, 0)
		must(g.T, g.cq.Notify(), qp.PostSend(uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, SGL: []uverbs.SGE{g.mr.SGE(0, 64)}}), qp.Close())
	}, queryQP, queryGID)
}

// TestGoldenUC does what ibv_uc_pingpong does.
func TestGoldenUC(t *testing.T) {
	replayGame(t, "uc_pingpong", 64, 501, false, func(g *game) {
		qp := value(g.pd.CreateQP(uverbs.QPOptions{Type: ib.UC, SendCQ: g.cq, RecvCQ: g.cq, MaxSendWR: 1, MaxRecvWR: 500}))(g.T)
		must(g.T, qp.Modify(uverbs.QPAttr{State: ib.QPInit, Port: 1}, initAttrs))
		g.connect(qp, ib.UC, 0)
		must(g.T, qp.Close())
	}, queryQP, queryGID, postSend)
}

// TestGoldenUD does what ibv_ud_pingpong does.
func TestGoldenUD(t *testing.T) {
	replayGame(t, "ud_pingpong", 64+uverbs.GRHSize, 501, false, func(g *game) {
		qp := value(g.pd.CreateQP(uverbs.QPOptions{Type: ib.UD, SendCQ: g.cq, RecvCQ: g.cq, MaxSendWR: 1, MaxRecvWR: 500}))(g.T)
		must(g.T,
			qp.Modify(uverbs.QPAttr{State: ib.QPInit, Port: 1, QKey: 0x11111111}, uverbs.AttrState|uverbs.AttrPKeyIndex|uverbs.AttrPort|uverbs.AttrQKey),
			qp.Modify(uverbs.QPAttr{State: ib.QPRTR}, uverbs.AttrState),
			qp.Modify(uverbs.QPAttr{State: ib.QPRTS, SQPSN: g.psn[0]}, uverbs.AttrState|uverbs.AttrSQPSN))
		ah := value(g.pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: g.peer[0].GID, SGIDIndex: 1, HopLimit: 1}}))(g.T)
		must(g.T, ah.Close(), qp.Close())
	}, queryQP, queryGID, postSend)
}

// TestGoldenSRQ does what ibv_srq_pingpong does with two QPs.
func TestGoldenSRQ(t *testing.T) {
	replayGame(t, "srq_pingpong", 64, 502, false, func(g *game) {
		srq := value(g.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 500}))(g.T)
		var qps [2]*uverbs.QP
		for i := range qps {
			qps[i] = value(g.pd.CreateQP(uverbs.QPOptions{SendCQ: g.cq, RecvCQ: g.cq, SRQ: srq, MaxSendWR: 1}))(g.T)
		}
		for _, q := range qps {
			must(g.T, q.Modify(uverbs.QPAttr{State: ib.QPInit, Port: 1}, initAttrs))
		}
		for i, q := range qps {
			g.connect(q, ib.RC, i)
		}
		must(g.T, qps[0].Close(), qps[1].Close(), srq.Close())
	}, queryQP, queryGID, postSend)
}

// TestGoldenDevinfo does what ibv_devinfo does.
func TestGoldenDevinfo(t *testing.T) {
	for _, path := range []string{"ioctl", "write"} {
		t.Run(path, func(t *testing.T) {
			t.Setenv("RDMAABI", path)
			r, d := start(t, read(t, "devinfo_"+path+".record"), replay.Options{})
			value(d.Port(1))(t)
			must(t, d.Close(), r.Err())
			for _, c := range r.Unused() {
				t.Errorf("recorded, but not done: %s", c)
			}
		})
	}
}
