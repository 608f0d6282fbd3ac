package rsocket

import (
	"fmt"
	"math"
	"os"
)

// ListenOptions are the options of [Listen]. The zero value suits most programs.
type ListenOptions struct {
	Options // Options are the options of each connection.

	// Backlog is how many connections may wait for Accept, including requests that are being
	// answered, up to 1048576; zero is 1024.
	Backlog int
	// HalfOpen is how many requests may be in progress at the same time: being answered, or
	// waiting for the peer to complete the connection. Zero is half of Backlog. At the limit, a
	// new request replaces the oldest one whose peer has had at least a quarter of a second; if
	// there is none, the new request is rejected. So peers that never complete a connection
	// cannot keep others out for long.
	HalfOpen int
	// MaxConns is how many connections there may be, including requests; zero is no limit. At
	// the limit, a new request replaces an older one as described for HalfOpen, or is rejected.
	MaxConns int
	// MaxMemory is how much memory for data the connections may need, in bytes; zero is no limit.
	// Each connection counts with the result of [Options.MemoryPerConn], so MaxMemory limits the
	// number of connections. Memory of [Conn.Map] does not count.
	MaxMemory int64
}

// maxBacklog is the largest Backlog.
const maxBacklog = 1 << 20

// defaults returns the options with their defaults filled in.
func (o ListenOptions) defaults() (_ ListenOptions, err error) {
	const op = "Listen"
	if o.Options, err = o.Options.defaults(op); err != nil {
		return o, err
	}
	if o.Backlog == 0 {
		o.Backlog = 1024
	}
	if o.HalfOpen == 0 {
		o.HalfOpen = (o.Backlog + 1) / 2
	}
	switch {
	case o.Backlog < 1 || o.Backlog > maxBacklog:
		return o, argErr(op, "Backlog", o.Backlog, "1 to %d", maxBacklog)
	case o.HalfOpen < 1 || o.HalfOpen > maxBacklog:
		return o, argErr(op, "HalfOpen", o.HalfOpen, "1 to %d", maxBacklog)
	case o.MaxConns < 0:
		return o, argErr(op, "MaxConns", o.MaxConns, "at least 0")
	case o.MaxMemory < 0 || o.MaxMemory > 0 && o.MaxMemory < o.memory():
		return o, argErr(op, "MaxMemory", fmt.Sprintf("%d bytes", o.MaxMemory), "0, or at least %d bytes, which one connection needs", o.memory())
	}
	return o, nil
}

// MemoryPerConn returns the memory for data that a connection with these options needs, in bytes.
func (o Options) MemoryPerConn() (int64, error) {
	o, err := o.defaults("MemoryPerConn")
	if err != nil {
		return 0, err
	}
	return o.memory(), nil
}

// memory is MemoryPerConn for options with defaults filled in.
func (o *Options) memory() int64 {
	page := int64(os.Getpagesize())
	n := int64(0)
	for _, size := range []int{o.sendSize(), o.RecvBuffer, o.firstSize(true)} {
		n += (int64(size) + page - 1) &^ (page - 1)
	}
	return n
}

// recvs returns the number of receives of a connection.
func (o *Options) recvs() int { return o.Credits + spareRecvs }

// sendSize returns the size of the memory to send from, in bytes.
func (o *Options) sendSize() int { return o.SendBuffer + maxControls*segmentSize }

// firstSize returns the size of the memory that a connection has before it is established, in bytes.
func (o *Options) firstSize(iwarp bool) int {
	n := o.tableSize() + firstBuffer
	if iwarp {
		n += o.recvs() * messageSize
	}
	return n
}

// tableSize returns the size of the memory for the announcements of the peer, in bytes.
func (o *Options) tableSize() int { return tableEntries*segmentSize + o.Mappings*mappingSize }

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
