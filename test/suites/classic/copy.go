package classic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// A file goes in pieces, of which two are on the way at a time: while the server stores one,
// the client writes the next.
const (
	pieceSize = 64 << 10
	pieces    = 2
)

// CopyServer stores what a client sends. Its answer has the region that the client writes the
// pieces to; each RDMA WRITE comes with the piece's length as its immediate, which is what
// tells the server, and 0 is the end.
func CopyServer(ctx context.Context, l *rdmacm.ID, file io.Writer) error {
	request, err := l.NextRequest(ctx)
	if err != nil {
		return err
	}
	e := &End{ID: request.ID}
	defer e.Close()
	// The pieces, and a slot for what is said. The receives are used up by the immediates.
	err = e.Open(Options{Space: rdmacm.TCP, Size: pieceSize, Slots: pieces + 1, Recvs: pieces, Access: uverbs.AccessRemoteWrite})
	if err != nil {
		return err
	}
	r := region{e.MR.Addr(), e.MR.RKey(), pieces * pieceSize}
	if err := e.ID.AcceptWait(ctx, rdmacm.ConnParam{PrivateData: r.encode(), RNRRetryCount: connTries}); err != nil {
		return err
	}
	for i := 0; ; i++ {
		wc, err := e.Until(ctx, e.Poll, 0, i+1)
		if err != nil {
			return err
		}
		if wc.Imm == 0 {
			return e.Gone(ctx)
		}
		if wc.Imm > pieceSize {
			return fmt.Errorf("piece %d has %d bytes, want up to %d", i, wc.Imm, pieceSize)
		}
		if _, err := file.Write(e.Slot(i % pieces)[:wc.Imm]); err != nil {
			return err
		}
		if err := e.Recv(int(wc.ID)); err != nil {
			return err
		}
		if err := e.Send(pieces, 1); err != nil { // there is room for another piece
			return err
		}
	}
}

// CopyClient sends a file.
func CopyClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, file io.Reader) error {
	// One slot more takes what the server says.
	e, answer, err := Dial(ctx, c, addr, Options{Space: rdmacm.TCP, Size: pieceSize, Slots: pieces + 1})
	if err != nil {
		return err
	}
	defer e.Close()
	r, err := decodeRegion(answer.Param.PrivateData)
	if err != nil {
		return err
	}
	if r.size != pieces*pieceSize {
		return fmt.Errorf("the server has %d bytes for pieces, want %d", r.size, pieces*pieceSize)
	}
	for i := 0; ; i++ {
		if _, err := e.Until(ctx, e.Poll, 0, i-pieces+1); err != nil { // until there is room
			return err
		}
		slot := i % pieces
		n, err := io.ReadFull(file, e.Slot(slot))
		if err != nil && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if err := e.Recv(pieces); err != nil { // before the piece that is answered
			return err
		}
		wr := uverbs.SendWR{Opcode: uverbs.WRRDMAWriteWithImm, Flags: uverbs.SendSignaled, Imm: uint32(n), RemoteAddr: r.addr + uint64(slot*pieceSize), RKey: r.rkey}
		if n > 0 {
			wr.SGL = []uverbs.SGE{e.SGE(slot, n)}
		}
		if err := e.QP.PostSend(wr); err != nil {
			return err
		}
		if n == 0 {
			if _, err := e.Until(ctx, e.Poll, i+1, 0); err != nil { // all of them are there
				return err
			}
			return e.Hangup(ctx)
		}
	}
}
