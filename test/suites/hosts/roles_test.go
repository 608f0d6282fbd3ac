package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/suites/classic"
	"github.com/goverbs/goverbs/test/suites/interop"
	"github.com/goverbs/goverbs/uverbs"
)

// roleEnv is set where this program is started once more, to play what its arguments say.
const roleEnv = "GOVERBS_HOSTS_ROLE"

// game is a program of two sides.
type game struct {
	space rdmacm.PortSpace
	serve func(ctx context.Context, l *rdmacm.ID) error
	dial  func(ctx context.Context, c *rdmacm.Channel, to netip.AddrPort) error
}

// Sizes of games.
const (
	gameSize  = 5000
	gameCount = 50
	file      = 100_003 // bytes that are copied
	load      = 200     // connections of cmtime
)

// counted makes a game of functions that take a size and a count.
func counted(serve func(context.Context, *rdmacm.ID, int, int) error, dial func(context.Context, *rdmacm.Channel, netip.AddrPort, int, int) error) game {
	return game{rdmacm.TCP,
		func(ctx context.Context, l *rdmacm.ID) error { return serve(ctx, l, gameSize, gameCount) },
		func(ctx context.Context, c *rdmacm.Channel, to netip.AddrPort) error {
			return dial(ctx, c, to, gameSize, gameCount)
		}}
}

// classics are the programs of package classic, but for those that do not have a listener of theirs.
var classics = map[string]game{
	"pingpong": counted(classic.PingpongServer, classic.PingpongClient),
	"sleep": {rdmacm.TCP, func(ctx context.Context, l *rdmacm.ID) error { return classic.SleepServer(ctx, l, gameSize) },
		func(ctx context.Context, c *rdmacm.Channel, to netip.AddrPort) error {
			_, err := classic.SleepClient(ctx, c, to, gameSize, gameCount)
			return err
		}},
	"terms": {rdmacm.TCP, func(ctx context.Context, l *rdmacm.ID) error { return classic.TermsServer(ctx, l, gameSize) },
		func(ctx context.Context, c *rdmacm.Channel, to netip.AddrPort) error {
			_, err := classic.TermsClient(ctx, c, to, gameSize, gameCount)
			return err
		}},
	"loop": {rdmacm.TCP, func(ctx context.Context, l *rdmacm.ID) error {
		n, err := classic.LoopServer(ctx, l, gameSize)
		if err == nil && n != gameCount {
			err = fmt.Errorf("%d messages, want %d", n, gameCount)
		}
		return err
	}, func(ctx context.Context, c *rdmacm.Channel, to netip.AddrPort) error {
		return classic.LoopClient(ctx, c, to, gameSize, gameCount)
	}},
	"blast": {rdmacm.TCP, func(ctx context.Context, l *rdmacm.ID) error {
		return classic.BlastServer(ctx, l, 1000, 500, 64)
	}, func(ctx context.Context, c *rdmacm.Channel, to netip.AddrPort) error {
		return classic.BlastClient(ctx, c, to, 1000, 500, 16)
	}},
	"lend": {rdmacm.TCP, func(ctx context.Context, l *rdmacm.ID) error {
		got, err := classic.LendServer(ctx, l, "some text")
		if err == nil && got != "SOME TEXT" {
			err = fmt.Errorf("the server has read %q", got)
		}
		return err
	}, classic.LendClient},
	"copy": {rdmacm.TCP, func(ctx context.Context, l *rdmacm.ID) error {
		var got bytes.Buffer
		err := classic.CopyServer(ctx, l, &got)
		if err == nil && !bytes.Equal(got.Bytes(), fileData()) {
			err = fmt.Errorf("the copy has %d bytes of %d, or others", got.Len(), file)
		}
		return err
	}, func(ctx context.Context, c *rdmacm.Channel, to netip.AddrPort) error {
		return classic.CopyClient(ctx, c, to, bytes.NewReader(fileData()))
	}},
}

// fileData is what is copied.
func fileData() []byte {
	b := make([]byte, file)
	for i := range b {
		b[i] = byte(i * i >> 3)
	}
	return b
}

// peers are what rdma-core's programs of these names play with.
var peers = map[string]game{
	"ucmatose": {rdmacm.TCP, func(ctx context.Context, l *rdmacm.ID) error { return interop.ServeMatose(ctx, l, 5) },
		func(ctx context.Context, c *rdmacm.Channel, to netip.AddrPort) error {
			return interop.Matose(ctx, c, to, 5)
		}},
	"rdma_server": {rdmacm.TCP, interop.ServeHello, interop.Greet},
	"udaddy":      {rdmacm.UDP, interop.ServeDaddy, interop.Daddy},
	"cmtime": {rdmacm.TCP, func(ctx context.Context, l *rdmacm.ID) error { return interop.ServeConnections(ctx, l, load) },
		func(ctx context.Context, c *rdmacm.Channel, to netip.AddrPort) error {
			return interop.ConnectAll(ctx, c, to, load)
		}},
}

// gameOf finds a game by its name.
func gameOf(name string) game {
	if g, ok := classics[name]; ok {
		return g
	}
	return peers[name]
}

// play is what this program does in a role, and returns its exit status.
func play(args []string) int {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := part(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// part plays a role: "serves GAME ADDRESS:PORT", "dials GAME ADDRESS:PORT", "events serves ADDRESS:PORT"
// and "events dials ADDRESS:PORT", "hears LOCAL GROUP", "says LOCAL GROUP", "chats LOCAL GROUP", or one that
// is about to die, see victims.
func part(ctx context.Context, args []string) error {
	if do := victims[args[0]]; do != nil {
		return do(ctx, args[1])
	}
	c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	switch args[0] {
	case "serves":
		g := gameOf(args[1])
		l, err := classic.Listen(c, g.space, netip.MustParseAddrPort(args[2]))
		if err != nil {
			return err
		}
		return errors.Join(g.serve(ctx, l), l.Close())
	case "dials":
		return gameOf(args[1]).dial(ctx, c, netip.MustParseAddrPort(args[2]))
	case "events":
		if args[1] == "serves" {
			return classic.EventsServer(ctx, c, netip.MustParseAddrPort(args[2]), gameSize)
		}
		return classic.EventsClient(ctx, c, netip.MustParseAddrPort(args[2]), gameSize, gameCount)
	}
	local, group := netip.MustParseAddr(args[1]), netip.MustParseAddr(args[2])
	switch args[0] {
	case "hears":
		soon, cancel := context.WithTimeout(ctx, limit/4)
		defer cancel()
		return interop.Hear(soon, c, local, group)
	case "says":
		return interop.Say(ctx, c, local, group)
	case "chats":
		return chat(ctx, c, local, group)
	}
	return fmt.Errorf("%q is no role", args)
}

// chat says where it is until it has heard somebody else, and some times more for that.
func chat(ctx context.Context, c *rdmacm.Channel, local, group netip.Addr) error {
	const pause, more = 20 * time.Millisecond, 50
	lines, heard := make(chan string), make(chan string, 1)
	go func() {
		defer close(lines)
		left := more
		for left > 0 && ctx.Err() == nil {
			select {
			case lines <- "I am at " + local.String():
			case <-ctx.Done():
			}
			if len(heard) > 0 {
				left--
			}
			time.Sleep(pause)
		}
	}()
	err := classic.Chat(ctx, c, local, group, lines, func(_ uint32, line string) {
		select {
		case heard <- line:
		default:
		}
	})
	if err != nil {
		return err
	}
	if line := <-heard; !strings.HasPrefix(line, "I am at ") || strings.HasSuffix(line, local.String()) {
		return fmt.Errorf("%s is heard", line)
	}
	return nil
}

// victims are servers at an address that are killed while a peer is in some phase, and clients of one
// that kill themselves. Who is ready says so.
var victims = map[string]func(ctx context.Context, addr string) error{
	"asked": func(ctx context.Context, addr string) error { // and does not answer
		l, err := cm.Listen(ctx, addr, cm.ListenOptions{Check: func(*cm.Request) ([]byte, error) {
			fmt.Println("asked")
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		if err != nil {
			return err
		}
		_, err = l.Accept(ctx)
		return err
	},
	"holds": func(ctx context.Context, addr string) error { // and takes nothing
		_, err := accept(ctx, addr)
		<-ctx.Done()
		return err
	},
	"takes": func(ctx context.Context, addr string) error {
		c, err := accept(ctx, addr)
		for err == nil {
			_, err = c.Recv(ctx)
		}
		return err
	},
	"lends": func(ctx context.Context, addr string) error {
		c, err := accept(ctx, addr)
		if err != nil {
			return err
		}
		buf, err := uverbs.AllocBuffer(lent, uverbs.BufferOptions{})
		if err != nil {
			return err
		}
		mr, err := c.PD().RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead | uverbs.AccessRemoteAtomic})
		if err != nil {
			return err
		}
		where, err := cm.RemoteOf(mr).MarshalBinary()
		if err == nil {
			err = c.Send(ctx, where)
		}
		<-ctx.Done()
		return err
	},
	"packets": func(ctx context.Context, addr string) error { // and sends them back
		p, err := cm.ListenPacket(ctx, addr, cm.PacketOptions{})
		for err == nil {
			var data []byte
			var from cm.Peer
			if data, from, err = p.Recv(ctx); err == nil {
				err = p.Send(ctx, data, from)
			}
		}
		return err
	},
	"resolves": func(ctx context.Context, addr string) error {
		c, err := rdmacm.OpenChannel(rdmacm.ChannelOptions{})
		if err != nil {
			return err
		}
		id, err := c.NewID(rdmacm.TCP)
		if err == nil {
			err = id.ResolveWait(ctx, rdmacm.Addr{}, rdmacm.AddrOf(netip.MustParseAddrPort(addr)))
		}
		if err == nil {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return err
	},
	"stays": func(ctx context.Context, addr string) error { // connected
		c, err := cm.Dial(ctx, addr, cm.DialOptions{})
		if err == nil {
			err = c.Send(ctx, []byte("here I am"))
		}
		if err == nil {
			err = c.Flush(ctx)
		}
		if err == nil {
			fmt.Println("dialled")
			<-ctx.Done()
		}
		return err
	},
}

// lent is how much memory a victim lends, in bytes.
const lent = 64 << 10

// accept listens, and accepts a connection.
func accept(ctx context.Context, addr string) (*cm.Conn, error) {
	l, err := cm.Listen(ctx, addr, cm.ListenOptions{})
	if err != nil {
		return nil, err
	}
	return l.Accept(ctx)
}
