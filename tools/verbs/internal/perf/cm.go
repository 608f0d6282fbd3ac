package perf

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// connections are the queue pairs of a side, connected by the connection manager: one
// identifier for each. The client's private data is the number of the queue pair.
type connections struct {
	end      *End
	channel  *rdmacm.Channel
	listener *rdmacm.ID
	addr     netip.AddrPort // of the listener
	token    []byte         // with which the client's requests begin
	ids      []*rdmacm.ID
}

// tokenSize is the size of a token, in bytes.
const tokenSize = 8

// request returns the private data of the request for the i-th queue pair. Anybody can connect to
// the listener, but only the client knows the token.
func (c *connections) request(i int) []byte {
	return binary.BigEndian.AppendUint32(bytes.Clone(c.token), uint32(i))
}

// space returns the port space for the type of the queue pairs.
func (e *End) space() rdmacm.PortSpace {
	if e.Config.Type == UD {
		return rdmacm.UDP
	}
	return rdmacm.TCP
}

// newConnections opens a channel for a local or a remote address, which the end closes.
func newConnections(e *End, local, remote netip.Addr) (*connections, error) {
	c := &connections{end: e, ids: make([]*rdmacm.ID, e.Config.QPs)}
	c.channel = objects.Open(&e.opened, func() (*rdmacm.Channel, error) {
		return rdmacm.OpenChannel(rdmacm.ChannelOptions{Local: local, Remote: remote})
	})
	return c, e.opened.Err()
}

// adopt has the end close an identifier, and its queue pair before.
func (c *connections) adopt(id *rdmacm.ID) { c.end.opened.Keep(id) }

// param returns what goes with a request or an answer.
func (c *connections) param() rdmacm.ConnParam {
	p := rdmacm.ConnParam{RetryCount: uint8(c.end.Config.Retry), RNRRetryCount: DefaultRNRRetry}
	if c.end.Config.Type == RC {
		n := uint8(cmp.Or(c.end.Config.RdAtomic, c.end.Limits.RdAtomic))
		p.ResponderResources, p.InitiatorDepth = n, n
	}
	return p
}

// createQP makes the queue pair of an identifier.
func (c *connections) createQP(id *rdmacm.ID) error {
	qp, err := c.end.CreateQP(func(o uverbs.QPOptions) (*uverbs.QP, error) { return id.CreateQP(c.end.PD, o) })
	if err != nil {
		return err
	}
	return c.end.awaitGreeting(qp)
}

// setOptions sets what the connection manager would choose otherwise.
func (c *connections) setOptions(id *rdmacm.ID) error {
	if tos := c.end.Config.TOS; tos != 0 {
		if err := id.SetTOS(tos); err != nil {
			return err
		}
	}
	if c.end.Config.Type != RC {
		return nil
	}
	return id.SetAckTimeout(ib.AckTimeout(c.end.Config.AckTimeout).Duration())
}

// source returns the source address of connections: that of the device or GID that the user chose.
// Otherwise there is none, and the route decides.
func (e *End) source(remote netip.Addr) (netip.AddrPort, error) {
	if e.Local.Device == "" && e.Local.GID == Auto {
		return netip.AddrPort{}, nil
	}
	if e.Limits.IWARP {
		return e.sourceIWARP(remote)
	}
	if err := e.Routes(remote.As16()); err != nil {
		return netip.AddrPort{}, err
	}
	entry, err := e.localGID(remote.As16())
	if err != nil {
		return netip.AddrPort{}, err
	}
	from := entry.GID.Addr()
	if entry.Type == ib.GIDTypeIB || from.IsLinkLocalUnicast() || !from.IsValid() || from.Is4() != remote.Unmap().Is4() {
		return netip.AddrPort{}, nil // it is no address of a network interface, or not for this route
	}
	return netip.AddrPortFrom(from, 0), nil
}

// resolve resolves the address of a listener and makes the client's queue pairs.
func resolve(ctx context.Context, e *End, listener string, token []byte) (*connections, error) {
	addr, err := netip.ParseAddrPort(listener)
	if err != nil {
		return nil, fmt.Errorf("the server has sent no address for the connection manager: %w", err)
	}
	from, err := e.source(addr.Addr())
	if err != nil {
		return nil, err
	}
	c, err := newConnections(e, from.Addr(), addr.Addr())
	if err != nil {
		return nil, err
	}
	c.addr, c.token = addr, token
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for i := range c.ids {
		if c.ids[i], err = c.channel.NewID(e.space()); err != nil {
			return nil, err
		}
		c.adopt(c.ids[i])
		if err := c.setOptions(c.ids[i]); err != nil {
			return nil, err
		}
		if err := c.ids[i].ResolveWait(ctx, rdmacm.AddrOf(from), rdmacm.AddrOf(addr)); err != nil {
			return nil, err
		}
		if err := c.createQP(c.ids[i]); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// connect connects the client's queue pairs.
func (c *connections) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for i, id := range c.ids {
		p := c.param()
		p.PrivateData = c.request(i)
		if _, err := id.ConnectWait(ctx, p); err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				a, _ := id.Addrs()
				err = fmt.Errorf("a request for a connection was not answered within %s: there may be no route back to %s: %w", answerTime, a.Local.IP, err)
			}
			return err
		}
	}
	return nil
}

// listenIDs makes the server's listener, for one client.
func listenIDs(e *End, addr netip.Addr) (*connections, error) {
	if err := e.Routes(addr.As16()); err != nil {
		return nil, err
	}
	c, err := newConnections(e, addr.Unmap(), netip.Addr{})
	if err != nil {
		return nil, err
	}
	if err := rdmacm.RetryPort(func() error { return c.listen(addr) }); err != nil {
		return nil, err
	}
	a, err := c.listener.Addrs()
	if err != nil {
		return nil, err
	}
	c.addr = netip.AddrPortFrom(addr.Unmap(), a.Local.Port)
	c.token = make([]byte, tokenSize)
	if _, err := unix.Getrandom(c.token, 0); err != nil {
		return nil, fmt.Errorf("random bytes for the token: %w", err)
	}
	return c, nil
}

// listen makes the listener, on a port that the connection manager chooses.
func (c *connections) listen(addr netip.Addr) (err error) {
	if c.listener, err = c.channel.NewID(c.end.space()); err != nil {
		return err
	}
	c.adopt(c.listener)
	if err := c.listener.Bind(rdmacm.Addr{IP: addr.Unmap()}); err != nil {
		return err
	}
	const strangers = 16 // whose requests may wait with the client's
	return c.listener.Listen(c.end.Config.QPs + strangers)
}

// accept takes the client's queue pairs, in their order. A request that is not the client's next is
// rejected, and the client's is waited for.
func (c *connections) accept(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for i := 0; i < len(c.ids); {
		request, err := c.listener.NextRequest(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = refusef("the client has asked to connect %d of %d queue pairs within %s: %w", i, len(c.ids), answerTime, err)
		}
		if err != nil {
			return err
		}
		id := request.ID
		if !bytes.HasPrefix(request.Param.PrivateData, c.request(i)) {
			_ = id.Reject(nil, rdmacm.ReasonConsumer) // or it has gone already
			if err := id.Close(); err != nil {
				return err
			}
			continue
		}
		c.adopt(id)
		c.ids[i] = id
		err = c.createQP(id)
		if err == nil {
			err = id.AcceptWait(ctx, c.param())
		}
		if err != nil {
			return err
		}
		i++
	}
	return nil
}
