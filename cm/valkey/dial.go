package valkey

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// Network is the name of the network in the errors of connections.
const Network = "valkey"

// Dialer makes connections for clients that have an option for a function like DialContext. The zero
// value is ready for use.
type Dialer struct {
	Options // Options are the options of each connection.
}

// DialContext is [Dial] with the signature of [net.Dialer.DialContext]. The network is ignored.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := Dial(ctx, address, d.Options)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// DialContext is [Dialer.DialContext] with the default options.
func DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return new(Dialer).DialContext(ctx, network, address)
}

// Dial connects to a server of Valkey, or a [Listener], at "host:port". It tries the addresses of the
// host one after the other. Without a deadline of ctx, an attempt ends when the kernel gives up, which
// takes over a minute if the host does not answer. The error matches ECONNREFUSED if the peer rejects
// the connection, and EPROTO if it speaks another protocol. It matches [errors.ErrUnsupported] on iWARP.
// Once the connection is established, the end of ctx does not affect it.
func Dial(ctx context.Context, address string, o Options) (*Conn, error) {
	o, err := o.defaults("Dial")
	if err != nil {
		return nil, err
	}
	addrs, err := protocol.Lookup(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("valkey: dial %s: %w", address, err)
	}
	var errs []error
	for _, a := range addrs {
		c, err := dial(ctx, a, o)
		if err == nil {
			return c, nil
		}
		if errs = append(errs, fmt.Errorf("valkey: dial %s: %w", a, err)); ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// dial connects to one address.
func dial(ctx context.Context, to netip.AddrPort, o Options) (*Conn, error) {
	ch, err := protocol.OpenChannel(netip.Addr{}, to.Addr())
	if err != nil {
		return nil, err
	}
	id, err := ch.NewID(rdmacm.TCP)
	if err != nil {
		return nil, errors.Join(err, ch.Release())
	}
	if err := id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(to)); err != nil {
		return nil, errors.Join(err, id.Close(), ch.Release())
	}
	c, err := newConn(ch, id, o)
	if err != nil {
		return nil, err
	}
	answer, err := id.ConnectWait(ctx, c.param())
	if err != nil {
		return nil, errors.Join(rejection(err), c.release())
	}
	err = checkPrivateData(answer.Param.PrivateData)
	if err == nil {
		err = c.makeMemory()
	}
	if err != nil {
		return nil, errors.Join(err, c.release())
	}
	c.start()
	return c, nil
}

// rejection adds to an error of a connection what its private data says of the protocol of the listener.
func rejection(err error) error {
	var e *rdmacm.EventError
	if !errors.As(err, &e) || e.Type != rdmacm.EventRejected {
		return err
	}
	switch text := protocol.Refused(e.PrivateData); {
	case text != "":
		return fmt.Errorf("%s: %w: %w", text, syscall.EPROTO, err)
	case protocol.SpeaksCM(e.PrivateData):
		return fmt.Errorf("%w: %w", errSpeaksCM, err)
	case rdmacm.Reason(e.Status) == rdmacm.ReasonConsumer:
		return fmt.Errorf("the listener gives no reason, as those of rsocket do, or one that has no room for another connection: %w", err)
	}
	return err
}

// errSpeaksCM is the error of a peer that speaks the protocol of package cm.
var errSpeaksCM = protoErr("the peer speaks the protocol of cm.Conn and cm.Stream, not Valkey's")

// checkPrivateData returns an error if a request or an answer has the private data of another
// protocol. Valkey uses no private data, but on InfiniBand it is padded with zeros.
func checkPrivateData(b []byte) error {
	const rsocketSize, rsocketVersion = 40, 1
	switch {
	case protocol.SpeaksCM(b):
		return errSpeaksCM
	case len(b) >= rsocketSize && b[0] == rsocketVersion:
		return protoErr("the peer seems to speak rsocket, not Valkey's protocol: its private data begins with % x", b[:8])
	}
	for i := range b {
		if b[i] != 0 {
			return protoErr("the peer does not speak Valkey's protocol, which has no private data: it has sent % x", b[:min(len(b), 16)])
		}
	}
	return nil
}
