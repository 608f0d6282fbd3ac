package classic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// announceOptions are an end that tells a region and hears one.
var announceOptions = Options{Space: rdmacm.TCP, Size: regionLen, Slots: 2, Recvs: 1}

// AnnounceServer makes a buffer as large as the client announces, up to a size, tells the client
// where it is, and waits. It returns what the client has left there.
func AnnounceServer(ctx context.Context, l *rdmacm.ID, largest int) (_ string, err error) {
	request, err := l.NextRequest(ctx)
	if err != nil {
		return "", err
	}
	o := announceOptions
	o.Param.ResponderResources = 1 // READs served at a time
	e, err := Accept(ctx, request, o)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	wc, err := e.Until(ctx, e.Poll, 0, 1)
	if err != nil {
		return "", err
	}
	announced, err := decodeRegion(e.Slot(in)[:wc.ByteLen])
	if err != nil {
		return "", err
	}
	if announced.size == 0 || announced.size > uint32(largest) {
		return "", fmt.Errorf("the client announces %d bytes, allowed: 1 to %d", announced.size, largest)
	}
	mr, err := e.buffer(int(announced.size), uverbs.AccessLocalWrite|uverbs.AccessRemoteWrite|uverbs.AccessRemoteRead)
	if err != nil {
		return "", err
	}
	own := region{mr.Addr(), mr.RKey(), announced.size}
	if err := e.Send(out, copy(e.Slot(out), own.encode())); err != nil {
		return "", err
	}
	if err := e.Gone(ctx); err != nil {
		return "", err
	}
	return string(bytes.Clone(mr.Bytes())), nil
}

// AnnounceClient announces its text, writes it into the buffer of the server by RDMA WRITE, reads it
// back by RDMA READ and compares.
func AnnounceClient(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, text string) (err error) {
	o := announceOptions
	o.Param.InitiatorDepth = 1 // READs under way at a time
	e, _, err := Dial(ctx, c, addr, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	mr, err := e.buffer(2*len(text), uverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	from, to := mr.Bytes()[:copy(mr.Bytes(), text)], mr.Bytes()[len(text):]
	own := region{mr.Addr(), mr.RKey(), uint32(len(text))}
	if err := e.Send(out, copy(e.Slot(out), own.encode())); err != nil {
		return err
	}
	wc, err := e.Until(ctx, e.Poll, 1, 1)
	if err != nil {
		return err
	}
	theirs, err := decodeRegion(e.Slot(in)[:wc.ByteLen])
	if err != nil {
		return err
	}
	if err := e.move(ctx, uverbs.WRRDMAWrite, mr.SGE(0, len(text)), theirs); err != nil {
		return err
	}
	if err := e.move(ctx, uverbs.WRRDMARead, mr.SGE(len(text), len(text)), theirs); err != nil {
		return err
	}
	if !bytes.Equal(from, to) {
		return fmt.Errorf("what was read back is %q, was written as %q", to, from)
	}
	return e.Hangup(ctx)
}
