package valkey

import (
	"time"

	"github.com/goverbs/goverbs/cm/internal/limits"
	"github.com/goverbs/goverbs/cm/internal/protocol"
	"github.com/goverbs/goverbs/cm/rdmacm"
)

// Options are the options of a connection. The zero value suits most programs.
type Options struct {
	RecvBuffer int // RecvBuffer is the size of the buffer for received data, in bytes, from 8 KiB to 1 GiB; zero is 1 MiB. It is rounded up to an even number. The peer fills one half at a time.
	SendBuffer int // SendBuffer is the size of the buffer for data to send, in bytes, from 4 KiB to 1 GiB; zero is 256 KiB.
	RecvDepth  int // RecvDepth is how many messages may arrive before this side handles them, from 16 to 16384; zero is 1024, as in Valkey.
	SendDepth  int // SendDepth is how many messages with data of this side may be unacknowledged, from 16 to 16384; zero is 256.

	KeepAlive time.Duration // KeepAlive is how often an idle connection checks whether the peer is still there; zero is 15 s, and a negative value disables the check.
	Linger    time.Duration // Linger is the longest time that Close waits until everything that was written has arrived and the peer has answered the disconnect; zero is 5 s.

	Isolation Isolation // Isolation says which connections share a PD; zero is ConnPD.
}

// Isolation says which connections share a PD. A peer that learns or guesses the key of memory can
// write into it if the memory belongs to the PD of the peer's own connection, and not otherwise.
type Isolation uint8

// Levels of isolation.
const (
	// ConnPD means that each connection has its own PD. This is the default, because every peer may
	// write into the buffer of its connection: with a shared PD, a guessed key would be enough to
	// write into the stream of another peer.
	ConnPD Isolation = iota
	// SharedPD means that all connections of the process on a device share a PD. It is for
	// devices that have few PDs, and for peers that trust each other.
	SharedPD
)

// String returns the name of the constant.
func (i Isolation) String() string { return protocol.IsolationName(uint8(i)) }

// defaults returns the options with their defaults filled in.
func (o Options) defaults(op string) (Options, error) {
	err := protocol.Defaults(Network, op, &o.KeepAlive, &o.Linger, uint8(o.Isolation),
		protocol.Field{Name: "RecvBuffer", Value: &o.RecvBuffer, Zero: 1 << 20, Least: 8 << 10, Most: 1 << 30},
		protocol.Field{Name: "SendBuffer", Value: &o.SendBuffer, Zero: 256 << 10, Least: 4 << 10, Most: 1 << 30},
		protocol.Field{Name: "RecvDepth", Value: &o.RecvDepth, Zero: 1024, Least: 16, Most: 16384},
		protocol.Field{Name: "SendDepth", Value: &o.SendDepth, Zero: 256, Least: 16, Most: 16384},
	)
	o.RecvBuffer += o.RecvBuffer & 1
	return o, err
}

// config returns the protocol with options that have their defaults.
func (o Options) config() *protocol.Config {
	return &protocol.Config{
		Network: Network, Check: checkPrivateData, Silent: silent, Device: checkDevice, New: func() protocol.Wire { return new(conn) },
		Refusal:    func(request []byte) []byte { return protocol.Refusal(request, speaks) },
		RecvBuffer: o.RecvBuffer, SendBuffer: o.SendBuffer, SendExtra: maxControls * commandSize, Receives: o.RecvDepth,
		SendDepth: o.SendDepth, MaxControls: maxControls, Sends: o.SendDepth + maxControls,
		SharedPD: o.Isolation == SharedPD, Background: true, KeepAlive: o.KeepAlive, Linger: o.Linger,
	}
}

// MemoryPerConn returns the memory for data and commands that a connection with these options needs, in
// bytes.
func (o Options) MemoryPerConn() (int64, error) {
	o, err := o.defaults("MemoryPerConn")
	if err != nil {
		return 0, err
	}
	return o.memory(), nil
}

// memory is MemoryPerConn for options with defaults filled in.
func (o *Options) memory() int64 {
	return protocol.Pages(o.SendBuffer+maxControls*commandSize, o.RecvBuffer, firstRecvs*commandSize, (o.RecvDepth-firstRecvs)*commandSize)
}

// ListenOptions are the options of [Listen]. The zero value suits most programs.
type ListenOptions struct {
	Options // Options are the options of each connection.

	// These options limit what peers can hold. Package [cm] describes them and their defaults under
	// "Limits of listeners".

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
