package ordered

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Options are options of a connection.
type Options struct {
	Device string // name of the RDMA device; by default the first one
	Window int    // messages that this side has receives for: 1 to 4096, by default 64
	Conns  int    // connections that a Listener has at a time, by default 64

	typ ib.QPType // for tests without SRD; by default SRD
}

// Limits of what a peer may ask for.
const (
	maxWindow  = 4096
	greetTime  = 10 * time.Second // in which both sides say hello
	defaultMax = 64
)

// keepAlive finds out within 20 seconds that the host of a peer has gone.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}

// magic begins a hello.
var magic = [8]byte{'o', 'r', 'd', 'e', 'r', 'e', 'd', '1'}

// hello is what each side says first over TCP, in network byte order. The Q_Key is random: nobody
// else can send to the QP.
type hello struct {
	Magic  [8]byte
	GID    ib.GID
	QPN    uint32
	QKey   uint32
	Window uint32 // messages that it has receives for
	Size   uint32 // longest frame, in bytes
}

// read reads the hello of a peer.
func (h *hello) read(r io.Reader) error {
	if err := binary.Read(r, binary.BigEndian, h); err != nil {
		return fmt.Errorf("the peer has not said hello: %w", err)
	}
	switch {
	case h.Magic != magic:
		return fmt.Errorf("%w: its hello begins with %q, want %q", errPeer, h.Magic, magic)
	case h.QPN >= 1<<24:
		return fmt.Errorf("%w: its QP number is %d, want up to %d", errPeer, h.QPN, 1<<24-1)
	case h.Window < 1 || h.Window > maxWindow:
		return fmt.Errorf("%w: its window is %d, want 1 to %d", errPeer, h.Window, maxWindow)
	case h.Size <= headerSize:
		return fmt.Errorf("%w: its frames have up to %d bytes, want more than %d", errPeer, h.Size, headerSize)
	}
	return nil
}

// srd is a QP with the memory and the CQ that only one connection uses, so that its peer takes
// nothing from others.
type srd struct {
	dev    *uverbs.Device
	buf    *uverbs.Buffer
	pd     *uverbs.PD
	qp     *uverbs.QP
	cq     *uverbs.CQ
	mr     *uverbs.MR
	ah     *uverbs.AH // of the peer
	mine   hello
	peer   hello
	grh    int // bytes before each frame that is received
	wcs    [16]uverbs.WC
	events []event
}

// sendID marks the IDs of sends.
const sendID = 1 << 32

// open makes a QP that can receive.
func open(o Options) (s *srd, err error) {
	if o.Window == 0 {
		o.Window = defaultMax
	}
	if o.Window < 1 || o.Window > maxWindow {
		return nil, fmt.Errorf("ordered: Window is %d, allowed: 1 to %d", o.Window, maxWindow)
	}
	s = &srd{mine: hello{Magic: magic, Window: uint32(o.Window)}}
	if o.Device == "" {
		s.dev, err = uverbs.OpenFirst()
	} else {
		s.dev, err = uverbs.Open(o.Device, uverbs.OpenOptions{})
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	port, err := s.dev.Port(1)
	if err != nil {
		return s, err
	}
	s.mine.Size = min(port.MaxMsgSize, 8192+headerSize)
	if o.typ == 0 {
		o.typ = ib.SRD
	} else {
		s.grh, s.mine.Size = uverbs.GRHSize, uint32(port.ActiveMTU.Bytes())
	}
	sends, receives := o.Window+1, o.Window+controls
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return s, err
	}
	if s.buf, err = uverbs.AllocBuffer((sends+receives)*s.step(), uverbs.BufferOptions{}); err != nil {
		return s, err
	}
	if s.mr, err = s.pd.RegMR(s.buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite}); err != nil {
		return s, err
	}
	if s.cq, err = s.dev.CreateCQ(uverbs.CQOptions{Size: sends + receives, Events: true}); err != nil {
		return s, err
	}
	s.qp, err = s.pd.CreateQP(uverbs.QPOptions{Type: o.typ, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: sends, MaxRecvWR: receives})
	if err != nil {
		return s, err
	}
	var key [4]byte
	rand.Read(key[:])                                           // never fails
	s.mine.QKey = binary.BigEndian.Uint32(key[:]) & (1<<31 - 1) // the highest bit is the kernel's
	if err := s.qp.ReadyUD(s.mine.QKey); err != nil {
		return s, err
	}
	at, err := s.qp.Endpoint()
	if err != nil {
		return s, err
	}
	s.mine.QPN, s.mine.GID = at.QPN, at.GID
	for slot := range receives {
		if err := s.post(slot); err != nil {
			return s, err
		}
	}
	return s, nil
}

// meet makes a connection with the peer that has said hello, and answers if it has said so first.
func (s *srd) meet(tcp net.Conn, answer bool) (*Conn, error) {
	path, err := s.qp.PathTo(uverbs.Endpoint{GID: s.peer.GID})
	if err != nil {
		return nil, err
	}
	s.ah, err = s.pd.CreateAH(path)
	if err == nil && answer {
		err = binary.Write(tcp, binary.BigEndian, &s.mine)
	}
	if err == nil {
		err = tcp.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, err
	}
	return newConn(s, tcp, int(min(s.mine.Size, s.peer.Size))-headerSize, int(s.mine.Window), int(s.peer.Window)), nil
}

func (s *srd) step() int                { return s.grh + int(s.mine.Size) }
func (s *srd) received(slot int) []byte { return s.mr.Bytes()[slot*s.step()+s.grh:][:s.mine.Size] }
func (s *srd) toSend(slot int) []byte   { return s.mr.Bytes()[s.sendAt(slot):][:s.mine.Size] }
func (s *srd) sendAt(slot int) int      { return (int(s.mine.Window) + controls + slot) * s.step() }
func (s *srd) post(slot int) error {
	return s.qp.PostRecv(uint64(slot), s.mr.SGE(slot*s.step(), s.step()))
}
func (s *srd) send(slot, n int) error {
	return s.qp.PostSend(uverbs.SendWR{
		ID: sendID | uint64(slot), Opcode: uverbs.WRSend, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{s.mr.SGE(s.sendAt(slot), n)},
		AH: s.ah, RemoteQPN: s.peer.QPN, RemoteQKey: s.peer.QKey,
	})
}

func (s *srd) wait(ctx context.Context) ([]event, error) {
	n, err := s.cq.Wait(ctx, s.wcs[:])
	s.events = s.events[:0]
	for i := range s.wcs[:n] {
		wc := &s.wcs[i]
		e := event{send: wc.ID&sendID != 0, slot: int(wc.ID &^ sendID), n: int(wc.ByteLen) - s.grh, err: s.qp.Err(wc)}
		if e.err == nil && !e.send && wc.SrcQP != s.peer.QPN { // another sender that knows the Q_Key
			err = errors.Join(err, s.post(e.slot))
			continue
		}
		s.events = append(s.events, e)
	}
	return s.events, err
}

func (s *srd) close() error {
	err := s.dev.CloseAll()
	if s.buf != nil {
		err = errors.Join(err, s.buf.Close())
	}
	return err
}

// Dial connects to a Listener, at a TCP address such as 10.1.0.1:7475.
func Dial(ctx context.Context, address string, o Options) (*Conn, error) {
	s, err := open(o)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: greetTime, KeepAliveConfig: keepAlive}
	tcp, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	tcp.SetDeadline(time.Now().Add(greetTime))
	defer context.AfterFunc(ctx, func() { tcp.SetDeadline(time.Unix(1, 0)) })()
	var c *Conn
	if err = binary.Write(tcp, binary.BigEndian, &s.mine); err == nil {
		err = s.peer.read(tcp)
	}
	if err == nil {
		c, err = s.meet(tcp, false)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ordered: %s: %w", address, err), tcp.Close(), s.close())
	}
	return c, nil
}

// Listener accepts connections.
type Listener struct {
	tcp   net.Listener
	o     Options
	conns chan *Conn
	slots chan struct{} // one for each connection
	done  context.Context
	stop  context.CancelFunc
}

// Listen listens on a TCP address. Run it where only hosts that you trust can reach the address.
func Listen(ctx context.Context, address string, o Options) (*Listener, error) {
	if o.Conns == 0 {
		o.Conns = defaultMax
	}
	if o.Conns < 1 {
		return nil, fmt.Errorf("ordered: Conns is %d, allowed: 1 and more", o.Conns)
	}
	s, err := open(o) // what does not work here does not for any peer
	if err == nil {
		err = s.close()
	}
	if err != nil {
		return nil, err
	}
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	tcp, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	l := &Listener{tcp: tcp, o: o, conns: make(chan *Conn), slots: make(chan struct{}, o.Conns)}
	l.done, l.stop = context.WithCancel(context.Background())
	go l.serve()
	return l, nil
}

// serve takes TCP connections. A peer that is slow to say hello delays no other one.
func (l *Listener) serve() {
	defer l.stop()
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.done.Done():
			return
		}
		tcp, err := l.tcp.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no more files, for example
			<-l.slots
			time.Sleep(time.Second)
			continue
		}
		go func() {
			c, err := l.greet(tcp)
			if err != nil {
				tcp.Close()
				<-l.slots
				return
			}
			select {
			case l.conns <- c:
			case <-l.done.Done():
				c.Close(l.done)
			}
		}()
	}
}

// greet answers the hello of a peer. It opens nothing before that.
func (l *Listener) greet(tcp net.Conn) (*Conn, error) {
	tcp.SetDeadline(time.Now().Add(greetTime))
	var peer hello
	if err := peer.read(tcp); err != nil {
		return nil, err
	}
	s, err := open(l.o)
	if err != nil {
		return nil, err
	}
	s.peer = peer
	c, err := s.meet(tcp, true)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	c.released = func() { <-l.slots }
	return c, nil
}

// Addr returns the address that the Listener listens on.
func (l *Listener) Addr() net.Addr { return l.tcp.Addr() }

// Accept waits for the next connection.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done.Done():
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close stops listening. Connections that Accept has returned remain.
func (l *Listener) Close() error {
	l.stop()
	return l.tcp.Close()
}
