package softrxe

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// WalkEnv is the time that the random walk takes, and SeedEnv its seed, as a decimal number.
const (
	walkEnv     = "GOVERBS_WALK"
	seedEnv     = "GOVERBS_SEED"
	defaultWalk = 30 * time.Second
	shortWalk   = 2 * time.Second // outside of a VM
)

// windowID is the ID of the requests that bind and invalidate memory windows.
const windowID = 500

// sgl returns the SGEs of pieces.
func (e *end) sgl(all []piece) (sgl []uverbs.SGE) {
	for _, p := range all {
		sgl = append(sgl, e.sge(p.offset, p.length))
	}
	return sgl
}

// badKey changes a key to one that no MR has.
const badKey = 0x5500

// request returns the work request of an op.
func (o *op) request(id int, e, peer *end) uverbs.SendWR {
	wr := uverbs.SendWR{ID: uint64(id), Opcode: o.opcode, Flags: o.flags, SGL: e.sgl(o.local), Imm: o.imm, CompareAdd: o.values[0], Swap: o.values[1]}
	if o.inline {
		wr.SGL, wr.Inline = nil, e.buf.Bytes()[o.local[0].offset:][:o.local[0].length]
	}
	switch {
	case o.opcode == uverbs.WRSendWithInv:
		wr.InvalidateRKey = peer.mw.RKey()
	case o.sends() && e.ah != nil:
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = e.ah, peer.qp.QPN(), qkey
		if o.lost {
			wr.RemoteQKey++
		}
	case !o.sends():
		wr.RemoteAddr, wr.RKey = peer.at(o.remote), peer.mr.RKey()
		if o.window {
			wr.RKey = peer.mw.RKey()
		}
	}
	if o.opcode == uverbs.WRFlush {
		wr.Placement, wr.Length = uverbs.FlushGlobal, uint32(o.flush)
		if o.flush == 0 {
			wr.Level = uverbs.FlushMR
		}
	}
	if o.fault == wrongRKey {
		wr.RKey ^= badKey
	}
	if !e.host.soft { // a fence changes no result, but rxe may wait for ever: see the package documentation
		wr.Flags &^= uverbs.SendFence
	}
	return wr
}

// changeWindow invalidates the memory window of an end or binds it.
func (e *end) changeWindow(invalidate bool, bind piece) {
	switch {
	case invalidate:
		e.post(uverbs.SendWR{ID: windowID, Opcode: uverbs.WRLocalInv, InvalidateRKey: e.mw.RKey()})
	case bind.length > 0:
		e.post(uverbs.SendWR{ID: windowID, Opcode: uverbs.WRBindMW, Bind: uverbs.BindInfo{
			MW: e.mw, MR: e.mr, Addr: e.at(bind.offset), Length: uint64(bind.length), Access: rights &^ uverbs.AccessMWBind &^ uverbs.AccessLocalWrite}})
	default:
		return
	}
	e.sent(1)
}

// header is where the GRH of the receive for request j is.
func header(j int) piece { return piece{headerArea + j*uverbs.GRHSize, uverbs.GRHSize} }

// receives posts the receives that the peer's requests take, and returns how many there are.
func (e *end) receives(ops []op) (n int) {
	for j := range ops {
		if ops[j].fault == noReceive {
			return n
		}
		if !ops[j].takes {
			continue
		}
		all := ops[j].recv
		if e.ah != nil {
			all = append([]piece{header(j)}, all...)
		}
		sgl := e.sgl(all)
		if ops[j].fault == wrongLKey {
			sgl[0].LKey ^= badKey
		}
		e.recv(uint64(1000+j), sgl...)
		n++
	}
	return n
}

// ends returns both ends.
func (x *exchange) ends() [2]*end { return [2]*end{x.a, x.b} }

// start posts the requests of a round and the receives that they take, and returns how many receives each end has.
func (x *exchange) start(r *round) (receives [2]int) {
	ends := x.ends()
	for i, e := range ends {
		e.changeWindow(r.invalidate[i], r.bind[i])
	}
	for i, ops := range r.ops {
		receives[1-i] = ends[1-i].receives(ops)
	}
	for i, ops := range r.ops {
		var wrs []uverbs.SendWR
		for j := range ops {
			wrs = append(wrs, ops[j].request(j, ends[i], ends[1-i]))
		}
		if r.list {
			must(x.t, ends[i].qp.PostSend(wrs...))
			continue
		}
		for j := range wrs {
			must(x.t, ends[i].qp.PostSend(wrs[j]))
		}
	}
	return receives
}

// finish waits for all of a round.
func (x *exchange) finish(r *round, receives [2]int) {
	ends := x.ends()
	for i, ops := range r.ops {
		signaled := 0
		for j := range ops {
			if ops[j].flags&uverbs.SendSignaled != 0 {
				signaled++
			}
		}
		ends[i].sent(signaled)
	}
	for i := range ends {
		ends[i].got(receives[i])
	}
	if x.stalled {
		return
	}
	for i, ops := range r.ops {
		for j := range ops {
			if ops[j].takes && ends[i].ah != nil {
				ends[1-i].header(header(j).offset, ends[i].host, ends[1-i].host.addr)
			}
			if ops[j].fault == noFault {
				continue
			}
			ends[i].fails()
			if ops[j].fault != noReceive {
				ends[1-i].fails()
			}
		}
	}
}

// statuses are the statuses of a fault's completion at an end whose peer, or which itself, is rxe or follows the
// specification.
type statuses struct{ rxe, spec uverbs.WCStatus }

// differing are the statuses of faults that uverbs/soft/RXE.md lists: of the request, and of the receive that it
// takes. The end that receives decides. All other statuses are the same.
var differing = map[fault]struct{ request, receive statuses }{
	shortReceive: {statuses{uverbs.WCRemOpErr, uverbs.WCRemInvReqErr}, statuses{uverbs.WCLocQPOpErr, uverbs.WCLocLenErr}},
	wrongLKey:    {statuses{uverbs.WCRemOpErr, uverbs.WCRemOpErr}, statuses{uverbs.WCLocQPOpErr, uverbs.WCLocProtErr}},
}

// comparable returns the record of a round, in which rxe's statuses replace those of the specification that differ. An
// end that should follow the specification and has rxe's status gets a line that rxe never has.
func (x *exchange) comparable(r *round) []string {
	lines := slices.Clone(x.lines)
	ends := x.ends()
	for i, ops := range r.ops {
		e, peer := ends[i], ends[1-i]
		if !peer.host.soft && !peer.host.card() {
			continue
		}
		for j := range ops {
			d := differing[ops[j].fault]
			for _, of := range []struct {
				what string
				statuses
			}{{fmt.Sprintf("%s: %d: ", e.name, j), d.request}, {fmt.Sprintf("%s: receive %d: ", peer.name, 1000+j), d.receive}} {
				if of.rxe == of.spec {
					continue
				}
				for k, line := range lines {
					switch line {
					case of.what + outcome(of.spec):
						lines[k] = of.what + outcome(of.rxe)
					case of.what + outcome(of.rxe):
						lines[k] += ", want " + outcome(of.spec)
					}
				}
			}
		}
	}
	return lines
}

// session is the life of the QPs of all pairings.
type session struct {
	pairs     []*qpPair
	exchanges [][]*exchange // of each pairing, one for each pair
}

// newSession makes the ends and connects them, in all pairings.
func newSession(t *testing.T, pairings [][2]host, pairs []*qpPair) *session {
	s := &session{pairs: pairs}
	for _, hosts := range pairings {
		var all []*exchange
		for _, p := range pairs {
			x := &exchange{t: t}
			x.a, x.b = p.end(t, "a", hosts[0], &x.record), p.end(t, "b", hosts[1], &x.record)
			if p.Type == ib.UD {
				x.a.ah, x.b.ah = x.a.address(x.b.host.gid()), x.b.address(x.a.host.gid())
			} else {
				connect(t, x.a, x.b)
			}
			all = append(all, x)
		}
		s.exchanges = append(s.exchanges, all)
	}
	return s
}

// end makes an end of the pair.
func (p *qpPair) end(t *testing.T, name string, h host, r *record) *end {
	e := newEndWithoutQP(t, name, h, r)
	o := p.QPOptions
	var err error
	if p.srq {
		e.srq, err = e.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: o.MaxRecvWR, MaxSGE: o.MaxRecvSGE})
		must(t, err)
		closeLater(t, e.srq)
		o.SRQ, o.MaxRecvWR, o.MaxRecvSGE = e.srq, 0, 0
	}
	if o.Path.Access&uverbs.AccessFlushGlobal != 0 {
		e.mr, err = e.pd.RegMR(e.buf, uverbs.MROptions{Access: rights | uverbs.AccessFlushGlobal})
		must(t, err)
		closeLater(t, e.mr)
	}
	e.newQP(o)
	if p.hasWindows() { // closed before the QP, for which rxe waits until no window is bound
		e.mw, err = e.pd.AllocMW(uverbs.MWType2)
		must(t, err)
		closeLater(t, e.mw)
	}
	return e
}

// reconnect resets the QPs of a pair and connects them again.
func (s *session) reconnect(t *testing.T, pair int) {
	for _, all := range s.exchanges {
		x := all[pair]
		for _, e := range x.ends() {
			must(t, e.qp.Modify(uverbs.QPAttr{State: ib.QPReset}, uverbs.AttrState), e.qp.Init())
		}
		connect(t, x.a, x.b)
	}
}

// walkTime returns how long the walk is.
func walkTime(t *testing.T) time.Duration {
	text := os.Getenv(walkEnv)
	switch {
	case text == "" && lab == nil:
		return shortWalk
	case text == "":
		return defaultWalk
	}
	d, err := time.ParseDuration(text)
	must(t, err)
	return d
}

// walkSeed returns the seed of the walk.
func walkSeed(t *testing.T) uint64 {
	text := os.Getenv(seedEnv)
	if text == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	must(t, err)
	return seed
}

// TestWalk plays random rounds between all pairings, and compares every completion and the memory
// afterwards with those of the kernel's device alone.
func TestWalk(t *testing.T) {
	testenv.Guest(t)
	walkRxe(t, 0)
}

// TestWalkLoss is TestWalk with a link that loses 1 % of the packets.
func TestWalkLoss(t *testing.T) {
	testenv.Guest(t)
	lose(t, "1%")
	walkRxe(t, 13) // 34 ms
}

// walkRxe walks with the kernel's device and a software device.
func walkRxe(t *testing.T, lossy ib.AckTimeout) {
	kernel := testenv.Kernel(t)
	newer := lossy == 0 && slices.Compare(kernel[:], v6_2[:]) >= 0 // rxe of Linux 7.2 repeats ATOMIC WRITE with address 0
	walk(t, &walker{lossy: lossy, newer: newer, empty: lossy == 0}, func(t *testing.T, ipv6 bool) [][2]host {
		return pairings(newHostsWith(t, ipv6, soft.Options{Trace: traceOnFailure(t)}))
	})
}

// TestWalkSockets plays random rounds between software devices of this process, which needs no VM: directly, by
// sockets, and by sockets while 1 % of the packets are lost and 1 % reordered. All must do the same.
func TestWalkSockets(t *testing.T) {
	faults := []soft.Faults{{}, {Rules: []soft.Rule{{Loss: soft.Percent, Reorder: soft.Percent, Behind: 3}}}}
	var lost uint64
	const timeout = 15 // 134 ms, of which 8 pass until a request fails: this process may not get a processor
	rounds := walk(t, &walker{lossy: timeout, newer: true, empty: true}, func(t *testing.T, ipv6 bool) [][2]host {
		pairings := [][2]host{newSoftPair(t, soft.Options{})}
		for _, f := range faults {
			pairings = append(pairings, newSoftPair(t, soft.Options{Auto: true, ViaSocket: true, Faults: f, Trace: traceOnFailure(t)}))
		}
		t.Cleanup(func() {
			for _, h := range pairings[len(pairings)-1] {
				sent, received := soft.ByName(h.name).FaultCounters()
				lost += sent.Lost + received.Lost
			}
		})
		return pairings
	})
	if lost == 0 && rounds > 20 {
		t.Error("no packet was lost")
	}
}

// newSoftPair returns two software devices of this process, which end with the test.
func newSoftPair(t *testing.T, o soft.Options) (pair [2]host) {
	t.Helper()
	for i := range pair {
		dev, err := soft.New(o)
		must(t, err)
		closeLater(t, dev)
		pair[i] = host{soft: true, name: dev.Name(), addr: dev.Addr()}
	}
	return pair
}

// lose makes the link lose packets, in both directions, until the end of the test.
func lose(t *testing.T, percent string) {
	t.Helper()
	must(t, lab.impair("loss", percent))
	t.Cleanup(func() {
		if err := lab.impair("off"); err != nil {
			t.Error(err)
		}
	})
}

// walk walks between the hosts of pairings, of which the results of the first are compared with those of the
// others. It returns how many rounds there were.
func walk(t *testing.T, w *walker, pairings func(t *testing.T, ipv6 bool) [][2]host) (rounds int) {
	seed := walkSeed(t)
	t.Logf("%s=%d", seedEnv, seed)
	w.Rand = rand.New(rand.NewPCG(seed, 0))
	failing, stalls := 0, 0
	var played time.Duration
	const life = 40 // rounds of a session
	stop := time.Now().Add(walkTime(t))
	for i := 0; time.Now().Before(stop); i++ {
		ok := t.Run(fmt.Sprintf("session %d", i), func(t *testing.T) {
			hosts := pairings(t, w.IntN(2) == 0)
			var pairs []*qpPair
			for range 1 + w.IntN(4)/2*(1+w.IntN(2)) {
				pairs = append(pairs, w.pair())
			}
			s := newSession(t, hosts, pairs)
			for n := 0; n < life && time.Now().Before(stop); n++ {
				rounds++
				began := time.Now()
				fails, stalled := s.round(t, fmt.Sprintf("%s=%d, session %d, round %d", seedEnv, seed, i, n))
				played += time.Since(began)
				if fails {
					failing++
				}
				if stalled { // its QPs are of no use any more
					stalls++
					break
				}
			}
		})
		if !ok {
			break
		}
	}
	t.Logf("%d rounds in %s, %d of them with a fault", rounds, played.Round(time.Second), failing)
	if stalls > 0 {
		t.Logf("rxe with rxe stalled: %d rounds", stalls)
	}
	if stalls > 1+rounds/1000 {
		t.Error("rxe with rxe stalls more often than its known faults explain, see the package documentation")
	}
	return rounds
}

// round draws a round of each pair, plays all at once, and compares the pairings. It reports whether a request
// had a fault, and whether rxe with rxe has stalled.
func (s *session) round(t *testing.T, name string) (failing, stalled bool) {
	t.Helper()
	var rounds []*round
	for _, p := range s.pairs {
		r := p.round(roundBytes / len(s.pairs))
		rounds = append(rounds, r)
		name += fmt.Sprintf("\n%s:\n%s", p, r)
	}
	if stalled = s.compare(t, rounds, name); stalled {
		return false, true
	}
	for k, r := range rounds {
		if r.failing() {
			failing = true
			s.reconnect(t, k)
		}
	}
	return failing, false
}

// compare plays a round of each pair in all pairings. A difference ends the test, and so does a pairing with
// a software device that stalls. It reports whether the kernel's device alone has stalled: rxe has faults
// that make it, and what the others do is then compared with what the first of them does.
func (s *session) compare(t *testing.T, rounds []*round, name string) (stalled bool) {
	t.Helper()
	var want []string
	var first []*exchange // whose results are want
	for _, all := range s.exchanges {
		hosts := fmt.Sprintf("%s to %s", all[0].a.host, all[0].b.host)
		mayStall := !all[0].a.host.soft && !all[0].b.host.soft
		var receives [][2]int
		for k, x := range all {
			x.record = record{title: fmt.Sprintf("%s\n%s, pair %d:\n", name, hosts, k), mayStall: mayStall}
			receives = append(receives, x.start(rounds[k]))
		}
		var got []string
		for k, x := range all {
			x.finish(rounds[k], receives[k])
			if x.stalled {
				stalled = true
				t.Logf("%s%s\n%s: %s", x.title, &x.record, kernelName, rxeCounters())
			}
			got = append(got, fmt.Sprintf("pair %d", k))
			got = append(got, x.comparable(rounds[k])...)
			got = append(got, fmt.Sprintf("memory: %#x, %#x", x.a.sum(), x.b.sum()))
		}
		if stalled && mayStall {
			continue
		}
		if want == nil {
			want, first = got, all
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s\n%s: differs from what %s to %s does:\n%s", name, hosts, first[0].a.host, first[0].b.host, diff)
			for k, x := range all {
				t.Logf("pair %d: the memory of a and b differs at %v and %v", k, differences(first[k].a, x.a), differences(first[k].b, x.b))
			}
			t.FailNow()
		}
	}
	return stalled
}

// differences returns the parts of the memory of two ends that differ.
func differences(e, other *end) (all []piece) {
	b, o := e.buf.Bytes(), other.buf.Bytes()
	for i := 0; i < len(b); i++ {
		if b[i] == o[i] {
			continue
		}
		if n := len(all) - 1; n >= 0 && i-all[n].offset-all[n].length < 8 {
			all[n].length = i + 1 - all[n].offset
		} else {
			all = append(all, piece{i, 1})
		}
	}
	return all
}
