package perftest

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// talker is a peer that connects and says what it has to say.
type talker struct {
	channel *rdmacm.Channel
	to      netip.AddrPort
	pd      *uverbs.PD
	mr      *uverbs.MR
}

// newTalker makes one on a device.
func newTalker(f *testing.F, device string, to netip.AddrPort) *talker {
	f.Helper()
	p := &talker{to: to}
	var err error
	check := func() {
		if err != nil {
			f.Fatal(err)
		}
	}
	dev, err := uverbs.Open(device, uverbs.OpenOptions{})
	check()
	p.channel, err = rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: to.Addr()})
	check()
	p.pd, err = dev.AllocPD()
	check()
	p.mr, err = p.pd.RegSlice(make([]byte, 1<<12), uverbs.AccessLocalWrite)
	check()
	f.Cleanup(func() {
		if err := errors.Join(p.channel.Close(), p.mr.Close(), p.pd.Close(), dev.Close()); err != nil {
			f.Error(err)
		}
	})
	return p
}

// talk connects, sends messages, each of which begins with its length, and disconnects.
func (p *talker) talk(ctx context.Context, said []byte) (err error) {
	const receives = 24
	cq, err := p.pd.Device().CreateCQ(uverbs.CQOptions{Size: receives + 1, Events: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cq.Close()) }()
	id, err := p.channel.NewID(rdmacm.TCP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, id.Close()) }()
	if err := id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(p.to)); err != nil {
		return err
	}
	qp, err := id.CreateQP(p.pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: receives})
	if err != nil {
		return err
	}
	for range receives {
		if err := qp.PostRecv(0, p.mr.SGE(2048, 2048)); err != nil {
			return err
		}
	}
	param := controlParam
	param.RetryCount = 1 // this side does not look whether the other has disconnected
	if _, err := id.ConnectWait(ctx, param); err != nil {
		return err
	}
	defer id.Disconnect()
	for len(said) > 0 {
		n := min(int(said[0]), len(said)-1)
		copy(p.mr.Bytes(), said[1:1+n])
		said = said[1+n:]
		if err := qp.PostSend(uverbs.SendWR{ID: 1, Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{p.mr.SGE(0, n)}}); err != nil {
			return err
		}
		heard := false
		for wcs := [1]uverbs.WC{}; wcs[0].ID != 1; heard = heard || wcs[0].ID != 1 {
			if _, err := cq.Wait(ctx, wcs[:]); err != nil {
				return err
			}
			if wcs[0].Status != uverbs.WCSuccess {
				return nil // the session has ended the connection
			}
		}
		if !heard { // messages alternate, and a message that finds no receive is repeated after 655 ms
			short, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
			cq.Wait(short, make([]uverbs.WC, 1))
			cancel()
		}
	}
	return nil
}

// FuzzCM: a session over the connection manager with a client that says anything ends, without a panic, and
// leaves nothing.
func FuzzCM(f *testing.F) {
	for _, r := range recordings(f) {
		if _, overCM := r.test(f); !overCM {
			continue
		}
		var all []byte
		for _, m := range r.all {
			if m.client {
				all = append(append(all, byte(len(m.data))), m.data...)
			}
		}
		f.Add(all, r.command[len(r.command)-1])
		f.Add(all[:len(all)/2], byte(0))
	}
	f.Add([]byte("\xff too long for a receive"+string(make([]byte, 300))), byte(1))
	dev, err := soft.New(soft.Options{Auto: true})
	if err != nil {
		f.Fatal(err)
	}
	channel, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: dev.Addr()})
	if err != nil {
		f.Fatal(err)
	}
	listener, err := channel.NewID(rdmacm.TCP)
	if err == nil {
		err = listener.Bind(rdmacm.AddrOf(netip.AddrPortFrom(dev.Addr(), 0)))
	}
	if err == nil {
		err = listener.Listen(0)
	}
	if err != nil {
		f.Fatal(err)
	}
	a, err := listener.Addrs()
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { // after the talker's
		if err := errors.Join(listener.Close(), channel.Close(), dev.Close()); err != nil {
			f.Error(err)
		}
	})
	peer := newTalker(f, dev.Name(), netip.AddrPortFrom(dev.Addr(), a.Local.Port))
	before := dev.Resources()
	f.Fuzz(func(t *testing.T, said []byte, kind byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		talked := make(chan error, 1)
		go func() { talked <- peer.talk(ctx, said) }()
		request, err := listener.NextRequest(ctx)
		if err != nil {
			t.Fatal(errors.Join(err, <-talked))
		}
		if s, err := AcceptCM(ctx, request); err == nil {
			ops := []string{Send, Write, Read, Atomic}
			s.Test = Test{Op: ops[kind%4], Latency: kind&4 != 0, Both: kind&12 == 8, Sizes: []int{64}, Iterations: 5}
			if s.Hello(ctx, DefaultParams(ib.MTU1024)) == nil {
				s.Play(ctx, &fakeEngine{mine: []Record{{QPN: 1, GID: someGID}}})
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, ErrNotClient) {
			t.Error(err)
		}
		if err := <-talked; err != nil {
			t.Error(err)
		}
		if ctx.Err() != nil {
			t.Error("the session does not end")
		}
		if now := dev.Resources(); now != before {
			t.Errorf("there are %+v, before there were %+v", now, before)
		}
	})
}
