package cm

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/internal/redial"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
)

// WaitMode says how the methods of a [Conn] or [PacketConn] wait.
type WaitMode uint8

// Wait modes.
const (
	WaitSpinThenPark WaitMode = iota // poll for a while if the last wait was short, then sleep
	WaitSpin                         // poll all the time: lowest latency, but each waiting goroutine occupies a processor
	WaitPark                         // sleep at once, see [uverbs.CompChannel.Next]: lowest CPU use
)

// String returns the mode's name.
func (m WaitMode) String() string {
	switch m {
	case WaitSpinThenPark:
		return "spin then park"
	case WaitSpin:
		return "spin"
	case WaitPark:
		return "park"
	}
	return fmt.Sprintf("wait mode %d", uint8(m))
}

// ConnOptions are the options of a connection, for both [DialOptions] and [ListenOptions]. The zero
// value suits most programs.
//
// A connection needs registered memory for Depth + 5 messages of MessageSize. Its first Send adds
// memory for SendDepth messages of the smaller MessageSize of the two sides. With the defaults
// these are 673 KiB and 257 KiB. Registering memory is most of the cost of a connection, so a
// connection starts with 4 KiB, for messages of up to 440 bytes. It gets the rest when the peer has
// a larger message, and when messages arrive faster than the program takes them. While no goroutine is in a
// method such as Recv, a goroutine of the connection waits for that. With a Depth below 12, or less than
// 64 KiB in all, it registers all of it at the start: a listener with few and large messages should limit what strangers
// make it register, by [ListenOptions].MaxMemory. The connections of a device reuse the memory of
// closed ones.
type ConnOptions struct {
	MessageSize int // MessageSize is the size of the largest message that this side receives, in bytes, up to 16 MiB; zero is 32 KiB.
	Depth       int // Depth is how many messages the peer may send before this side takes them, up to 16384; zero is 16.
	// KeepAlive is how often an idle connection checks whether the peer is still there; zero is
	// 15 s, and a negative value disables the check. A busy connection notices missing
	// acknowledgements instead. An idle connection does nothing else, with or without a
	// goroutine in Recv: it wakes up two or three times in each KeepAlive.
	KeepAlive time.Duration
	Linger    time.Duration // Linger is the longest time that Close waits until everything sent has arrived; zero is 5 s.
	Isolation Isolation     // Isolation says which connections share a PD; zero is SharedPD.

	Tuning // Tuning are the settings that few programs change.
}

// Tuning are options of a connection that few programs change, as in
//
//	cm.DialOptions{ConnOptions: cm.ConnOptions{Tuning: cm.Tuning{SendDepth: 64}}}
type Tuning struct {
	SendDepth int // SendDepth is how many messages of this side may be unacknowledged, up to 16384; zero is 8.
	Transfers int // Transfers is how many RDMA operations of this side may be outstanding, up to 16384; zero is 16.

	Wait WaitMode // Wait is the way to wait.
	// Spin is how long WaitSpinThenPark polls before it parks, and what it considers a short wait; zero
	// is 50 µs. On a software device it parks at once after a message of more than 4 KiB.
	Spin time.Duration

	// AckTimeout is how long the device waits for an acknowledgement before it sends a packet
	// again, up to RetryCount times; zero is 268 ms. Other values are rounded up to a power of
	// two times 4.096 µs.
	AckTimeout time.Duration
	// RetryCount is 1 to 7; zero is 7. Some devices, such as rxe, count every lost packet of a
	// message, and rxe retries without limit if it is 7. Therefore a connection also fails if
	// nothing is acknowledged for three times the time of all retries.
	RetryCount int
	TOS        uint8 // TOS is the type of service of the packets that this side sends.

	// ECE says whether the connection uses options for enhanced connections; by default it does
	// not. Their effect depends on the vendor: they may make a connection faster or slower.
	// [Conn.ECE] returns those that are used. If a side requires options that the other does not
	// have, Dial fails with an error that matches [rdmacm.ErrNoECE], except on iWARP, where a rejection
	// has no reason.
	ECE rdmacm.ECEMode
}

// DialOptions are the options of [Dial] and [DialStream]. The zero value suits most programs.
type DialOptions struct {
	ConnOptions

	LocalAddr   netip.AddrPort // LocalAddr is the address to connect from; the zero value is any.
	Timeout     time.Duration  // Timeout is how long Dial tries to reach each address of the host, if its context has no deadline; zero is 10 s.
	PrivateData []byte         // PrivateData is sent with the request, up to [MaxDialData] bytes.
	// Prepare, if set, is called when the device for the connection is known, once for each
	// address of the host that Dial tries. Its argument is the PD for the memory of the
	// connection; see [Conn.PD]. The data that it returns, such as a [Remote], is sent instead
	// of PrivateData. If it returns an error, the attempt fails.
	Prepare func(*uverbs.PD) ([]byte, error)

	full func() // is called when a listener has no place; nil if nobody wants to know
}

// ListenOptions are the options of [Listen]. The zero value suits most programs.
type ListenOptions struct {
	ConnOptions // ConnOptions are the options of each connection.

	PrivateData []byte // PrivateData is sent with each answer, up to [MaxAcceptData] bytes.
	// Prepare, if set, is called with each PD of the listener's connections, before the first
	// answer on it: once for each device, and again after a second without connections, unless an
	// MR keeps the PD open. The data that it returns, such as the [Remote] of a table that all
	// peers read, is sent instead of PrivateData with each answer on the PD, unless Check returns
	// data. If Prepare fails, Refused is told why, the peer learns only that it was refused, and the
	// next request calls Prepare again. Calls do not overlap. With [ConnPD] it must be nil: use Check and [Request.PD].
	Prepare func(*uverbs.PD) ([]byte, error)

	// These options limit what peers can hold. The package comment describes them and their defaults under
	// "Limits of listeners".

	Backlog   int   // Backlog is how many connections may wait for Accept, including requests.
	HalfOpen  int   // HalfOpen is how many requests may be in progress.
	MaxConns  int   // MaxConns is how many connections there may be, including requests.
	MaxMemory int64 // MaxMemory is how much memory the connections may need, in bytes.
	AddrShare int   // AddrShare is how much of these limits one address may hold, in percent.

	limits limits.Limits

	// Check, if set, is called for each request. The data that it returns, unless it is nil, is
	// sent with the answer instead of PrivateData and the data of Prepare. If it returns an error,
	// the request is rejected, and the peer receives the first 136 bytes of the error's text. Check
	// is called from several goroutines, and before the connection has any memory, queue or other
	// object of the device, so rejecting a stranger is cheap.
	Check func(*Request) ([]byte, error)
	// Refused, if set, is called with the reason for each request that the listener or Check
	// has rejected, and for each connection that was abandoned before its peer completed it.
	// The peer receives the text of an error of Check, and a fixed text in all other cases.
	// Refused is called from several goroutines. It must not block, because one of them handles
	// all requests. The address is the zero value if it is not known.
	Refused func(remote rdmacm.Addr, err error)
}

// Isolation says which connections share a PD. A peer that knows the key of an MR can access it if
// the MR belongs to the PD of the peer's connection, and not otherwise.
type Isolation uint8

// Levels of isolation.
const (
	// SharedPD means that all connections of the process on a device share a PD and registered
	// memory for their messages. This is the default, because a new connection need not
	// register memory. Choose another level if a peer must not access memory that is meant for
	// another peer, even if it learns or guesses the key.
	SharedPD Isolation = iota
	// ListenerPD means that the connections of a listener on a device share a PD. It is for
	// [Listen] only.
	ListenerPD
	// ConnPD means that each connection has its own PD and registers its own memory.
	ConnPD
)

// String returns the name of the constant.
func (i Isolation) String() string {
	switch i {
	case SharedPD:
		return "SharedPD"
	case ListenerPD:
		return "ListenerPD"
	case ConnPD:
		return "ConnPD"
	}
	return fmt.Sprintf("isolation %d", uint8(i))
}

// Request is a connection request to a listener, for [ListenOptions].Check.
type Request struct {
	Local       rdmacm.Addr // Local is the address that the peer has dialed.
	PrivateData []byte      // PrivateData is the private data of the request.

	// Remote is the address of the peer: on RoCE that of the path to it, and on iWARP that of the TCP
	// connection. On InfiniBand it is what the peer says about itself, since packets have no IP addresses
	// there; see [rdmacm.ID.CheckRemote].
	Remote rdmacm.Addr

	conn atomic.Pointer[Conn] // nil once Check has returned
}

// PD returns the PD with which to register memory for the connection, such as memory whose [Remote]
// is sent with the answer; see [Conn.PD]. It opens the device if necessary. Only Check may call it,
// before it returns.
func (r *Request) PD() (*uverbs.PD, error) {
	c := r.conn.Load()
	if c == nil {
		return nil, fmt.Errorf("cm: PD of a request: Check has returned: %w", syscall.EINVAL)
	}
	if err := c.attach(); err != nil {
		return nil, err
	}
	return c.PD(), nil
}

// MemoryPerConn returns the most memory for messages that a connection with these options can need,
// in bytes.
func (o ConnOptions) MemoryPerConn() (int64, error) {
	o, err := o.defaults("MemoryPerConn")
	return o.memory(), err
}

// memory is MemoryPerConn for options with defaults filled in. Slots are aligned to cache lines.
func (o *ConnOptions) memory() int64 {
	slots := func(n, size int) int64 { return int64(n) * int64((size+slotAlign-1)&^(slotAlign-1)) }
	n := slots(o.Depth+spareRecv+1+o.SendDepth+lentSlots, headerSize+o.MessageSize) + slots(ctlSlots, headerSize)
	if o.startsSmall() {
		n += slots(firstRecvs, firstSize)
	}
	return n
}

// Limits of the options.
const (
	maxMessageSize = 16 << 20
	maxDepth       = 1 << 14
)

// optionChecker fills in the defaults of options, and keeps the first error.
type optionChecker struct {
	op  string
	err error // the first error
}

// count returns a number, or its default if it is 0. It must be 1 to highest.
func (n *optionChecker) count(name string, value, zero, highest int) int {
	if value == 0 {
		value = zero
	}
	if n.err == nil && (value < 1 || value > highest) {
		n.err = argErr(n.op, name, value, "1 to %d", highest)
	}
	return value
}

// duration returns a time, or its default if it is 0. It must not be negative.
func (n *optionChecker) duration(name string, value, zero time.Duration) time.Duration {
	if value == 0 {
		value = zero
	}
	if n.err == nil && value < 0 {
		n.err = argErr(n.op, name, value, "at least 0")
	}
	return value
}

// defaults returns the options with their defaults filled in.
func (o ConnOptions) defaults(op string) (ConnOptions, error) {
	// A table of the fields would move the options to the heap.
	n := optionChecker{op: op}
	o.MessageSize = n.count("MessageSize", o.MessageSize, 32<<10, maxMessageSize)
	o.Depth = n.count("Depth", o.Depth, 16, maxDepth)
	o.SendDepth = n.count("SendDepth", o.SendDepth, 8, maxDepth)
	o.Transfers = n.count("Transfers", o.Transfers, 16, maxDepth)
	o.RetryCount = n.count("RetryCount", o.RetryCount, 7, 7)
	o.Spin = n.duration("Spin", o.Spin, 50*time.Microsecond)
	o.AckTimeout = n.duration("AckTimeout", o.AckTimeout, 260*time.Millisecond)
	o.Linger = n.duration("Linger", o.Linger, 5*time.Second)
	if n.err != nil {
		return o, n.err
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = 15 * time.Second
	}
	if o.Isolation > ConnPD {
		return o, argErr(op, "Isolation", o.Isolation, "SharedPD, ListenerPD or ConnPD")
	}
	if o.ECE > rdmacm.ECERequired {
		return o, argErr(op, "ECE", o.ECE, "ECEOff, ECEOptional or ECERequired")
	}
	if o.Wait > WaitPark {
		return o, argErr(op, "Wait", o.Wait, "WaitSpinThenPark, WaitSpin or WaitPark")
	}
	return o, nil
}

// defaults returns the options with their defaults filled in.
func (o DialOptions) defaults() (_ DialOptions, err error) {
	if o.ConnOptions, err = o.ConnOptions.defaults("Dial"); err != nil {
		return o, err
	}
	if o.Isolation == ListenerPD {
		return o, argErr("Dial", "Isolation", o.Isolation, "SharedPD or ConnPD")
	}
	n := optionChecker{op: "Dial"}
	if o.Timeout = n.duration("Timeout", o.Timeout, redial.Timeout); n.err != nil {
		return o, n.err
	}
	return o, checkPrivateData("Dial", o.PrivateData, MaxDialData)
}

// defaults returns the options with their defaults filled in.
func (o ListenOptions) defaults() (_ ListenOptions, err error) {
	if o.ConnOptions, err = o.ConnOptions.defaults("Listen"); err != nil {
		return o, err
	}
	o.limits, err = limits.Options{Backlog: o.Backlog, HalfOpen: o.HalfOpen, MaxConns: o.MaxConns, MaxMemory: o.MaxMemory, AddrShare: o.AddrShare,
		PerConn: o.memory()}.Limits(func(field string, given any, allowed string) error {
		return argErr("Listen", field, given, "%s", allowed)
	})
	if err != nil {
		return o, err
	}
	if o.Prepare != nil && o.Isolation == ConnPD {
		return o, argErr("Listen", "Prepare", "set", "nil with Isolation ConnPD; Check has the PD of a connection")
	}
	return o, checkPrivateData("Listen", o.PrivateData, MaxAcceptData)
}

// checkPrivateData returns an error if there is more private data than fits into the message.
func checkPrivateData(op string, data []byte, most int) error {
	if len(data) > most {
		return argErr(op, "PrivateData", fmt.Sprintf("%d bytes long", len(data)), "up to %d bytes", most)
	}
	return nil
}
