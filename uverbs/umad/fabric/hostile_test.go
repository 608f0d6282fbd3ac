package fabric

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/goverbs/test/ibsim"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// must fails a test on an error.
var must = testenv.Must

// discover walks.
func discover(t testing.TB, p *umad.Port, o Options) *Fabric {
	t.Helper()
	f, err := Discover(t.Context(), p, o)
	must(t, err)
	return f
}

// newHostile returns a port whose answers a function makes: it changes the request, which has the header of an answer
// already, or returns nil for none.
func newHostile(answer func(b []byte) []byte) *umad.Port {
	return umad.NewPort("hostile0", 1, ibsim.NewAnswers(func(m *umad.Message) ([]byte, error) {
		b := slices.Clone(m.MAD)
		b[3] |= byte(mad.MethodResponse)
		b[4] |= 0x80
		return answer(b), nil
	}))
}

// put enters an attribute into an answer.
func put(b []byte, a mad.Attribute) {
	data, err := mad.Marshal(a)
	if err != nil {
		panic(err)
	}
	copy(b[64:], data)
}

// endless answers as a switch with 36 ports, all of which have a link, whatever the route is: a fabric
// without an end.
func endless(b []byte) []byte {
	p, err := mad.Parse(b)
	if err != nil {
		panic(err)
	}
	guid, entry := uint64(1), uint8(1)
	for _, port := range p.Route() {
		guid = guid*41 + uint64(port)
	}
	switch p.Attribute {
	case mad.AttrNodeInfo:
		put(b, &mad.NodeInfo{NodeType: ib.NodeSwitch, NumPorts: 36, NodeGUID: ib.GUID(guid), PortGUID: ib.GUID(guid), LocalPortNum: entry})
	case mad.AttrPortInfo:
		put(b, &mad.PortInfo{LocalPortNum: entry, PortPhysicalState: ib.PhysLinkUp, PortState: ib.PortActive})
	}
	return b
}

// TestHostileEndless: a fabric without an end is a problem when there are MaxNodes nodes, and with a route
// of 63 ports if it is one line.
func TestHostileEndless(t *testing.T) {
	p := newHostile(endless)
	defer p.Close()
	if f := discover(t, p, Options{MaxNodes: 1000}); len(f.Nodes) != 1000 || len(f.Problems) != 1 || !strings.Contains(f.Problems[0].String(), "MaxNodes is 1000") {
		t.Errorf("%d nodes, %v", len(f.Nodes), f.Problems)
	}
	line := newHostile(func(b []byte) []byte {
		if b = endless(b); mad.AttrID(binary.BigEndian.Uint16(b[16:])) == mad.AttrNodeInfo {
			b[64+3] = 2 // ports
		}
		return b
	})
	defer line.Close()
	f := discover(t, line, Options{}) // in two directions
	if len(f.Nodes) != 1+2*63 || len(f.Problems) != 2 || len(f.Problems[0].Path) != 63 {
		t.Errorf("%d nodes, %v", len(f.Nodes), f.Problems)
	}
}

// TestHostileAnswers: answers that are too short, have another attribute, a status, or the transaction of
// another request end the walk at the own node with an error, and never block it.
func TestHostileAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   string
	}{
		"empty":           {func(b []byte) []byte { return b[:0] }, "no answer"},
		"truncated":       {func(b []byte) []byte { return b[:100] }, "want at least 256"},
		"attribute":       {func(b []byte) []byte { b[17] = 0x15; return b }, "no answer"},
		"status":          {func(b []byte) []byte { b[5] = 0x1c; return b }, "invalid value"},
		"transaction":     {func(b []byte) []byte { b[15]++; return b }, "no answer"},
		"class":           {func(b []byte) []byte { b[1] = 4; return b }, "no answer"},
		"another request": {func(b []byte) []byte { b[3] &= 0x7f; return b }, "no answer"},
		"nothing":         {func(b []byte) []byte { return nil }, "no answer"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newHostile(c.change)
			defer p.Close()
			if _, err := Discover(t.Context(), p, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		})
	}
}

// FuzzDiscover: no answers make walks, routes and checks panic, hang, or ask without an end, and what a walk returns
// can be used.
func FuzzDiscover(f *testing.F) {
	f.Add([]byte{}, uint8(1))
	f.Add([]byte("\x01\x02\x03\xff\xff\x00\x24\x05"), uint8(4))
	f.Add([]byte{2, 36, 0, 0x50, 255, 1, 7, 9, 11}, uint8(16))
	f.Fuzz(func(t *testing.T, data []byte, parallel uint8) {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			at, requests := 0, 0
			next := func() byte {
				if len(data) == 0 {
					return 0
				}
				at++
				return data[at%len(data)] + byte(at/len(data))
			}
			p := newHostile(func(b []byte) []byte {
				mu.Lock()
				defer mu.Unlock()
				requests++
				if at > 20000 || next()%16 == 0 {
					return nil
				}
				for i := range b[64:128] {
					b[64+i] = next()
				}
				b[64+2] = next()%3 + 1 // a type of node that there is
				b[64+33] = 0x50 | b[64+33]&15
				for i := 12; i < 19; i++ { // GUIDs are few
					b[64+i] = 0
				}
				return b[:len(b)-int(next()/255)*56]
			})
			defer p.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			o := Options{Parallel: int(parallel%32) + 1, MaxNodes: 60, Tries: 1}
			asked := func(what string, limit int) {
				mu.Lock()
				defer mu.Unlock()
				if requests > limit {
					t.Errorf("%s: %d requests, there should be %d at most", what, requests, limit)
				}
				at, requests = 0, 0
			}
			fabric, err := Discover(ctx, p, o)
			asked("Discover", 60*3*256)
			if err != nil {
				if !strings.HasPrefix(err.Error(), "fabric: the walk ended after ") {
					t.Error(err)
				}
				return
			}
			for a, b := range fabric.Links() {
				if a.Remote != b || b.Remote != a || a.String() == "" || a.Gbps() < 0 {
					t.Errorf("the link from %v to %v", a, b)
				}
				a.Could()
			}
			for lid := range 100 {
				fabric.PortByLID(uint16(lid))
			}
			for i := range fabric.Problems {
				if fabric.Problems[i].String() == "" {
					t.Error("a problem without a text")
				}
			}
			usable(t, ctx, p, fabric, o, asked)
		})
	})
}

// usable checks and traces in a fabric whose nodes give hostile answers.
func usable(t *testing.T, ctx context.Context, p *umad.Port, f *Fabric, o Options, asked func(what string, limit int)) {
	const perStop = 6 // requests
	checkRoute := func(what string, r *Route, err error) {
		if r == nil && err == nil || err != nil && err.Error() == "" {
			t.Errorf("%s: %v, %v", what, r, err)
		}
		if r != nil && len(r.Hops) > 2*maxHops+1 {
			t.Errorf("%s: %d hops", what, len(r.Hops))
		}
	}
	for lid := uint16(1); lid < 0xc000; lid *= 19 {
		r, err := Trace(ctx, p, lid/2, lid, o)
		checkRoute("Trace", r, err)
		asked("Trace", 2*(2*maxHops+2)*perStop)
		r, err = TraceMulticast(ctx, p, 0, lid, firstMLID+lid%64, o)
		checkRoute("TraceMulticast", r, err)
		asked("TraceMulticast", o.MaxNodes*(255+16+perStop))
	}
	found, err := Check(ctx, p, f, CheckOptions{Options: o, Interval: time.Second})
	if err != nil {
		t.Errorf("Check: %v", err)
	}
	asked("Check", o.MaxNodes*(2*256+0xc000/64))
	for i := range found {
		if found[i].Text == "" || found[i].Kind == KindRoute && found[i].Count <= 0 {
			t.Errorf("%+v", found[i])
		}
	}
}
