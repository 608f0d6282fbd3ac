package cm

import (
	"fmt"
	"net/netip"
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

	LocalAddr netip.AddrPort // LocalAddr is where Dial dials from; the zero value is any.
	// Prepare is called by Dial, if it is set, once it is known which device the way to the peer is
	// by, with the PD for the connection's memory: see [Conn.PD]. The data that it returns is the
	// request's private data instead of PrivateData, such as a [Remote]; an error ends the attempt.
	// There is one for each of the host's addresses.
	Prepare func(*uverbs.PD) ([]byte, error)

	Backlog int // Backlog is how many connections of a listener may wait for Accept; zero is 1024.
	// Check decides on the requests to a listener, if it is set: the data that it returns is the
	// answer's private data instead of PrivateData, and an error rejects the request, which the
	// peer is told the text of. It is called from several goroutines.
	Check func(*Request) ([]byte, error)
}

// Request is a request to a listener.
type Request struct {
	Local       Addr   // Local is the address that was dialled.
	Remote      Addr   // Remote is the peer's address.
	PrivateData []byte // PrivateData is what the peer has sent.

	// PD is what memory for the connection is to be registered with, as one whose [Remote] goes with
	// the answer: see [Conn.PD].
	PD *uverbs.PD
}

// Limits of the options.
const (
	maxMessageSize = 16 << 20
	maxDepth       = 1 << 14
)

// numbers are options that are numbers.
type numbers struct {
	op  string
	err error // the first that is wrong
}

// in returns a number, or zero's meaning, and notes whether it is from 1 to the highest.
func (n *numbers) in(name string, value, zero, highest int) int {
	if value == 0 {
		value = zero
	}
	if n.err == nil && (value < 1 || value > highest) {
		n.err = argErr(n.op, name, value, "1 to %d", highest)
	}
	return value
}

// from0 is in for times, which have no highest.
func (n *numbers) from0(name string, value, zero time.Duration) time.Duration {
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
	n := numbers{op: op}
	o.MessageSize = n.in("MessageSize", o.MessageSize, 32<<10, maxMessageSize)
	o.Depth = n.in("Depth", o.Depth, 16, maxDepth)
	o.SendDepth = n.in("SendDepth", o.SendDepth, 8, maxDepth)
	o.Transfers = n.in("Transfers", o.Transfers, 16, maxDepth)
	o.RetryCount = n.in("RetryCount", o.RetryCount, 7, 7)
	o.Backlog = n.in("Backlog", o.Backlog, 1024, 1<<20)
	o.Spin = n.from0("Spin", o.Spin, 50*time.Microsecond)
	o.AckTimeout = n.from0("AckTimeout", o.AckTimeout, 260*time.Millisecond)
	o.Linger = n.from0("Linger", o.Linger, 5*time.Second)
	if n.err != nil {
		return o, n.err
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = 15 * time.Second
	}
	if o.Wait > Park {
		return o, argErr(op, "Wait", o.Wait, "SpinThenPark, Spin, Park")
	}
	if len(o.PrivateData) > maxData {
		return o, argErr(op, "PrivateData", fmt.Sprintf("%d bytes long", len(o.PrivateData)), "up to %d bytes", maxData)
	}
	return o, nil
}
