package cm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/redial"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// lookup returns the addresses of a "host:port". The family is "ip", "ip4" or "ip6", as for
// [net.Resolver.LookupNetIP], and a nil resolver is the default one. An empty host is the unspecified
// address, for listening.
func lookup(ctx context.Context, resolver *net.Resolver, family, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("cm: address %q: %w", address, err)
	}
	port, err := resolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, fmt.Errorf("cm: port of address %q: %w", address, err)
	}
	if host == "" {
		return []netip.AddrPort{netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port))}, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && (family == "ip" || (family == "ip4") == ip.Unmap().Is4()) {
		return []netip.AddrPort{netip.AddrPortFrom(ip, uint16(port))}, nil
	}
	ips, err := resolver.LookupNetIP(ctx, family, host) // for an address of the other family it returns an error
	if err != nil {
		return nil, fmt.Errorf("cm: host of address %q: %w", address, err)
	}
	all := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		all[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return all, nil
}

// Dial connects to a listener at "host:port". If the host has several addresses, Dial tries one
// after the other and gives each a share of the time until the deadline of ctx, or without a deadline
// [DialOptions].Timeout. A host at which nobody answers takes all of that time: software devices, too, are
// silent where there is none.
//
// If the peer rejects the connection, the error matches ECONNREFUSED, and it is a [*RefusedError]
// if the peer has given a reason. While the listener says that it has too many connections, Dial tries the
// next address, or the last one again in that time. A rejection without a reason, and one because the peer
// still has an old connection with the same QP number, as after a crash of this host, are followed by up to
// three more attempts. Once the connection is established, the end of ctx does not affect it.
func Dial(ctx context.Context, address string, o DialOptions) (*Conn, error) {
	growStack16K(0)
	o, err := o.defaults()
	if err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, nil, "ip", address)
	if err != nil {
		return nil, err
	}
	c, errs := dialAny(ctx, addrs, o)
	return c, errors.Join(errs...)
}

// dialAny dials addresses one after the other. It returns a connection or, for each address that it
// has tried, an error.
func dialAny(ctx context.Context, addrs []netip.AddrPort, o DialOptions) (*Conn, []error) {
	var errs []error
	for i, a := range addrs {
		c, err := dialWithin(ctx, len(addrs)-i, a, o)
		if err == nil {
			return c, nil
		}
		if _, ok := errors.AsType[*RefusedError](err); !ok { // which names the address
			err = &addressed{"dial", a.String(), err}
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return nil, errs
}

// dialWithin dials the first of the remaining addresses. It gives the attempt an equal share of the
// remaining time, but at least two seconds if that much remains.
func dialWithin(ctx context.Context, addrs int, to netip.AddrPort, o DialOptions) (*Conn, error) {
	const least = 2 * time.Second
	if end, ok := ctx.Deadline(); ok && addrs > 1 {
		left := time.Until(end)
		short, cancel := context.WithTimeout(ctx, max(left/time.Duration(addrs), min(least, left)))
		defer cancel()
		ctx = short
	}
	var c *Conn
	err := redial.Within(ctx, o.Timeout, func(ctx context.Context) error {
		try := func() (err error) {
			c, err = dial(ctx, to, o)
			return err
		}
		return redial.Retry(ctx, func(err error) bool { return o.waits(err) && addrs == 1 }, func() error {
			if o.LocalAddr.Port() != 0 {
				return try()
			}
			return rdmacm.RetryPort(try)
		})
	})
	return c, err
}

// waits reports whether err is the refusal of a listener that has no place for the connection.
func (o *DialOptions) waits(err error) bool {
	e, ok := errors.AsType[*RefusedError](err)
	if ok = ok && redial.Passes(e.Why); ok && o.full != nil {
		o.full()
	}
	return ok
}

// dial connects to one address.
func dial(ctx context.Context, to netip.AddrPort, o DialOptions) (c *Conn, err error) {
	if from := o.LocalAddr.Addr(); from.IsValid() && from.Unmap().Is4() != to.Addr().Unmap().Is4() {
		return nil, argErr("Dial", "LocalAddr", o.LocalAddr, "an address of the family of %s", to.Addr())
	}
	loop, id, err := newLoopID(rdmacm.TCP, o.LocalAddr.Addr(), to.Addr(), acquireDialLoop)
	if err != nil {
		return nil, err
	}
	defer func() {
		switch {
		case err == nil:
		case c == nil:
			err = errors.Join(err, loop.closeID(id))
			loop.releaseLater()
		default:
			c.dev.forgetIfRemoved(err)
			err = errors.Join(err, c.destroy())
			c = nil
		}
	}()
	if err := setOptions(id, o.ConnOptions); err != nil {
		return nil, err
	}
	if err := id.ResolveWait(ctx, rdmacm.AddrOf(o.LocalAddr), rdmacm.AddrOf(to)); err != nil {
		return nil, err
	}
	addrs, index, err := id.AddrsByIndex()
	if err != nil {
		return nil, err
	}
	c = newConn(loop, id, addrs, index, o.ConnOptions, nil)
	if err := c.attach(); err != nil {
		return c, err
	}
	data, err := o.requestData(c)
	if err != nil {
		return c, err
	}
	if err := c.make(); err != nil {
		return c, err
	}
	answer, err := id.ConnectWait(ctx, c.param(greetingRequest, data))
	if err != nil {
		return c, refusalError(err)
	}
	peer, err := parseGreeting(answer.Param.PrivateData, greetingAnswer)
	if err != nil {
		return c, err
	}
	c.version = peer.version
	c.start(peer, answer.Param.PrivateData)
	if err := c.sendFirst(ctx); err != nil {
		return c, err
	}
	return c, nil
}

// requestData returns the private data of the request, and calls Prepare for it.
func (o *DialOptions) requestData(c *Conn) ([]byte, error) {
	if o.Prepare == nil {
		return o.PrivateData, nil
	}
	data, err := o.Prepare(c.PD())
	switch {
	case err != nil:
		return nil, &prepareError{err}
	case len(data) > MaxDialData:
		return nil, argErr("Prepare", "private data", fmt.Sprintf("%d bytes long", len(data)), "up to %d bytes", MaxDialData)
	}
	return data, nil
}

// prepareError is the program's own error of Prepare, which says nothing about RDMA.
type prepareError struct{ error }

// Unwrap returns the error.
func (e *prepareError) Unwrap() error { return e.error }

// setOptions sets the options of a Conn that belong to the ID.
func setOptions(id *rdmacm.ID, o ConnOptions) error {
	id.SetQPAckTimeout(o.AckTimeout)
	if err := id.SetECE(o.ECE); err != nil {
		return err
	}
	if o.TOS != 0 {
		return id.SetTOS(o.TOS)
	}
	return nil
}

// RefusedError is the rejection of a connection by a listener that has given a reason. It matches
// ECONNREFUSED.
type RefusedError struct {
	Addr string // Addr is the address of the listener.
	Why  string // Why is the reason that the listener has given.
}

// Error implements the error interface.
func (e *RefusedError) Error() string {
	return "cm: " + e.Addr + " refuses: " + strconv.Quote(e.Why)
}

// Unwrap returns ECONNREFUSED.
func (e *RefusedError) Unwrap() error { return syscall.ECONNREFUSED }

// refusalError turns a rejection that carries a reason into a RefusedError.
func refusalError(err error) error {
	var e *rdmacm.EventError
	if !errors.As(err, &e) || e.Type != rdmacm.EventRejected || rdmacm.Reason(e.Status) == rdmacm.ReasonVendorOption {
		return err
	}
	h, herr := parseGreeting(e.PrivateData, greetingRefusal)
	if herr != nil {
		return err
	}
	return &RefusedError{Addr: e.Addr, Why: string(h.data)}
}
