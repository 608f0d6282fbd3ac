package udp

import (
	"iter"
	"sync/atomic"
	"syscall"
)

// Counters tell what a Socket has done and lost, in packets if not said otherwise.
type Counters struct {
	Sent         uint64 // handed to the system
	SentBytes    uint64 // bytes of these, without the headers of UDP and IP
	SendCalls    uint64 // system calls that sent, or tried to
	TooLong      uint64 // not sent: larger than the MTU of the link
	NoRoute      uint64 // not sent: no route, or the link is down
	NoBuffers    uint64 // not sent: no memory, or the queue of the link is full
	Forbidden    uint64 // not sent: a firewall or the system's policy forbids it
	SendFailures uint64 // not sent: all other reasons

	Received        uint64 // given to handlers
	ReceivedBytes   uint64 // bytes of these, without the headers of UDP and IP
	ReceiveCalls    uint64 // system calls that received
	Short           uint64 // dropped: shorter than a BTH and an ICRC
	BadICRC         uint64 // dropped: the ICRC is wrong
	Truncated       uint64 // dropped: larger than any packet of RoCE
	Overflows       uint64 // dropped by the system: the receive buffer was full
	ReceiveFailures uint64 // system calls that failed

	GSOFallbacks uint64 // times that the system refused to send several packets as segments
}

// Refused returns the number of packets that the system refused to send.
func (c *Counters) Refused() uint64 {
	return c.TooLong + c.NoRoute + c.NoBuffers + c.Forbidden + c.SendFailures
}

// All yields the counters by name.
func (c *Counters) All() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for _, e := range []struct {
			name  string
			value uint64
		}{
			{"udp_tx_packets", c.Sent}, {"udp_tx_bytes", c.SentBytes}, {"udp_tx_calls", c.SendCalls},
			{"udp_tx_too_long", c.TooLong}, {"udp_tx_no_route", c.NoRoute}, {"udp_tx_no_buffers", c.NoBuffers},
			{"udp_tx_forbidden", c.Forbidden}, {"udp_tx_failures", c.SendFailures},
			{"udp_rx_packets", c.Received}, {"udp_rx_bytes", c.ReceivedBytes}, {"udp_rx_calls", c.ReceiveCalls},
			{"udp_rx_short", c.Short}, {"udp_rx_bad_icrc", c.BadICRC}, {"udp_rx_truncated", c.Truncated},
			{"udp_rx_overflows", c.Overflows}, {"udp_rx_failures", c.ReceiveFailures},
			{"udp_tx_gso_fallbacks", c.GSOFallbacks},
		} {
			if !yield(e.name, e.value) {
				return
			}
		}
	}
}

// counters are the live values of Counters.
type counters struct {
	sent, sentBytes, sendCalls, tooLong, noRoute, noBuffers, forbidden, sendFailures         atomic.Uint64
	received, receivedBytes, receiveCalls, short, badICRC, truncated, receiveFailures, gsoFB atomic.Uint64
}

// Counters returns the counters of the socket and of its multicast groups.
func (s *Socket) Counters() Counters {
	c := &s.counters
	return Counters{
		Sent: c.sent.Load(), SentBytes: c.sentBytes.Load(), SendCalls: c.sendCalls.Load(),
		TooLong: c.tooLong.Load(), NoRoute: c.noRoute.Load(), NoBuffers: c.noBuffers.Load(),
		Forbidden: c.forbidden.Load(), SendFailures: c.sendFailures.Load(),
		Received: c.received.Load(), ReceivedBytes: c.receivedBytes.Load(), ReceiveCalls: c.receiveCalls.Load(),
		Short: c.short.Load(), BadICRC: c.badICRC.Load(), Truncated: c.truncated.Load(),
		Overflows: s.t.drops(), ReceiveFailures: c.receiveFailures.Load(), GSOFallbacks: c.gsoFB.Load(),
	}
}

// refusals say what the system means when it refuses to send a packet.
var refusals = []struct {
	errno  syscall.Errno
	reason string
	count  func(*counters) *atomic.Uint64
}{
	{errMsgSize, "the packet is larger than the MTU of the link", func(c *counters) *atomic.Uint64 { return &c.tooLong }},
	{errNetUnreach, "no route", func(c *counters) *atomic.Uint64 { return &c.noRoute }},
	{errHostUnreach, "no route", func(c *counters) *atomic.Uint64 { return &c.noRoute }},
	{errNetDown, "the link is down", func(c *counters) *atomic.Uint64 { return &c.noRoute }},
	{errAddrNotAvail, "the local address is no longer one of this host", func(c *counters) *atomic.Uint64 { return &c.noRoute }},
	{errNoBufs, "the queue of the link is full", func(c *counters) *atomic.Uint64 { return &c.noBuffers }},
	{syscall.ENOMEM, "no memory", func(c *counters) *atomic.Uint64 { return &c.noBuffers }},
	{syscall.EPERM, "a firewall rule forbids it", func(c *counters) *atomic.Uint64 { return &c.forbidden }},
	{errAcces, "the system's policy forbids it", func(c *counters) *atomic.Uint64 { return &c.forbidden }},
	{errAFNoSupport, "the address is not of the socket's family", func(c *counters) *atomic.Uint64 { return &c.sendFailures }},
	{errInval, "no route from the local address", func(c *counters) *atomic.Uint64 { return &c.sendFailures }},
}
