package classic

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/goverbs/goverbs/uverbs"
)

// region is memory that one side lends to the other: what it sends of it is the address and
// the key.
type region struct {
	addr uint64
	rkey uint32
	size uint32 // in bytes
}

const regionLen = 16

func (r region) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, r.addr)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, r.rkey), r.size)
}

func decodeRegion(b []byte) (r region, err error) {
	if len(b) < regionLen {
		return r, fmt.Errorf("%d bytes for a region, want %d", len(b), regionLen)
	}
	return region{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}, nil
}

// transfer moves the first bytes of a slot to the peer's memory, or from there, and waits for
// it. The peer's program notices nothing.
func (e *End) transfer(ctx context.Context, op uverbs.WROpcode, slot, length int, r region) error {
	return e.move(ctx, op, e.SGE(slot, length), r)
}

// move is transfer for any memory of this side.
func (e *End) move(ctx context.Context, op uverbs.WROpcode, local uverbs.SGE, r region) error {
	err := e.QP.PostSend(uverbs.SendWR{Opcode: op, Flags: uverbs.SendSignaled, SGL: []uverbs.SGE{local}, RemoteAddr: r.addr, RKey: r.rkey})
	if err != nil {
		return err
	}
	_, err = e.Until(ctx, e.Poll, e.Sent+1, e.Received)
	return err
}

// buffer registers memory, which Close closes.
func (e *End) buffer(size int, access uverbs.Access) (*uverbs.MR, error) {
	buf, err := uverbs.AllocBuffer(size, uverbs.BufferOptions{})
	if err != nil {
		return nil, err
	}
	e.bufs = append(e.bufs, buf)
	return e.PD.RegMR(buf, uverbs.MROptions{Access: access})
}
