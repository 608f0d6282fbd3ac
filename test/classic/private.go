package classic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm"
)

// terms are what a client tells of its game, in the private data of its request: the server
// makes its memory to suit, or tells in a rejection what it can do.
type terms struct {
	size, count uint32
}

// termsLen is their length; what arrives is longer, by zeros.
const termsLen = 8

func (t terms) encode() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, t.size), t.count)
}

func decodeTerms(b []byte) (t terms, err error) {
	if len(b) < termsLen {
		return t, fmt.Errorf("%d bytes of private data, want %d", len(b), termsLen)
	}
	return terms{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}, nil
}

// TermsServer plays ping-pong as its client wants it, with messages of up to a size. Others it
// rejects, and waits on.
func TermsServer(ctx context.Context, l *cm.ID, largest int) error {
	for {
		request, err := l.Request(ctx)
		if err != nil {
			return err
		}
		t, err := decodeTerms(request.Param.PrivateData)
		if err != nil || t.size > uint32(largest) {
			refusal := terms{size: uint32(largest)}
			if err := errors.Join(request.ID.Reject(refusal.encode(), cm.ReasonConsumer), request.ID.Close()); err != nil {
				return err
			}
			continue
		}
		o := pingpong(int(t.size))
		o.Param.PrivateData = t.encode() // to confirm
		e, err := Accept(ctx, request, o)
		if err != nil {
			return err
		}
		defer e.Close()
		if err := pong(ctx, e, e.Poll, int(t.count)); err != nil {
			return err
		}
		return e.Gone(ctx)
	}
}

// TermsClient asks for a game, and takes smaller messages if the server wants that. It returns
// the size.
func TermsClient(ctx context.Context, c *cm.Channel, addr netip.AddrPort, size, count int) (int, error) {
	o := pingpong(size)
	o.Param.PrivateData = terms{uint32(size), uint32(count)}.encode()
	e, answer, err := Dial(ctx, c, addr, o)
	var rejected *cm.EventError
	if errors.As(err, &rejected) && rejected.Type == cm.EventRejected {
		t, perr := decodeTerms(rejected.PrivateData)
		if perr != nil || t.size == 0 || t.size >= uint32(size) {
			return 0, err // by somebody else, or for another reason
		}
		return TermsClient(ctx, c, addr, int(t.size), count)
	}
	if err != nil {
		return 0, err
	}
	defer e.Close()
	t, err := decodeTerms(answer.Param.PrivateData)
	if err != nil {
		return 0, err
	}
	if t != (terms{uint32(size), uint32(count)}) {
		return 0, fmt.Errorf("the server confirms %+v, and was asked for %d messages of %d bytes", t, count, size)
	}
	if err := ping(ctx, e, e.Poll, count); err != nil {
		return 0, err
	}
	return size, e.Hangup(ctx)
}
