package cm

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"reflect"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/pairs"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// concurrency is what the documentation of each type says.
var concurrency = pairs.Table{
	{Object: (*Conn)(nil), Often: true, Methods: map[pairs.Use]string{
		pairs.Freely: `Batch Close CloseWrite CompareSwap ECE FetchAdd Flush LocalAddr MaxMessage PD PrivateData QP RDMARead RDMAWrite Recv RecvInto
			RemoteAddr Send SendSGE StartCompareSwap StartFetchAdd StartRead StartSend StartWrite Stream`,
	}},
	{Object: (*Batch)(nil), Methods: map[pairs.Use]string{pairs.Alone: "CompareSwap FetchAdd Read Start Write"}},
	{Object: (*Stream)(nil), Often: true, Methods: map[pairs.Use]string{
		pairs.Freely: `Close CloseWrite LocalAddr Read ReadFrom RemoteAddr SetDeadline SetReadDeadline SetWriteDeadline Write WriteTo`,
	}},
	{Object: (*PacketConn)(nil), Often: true, Methods: map[pairs.Use]string{
		pairs.Freely: "Close DialedPeer Join Leave LocalAddr MaxDatagram ReadFrom Recv Send SetDeadline SetReadDeadline SetWriteDeadline WriteTo",
	}},
	{Object: (*Listener)(nil), Methods: map[pairs.Use]string{pairs.Freely: "Accept Addr Close Streams"}},
	{Object: (*DualListener)(nil), Methods: map[pairs.Use]string{pairs.Freely: "Accept Addr Close RDMAErr"}},
	{Object: (*ListenConfig)(nil), Methods: map[pairs.Use]string{pairs.Freely: "Listen"}},
	{Object: (*Dialer)(nil), Methods: map[pairs.Use]string{pairs.Freely: "Dial DialContext"}},
	{Object: (*Request)(nil), Methods: map[pairs.Use]string{pairs.Alone: "PD"}},
}

// TestConcurrencyTable: the table has every exported method of every object, once.
func TestConcurrencyTable(t *testing.T) { concurrency.Check(t) }

// TestPairs runs pairs and triples of methods.
func TestPairs(t *testing.T) {
	testenv.Guest(t)
	testenv.NeedsNoLoss(t, "the limits of time are short")
	worlds := map[string]func(*testing.T) pairs.World{
		"stream": func(t *testing.T) pairs.World { return newStreamWorld(t, ConnOptions{}) },
		"small": func(t *testing.T) pairs.World {
			return newStreamWorld(t, ConnOptions{MessageSize: 500, Depth: 3, Tuning: Tuning{SendDepth: 2}})
		},
		"both": newBothWorld,
		"conn": newConnWorld,
	}
	if testenv.TheRig().Soft { // each kernel answers in its own time when groups come and go
		worlds["packets"] = newPacketWorld
	}
	pairs.Run(t, concurrency, worlds)
}

func newStreamWorld(t *testing.T, o ConnOptions) pairs.World {
	l := newListener(t, ListenOptions{ConnOptions: o})
	w, _ := pairs.NewStream(t, l.Streams(), func(ctx context.Context) (net.Conn, error) {
		return DialStream(ctx, l.Addr().String(), DialOptions{ConnOptions: o})
	})
	w.Others = []any{l}
	return w
}

// newBothWorld makes connections by a Dialer.
func newBothWorld(t *testing.T) pairs.World {
	testenv.NeedsIB(t, "ports beside those of TCP")
	l := value((&ListenConfig{RequireRDMA: true}).Listen(t.Context(), "tcp", firstAny))(t)
	d := &Dialer{}
	w, _ := pairs.NewStream(t, l, func(ctx context.Context) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", l.Addr().String())
	})
	return w
}

// connWorld is a connection that exchanges messages.
type connWorld struct {
	*pairs.Stream
	t      *testing.T
	conn   *Conn
	remote Remote
	local  uverbs.SGE
	filler *uverbs.MR
	free   func()
}

func newConnWorld(t *testing.T) pairs.World {
	l := newListener(t, ListenOptions{})
	var far *Conn
	w := &connWorld{t: t}
	w.Stream, _ = pairs.NewStream(t, &messageListener{l: l, last: &far}, func(ctx context.Context) (net.Conn, error) {
		c, err := Dial(ctx, l.Addr().String(), DialOptions{})
		if err != nil {
			return nil, err
		}
		return &messages{Conn: c}, nil
	})
	w.conn = w.Conn.(*messages).Conn
	region := func(c *Conn, access uverbs.Access) (*uverbs.MR, func()) {
		buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
		mr := value(c.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | access}))(t)
		return mr, func() { must(t, mr.Close(), buf.Close()) }
	}
	near, freeNear := region(w.conn, 0)
	distant, freeFar := region(far, uverbs.AccessRemoteWrite|uverbs.AccessRemoteRead|uverbs.AccessRemoteAtomic)
	for i := range near.Bytes() {
		near.Bytes()[i] = pairs.Filler
	}
	w.filler = near
	w.local, w.remote, w.free = near.SGE(0, 8), RemoteOf(distant), func() { freeNear(); freeFar() }
	w.Others = []any{w.conn, l}
	return w
}

func (w *connWorld) Argument(r *rand.Rand, typ reflect.Type) (reflect.Value, bool) {
	switch typ {
	case reflect.TypeFor[uverbs.SGE]():
		return reflect.ValueOf(w.local), true
	case reflect.TypeFor[Remote]():
		return reflect.ValueOf(w.remote.At(uint32(8 * r.IntN(8)))), true
	}
	return w.Stream.Argument(r, typ)
}

func (w *connWorld) Override(object any, name string) (call func(*rand.Rand), skip bool) {
	if name == "Streams" { // whose Close closes the listener
		return nil, true
	}
	if object != any(w.conn) {
		return w.Stream.Override(object, name)
	}
	short := func(call func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		defer cancel()
		w.Check(name, call(ctx))
	}
	switch name {
	case "Send":
		return func(r *rand.Rand) {
			msg := bytes.Repeat([]byte{pairs.Filler}, r.IntN(2000))
			short(func(ctx context.Context) error {
				err := w.conn.Send(ctx, msg)
				if err == nil {
					w.Sent.Add(int64(len(msg)))
				}
				return err
			})
		}, false
	case "StartSend": // the first 8 bytes are of the READs
		return func(r *rand.Rand) {
			n := r.IntN(2000)
			short(func(ctx context.Context) error {
				op, err := w.conn.StartSend(ctx, w.filler.SGE(8, n), w.filler.SGE(8+n, 5))
				if err != nil {
					return err
				}
				w.Sent.Add(int64(n + 5))
				return op.Wait(ctx)
			})
		}, false
	case "SendSGE": // StartSend and Wait; if ctx ends it does not say whether the message was sent
		return nil, true
	case "Recv": // what it returns is of one goroutine, and it refuses a second one
		return func(*rand.Rand) {
			short(func(ctx context.Context) error {
				msg, err := w.conn.Recv(ctx)
				w.Received.Add(int64(len(msg)))
				if errors.Is(err, syscall.EBUSY) {
					return nil
				}
				return err
			})
		}, false
	case "RecvInto":
		return func(*rand.Rand) {
			short(func(ctx context.Context) error {
				n, err := w.conn.RecvInto(ctx, make([]byte, w.conn.MaxMessage()))
				w.Received.Add(int64(n))
				return err
			})
		}, false
	case "CompareSwap", "FetchAdd", "StartCompareSwap", "StartFetchAdd":
		if w.conn.PD().Device().Attr().AtomicCap == ib.AtomicNone {
			testenv.NotSupported(w.t, "atomics")
			return nil, true
		}
	case "PD":
		return func(*rand.Rand) { w.conn.PD() }, false
	case "QP": // they belong to the connection
		return func(*rand.Rand) { w.conn.QP() }, false
	case "Stream":
		return nil, true // a stream is used instead of the connection
	}
	return w.Stream.Override(object, name)
}

func (w *connWorld) End() {
	w.Stream.End()
	w.free()
}

// messages is a net.Conn whose bytes are messages. It has one reader at a time.
type messages struct {
	*Conn
	rest     []byte
	deadline time.Time // of a Read or Write; zero is none
}

// SetDeadline implements [net.Conn].
func (m *messages) SetDeadline(t time.Time) error {
	m.deadline = t
	return nil
}

func (m *messages) SetReadDeadline(time.Time) error  { return nil }
func (m *messages) SetWriteDeadline(time.Time) error { return nil }

func (m *messages) context() (context.Context, context.CancelFunc) {
	if m.deadline.IsZero() {
		return context.WithCancel(context.Background())
	}
	return context.WithDeadline(context.Background(), m.deadline)
}

func (m *messages) Read(p []byte) (n int, err error) {
	ctx, cancel := m.context()
	defer cancel()
	for len(m.rest) == 0 && err == nil {
		m.rest, err = m.Recv(ctx)
	}
	n = copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, err
}

func (m *messages) Write(p []byte) (n int, err error) {
	ctx, cancel := m.context()
	defer cancel()
	if err := m.Send(ctx, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// messageListener accepts them.
type messageListener struct {
	l    *Listener
	last **Conn // set by the first Accept
}

func (l *messageListener) Accept() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := l.l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	if *l.last == nil {
		*l.last = c
	}
	return &messages{Conn: c}, nil
}

func (l *messageListener) Addr() net.Addr { return l.l.Addr() }
func (l *messageListener) Close() error   { return l.l.Close() }
