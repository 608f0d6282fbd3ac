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

// WaitMode says how a [Conn] waits for what is to come.
type WaitMode uint8

// Ways to wait.
const (
	SpinThenPark WaitMode = iota // look again and again for a while, if what was last waited for came soon; then park
	Spin                         // look again and again: least latency, and a processor for each goroutine that waits
	Park                         // park in Go's netpoller at once: least use of processors
)

// String returns the mode's name.
func (m WaitMode) String() string {
	switch m {
	case SpinThenPark:
		return "spin then park"
	case Spin:
		return "spin"
	case Park:
		return "park"
	}
	return fmt.Sprintf("wait mode %d", uint8(m))
}

// Options are the options of [Dial] and [Listen]; the zero value is what most programs want.
// A connection needs registered memory for Depth + 5 messages of MessageSize, and from its first
// Send on for SendDepth more of the smaller MessageSize of both sides: 673 and 257 KiB with the
// zero values. Registering it is most of what a connection costs, so that it begins with 4 KiB, for
// messages of up to 440 bytes, and has the rest when a larger one is to come, when this side does
// not answer the small ones, and at the latest 100 ms after its beginning. Connections of one
// device hand theirs on, so that a program that opens and closes them pays once.
type Options struct {
	// PrivateData goes with the request of Dial, up to [MaxDialData] bytes, or with the answer
	// of a listener, up to [MaxAcceptData] bytes.
	PrivateData []byte

	MessageSize int // MessageSize is the largest message that this side receives, in bytes; zero is 32 KiB.
	Depth       int // Depth is how many messages the peer may send before this side takes them; zero is 16.
	SendDepth   int // SendDepth is how many messages of this side may be on their way; zero is 8.
	Transfers   int // Transfers is how many RDMA operations of this side may be on their way; zero is 16.

	Wait WaitMode      // Wait says how to wait.
	Spin time.Duration // Spin is how long SpinThenPark looks before it parks, and what is soon; zero is 50 µs.

	// KeepAlive is how often an idle connection sees whether the peer is still there; zero is
	// 15 s, and a negative value is never. A busy one sees it by what is acknowledged.
	KeepAlive time.Duration
	// AckTimeout is how long the device waits for an acknowledgement before it sends once more,
	// which it does RetryCount times; zero is 268 ms. Devices take powers of two of 4.096 µs.
	AckTimeout time.Duration
	// RetryCount is 1 to 7; zero is 7. Some devices, such as rxe, count it down by all that is
	// lost of a message, and take 7 to be without end. So the connection has failed, too, when
	// nothing of what was sent is acknowledged for three times the time of all retries.
	RetryCount int
	Linger     time.Duration // Linger bounds how long Close waits for what was sent to arrive; zero is 5 s.
	TOS        uint8         // TOS is the type of service of what is sent.

	// Isolation says which connections share a PD; the zero value is all on a device.
	Isolation Isolation

	LocalAddr netip.AddrPort // LocalAddr is where Dial dials from; the zero value is any.
	// Prepare is called by Dial, if it is set, once it is known which device the way to the peer is
	// by, with the PD for the connection's memory: see [Conn.PD]. The data that it returns is the
	// request's private data instead of PrivateData, such as a [Remote]; an error ends the attempt.
	// There is one for each of the host's addresses.
	Prepare func(*uverbs.PD) ([]byte, error)

	// Backlog is how many connections of a listener may wait for Accept, with requests that are being
	// answered; zero is 1024.
	Backlog int
	// HalfOpen is how many requests of a listener may be answered, or wait for their peer to complete the
	// connection, at the same time; zero is half of Backlog. One more takes the place of the oldest whose
	// peer has had a quarter of a second, and is refused if there is none: peers that complete nothing
	// keep no others out for long.
	HalfOpen int
	// MaxConns is how many connections a listener has at most, with requests; zero is no limit. At the
	// limit a request takes the place of the oldest that waits for its peer, as with HalfOpen.
	MaxConns int
	// MaxMemory is how much memory for messages the connections of a listener may come to need at most,
	// in bytes; zero is no limit. Each connection counts with what [Options.MemoryPerConn] returns, so that
	// it is a limit on the number of connections. Up to a quarter more is registered in advance, and
	// for a moment what closed connections had.
	MaxMemory int64

	// Check decides on the requests to a listener, if it is set: the data that it returns is the
	// answer's private data instead of PrivateData, and an error rejects the request, which the
	// peer is told the text of, up to 136 bytes. It is called from several goroutines, and before
	// the connection has any memory, queue or other object of the device: so it is the place to turn
	// strangers away.
	Check func(*Request) ([]byte, error)
	// Refused is called, if it is set, for each request that was refused, by the listener or by Check, and for
	// each connection that was given up before its peer completed it, with the reason. Unless that is
	// Check's error the peer is told a fixed text. Refused is called from several goroutines, one of which
	// takes all requests, so that it must not block. The address is the zero value if it is not known.
	Refused func(remote Addr, err error)
}

// Isolation says which connections share a PD. A peer can use a key that it knows for memory of
// its connection's PD, and for no other memory.
type Isolation uint8

// The connections that share a PD.
const (
	// SharedPD: all connections of the process on a device. This is the default, because memory is
	// registered once for all of them, for their own messages and for what the program lends, and
	// because a new connection then registers nothing. Choose another if peers must not reach
	// memory that was meant for others, even if they learn or guess its key.
	SharedPD Isolation = iota
	// ListenerPD: the connections of a listener on a device. It is for [Listen] alone.
	ListenerPD
	// ConnPD: none. Each connection registers its own memory.
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

// Request is a request to a listener.
type Request struct {
	Local       Addr   // Local is the address that was dialled.
	Remote      Addr   // Remote is the peer's address.
	PrivateData []byte // PrivateData is what the peer has sent.

	conn atomic.Pointer[Conn] // nil once Check has returned
}

// PD returns the PD to register memory for the connection with, such as memory whose [Remote] goes with
// the answer: see [Conn.PD]. It opens the device if need be. Only Check may call it, before it returns.
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

// MemoryPerConn returns how much memory for messages a connection with these options may come to need,
// in bytes.
func (o Options) MemoryPerConn() (int64, error) {
	o, err := o.defaults("MemoryPerConn", MaxAcceptData)
	return o.memory(), err
}

// memory is MemoryPerConn of options that have their defaults. Each slot begins at a cache line.
func (o *Options) memory() int64 {
	slots := func(n, size int) int64 { return int64(n) * int64((size+slotAlign-1)&^(slotAlign-1)) }
	n := slots(o.Depth+spareRecv+1, headerSize+o.MessageSize) + slots(o.SendDepth, headerSize+o.MessageSize) + slots(ctlSlots, headerSize)
	if o.startsSmall() {
		n += slots(firstRecvs, firstSize)
	}
	return n
}

// maxConns is how many connections a listener may have.
func (o *Options) maxConns() int {
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

// optionChecker are options that are numbers.
type optionChecker struct {
	op  string
	err error // the first that is wrong
}

// count returns a number, or zero's meaning, and notes whether it is from 1 to the highest.
func (n *optionChecker) count(name string, value, zero, highest int) int {
	if value == 0 {
		value = zero
	}
	if n.err == nil && (value < 1 || value > highest) {
		n.err = argErr(n.op, name, value, "1 to %d", highest)
	}
	return value
}

// duration is in for times, which have no highest.
func (n *optionChecker) duration(name string, value, zero time.Duration) time.Duration {
	if value == 0 {
		value = zero
	}
	if n.err == nil && value < 0 {
		n.err = argErr(n.op, name, value, "from 0")
	}
	return value
}

// defaults returns the options with the zero values filled in.
func (o Options) defaults(op string, maxData int) (Options, error) {
	// A table of the fields would put the options on the heap.
	n := optionChecker{op: op}
	o.MessageSize = n.count("MessageSize", o.MessageSize, 32<<10, maxMessageSize)
	o.Depth = n.count("Depth", o.Depth, 16, maxDepth)
	o.SendDepth = n.count("SendDepth", o.SendDepth, 8, maxDepth)
	o.Transfers = n.count("Transfers", o.Transfers, 16, maxDepth)
	o.RetryCount = n.count("RetryCount", o.RetryCount, 7, 7)
	o.Backlog = n.count("Backlog", o.Backlog, 1024, maxBacklog)
	o.HalfOpen = n.count("HalfOpen", o.HalfOpen, (o.Backlog+1)/2, maxBacklog)
	o.Spin = n.duration("Spin", o.Spin, 50*time.Microsecond)
	o.AckTimeout = n.duration("AckTimeout", o.AckTimeout, 260*time.Millisecond)
	o.Linger = n.duration("Linger", o.Linger, 5*time.Second)
	if n.err != nil {
		return o, n.err
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = 15 * time.Second
	}
	if o.MaxConns < 0 {
		return o, argErr(op, "MaxConns", o.MaxConns, "from 0")
	}
	if o.MaxMemory < 0 || o.MaxMemory > 0 && o.MaxMemory < o.memory() {
		return o, argErr(op, "MaxMemory", fmt.Sprintf("%d bytes", o.MaxMemory), "0, or from %d bytes, which one connection may need", o.memory())
	}
	if o.Isolation > ConnPD || o.Isolation == ListenerPD && op == "Dial" {
		return o, argErr(op, "Isolation", o.Isolation, "SharedPD or ConnPD; ListenerPD for Listen only")
	}
	if o.Wait > Park {
		return o, argErr(op, "Wait", o.Wait, "SpinThenPark, Spin, Park")
	}
	if len(o.PrivateData) > maxData {
		return o, argErr(op, "PrivateData", fmt.Sprintf("%d bytes long", len(o.PrivateData)), "up to %d bytes", maxData)
	}
	return o, nil
}
