package pingpong

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/peer"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// The TCP exchange of rdma-core's ping-pong programs: the client sends its addresses as text, and the
// server answers with its own.
const (
	helloLen = len("0000:000000:000000:00000000000000000000000000000000") + 1 // with the NUL
	done     = "done\x00"                                                     // what the client says then, except with XRC
	end      = "END\x00"                                                      // what both sides say in the end, with XRC

	// exchangeTimeout bounds a peer that connects and then says nothing.
	exchangeTimeout = 10 * time.Second
)

// address is where a queue pair is found.
type address struct {
	uverbs.Endpoint        // of the QP; with XRC the QPN is the number of the QP that receives
	sendQPN         uint32 // with XRC, the number of the QP that sends
	srqn            uint32 // with XRC, the number of the SRQ
}

// exchangeForm is how one of the programs exchanges addresses.
type exchangeForm struct {
	size   int // bytes of all addresses of a side
	encode func([]address) []byte
	decode func([]byte) ([]address, error)
	stays  bool // the connection stays open, until both sides have said end
}

// oneForm is the form of ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong.
var oneForm = manyForm(1, 1)

// srqQPs is how many addresses ibv_srq_pingpong sends, whose QPs may be fewer.
const srqQPs = 256

// MaxQPs is the largest number of queue pairs of TypeSRQ.
const MaxQPs = srqQPs - 1

// manyForm returns the form of a program that sends the addresses of n QPs, and zeros up to total.
func manyForm(n, total int) exchangeForm {
	return exchangeForm{
		size: total * helloLen,
		encode: func(all []address) (b []byte) {
			for i := range total {
				var e uverbs.Endpoint
				if i < len(all) {
					e = all[i].Endpoint
				}
				b = append(b, encodeHello(e)...)
			}
			return b
		},
		decode: func(b []byte) (all []address, err error) {
			for i := range total {
				text := b[i*helloLen:][:helloLen]
				if i >= n {
					if string(text) != string(encodeHello(uverbs.Endpoint{})) {
						return nil, fmt.Errorf("the peer has more than %d queue pairs: give both sides the same --num-qp", n)
					}
					continue
				}
				if i > 0 && string(text) == string(encodeHello(uverbs.Endpoint{})) {
					return nil, fmt.Errorf("the peer has %d queue pairs, expected %d: give both sides the same --num-qp", i, n)
				}
				e, err := decodeHello(text)
				if err != nil {
					return nil, err
				}
				all = append(all, address{Endpoint: e})
			}
			return all, nil
		},
	}
}

// xrcForm is the form of ibv_xsrq_pingpong.
var xrcForm = exchangeForm{
	size:   len("0000:000000:000000:000000:000000:") + 2*len(ib.GID{}) + 1,
	encode: func(all []address) []byte { return encodeXRCHello(all[0]) },
	decode: func(b []byte) ([]address, error) {
		a, err := decodeXRCHello(b)
		return []address{a}, err
	},
	stays: true,
}

// encodeXRCHello returns an address with XRC as text.
func encodeXRCHello(a address) []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%06x:%06x:%s\x00", a.LID, a.QPN, a.sendQPN, a.PSN, a.srqn, hex.EncodeToString(a.GID[:]))
}

const xrcHelloForm = "0000:000000:000000:000000:000000:" + helloGID

// decodeXRCHello reads an address with XRC.
func decodeXRCHello(b []byte) (a address, err error) {
	m := hexFields(b, xrcHelloForm)
	if m == nil {
		return a, fmt.Errorf("the peer speaks another protocol: got %s, expected LID:QPN:QPN:PSN:SRQN:GID in hexadecimal, as ibv_xsrq_pingpong sends", peertext.Quote(b))
	}
	hello := func(qpn []byte) (uverbs.Endpoint, error) { // what is there is a hello without the other numbers
		return decodeHello(fmt.Appendf(nil, "%s:%s:%s:%s\x00", m[0], qpn, m[3], m[5]))
	}
	if a.Endpoint, err = hello(m[1]); err != nil {
		return a, err
	}
	sender, err := hello(m[2])
	if err != nil {
		return a, err
	}
	a.sendQPN = sender.QPN
	srqn, err := strconv.ParseUint(string(m[4]), 16, 32)
	a.srqn = uint32(srqn)
	return a, err
}

// encodeHello returns an endpoint as text.
func encodeHello(e uverbs.Endpoint) []byte {
	return fmt.Appendf(nil, "%04x:%06x:%06x:%s\x00", e.LID, e.QPN, e.PSN, hex.EncodeToString(e.GID[:]))
}

const (
	helloForm = "0000:000000:000000:" + helloGID
	helloGID  = "00000000000000000000000000000000\x00"
)

// hexFields returns the numbers of a message in the given form, in which 0 stands for a hexadecimal
// digit in lower case and everything else for itself. It returns nil if the message has another form.
func hexFields(b []byte, form string) [][]byte {
	if len(b) != len(form) {
		return nil
	}
	for i, c := range b {
		if digit := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'; form[i] == '0' && !digit || form[i] != '0' && c != form[i] {
			return nil
		}
	}
	return bytes.Split(b[:len(b)-1], []byte(":"))
}

// decodeHello reads an endpoint.
func decodeHello(b []byte) (e uverbs.Endpoint, err error) {
	m := hexFields(b, helloForm)
	if m == nil {
		return e, fmt.Errorf("the peer speaks another protocol: got %s, expected LID:QPN:PSN:GID in hexadecimal, as ibv_rc_pingpong sends", peertext.Quote(b))
	}
	number := func(s []byte) uint32 {
		n, perr := strconv.ParseUint(string(s), 16, 32)
		err = errors.Join(err, perr)
		return uint32(n)
	}
	e.LID = uint16(number(m[0]))
	e.QPN = number(m[1])
	e.PSN = number(m[2])
	_, herr := hex.Decode(e.GID[:], m[3])
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

// read reads the peer's addresses.
func (f *exchangeForm) read(c net.Conn) ([]address, error) {
	b := make([]byte, f.size)
	n, err := io.ReadFull(c, b)
	if err != nil {
		return nil, fmt.Errorf("got %d of %d bytes: %w", n, f.size, timeoutText(err))
	}
	return f.decode(b)
}

// timeoutText says how long was waited.
func timeoutText(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("nothing came for %s: %w", exchangeTimeout, err)
	}
	return err
}

// dialExchange is the client's part: it returns the server's addresses. local returns those of this side,
// for the TCP connection. The connection is nil unless it stays.
func dialExchange(ctx context.Context, addr string, form exchangeForm, local func(c net.Conn) ([]address, error)) (remote []address, _ net.Conn, err error) {
	d := net.Dialer{Timeout: exchangeTimeout}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, fmt.Errorf("no pingpong server at %s: %w", addr, err)
	}
	own, err := local(c)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(exchangeTimeout))
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.Close())
	}
	_, err = c.Write(form.encode(own))
	if err == nil {
		remote, err = form.read(c)
	}
	if err == nil && !form.stays {
		_, err = io.WriteString(c, done)
	}
	if err != nil {
		c.Close()
		return nil, nil, fmt.Errorf("exchange with %s: %w", addr, err)
	}
	return remote, form.kept(c), nil
}

// kept returns the connection if it stays, and closes it otherwise.
func (f *exchangeForm) kept(c net.Conn) net.Conn {
	if f.stays {
		return c
	}
	c.Close()
	return nil
}

// acceptExchange is the server's part. It waits for one client, has connect bring the QPs up, and
// answers with the addresses that connect returns for the TCP connection. Connections that do not
// send addresses are reported to log. The connection is nil unless it stays.
func acceptExchange(ctx context.Context, l net.Listener, log io.Writer, form exchangeForm, connect func(c net.Conn, remote []address) (local []address, err error)) ([]address, net.Conn, error) {
	c, remote, err := peer.FirstClient(ctx, l, log, func(_ context.Context, c net.Conn) ([]address, error) {
		if err := c.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
			return nil, err
		}
		return form.read(c)
	})
	if err != nil {
		return nil, nil, err
	}
	if err := form.answer(c, remote, connect); err != nil {
		c.Close()
		return nil, nil, err
	}
	return remote, form.kept(c), nil
}

// answer answers the client.
func (f *exchangeForm) answer(c net.Conn, remote []address, connect func(c net.Conn, remote []address) (local []address, err error)) error {
	if err := c.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return err
	}
	local, err := connect(c, remote)
	if err != nil {
		return err
	}
	if _, err := c.Write(f.encode(local)); err != nil {
		return fmt.Errorf("exchange with %s: %w", c.RemoteAddr(), err)
	}
	if f.stays {
		return nil
	}
	return hears(c, done)
}

// hears reads what the peer is to say.
func hears(c net.Conn, what string) error {
	b := make([]byte, len(what))
	if _, err := io.ReadFull(c, b); err != nil {
		return fmt.Errorf("exchange with %s: the peer did not confirm: %w", c.RemoteAddr(), timeoutText(err))
	}
	if string(b) != what {
		return fmt.Errorf("exchange with %s: the peer did not confirm: got %s, expected %q", c.RemoteAddr(), peertext.Quote(b), what)
	}
	return nil
}

// sayEnd reports to the peer that this side has all messages, and waits for the same report from
// the peer.
func sayEnd(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, end); err != nil {
		return fmt.Errorf("exchange with %s: %w", c.RemoteAddr(), err)
	}
	return hears(c, end)
}
