package cm

import (
	"fmt"
	"math"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// WaitMode says how the methods of a [Conn] or [PacketConn] wait.
type WaitMode uint8

// Wait modes.
const (
	WaitSpinThenPark WaitMode = iota // poll for a while if the last wait was short, then park
	WaitSpin                         // poll all the time: least latency, and one processor for each goroutine that waits
	WaitPark                         // park in Go's netpoller at once: least use of processors
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
// A connection needs registered memory for Depth + 5 messages of MessageSize, and from its first
// Send on for SendDepth more messages, of the smaller MessageSize of the two sides. With the
// defaults these are 673 KiB and 257 KiB. Registering memory is most of the cost of a connection.
// So a connection starts with 4 KiB, for messages of up to 440 bytes. It gets the rest when a
// larger message is to come, when the program takes messages more slowly than they arrive, and in
// any case after 100 ms. The connections of a device reuse the memory of closed ones, so that a
// program that opens and closes many connections registers it only once.
type ConnOptions struct {
	MessageSize int // MessageSize is the size of the largest message that this side receives, in bytes; zero is 32 KiB.
	Depth       int // Depth is how many messages the peer may send before this side takes them; zero is 16.
	SendDepth   int // SendDepth is how many messages of this side may be unacknowledged; zero is 8.
	Transfers   int // Transfers is how many RDMA operations of this side may be outstanding; zero is 16.

	Wait WaitMode      // Wait is the way to wait.
	Spin time.Duration // Spin is how long WaitSpinThenPark polls before it parks, and what it considers a short wait; zero is 50 µs.

	// KeepAlive is how often an idle connection checks whether the peer is still there; zero is
	// 15 s, and a negative value is never. A busy connection learns it from acknowledgements.
	KeepAlive time.Duration
	// AckTimeout is how long the device waits for an acknowledgement before it sends a packet
	// again, up to RetryCount times; zero is 268 ms. Devices round it up to a power of two
	// times 4.096 µs.
	AckTimeout time.Duration
	// RetryCount is 1 to 7; zero is 7. Some devices, such as rxe, count every lost packet of a
	// message, and retry without limit if it is 7. Therefore a connection also fails when
	// nothing of what was sent is acknowledged for three times the time of all retries.
	RetryCount int
	Linger     time.Duration // Linger is how long Close waits at most until what was sent has arrived; zero is 5 s.
	TOS        uint8         // TOS is the type of service of the packets that this side sends.

	// Isolation says which connections share a PD. By default all connections on a device do.
	Isolation Isolation
}

// DialOptions are the options of [Dial] and [DialStream]. The zero value suits most programs.
type DialOptions struct {
	ConnOptions

	LocalAddr   netip.AddrPort // LocalAddr is the address to connect from; the zero value is any.
	PrivateData []byte         // PrivateData is sent with the request, up to [MaxDialData] bytes.
	// Prepare is called, if it is set, as soon as the device for the connection is known. Its
	// argument is the PD for the memory of the connection; see [Conn.PD]. The data that it
	// returns, such as a [Remote], is sent as private data instead of PrivateData. If it
	// returns an error the attempt fails. Dial calls it once for each address of the host that
	// it tries.
	Prepare func(*uverbs.PD) ([]byte, error)
}

// ListenOptions are the options of [Listen]. The zero value suits most programs.
type ListenOptions struct {
	ConnOptions // ConnOptions are the options of each connection.

	PrivateData []byte // PrivateData is sent with each answer, up to [MaxAcceptData] bytes.

	// Backlog is how many connections may wait for Accept, including requests that are being
	// answered; zero is 1024.
	Backlog int
	// HalfOpen is how many requests may be in progress at the same time: being
	// answered, or waiting for the peer to complete the connection. Zero is half of Backlog. If
	// there is one more, it takes the place of the oldest whose peer has had a quarter of a
	// second, and is rejected if there is none. So peers that never complete a connection
	// cannot keep others out for long.
	HalfOpen int
	// MaxConns is how many connections there may be, including requests; zero is no limit. At
	// the limit a request takes the place of the oldest one that waits for its peer, as with
	// HalfOpen.
	MaxConns int
	// MaxMemory is how much memory for messages the connections may need, in bytes; zero is no
	// limit. Each connection counts with the result of [ConnOptions.MemoryPerConn], so that
	// MaxMemory limits the number of connections. Up to a quarter more is registered in
	// advance, and the memory of closed connections is kept for a second.
	MaxMemory int64

	// Check decides about the requests, if it is set. The data that it returns is sent as
	// private data of the answer instead of PrivateData. If it returns an error the request is
	// rejected, and the peer receives the error's text, up to 136 bytes. Check is called from
	// several goroutines. It is called before the connection has any memory, queue or other
	// object of the device, so that it is the place to turn strangers away.
	Check func(*Request) ([]byte, error)
	// Refused is called, if it is set, for each request that the listener or Check has
	// rejected, and for each connection that was given up before its peer completed it, with
	// the reason. The peer receives the text of an error of Check, and a fixed text in all
	// other cases. Refused is called from several goroutines, one of which handles all
	// requests, so that it must not block. The address is the zero value if it is not known.
	Refused func(remote Addr, err error)
}

// Isolation says which connections share a PD. A peer that knows the key of an MR can access it if
// the MR belongs to the PD of the peer's connection, and not otherwise.
type Isolation uint8

// Levels of isolation.
const (
	// SharedPD: all connections of the process on a device share a PD. This is the default,
	// because the memory for messages, and the memory that the program registers, is registered
	// once for all of them, and a new connection need not register any. Choose another level if
	// a peer must not access memory that is meant for another one, even if it learns or guesses
	// the key.
	SharedPD Isolation = iota
	// ListenerPD: the connections of a listener on a device share a PD. It is for [Listen]
	// only.
	ListenerPD
	// ConnPD: each connection has a PD, and registers its own memory.
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
	Local       Addr   // Local is the address that the peer has dialed.
	Remote      Addr   // Remote is the address of the peer.
	PrivateData []byte // PrivateData is the private data of the request.

	conn atomic.Pointer[Conn] // nil once Check has returned
}

// PD returns the PD to register memory for the connection with, such as memory whose [Remote] is
// sent with the answer; see [Conn.PD]. It opens the device if necessary. Only Check may call it,
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

// MemoryPerConn returns how much memory for messages a connection with these options needs at most,
// in bytes.
func (o ConnOptions) MemoryPerConn() (int64, error) {
	o, err := o.defaults("MemoryPerConn")
	return o.memory(), err
}

// memory is MemoryPerConn for options with defaults filled in. Each slot begins at a cache line.
func (o *ConnOptions) memory() int64 {
	slots := func(n, size int) int64 { return int64(n) * int64((size+slotAlign-1)&^(slotAlign-1)) }
	n := slots(o.Depth+spareRecv+1, headerSize+o.MessageSize) + slots(o.SendDepth, headerSize+o.MessageSize) + slots(ctlSlots, headerSize)
	if o.startsSmall() {
		n += slots(firstRecvs, firstSize)
	}
	return n
}

// maxConns returns how many connections a listener may have.
func (o *ListenOptions) maxConns() int {
	n := math.MaxInt
	if o.MaxConns > 0 {
		n = o.MaxConns
	}
	if o.MaxMemory > 0 {
		n = int(min(int64(n), o.MaxMemory/o.memory()))
	}
	return n
}

// Limits of the options.
const (
	maxMessageSize = 16 << 20
	maxDepth       = 1 << 14
	maxBacklog     = 1 << 20
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
		return o, argErr(op, "Isolation", o.Isolation, "SharedPD, ListenerPD, ConnPD")
	}
	if o.Wait > WaitPark {
		return o, argErr(op, "Wait", o.Wait, "WaitSpinThenPark, WaitSpin, WaitPark")
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
	return o, checkPrivateData("Dial", o.PrivateData, MaxDialData)
}

// defaults returns the options with their defaults filled in.
func (o ListenOptions) defaults() (_ ListenOptions, err error) {
	if o.ConnOptions, err = o.ConnOptions.defaults("Listen"); err != nil {
		return o, err
	}
	n := optionChecker{op: "Listen"}
	o.Backlog = n.count("Backlog", o.Backlog, 1024, maxBacklog)
	o.HalfOpen = n.count("HalfOpen", o.HalfOpen, (o.Backlog+1)/2, maxBacklog)
	if n.err != nil {
		return o, n.err
	}
	if o.MaxConns < 0 {
		return o, argErr("Listen", "MaxConns", o.MaxConns, "at least 0")
	}
	if o.MaxMemory < 0 || o.MaxMemory > 0 && o.MaxMemory < o.memory() {
		return o, argErr("Listen", "MaxMemory", fmt.Sprintf("%d bytes", o.MaxMemory), "0, or at least %d bytes, which one connection may need", o.memory())
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
