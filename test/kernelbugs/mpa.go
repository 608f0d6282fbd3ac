package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Addresses of the guest: the attacked device is on the first, and a TCP socket plays its peer on the other.
var (
	deviceAddr = netip.MustParseAddr("10.1.0.1")
	peerAddr   = netip.MustParseAddr("10.1.0.2")
)

// Frames of MPA (RFC 5044) begin with a key, flags and the length of private data.
const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"

	mpaRevision1 = 1
	mpaRevision2 = 2
	mpaEnhanced  = 0x1000 // private data begin with the numbers of READs (RFC 6581)
)

// Headers of DDP and RDMAP (RFC 5041, RFC 5040) begin with flags, versions and an opcode.
const (
	tagged       = 0x8000
	last         = 0x4000
	versions     = 0x0140
	writeOp      = 0
	readReqOp    = 1
	readRespOp   = 2
	sendOp       = 3
	readReqBytes = 48 // of the header
)

// mpaFrame is a request or a reply. length is what it says of its private data.
func mpaFrame(key string, flags, length int, private ...byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte(key), uint16(flags))
	return append(binary.BigEndian.AppendUint16(b, uint16(length)), private...)
}

// taggedFPDU is a segment with the address that it is for. ulpdu is the length that its header says.
func taggedFPDU(ulpdu int, flags, stag uint32, to uint64, data []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(ulpdu))
	b = binary.BigEndian.AppendUint16(b, uint16(tagged|versions|flags))
	b = binary.BigEndian.AppendUint32(b, stag)
	b = binary.BigEndian.AppendUint64(b, to)
	return closeFPDU(append(b, data...))
}

// taggedLength is the length that the header of a tagged segment should say.
func taggedLength(data int) int { return 14 + data }

// sendFPDU is a SEND of one segment, the first of a connection.
func sendFPDU(data []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(18+len(data)))
	b = binary.BigEndian.AppendUint16(b, last|versions|sendOp)
	for _, word := range []uint32{0, 0, 1, 0} { // reserved, queue, number of the message, offset
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return closeFPDU(append(b, data...))
}

// closeFPDU adds the padding and the CRC, which nobody looks at.
func closeFPDU(b []byte) []byte { return append(b, make([]byte, -len(b)&3+4)...) }

// wire is a connection of a QP of siw and a TCP socket.
type wire struct {
	side
	tcp *net.TCPConn
}

// newID makes an ID of the connection manager.
func newID() (*rdmacm.ID, error) {
	ch, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	if err != nil {
		return nil, err
	}
	return ch.NewID(rdmacm.TCP)
}

// listener listens with siw.
func listener() (*rdmacm.ID, netip.AddrPort, error) {
	var l *rdmacm.ID
	err := rdmacm.RetryPort(func() (err error) {
		if l, err = newID(); err != nil {
			return err
		}
		return errors.Join(l.Bind(rdmacm.Addr{IP: deviceAddr}), l.Listen(8))
	})
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	at, err := l.Addrs()
	return l, netip.AddrPortFrom(at.Local.IP, at.Local.Port), err
}

// dial connects the TCP socket to siw and sends a frame.
func dial(to netip.AddrPort, frame []byte) (*net.TCPConn, error) {
	tcp, err := net.DialTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(peerAddr, 0)), net.TCPAddrFromAddrPort(to))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(tcp.SetNoDelay(true), tcp.SetDeadline(time.Now().Add(patience))); err != nil {
		return nil, err
	}
	_, err = tcp.Write(frame)
	return tcp, err
}

// accepted connects the TCP socket to a QP, which accepts.
func (r *rig) accepted() (*wire, error) {
	l, at, err := listener()
	if err != nil {
		return nil, err
	}
	s, err := r.side(uverbs.QPOptions{})
	if err != nil {
		return nil, err
	}
	tcp, err := dial(at, mpaFrame(requestKey, mpaRevision1, 0))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := l.NextRequest(ctx)
	if err != nil {
		return nil, err
	}
	// The end of its wait is an event that may come only with the first message: the reply tells it here.
	if err := e.ID.Accept(rdmacm.ConnParam{QPN: s.qp.QPN(), ResponderResources: 16, InitiatorDepth: 16}); err != nil {
		return nil, err
	}
	reply := make([]byte, len(mpaFrame(replyKey, 0, 0)))
	if _, err := io.ReadFull(tcp, reply); err != nil {
		return nil, err
	}
	if string(reply[:len(replyKey)]) != replyKey {
		return nil, fmt.Errorf("the reply is %q", reply)
	}
	return &wire{*s, tcp}, s.qp.SetKernelState(ib.QPRTS)
}

// ended waits until siw ends the connection. Pending data are not looked at.
func (w *wire) ended() error {
	_, err := io.Copy(io.Discard, w.tcp)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%w: siw does not end the connection", errWrong)
	}
	return nil
}

// write has the peer write to the memory of the QP, and waits until it is there.
func (w *wire) write(offset int, data string) error {
	_, err := w.tcp.Write(taggedFPDU(taggedLength(len(data)), last|writeOp, w.mr.RKey(), w.mr.Addr()+uint64(offset), []byte(data)))
	if err != nil {
		return err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if string(w.buf.Bytes()[offset:][:len(data)]) == data {
			return nil
		}
	}
	return errors.New("an RDMA WRITE by hand does not arrive")
}
