package cm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// Policy says when a [Dialer] connects by RDMA and when by TCP.
type Policy uint8

// Policies.
const (
	// PreferRDMA connects by RDMA if the route to the address leads through an RDMA device and the
	// peer accepts RDMA on the port, and otherwise by TCP.
	PreferRDMA Policy = iota
	// RDMAOnly connects by RDMA or not at all.
	RDMAOnly
	// FirstWins tries both at the same time and uses the first connection. The other one, if it is
	// established at all, is closed at once.
	FirstWins
)

// String returns the name of the constant.
func (p Policy) String() string {
	switch p {
	case PreferRDMA:
		return "PreferRDMA"
	case RDMAOnly:
		return "RDMAOnly"
	case FirstWins:
		return "FirstWins"
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

// Dialer connects by RDMA where that is possible, and otherwise by TCP. Its method DialContext fits
// [net/http.Transport], grpc.WithContextDialer, database drivers and whatever else takes such a
// function. The peer uses a [ListenConfig], or [Listener.Streams] for RDMA alone. The zero value is
// ready for use. A Dialer is safe for concurrent use.
type Dialer struct {
	Policy Policy      // Policy says when to use RDMA and when TCP; zero is PreferRDMA.
	RDMA   DialOptions // RDMA has the options of connections by RDMA.
	TCP    net.Dialer  // TCP connects by TCP. Its Resolver is for both; its Timeout and Deadline are for TCP only.

	// FallbackDelay is how long PreferRDMA waits for a peer that does not answer by RDMA before it
	// tries TCP as well; the first connection or rejection wins then. Zero is 1 s. If it is clear
	// earlier that the peer cannot be reached by RDMA, Dialer tries TCP at once. It does not remember
	// that for the next connection.
	FallbackDelay time.Duration

	// Chosen, if set, is called for each new connection before DialContext returns it. Several
	// goroutines may call it.
	Chosen func(Choice)
}

// Choice says how a [Dialer] has connected.
type Choice struct {
	Network, Address string   // Network and Address are the arguments of DialContext.
	Conn             net.Conn // Conn is a [*Stream] for RDMA, a [*net.TCPConn] for TCP.
	RDMAErr          error    // RDMAErr is the reason why it is not RDMA; nil if it is.
}

// Dial is [Dialer.DialContext] without a context.
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to "host:port". The network is "tcp", "tcp4" or "tcp6"; the last two restrict
// the addresses of the host. The connection is a [*Stream] or a [*net.TCPConn]. The end of ctx does
// not affect it once it is established; before, DialContext returns at most one second after it, even if
// a device hangs. The error is a [*net.OpError], whose method Timeout reports whether ctx has ended at
// its deadline.
//
// A peer that speaks RDMA but rejects the connection, such as a [Listener] at its limits, is not
// asked again by TCP. On iWARP, RDMA has the ports of TCP, so PreferRDMA and FirstWins may connect to
// a program that expects TCP, which then receives an iWARP request.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, opErrorOf("dial", network, err)
	}
	if d.Chosen != nil {
		d.Chosen(c)
	}
	return c.Conn, nil
}

// attempt is the result of an attempt to connect.
type attempt struct {
	conn net.Conn
	err  error // why there is no connection
	rdma bool
}

// endGrace is how long a Dialer waits for the errors of its attempts after its context has ended. An attempt ends at
// once, unless a device hangs.
const endGrace = time.Second

// errTCPFirst is a reason for TCP.
var errTCPFirst = errors.New("TCP has connected first")

// dial is DialContext without a prefix of its errors.
func (d *Dialer) dial(ctx context.Context, network, address string) (c Choice, err error) {
	family, ok := strings.CutPrefix(network, "tcp")
	switch {
	case !ok || family != "" && family != "4" && family != "6":
		return c, net.UnknownNetworkError(network)
	case d.Policy > FirstWins:
		return c, argErr("Dialer", "Policy", d.Policy, "PreferRDMA, RDMAOnly or FirstWins")
	case d.FallbackDelay < 0:
		return c, argErr("Dialer", "FallbackDelay", d.FallbackDelay, "at least 0")
	case ctx.Err() != nil:
		return c, ctx.Err()
	}
	c = Choice{Network: network, Address: address}
	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the attempt that has lost
	results := make(chan attempt, 2)
	running := 0
	start := func(rdma bool, dial func() (net.Conn, error)) {
		running++
		go func() {
			conn, err := dial()
			results <- attempt{conn, err, rdma}
		}()
	}
	defer func() { go closeLate(results, running) }()
	tcpStarted, rejected := false, false
	startTCP := func() {
		if !tcpStarted {
			start(false, func() (net.Conn, error) { return d.TCP.DialContext(ctx, network, address) })
		}
		tcpStarted = true
	}
	full := make(chan struct{}, 1)
	start(true, func() (net.Conn, error) {
		return d.dialRDMA(ctx, "ip"+family, address, func() {
			select {
			case full <- struct{}{}:
			default:
			}
		})
	})
	var delay <-chan time.Time
	switch d.Policy {
	case FirstWins:
		startTCP()
		c.RDMAErr = errTCPFirst
	case PreferRDMA:
		wait := d.FallbackDelay
		if wait == 0 {
			wait = time.Second
		}
		timer := time.NewTimer(wait)
		defer timer.Stop()
		delay = timer.C
		c.RDMAErr = fmt.Errorf("no answer by RDMA within %v: %w", wait, errTCPFirst)
	}
	var tcpErr error
	ended := parent.Done()
	var hung <-chan time.Time
	for running > 0 && !rejected {
		select {
		case <-ended:
			ended, hung = nil, time.After(endGrace)
		case <-hung:
			return c, fmt.Errorf("%w; an attempt did not stop within %v, perhaps because its device hangs", parent.Err(), endGrace)
		case <-delay:
			startTCP()
		case <-full: // the peer speaks RDMA
			delay = nil
		case a := <-results:
			running--
			switch {
			case a.err == nil:
				if c.Conn = a.conn; a.rdma {
					c.RDMAErr = nil
				}
				return c, nil
			case !a.rdma:
				tcpErr = a.err
			default:
				err, c.RDMAErr = a.err, a.err
				var noRDMA *noRDMAError
				switch {
				case d.Policy == RDMAOnly:
					err = fmt.Errorf("%w; policy RDMAOnly does not allow TCP", err)
				case errors.As(err, &noRDMA) && parent.Err() == nil:
					startTCP()
				case d.Policy == PreferRDMA && parent.Err() == nil:
					rejected = true // or an argument is wrong; TCP would hide that
				}
			}
		}
	}
	if op, ok := tcpErr.(*net.OpError); ok {
		both := *op
		both.Err = fmt.Errorf("%w; by RDMA: %w", op.Err, err)
		err = &both
	}
	return c, err
}

// opErrorOf returns err as the [net.OpError] of an operation. If package net has returned it, it is one already, with
// the addresses.
func opErrorOf(op, network string, err error) error {
	e := net.OpError{Op: op, Net: network, Err: err}
	if of, ok := err.(*net.OpError); ok && of.Op == op {
		e = *of
	}
	e.Err = timeoutOf(e.Err)
	return &e
}

// closeLate closes the connection of an attempt that has lost. It gets as many results as it waits
// for.
func closeLate(results <-chan attempt, n int) {
	for range n {
		if a := <-results; a.err == nil {
			a.conn.Close()
		}
	}
}

// dialRDMA connects by RDMA. It calls full when a listener has no place.
func (d *Dialer) dialRDMA(ctx context.Context, family, address string, full func()) (net.Conn, error) {
	growStack16K(0)
	o, err := d.RDMA.defaults()
	o.full = full
	if err != nil {
		return nil, err
	}
	addrs, err := lookup(ctx, d.TCP.Resolver, family, address)
	if err != nil {
		return nil, err
	}
	c, errs := dialAny(ctx, addrs, o)
	switch {
	case c != nil:
		return c.Stream(), nil
	case slices.ContainsFunc(errs, func(err error) bool { return !isNoRDMA(err) }):
		return nil, errors.Join(errs...)
	}
	return nil, &noRDMAError{errors.Join(errs...)}
}

// noRDMAError says that a host cannot be reached by RDMA at any of its addresses.
type noRDMAError struct{ error }

// Unwrap returns the errors of the addresses.
func (e *noRDMAError) Unwrap() error { return e.error }

// isNoRDMA reports whether an attempt failed because this process has no RDMA device for the address,
// or because nobody answers or listens there by RDMA.
func isNoRDMA(err error) bool {
	var refused *RefusedError
	var prepare *prepareError
	var e *rdmacm.EventError
	switch {
	case errors.As(err, &refused), errors.As(err, &prepare), errors.Is(err, rdmacm.ErrNoECE):
		return false
	case errors.As(err, &e) && e.Type == rdmacm.EventRejected && e.Status > 0:
		return rdmacm.Reason(e.Status) == rdmacm.ReasonInvalidServiceID
	case errors.As(err, &e) && e.Type == rdmacm.EventConnectError && e.Status == -int32(syscall.EINVAL):
		return true // the peer has answered an iWARP request with something else
	}
	return slices.ContainsFunc(noRDMA, func(cause error) bool { return errors.Is(err, cause) })
}

// noRDMA are causes of errors that isNoRDMA recognizes.
var noRDMA = []error{
	errors.ErrUnsupported, fs.ErrNotExist, fs.ErrPermission, // no module, device node or access
	syscall.ENODEV, syscall.ENETUNREACH, syscall.EAFNOSUPPORT, // no RDMA device on the route, or no route
	syscall.EHOSTUNREACH, syscall.ETIMEDOUT, syscall.ECONNREFUSED, // nobody answers, or listens on iWARP
}
