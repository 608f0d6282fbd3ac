package ibcm

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// world is a network that loses, repeats, delays and reorders MADs, and programs that connect and
// disconnect at random.
type world struct {
	*network
	client, server *host
	conns          []*conn
	byQPN          map[uint32]*conn // by the QPN of the client
	loss           float64
}

// conn is a connection of the world, or an attempt.
type conn struct {
	a           *ID
	p           []*ID // the requests at the server; a late copy of a REQ makes another one
	established bool
	failed      bool
	ended       int // how often the client was told of the end
}

func newWorld(t *testing.T, seed uint64, loss float64) *world {
	w := &world{network: newNetwork(t, seed), byQPN: map[uint32]*conn{}, loss: loss}
	w.client, w.server = w.host("fd00::1", 0xa), w.host("fd00::2", 0xb)
	w.server.services[tcpService] = true
	w.client.react, w.server.react = w.clientEvent, w.serverEvent
	w.fate = func(Message) []time.Duration {
		var copies []time.Duration
		for range 1 + w.rand.IntN(2) {
			if w.rand.Float64() >= w.loss {
				copies = append(copies, time.Duration(w.rand.IntN(300))*time.Millisecond)
			}
		}
		return copies
	}
	return w
}

// find returns the connection of an ID.
func (w *world) find(id *ID) *conn {
	for _, c := range w.conns {
		if c.a == id || slices.Contains(c.p, id) {
			return c
		}
	}
	w.t.Fatalf("an event of an unknown ID")
	return nil
}

func (w *world) clientEvent(id *ID, e Event) {
	c := w.find(id)
	switch e.Type {
	case EventREP:
		id.PrepareMRA()
		w.ok(id.SendRTU())
		c.established = true
		w.compare(id, w.server.m.ids[id.remote])
	case EventREJ, EventREQError:
		c.failed = true
	case EventDREQ:
		w.ok(id.SendDREP())
		c.ended++
	case EventDREP, EventDREQError:
		c.ended++
	}
}

func (w *world) serverEvent(id *ID, e Event) {
	switch e.Type {
	case EventREQ:
		c := w.byQPN[e.Message.(*REQ).QPN]
		for _, other := range c.p {
			if s := other.State(); s != Idle && s != Timewait {
				w.t.Errorf("a second request of QP %#x in state %s", e.Message.(*REQ).QPN, s)
			}
		}
		c.p = append(c.p, id)
		if id.PrepareMRA(); w.rand.IntN(8) == 0 {
			w.ok(id.SendREJ(ReasonConsumer, nil, nil))
			return
		}
		w.ok(id.SendREP(w.server.reply()))
	case EventDREQ:
		w.ok(id.SendDREP())
	}
}

// compare checks that both ends of a connection have the same QPNs and PSNs.
func (w *world) compare(a, p *ID) {
	w.t.Helper()
	attrs := func(id *ID) (rtr, rts QPAttr) {
		rtr, e1 := id.QPAttr(QPRTR)
		rts, e2 := id.QPAttr(QPRTS)
		if e1 != 0 || e2 != 0 {
			w.t.Errorf("no attributes in state %s", id.State())
		}
		return rtr, rts
	}
	rtr, rts := attrs(a)
	peerRTR, peerRTS := attrs(p)
	if rtr.RQPSN != peerRTS.SQPSN || rts.SQPSN != peerRTR.RQPSN || rtr.DestQPN != p.localQPN || peerRTR.DestQPN != a.localQPN {
		w.t.Errorf("the ends differ: %+v %+v, %+v %+v", rtr, rts, peerRTR, peerRTS)
	}
}

// act makes a program do something.
func (w *world) act() {
	switch w.rand.IntN(3) {
	case 0:
		c := &conn{a: w.client.m.NewID(w.client.handle)}
		r := w.client.requestTo(w.server)
		r.QPN = uint32(len(w.conns) + 1)
		w.conns, w.byQPN[r.QPN] = append(w.conns, c), c
		w.ok(c.a.SendREQ(r))
	case 1, 2:
		if len(w.conns) == 0 {
			return
		}
		c := w.conns[w.rand.IntN(len(w.conns))]
		for _, id := range append(slices.Clone(c.p), c.a) {
			if id.State() == Established && w.rand.IntN(2) == 0 {
				w.ok(id.SendDREQ())
			}
		}
	}
}

// TestRandom: with lost, repeated and reordered messages every attempt ends once, both ends agree,
// and nothing is left behind.
func TestRandom(t *testing.T) {
	for seed := range uint64(40) {
		for _, loss := range []float64{0, 0.3} {
			t.Run(fmt.Sprintf("seed %d, loss %g", seed, loss), func(t *testing.T) {
				w := newWorld(t, seed, loss)
				for range 200 {
					w.act()
					w.run(time.Duration(w.rand.IntN(3000)) * time.Millisecond)
				}
				w.run(time.Hour)
				for i, c := range w.conns {
					if c.established == c.failed {
						t.Errorf("connection %d: established %t, failed %t; state %s", i, c.established, c.failed, c.a.State())
					}
				}
				w.finish()
			})
		}
	}
}

// finish disconnects the IDs that are connected, and checks that nothing is left.
func (w *world) finish() {
	for _, c := range w.conns {
		if c.a.State() == Established {
			w.ok(c.a.SendDREQ())
		}
	}
	w.run(time.Hour)
	for i, c := range w.conns {
		if c.established && c.ended != 1 || !c.established && c.ended != 0 {
			w.t.Errorf("connection %d: the client was told %d times of the end", i, c.ended)
		}
		for _, id := range append(slices.Clone(c.p), c.a) {
			if id.State() != Idle {
				w.t.Errorf("connection %d ends in state %s", i, id.State())
			}
			id.Destroy()
		}
	}
	empty(w.t, w.client, w.server)
}
