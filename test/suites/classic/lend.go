package classic

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// LendServer is lent memory by a client: it writes a text there by RDMA WRITE, and tells the
// client so; the client changes it, and says so; the server looks at it by RDMA READ. It
// returns what it reads.
func LendServer(ctx context.Context, l *rdmacm.ID, text string) (string, error) {
	request, err := l.NextRequest(ctx)
	if err != nil {
		return "", err
	}
	o := Options{Space: rdmacm.TCP, Size: 4096, Slots: 3, Recvs: 1}
	o.Param.InitiatorDepth = 1 // READs under way at a time
	e, err := Accept(ctx, request, o)
	if err != nil {
		return "", err
	}
	defer e.Close()
	wc, err := e.Until(ctx, e.Poll, 0, 1)
	if err != nil {
		return "", err
	}
	lent, err := decodeRegion(e.Slot(in)[:wc.ByteLen])
	if err != nil {
		return "", err
	}
	if len(text) > int(lent.size) || lent.size > 4096 {
		return "", fmt.Errorf("%d bytes are lent, want %d to 4096", lent.size, len(text))
	}
	const work = 2
	copy(e.Slot(work), text)
	if err := e.transfer(ctx, uverbs.WRRDMAWrite, work, len(text), lent); err != nil {
		return "", err
	}
	if err := e.Recv(in); err != nil {
		return "", err
	}
	if err := e.Send(out, copy(e.Slot(out), "written")); err != nil {
		return "", err
	}
	if _, err := e.Until(ctx, e.Poll, 2, 2); err != nil {
		return "", err
	}
	clear(e.Slot(work))
	if err := e.transfer(ctx, uverbs.WRRDMARead, work, int(lent.size), lent); err != nil {
		return "", err
	}
	read := string(bytes.TrimRight(e.Slot(work)[:lent.size], "\x00"))
	if err := e.Send(out, copy(e.Slot(out), "read")); err != nil {
		return "", err
	}
	if _, err := e.Until(ctx, e.Poll, 4, 2); err != nil {
		return "", err
	}
	return read, e.Gone(ctx)
}

// LendClient lends memory, and turns what the server has written there to upper case.
func LendClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort) error {
	o := Options{Space: rdmacm.TCP, Size: 256, Slots: 3, Recvs: 1, Access: uverbs.AccessRemoteRead | uverbs.AccessRemoteWrite}
	o.Param.ResponderResources = 1 // READs served at a time
	e, _, err := Dial(ctx, c, addr, o)
	if err != nil {
		return err
	}
	defer e.Close()
	const lent = 2
	r := region{e.MR.Addr() + uint64(lent*e.size), e.MR.RKey(), uint32(e.size)}
	for i, step := range []struct {
		say, hear string
	}{{string(r.encode()), "written"}, {"changed", "read"}} {
		if err := e.Send(out, copy(e.Slot(out), step.say)); err != nil {
			return err
		}
		wc, err := e.Until(ctx, e.Poll, i+1, i+1)
		if err != nil {
			return err
		}
		if got := string(e.Slot(in)[:wc.ByteLen]); got != step.hear {
			return fmt.Errorf("the server says %q, want %q", got, step.hear)
		}
		copy(e.Slot(lent), bytes.ToUpper(e.Slot(lent)))
		if err := e.Recv(in); err != nil {
			return err
		}
	}
	return e.Hangup(ctx)
}
