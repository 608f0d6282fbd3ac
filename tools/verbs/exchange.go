package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
)

// The TCP exchange of ibv_rc_pingpong: the client sends its endpoint as text, the
// server answers with its own, and the client says "done".
const (
	helloLen = len("0000:000000:000000:00000000000000000000000000000000") + 1 // with the NUL
	done     = "done\x00"

	// exchangeTimeout bounds a peer that connects and then says nothing.
	exchangeTimeout = 10 * time.Second
)

// encodeHello returns an endpoint as text.
func encodeHello(e uverbs.Endpoint) []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%s\x00", e.LID, e.QPN, e.PSN, hex.EncodeToString(e.GID[:]))
}

var helloForm = regexp.MustCompile(`^([0-9a-f]{4}):([0-9a-f]{6}):([0-9a-f]{6}):([0-9a-f]{32})\x00$`)

// decodeHello reads an endpoint.
func decodeHello(b []byte) (e uverbs.Endpoint, err error) {
	m := helloForm.FindSubmatch(b)
	if m == nil {
		return e, fmt.Errorf("the peer speaks another protocol: got %s, expected LID:QPN:PSN:GID in hexadecimal, as ibv_rc_pingpong sends", peertext.Quote(b))
	}
	number := func(s []byte) uint32 {
		n, perr := strconv.ParseUint(string(s), 16, 32)
		err = errors.Join(err, perr)
		return uint32(n)
	}
	e.LID = uint16(number(m[1]))
	e.QPN = number(m[2])
	e.PSN = number(m[3])
	_, herr := hex.Decode(e.GID[:], m[4])
	if err := errors.Join(err, herr); err != nil {
		return e, err
	}
	return e, checkHello(e)
}

// checkHello refuses an endpoint that no queue pair can have, or that cannot be reached.
func checkHello(e uverbs.Endpoint) error {
	const (
		leastQPN, mostQPN = 2, 1<<24 - 1 // 0 and 1 are for management
		mostPSN           = 1<<24 - 1
		mostLID           = 0xbfff // of one port; above are multicast groups
	)
	switch {
	case e.QPN < leastQPN || e.QPN > mostQPN:
		return fmt.Errorf("the peer's QPN is %#x, allowed: %#x to %#x", e.QPN, leastQPN, mostQPN)
	case e.PSN > mostPSN:
		return fmt.Errorf("the peer's PSN is %#x, allowed: 0 to %#x", e.PSN, mostPSN)
	case e.LID > mostLID:
		return fmt.Errorf("the peer's LID is %#x, allowed: 0 to %#x", e.LID, mostLID)
	case e.GID.Addr().IsMulticast():
		return fmt.Errorf("the peer's GID is %s, allowed: one that is not a multicast group", e.GID)
	case e.LID == 0 && e.GID.IsZero():
		return errors.New("the peer's LID and GID are both 0, allowed: one of them 0")
	}
	return nil
}

// readHello reads the peer's endpoint.
func readHello(c net.Conn) (uverbs.Endpoint, error) {
	var b [helloLen]byte
	n, err := io.ReadFull(c, b[:])
	if err != nil {
		return uverbs.Endpoint{}, fmt.Errorf("got %d of %d bytes: %w", n, helloLen, timeoutText(err))
	}
	return decodeHello(b[:])
}

// timeoutText says how long was waited.
func timeoutText(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("nothing came for %s: %w", exchangeTimeout, err)
	}
	return err
}

// dialExchange is the client's part: it returns the server's endpoint.
func dialExchange(ctx context.Context, addr string, local uverbs.Endpoint) (uverbs.Endpoint, error) {
	d := net.Dialer{Timeout: exchangeTimeout}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return uverbs.Endpoint{}, fmt.Errorf("no pingpong server at %s: %w", addr, err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return uverbs.Endpoint{}, err
	}
	if _, err := c.Write(encodeHello(local)); err != nil {
		return uverbs.Endpoint{}, fmt.Errorf("exchange with %s: %w", addr, err)
	}
	remote, err := readHello(c)
	if err != nil {
		return remote, fmt.Errorf("exchange with %s: %w", addr, err)
	}
	if _, err := io.WriteString(c, done); err != nil {
		return remote, fmt.Errorf("exchange with %s: %w", addr, err)
	}
	return remote, nil
}

// acceptExchange is the server's part. It waits for one client, has connect bring the
// QP up, and answers with the endpoint that connect returns. Connections that do not send an
// endpoint are reported to log.
func acceptExchange(ctx context.Context, l net.Listener, log io.Writer, connect func(remote uverbs.Endpoint) (local uverbs.Endpoint, err error)) (uverbs.Endpoint, error) {
	c, remote, err := firstClient(ctx, l, log, func(_ context.Context, c net.Conn) (e uverbs.Endpoint, err error) {
		if err := c.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
			return e, err
		}
		return readHello(c)
	})
	if err != nil {
		return remote, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return remote, err
	}
	local, err := connect(remote)
	if err != nil {
		return remote, err
	}
	if _, err := c.Write(encodeHello(local)); err != nil {
		return remote, fmt.Errorf("exchange with %s: %w", c.RemoteAddr(), err)
	}
	var answer [len(done)]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		return remote, fmt.Errorf("exchange with %s: the client did not confirm: %w", c.RemoteAddr(), timeoutText(err))
	}
	if string(answer[:]) != done {
		return remote, fmt.Errorf("exchange with %s: the client did not confirm: got %s, expected %q", c.RemoteAddr(), peertext.Quote(answer[:]), done)
	}
	return remote, nil
}
