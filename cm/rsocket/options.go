package rsocket

import (
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// Options are the options of a connection. The zero value suits most programs, and is what librdmacm
// uses.
type Options struct {
	RecvBuffer int // RecvBuffer is the size of the buffer for received data, in bytes, from 4 KiB to 1 GiB; zero is 128 KiB. It is rounded up to an even number.
	SendBuffer int // SendBuffer is the size of the buffer for data to send, in bytes, from 4 KiB to 1 GiB; zero is 128 KiB.
	Credits    int // Credits is how many messages with data the peer may send before this side reads them, from 16 to 16384; zero is 384.
	SendDepth  int // SendDepth is how many messages with data of this side may be unacknowledged, from 16 to 16384; zero is 384.
	Mappings   int // Mappings is how many mappings the peer may make for [Conn.WriteAt], up to 128; zero is none.

	KeepAlive time.Duration // KeepAlive is how often an idle connection checks whether the peer is still there; zero is 15 s, and a negative value disables the check.
	Linger    time.Duration // Linger is the longest time that Close waits until everything that was written has arrived; zero is 5 s.

	Isolation Isolation // Isolation says which connections share a PD; zero is ConnPD.
}

// Isolation says which connections share a PD. A peer that learns or guesses the key of memory can
// write into it if the memory belongs to the PD of the peer's own connection, and not otherwise.
type Isolation uint8

// Levels of isolation.
const (
	// ConnPD means that each connection has its own PD. This is the default, unlike that of
	// package cm, because every peer may write into the buffers of its connection: with a shared
	// PD, a guessed key would be enough to write into the stream of another peer. A connection
	// registers its own memory in any case, so a PD adds little to its cost.
	ConnPD Isolation = iota
	// SharedPD means that all connections of the process on a device share a PD. It is for
	// devices that have few PDs, and for peers that trust each other.
	SharedPD
)

// String returns the name of the constant.
func (i Isolation) String() string { return protocol.IsolationName(uint8(i)) }

// defaults returns the options with their defaults filled in.
func (o Options) defaults(op string) (Options, error) {
	const least, most = 4 << 10, 1 << 30
	err := protocol.Defaults(Network, op, &o.KeepAlive, &o.Linger, uint8(o.Isolation),
		protocol.Field{Name: "RecvBuffer", Value: &o.RecvBuffer, Zero: 128 << 10, Least: least, Most: most},
		protocol.Field{Name: "SendBuffer", Value: &o.SendBuffer, Zero: 128 << 10, Least: least, Most: most},
		protocol.Field{Name: "Credits", Value: &o.Credits, Zero: 384, Least: 16, Most: 16384},
		protocol.Field{Name: "SendDepth", Value: &o.SendDepth, Zero: 384, Least: 16, Most: 16384},
		protocol.Field{Name: "Mappings", Value: &o.Mappings, Most: maxMappings},
	)
	o.RecvBuffer += o.RecvBuffer & 1
	return o, err
}

// config returns the protocol with options that have their defaults.
func (o Options) config() *protocol.Config {
	return &protocol.Config{
		Network: Network, Check: check, Refusal: refusal, New: func() protocol.Wire { return &conn{o: o} },
		RecvBuffer: o.RecvBuffer, SendBuffer: o.SendBuffer, SendExtra: maxControls * segmentSize, Receives: o.Credits + spareRecvs,
		SendDepth: o.SendDepth, MaxControls: maxControls, Sends: o.SendDepth + 2*maxControls, MaxInline: messageSize,
		SharedPD: o.Isolation == SharedPD, KeepAlive: o.KeepAlive, Linger: o.Linger,
	}
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
	return protocol.Pages(o.SendBuffer+maxControls*segmentSize, o.RecvBuffer, o.firstSize(true))
}

// firstSize returns the size of the memory that a connection has before it is established, in bytes.
func (o *Options) firstSize(iwarp bool) int {
	n := o.tableSize() + firstBuffer
	if iwarp {
		n += (o.Credits + spareRecvs) * messageSize
	}
	return n
}

// tableSize returns the size of the memory for the announcements of the peer, in bytes.
func (o *Options) tableSize() int { return tableEntries*segmentSize + o.Mappings*mappingSize }

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
}

// limits returns the limits, and fills in the defaults of the other options.
func (o *ListenOptions) limits() (l limits.Limits, err error) {
	if o.Options, err = o.Options.defaults("Listen"); err != nil {
		return l, err
	}
	return protocol.Limits(Network, limits.Options{
		Backlog: o.Backlog, HalfOpen: o.HalfOpen, MaxConns: o.MaxConns, MaxMemory: o.MaxMemory, AddrShare: o.AddrShare, PerConn: o.memory(),
	})
}
