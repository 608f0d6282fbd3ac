package classic

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/cm/rdmacm"
)

// blastDepth is how many sends, and how many receives, blast-sr has posted.
const blastDepth = 16

// commands are the programs by the names by which people know them. Those of ping-sr are steps: each
// changes one thing of the one before.
var commands = map[string]command{
	"ping-sr-0": {
		short: "ping-pong by SEND and RECV that waits by polling; both sides must be given the same -size and -count",
		server: served(func(ctx context.Context, l *rdmacm.ID, s settings) (string, error) {
			return messages(s.count, s.size), PingpongServer(ctx, l, s.size, s.count)
		}),
		client: func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (string, error) {
			return messages(s.count, s.size), PingpongClient(ctx, c, addr, s.size, s.count)
		},
	},
	"ping-sr-1": {
		short: "ping-sr-0 whose client tells the server size and number in the private data of its request",
		server: served(func(ctx context.Context, l *rdmacm.ID, s settings) (string, error) {
			return "done", TermsServer(ctx, l, s.size)
		}),
		client: agreeing(TermsClient),
	},
	"ping-sr-2": {
		short: "ping-sr-1 with a goroutine for the connection manager's events, which notices a peer that is gone",
		server: func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (string, error) {
			return "done", EventsServer(ctx, c, addr, s.size)
		},
		client: func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (string, error) {
			return messages(s.count, s.size), EventsClient(ctx, c, addr, s.size, s.count)
		},
	},
	"ping-sr-3": {
		short: "ping-sr-1 that sleeps until a completion, which takes longer and no processor",
		server: served(func(ctx context.Context, l *rdmacm.ID, s settings) (string, error) {
			return "done", SleepServer(ctx, l, s.size)
		}),
		client: agreeing(SleepClient),
	},
	"ping-sr-4": {
		short: "ping-sr-3 in which one goroutine waits for events and completions alike",
		server: served(func(ctx context.Context, l *rdmacm.ID, s settings) (string, error) {
			n, err := LoopServer(ctx, l, s.size)
			return fmt.Sprintf("%d messages", n), err
		}),
		client: func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (string, error) {
			return messages(s.count, s.size), LoopClient(ctx, c, addr, s.size, s.count)
		},
	},
	"blast-sr": {
		short: "messages in one direction, as fast as they go; both sides must be given the same -size and -count",
		server: served(func(ctx context.Context, l *rdmacm.ID, s settings) (string, error) {
			return messages(s.count, s.size), BlastServer(ctx, l, s.size, s.count, blastDepth)
		}),
		client: func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (string, error) {
			return messages(s.count, s.size), BlastClient(ctx, c, addr, s.size, s.count, blastDepth)
		},
	},
	"rdma-example": {
		short: "a client announces a buffer, writes it into one of the server by RDMA, reads it back and compares",
		server: served(func(ctx context.Context, l *rdmacm.ID, _ settings) (string, error) {
			return AnnounceServer(ctx, l, maxSize)
		}),
		client: func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (string, error) {
			return "the server's buffer holds what was written", AnnounceClient(ctx, c, addr, s.text)
		},
	},
	"devices": {short: "lists the devices, with their ports and GIDs", list: Devices},
}

// agreeing is a client that agrees with its server on the size.
func agreeing(play func(context.Context, *rdmacm.Channel, netip.AddrPort, int, int) (int, error)) func(context.Context, *rdmacm.Channel, netip.AddrPort, settings) (string, error) {
	return func(ctx context.Context, c *rdmacm.Channel, addr netip.AddrPort, s settings) (string, error) {
		size, err := play(ctx, c, addr, s.size, s.count)
		return messages(s.count, size), err
	}
}
