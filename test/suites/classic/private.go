package classic

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// TermsServer plays ping-pong as its client wants it, with messages of up to a size.
func TermsServer(ctx context.Context, l *rdmacm.ID, largest int) error {
	return termsServer(ctx, l, largest, pingpong(0))
}

// termsServer is a TermsServer whose end has options.
func termsServer(ctx context.Context, l *rdmacm.ID, largest int, o Options) error {
	request, t, err := requestTerms(ctx, l, largest)
	if err != nil {
		return err
	}
	o.Size, o.Param.PrivateData = int(t.size), t.encode() // to confirm
	e, err := Accept(ctx, request, o)
	if err != nil {
		return err
	}
	defer e.Close()
	if err := pong(ctx, e, e.Next, int(t.count)); err != nil {
		return err
	}
	return e.Gone(ctx)
}

// TermsClient asks for a game, and takes smaller messages if the server wants that. It returns
// the size.
func TermsClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, size, count int) (int, error) {
	return termsClient(ctx, c, addr, count, pingpong(size))
}

// termsClient is a TermsClient whose end has options.
func termsClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, count int, o Options) (int, error) {
	wants := terms{uint32(o.Size), uint32(count)}
	o.Param.PrivateData = wants.encode()
	e, answer, err := Dial(ctx, c, addr, o)
	var rejected *rdmacm.EventError
	if errors.As(err, &rejected) && rejected.Type == rdmacm.EventRejected {
		t, perr := decodeTerms(rejected.PrivateData)
		if perr != nil || t.size == 0 || t.size >= wants.size {
			return 0, err // by somebody else, or for another reason
		}
		o.Size = int(t.size)
		return termsClient(ctx, c, addr, count, o)
	}
	if err != nil {
		return 0, err
	}
	defer e.Close()
	t, err := decodeTerms(answer.Param.PrivateData)
	if err != nil {
		return 0, err
	}
	if t != wants {
		return 0, fmt.Errorf("the server confirms %+v, want %+v", t, wants)
	}
	if err := ping(ctx, e, e.Next, count); err != nil {
		return 0, err
	}
	return o.Size, e.Hangup(ctx)
}
