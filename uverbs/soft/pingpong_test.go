package soft_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// datagramQKey is the Q_Key of the test's datagrams.
const datagramQKey = 0x11111111

// side is one end of a test's connection.
type side struct {
	t   testing.TB
	ctx *uverbs.Device
	pd  *uverbs.PD
	cq  *uverbs.CQ
	qp  *uverbs.QP
	buf *uverbs.Buffer
	mr  *uverbs.MR
}

// newSide opens a device and creates a QP with memory.
func newSide(t testing.TB, dev *soft.Device, o uverbs.QPOptions) *side {
	t.Helper()
	s := &side{t: t}
	var err error
	fatal := func(err error) {
		t.Helper()
		testenv.Must(t, err)
	}
	s.ctx, err = uverbs.Open(dev.Name(), uverbs.OpenOptions{})
	fatal(err)
	t.Cleanup(func() {
		if err := s.ctx.CloseAll(); err != nil {
			t.Error(err)
		}
		if s.buf != nil {
			s.buf.Close()
		}
	})
	s.pd, err = s.ctx.AllocPD()
	fatal(err)
	s.buf, err = uverbs.AllocBuffer(1<<16, uverbs.BufferOptions{})
	fatal(err)
	s.mr, err = s.pd.RegMR(s.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteAtomic})
	fatal(err)
	s.cq, err = s.ctx.CreateCQ(uverbs.CQOptions{Events: true})
	fatal(err)
	o.SendCQ, o.RecvCQ = s.cq, s.cq
	s.qp, err = s.pd.CreateQP(o)
	fatal(err)
	if o.Type == ib.UD {
		fatal(s.qp.ReadyUD(datagramQKey))
	} else {
		fatal(s.qp.Init())
	}
	return s
}

// connect connects two sides.
func connect(t testing.TB, a, b *side) {
	t.Helper()
	for _, pair := range [][2]*side{{a, b}, {b, a}} {
		e, err := pair[1].qp.Endpoint()
		if err == nil {
			err = pair[0].qp.Connect(t.Context(), e)
		}
		testenv.Must(t, err)
	}
}

// twoSides returns two connected sides on devices of their own, which a function makes.
func twoSides(t testing.TB, newDevice func(soft.Options) (*soft.Device, error), o uverbs.QPOptions) (a, b *side) {
	t.Helper()
	var sides [2]*side
	for i := range sides {
		dev, err := newDevice(soft.Options{Auto: true})
		testenv.Must(t, err)
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
		sides[i] = newSide(t, dev, o)
	}
	connect(t, sides[0], sides[1])
	return sides[0], sides[1]
}

// exchange posts a receive for the next message and sends one, n times. The first side begins.
func (s *side) exchange(ctx context.Context, n, size int, first bool) error {
	const half = 1 << 15
	post := func() error { return s.qp.PostRecv(1, s.mr.SGE(half, half)) }
	send := func(i int) error {
		s.buf.Bytes()[0] = byte(i)
		return s.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{s.mr.SGE(0, size)}})
	}
	if first {
		if err := errors.Join(post(), send(0)); err != nil {
			return err
		}
	}
	var wcs [4]uverbs.WC
	sent, received := 0, 0
	for sent < n || received < n {
		k, err := s.cq.Wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:k] {
			switch err := s.qp.Err(&wcs[i]); {
			case err != nil:
				return err
			case wcs[i].ID == 2:
				sent++
				continue
			case int(wcs[i].ByteLen) != size || s.buf.Bytes()[half] != byte(received):
				return errors.New("a message is not the one that was sent")
			}
			received++
			if received < n || !first {
				if err := errors.Join(post(), send(received-flag(!first))); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// ways are the ways in which two devices reach each other.
var ways = map[string]func(soft.Options) (*soft.Device, error){"directly": soft.New, "by sockets": soft.NewViaSocket}

// TestPingPong exchanges messages between two goroutines.
func TestPingPong(t *testing.T) {
	for way, newDevice := range ways {
		for _, size := range []int{1, 4096, 4097, 1 << 15} {
			a, b := twoSides(t, newDevice, uverbs.QPOptions{})
			testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(1<<15, 1<<15)))
			var wg sync.WaitGroup
			for i, s := range []*side{a, b} {
				wg.Go(func() {
					if err := s.exchange(t.Context(), 100, size, i == 0); err != nil {
						t.Errorf("%s, side %d, %d bytes: %v", way, i, size, err)
					}
				})
			}
			wg.Wait()
		}
	}
}

// TestViaSocket: packets between two devices take their sockets if one of the two has ViaSocket, and otherwise
// none does.
func TestViaSocket(t *testing.T) {
	for _, via := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
		var devs []*soft.Device
		a, b := twoSides(t, func(o soft.Options) (*soft.Device, error) {
			o.ViaSocket = via[len(devs)]
			d, err := soft.New(o)
			devs = append(devs, d)
			return d, err
		}, uverbs.QPOptions{})
		testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(1<<15, 1<<15)))
		var wg sync.WaitGroup
		for i, s := range []*side{a, b} {
			wg.Go(func() {
				if err := s.exchange(t.Context(), 10, 100, i == 0); err != nil {
					t.Errorf("%v, side %d: %v", via, i, err)
				}
			})
		}
		wg.Wait()
		for i, d := range devs {
			if n := d.Network().Received; n >= 10 != (via[0] || via[1]) || n != 0 && n < 10 {
				t.Errorf("with ViaSocket %v, the socket of device %d has received %d packets", via, i, n)
			}
		}
	}
}

// TestOwnGroup: a member of a group receives what its own device sends to the group, once.
func TestOwnGroup(t *testing.T) {
	group := ib.GID(netip.MustParseAddr("239.1.2.4").As16())
	for way, newDevice := range ways {
		dev, err := newDevice(soft.Options{Auto: true})
		testenv.Must(t, err)
		t.Cleanup(func() { dev.Close() })
		a := newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
		ah, err := a.pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: group, SGIDIndex: 1}})
		if err == nil {
			err = errors.Join(dev.JoinGroup(group.Addr()), a.qp.AttachMulticast(group, 0))
		}
		if err != nil {
			t.Fatal(way, err)
		}
		for size := 5; size < 8; size++ { // a second copy of the first would be taken for the second
			err := errors.Join(a.qp.PostRecv(1, a.mr.SGE(0, 1000)), a.qp.PostSend(uverbs.SendWR{
				Opcode: uverbs.WRSend, SGL: []uverbs.SGE{a.mr.SGE(2000, size)}, AH: ah, RemoteQPN: 0xffffff, RemoteQKey: datagramQKey,
			}))
			var wc [1]uverbs.WC
			if err == nil {
				_, err = a.cq.Wait(t.Context(), wc[:])
			}
			if err != nil || int(wc[0].ByteLen) != uverbs.GRHSize+size {
				t.Fatalf("%s: %v, completion %+v, want %d bytes", way, err, wc[0], uverbs.GRHSize+size)
			}
		}
		if err := a.qp.DetachMulticast(group, 0); err != nil {
			t.Errorf("%s: %v", way, err)
		}
	}
}

// TestGroup sends a datagram to a multicast group that the QP of another device has joined.
func TestGroup(t *testing.T) {
	group := ib.GID(netip.MustParseAddr("239.1.2.3").As16())
	for way, newDevice := range ways {
		var sides [2]*side
		for i := range sides {
			dev, err := newDevice(soft.Options{Auto: true})
			testenv.Must(t, err)
			t.Cleanup(func() { dev.Close() })
			if err := dev.JoinGroup(group.Addr()); err != nil {
				t.Fatal(way, err)
			}
			sides[i] = newSide(t, dev, uverbs.QPOptions{Type: ib.UD})
		}
		a, b := sides[0], sides[1]
		if err := errors.Join(b.qp.AttachMulticast(group, 0), b.qp.PostRecv(1, b.mr.SGE(0, 1000))); err != nil {
			t.Fatal(way, err)
		}
		ah, err := a.pd.CreateAH(uverbs.AHAttr{Port: 1, Global: true, GRH: uverbs.GRH{DGID: group, SGIDIndex: 1}})
		if err != nil {
			t.Fatal(way, err)
		}
		copy(a.buf.Bytes(), "hello")
		if err := a.qp.PostSend(uverbs.SendWR{
			Opcode: uverbs.WRSend, SGL: []uverbs.SGE{a.mr.SGE(0, 5)}, AH: ah, RemoteQPN: 0xffffff, RemoteQKey: datagramQKey,
		}); err != nil {
			t.Fatal(way, err)
		}
		var wc [1]uverbs.WC
		if _, err := b.cq.Wait(t.Context(), wc[:]); err != nil || wc[0].ByteLen != uverbs.GRHSize+5 || string(b.buf.Bytes()[uverbs.GRHSize:][:5]) != "hello" {
			t.Errorf("%s: %v, completion %+v", way, err, wc[0])
		}
		if err := b.qp.DetachMulticast(group, 0); err != nil {
			t.Errorf("%s: %v", way, err)
		}
	}
}

// TestPollReceives: polling an empty CQ handles what has arrived at the socket. One goroutine is enough to
// exchange messages, even if no processor is free for others.
func TestPollReceives(t *testing.T) {
	a, b := twoSides(t, soft.NewViaSocket, uverbs.QPOptions{})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 20 {
		testenv.Must(t, b.qp.PostRecv(1, b.mr.SGE(0, 8)))
		testenv.Must(t, a.qp.PostSend(uverbs.SendWR{ID: 2, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 8)}}))
		for _, s := range []*side{b, a} { // the message, and then its acknowledgement
			const polls = 20 // the acknowledgement may wait for an answer until the other device has its turn
			var wcs [1]uverbs.WC
			n := 0
			for i := 0; i < polls && n == 0; i++ {
				var err error
				if n, err = s.cq.Poll(wcs[:]); err != nil {
					t.Fatal(err)
				}
			}
			if n != 1 || s.qp.Err(&wcs[0]) != nil {
				t.Fatalf("%d polls found %d completions, want a success: %+v", polls, n, wcs[0])
			}
		}
	}
}

// TestPollServesOthers: polling an empty CQ handles what has arrived at other devices of the process, for
// whose goroutines there may be no processor.
func TestPollServesOthers(t *testing.T) {
	a, b := twoSides(t, soft.NewViaSocket, uverbs.QPOptions{Path: uverbs.PathOptions{Access: uverbs.AccessRemoteWrite}})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	wr := uverbs.SendWR{
		Opcode: uverbs.WRRDMAWrite, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{a.mr.SGE(0, 8)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}
	for range 20 {
		testenv.Must(t, a.qp.PostSend(wr))
		const polls = 50 // in 10 ms there are thousands
		var wcs [1]uverbs.WC
		n := 0
		for i := 0; i < polls && n == 0; i++ {
			var err error
			if n, err = a.cq.Poll(wcs[:]); err != nil {
				t.Fatal(err)
			}
		}
		if n != 1 || a.qp.Err(&wcs[0]) != nil {
			t.Fatalf("%d polls found %d completions, want a success: %+v", polls, n, wcs[0])
		}
	}
}
