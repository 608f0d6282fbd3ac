package cm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/pairs"
)

// packetWorld is a PacketConn that exchanges datagrams with another one.
type packetWorld struct {
	t         *testing.T
	near, far *PacketConn
	there     Peer
	groups    []netip.Addr
}

func newPacketWorld(t *testing.T) pairs.World {
	o := PacketOptions{Depth: 8, SendDepth: 4}
	far := value(ListenPacket(within(t), firstAny, o))(t)
	w := &packetWorld{t: t, far: far, near: value(DialPacket(within(t), far.LocalAddr().String(), o))(t)}
	w.there, _ = w.near.DialedPeer()
	for i := range 3 {
		w.groups = append(w.groups, netip.AddrFrom4([4]byte{239, 7, 0, byte(1 + i)}))
	}
	return w
}

func (w *packetWorld) Objects() []any { return []any{w.near} }

func (w *packetWorld) Override(_ any, name string) (call func(*rand.Rand), skip bool) {
	short := func(call func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		defer cancel()
		w.Check(name, call(ctx))
	}
	switch name {
	case "Join":
		return func(r *rand.Rand) {
			short(func(ctx context.Context) error {
				_, err := w.near.Join(ctx, w.groups[r.IntN(len(w.groups))], rdmacm.JoinFullMember)
				return err
			})
		}, false
	case "Leave":
		return func(r *rand.Rand) { w.Check(name, w.near.Leave(w.groups[r.IntN(len(w.groups))])) }, false
	case "Send":
		return func(r *rand.Rand) {
			data := bytes.Repeat([]byte{pairs.Filler}, r.IntN(w.near.MaxDatagram()+1))
			short(func(ctx context.Context) error { return w.near.Send(ctx, data, w.there) })
		}, false
	case "Recv": // what it returns is of one goroutine
		return func(*rand.Rand) {
			short(func(ctx context.Context) error {
				_, _, err := w.near.Recv(ctx)
				return err
			})
		}, false
	case "SetDeadline", "SetReadDeadline", "SetWriteDeadline":
		set := map[string]func(time.Time) error{"SetDeadline": w.near.SetDeadline, "SetReadDeadline": w.near.SetReadDeadline, "SetWriteDeadline": w.near.SetWriteDeadline}[name]
		return func(r *rand.Rand) { w.Check(name, set(time.Now().Add(time.Duration(r.IntN(2000))*time.Microsecond))) }, false
	case "ReadFrom":
		return func(*rand.Rand) {
			w.Check(name, w.near.SetReadDeadline(time.Now().Add(2*time.Millisecond)))
			_, _, err := w.near.ReadFrom(make([]byte, w.near.MaxDatagram()))
			w.Check(name, err)
		}, false
	case "WriteTo":
		return func(r *rand.Rand) {
			w.Check(name, w.near.SetWriteDeadline(time.Now().Add(2*time.Millisecond)))
			_, err := w.near.WriteTo(bytes.Repeat([]byte{pairs.Filler}, r.IntN(w.near.MaxDatagram()+1)), w.there)
			w.Check(name, err)
		}, false
	}
	return nil, false
}

// Check implements the check of errors. A group may be one that was joined already, or that was not joined.
func (w *packetWorld) Check(method string, err error) {
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
		return
	}
	if (method == "Join" || method == "Leave") && (errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)) {
		return
	}
	w.t.Errorf("%s: %v", method, err)
}

func (w *packetWorld) Agree() error { return nil }

// Exchange sends a datagram with a mark, and takes what has come until it is there.
func (w *packetWorld) Exchange() (done bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	mark := fmt.Appendf(nil, "mark %d", rand.Uint64())
	for try := 0; ; try++ { // a datagram for which there is no receive is lost
		if err := w.near.Send(ctx, mark, w.there); errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
			return true, nil
		} else if err != nil {
			return false, err
		}
		for {
			soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			got, _, err := w.far.Recv(soon)
			cancel()
			if err != nil && ctx.Err() != nil {
				return false, fmt.Errorf("the mark has not come after %d tries: %w", try+1, err)
			}
			if err != nil {
				break
			}
			if bytes.Equal(got, mark) {
				return false, nil
			}
			if slices.ContainsFunc(got, func(b byte) bool { return b != pairs.Filler }) && !bytes.HasPrefix(got, []byte("mark ")) {
				return false, fmt.Errorf("received %q, which nobody has sent", got)
			}
		}
	}
}

func (w *packetWorld) End() { must(w.t, w.near.Close(), w.far.Close()) }
