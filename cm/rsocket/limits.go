package rsocket

import (
	"os"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// ListenOptions are the options of [Listen]. The zero value suits most programs.
type ListenOptions struct {
	Options // Options are the options of each connection.

	// These options limit what peers can hold. Package [cm] describes them and their defaults under
	// "Limits of listeners". Memory of [Conn.Map] does not count for MaxMemory.

	Backlog   int   // Backlog is how many connections may wait for Accept, including requests.
	HalfOpen  int   // HalfOpen is how many requests may be in progress.
	MaxConns  int   // MaxConns is how many connections there may be, including requests.
	MaxMemory int64 // MaxMemory is how much memory the connections may need, in bytes.
	AddrShare int   // AddrShare is how much of these limits one address may hold, in percent.

	// Refused, if set, is called with the reason for each request that the listener has rejected, and
	// for each connection that was given up before its peer completed it. It must return soon. The
	// address is the zero value if it is not known.
	Refused func(remote rdmacm.Addr, err error)

	limits limits.Limits
}

// defaults returns the options with their defaults filled in.
func (o ListenOptions) defaults() (_ ListenOptions, err error) {
	const op = "Listen"
	if o.Options, err = o.Options.defaults(op); err != nil {
		return o, err
	}
	o.limits, err = limits.Options{Backlog: o.Backlog, HalfOpen: o.HalfOpen, MaxConns: o.MaxConns, MaxMemory: o.MaxMemory, AddrShare: o.AddrShare,
		PerConn: o.memory()}.Limits(func(field string, given any, allowed string) error { return argErr(op, field, given, "%s", allowed) })
	return o, err
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
