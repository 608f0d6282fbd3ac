package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

func init() {
	attacks = append(attacks, []attack{
		{name: "mpa-length", device: "siw", run: mpaLength},
		{name: "mpa-private-data", device: "siw", run: mpaPrivateData},
		{name: "mpa-reply-empty", device: "siw", run: mpaReply(0)},
		{name: "mpa-reply-short", device: "siw", run: mpaReply(2)},
		{name: "read-response-long", device: "siw", run: readResponse(0, 64, 0)},
		{name: "read-response-longer", device: "siw", run: readResponse(0, 64, last)},
		{name: "read-response-elsewhere", device: "siw", run: readResponse(1000, 8, last)},
		{name: "split-header", device: "siw", run: splitHeader},
	}...)
}

// worksSIW writes to memory of a new QP.
func (r *rig) worksSIW() error {
	w, err := r.accepted()
	if err != nil {
		return err
	}
	return w.write(0, "still here")
}

// mpaLength writes in segments whose lengths are shorter than their headers.
func mpaLength(r *rig) error {
	for _, length := range []int{0, 2, taggedLength(0) - 1} {
		w, err := r.accepted()
		if err != nil {
			return err
		}
		if err := w.write(0, "as it should be"); err != nil {
			return err
		}
		if _, err := w.tcp.Write(taggedFPDU(length, last|writeOp, w.mr.RKey(), w.mr.Addr()+4096, make([]byte, 256))); err != nil {
			return err
		}
		if err := w.ended(); err != nil {
			return fmt.Errorf("length %d: %w", length, err)
		}
	}
	return nil
}

// mpaPrivateData sends requests that say something else of their private data than what follows, all of
// which siw must drop.
func mpaPrivateData(r *rig) error {
	l, at, err := listener()
	if err != nil {
		return err
	}
	for _, frame := range [][]byte{
		mpaFrame(requestKey, mpaRevision1, 0xffff, make([]byte, 600)...),
		mpaFrame(requestKey, mpaRevision1, 257, make([]byte, 257)...),
		mpaFrame(requestKey, mpaRevision1, 8, make([]byte, 64)...),
		mpaFrame(requestKey, mpaRevision1, 0, make([]byte, 64)...),
		mpaFrame(requestKey, mpaRevision2|mpaEnhanced, 0),
		mpaFrame(requestKey, mpaRevision2|mpaEnhanced, 2, 0, 1),
		mpaFrame(requestKey, 0xff, 4, make([]byte, 4)...),
	} {
		tcp, err := dial(at, frame)
		if err != nil {
			return err
		}
		w := wire{tcp: tcp}
		if err := w.ended(); err != nil {
			return fmt.Errorf("request % x: %w", frame[len(requestKey):][:4], err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if e, err := l.NextRequest(ctx); err == nil {
		return fmt.Errorf("%w: a request has %d bytes of private data", errWrong, len(e.Param.PrivateData))
	}
	return nil
}

// mpaReply answers a request of siw with enhanced connection data that are too short: they have 4 bytes.
func mpaReply(length int) func(*rig) error {
	return func(r *rig) error {
		tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(peerAddr, 0)))
		if err != nil {
			return err
		}
		s, err := r.side(uverbs.QPOptions{})
		if err != nil {
			return err
		}
		asked := make(chan error, 1)
		go func() {
			asked <- answer(tcp, mpaFrame(replyKey, mpaRevision2|mpaEnhanced, length, make([]byte, length)...))
		}()
		id, err := newID()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := id.ResolveWait(ctx, rdmacm.Addr{IP: deviceAddr}, rdmacm.AddrOf(tcp.Addr().(*net.TCPAddr).AddrPort())); err != nil {
			return err
		}
		e, err := id.ConnectWait(ctx, rdmacm.ConnParam{QPN: s.qp.QPN(), ResponderResources: 16, InitiatorDepth: 16})
		if problem := <-asked; problem != nil {
			return problem
		}
		if err == nil {
			return fmt.Errorf("%w: the connection is there, with private data of %d bytes", errWrong, len(e.Param.PrivateData))
		}
		return nil
	}
}

// answer answers the request of one connection. A connection then stays for a while.
func answer(l *net.TCPListener, reply []byte) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	request := make([]byte, len(mpaFrame(requestKey, 0, 0, 0, 0, 0, 0)))
	if _, err := io.ReadFull(c, request); err != nil {
		return err
	}
	if flags := binary.BigEndian.Uint16(request[len(requestKey):]); flags&mpaEnhanced == 0 {
		return fmt.Errorf("the flags of siw's request are %#x", flags)
	}
	_, err = c.Write(reply)
	return err
}

// readResponse reads 8 bytes. The peer answers with a segment that has other flags, a wrong place or
// more bytes. Nothing may be written behind the 8 bytes.
func readResponse(away uint64, length int, flags uint32) func(*rig) error {
	return func(r *rig) error {
		w, err := r.accepted()
		if err != nil {
			return err
		}
		if err := w.write(0, "as it should be"); err != nil {
			return err
		}
		const at, n = 8192, 8
		clear(w.buf.Bytes())
		err = w.qp.PostSend(uverbs.SendWR{ID: 1, Opcode: uverbs.WRRDMARead, Flags: uverbs.SendSignaled,
			RemoteAddr: 1 << 32, RKey: 0x100, SGL: []uverbs.SGE{w.mr.SGE(at, n)}})
		if err != nil {
			return err
		}
		request := make([]byte, readReqBytes+4)
		if _, err := io.ReadFull(w.tcp, request); err != nil {
			return err
		}
		if op := request[3] & 15; op != readReqOp || binary.BigEndian.Uint32(request[32:]) != n {
			return fmt.Errorf("siw sends % x, want a READ of %d bytes", request, n)
		}
		stag, to := binary.BigEndian.Uint32(request[20:]), binary.BigEndian.Uint64(request[24:])
		data := make([]byte, length)
		for i := range data {
			data[i] = 0xee
		}
		if _, err := w.tcp.Write(taggedFPDU(taggedLength(length), flags|readRespOp, stag, to+away, data)); err != nil {
			return err
		}
		err = w.ended()
		for i, b := range w.buf.Bytes() {
			if b != 0 && (i < at || i >= at+n) {
				return fmt.Errorf("%w: byte %d of the buffer is written by the response to a READ of %d bytes to byte %d", errWrong, i, n, at)
			}
		}
		return err
	}
}

// splitHeader sends messages whose headers arrive in pieces.
func splitHeader(r *rig) error {
	const text = "a message of a certain length"
	for at := 1; at < 20; at++ {
		w, err := r.accepted()
		if err != nil {
			return err
		}
		if err := w.qp.PostRecv(1, w.mr.SGE(0, 64)); err != nil {
			return err
		}
		frame := sendFPDU([]byte(text))
		for _, piece := range [][]byte{frame[:at], frame[at:]} {
			if _, err := w.tcp.Write(piece); err != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond) // a segment of TCP for each
		}
		wc, err := w.next()
		switch {
		case err != nil:
			return fmt.Errorf("%w: split at byte %d: %w", errWrong, at, err)
		case wc.Status != uverbs.WCSuccess || wc.ByteLen != uint32(len(text)) || string(w.buf.Bytes()[:len(text)]) != text:
			return fmt.Errorf("%w: split at byte %d: %d bytes arrive, %q, with status %s", errWrong, at, wc.ByteLen, w.buf.Bytes()[:len(text)], wc.Status)
		}
		if err := w.tcp.Close(); err != nil {
			return err
		}
	}
	return nil
}
