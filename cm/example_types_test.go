package cm_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/soft"
)

// Messages arrive whole and in order, and then io.EOF. Send may return before the peer has received the message.
func ExampleConn() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	l := must(cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{}))
	defer l.Close()
	go func() {
		conn := must(cm.Dial(ctx, l.Addr().String(), cm.DialOptions{}))
		for _, msg := range []string{"one", "two", "three"} {
			check(conn.Send(ctx, []byte(msg)))
		}
		check(conn.Close()) // delivers them
	}()
	conn := must(l.Accept(ctx))
	defer conn.Close()
	for {
		msg, err := conn.Recv(ctx)
		if err == io.EOF {
			break
		}
		check(err)
		fmt.Printf("%s\n", msg)
	}
	// Output:
	// one
	// two
	// three
}

// A server registers its table once, whatever the number of clients, and each client reads it by RDMA READ. The program
// test/kv is a whole key-value store of this kind.
func ExampleListener() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	table := []byte("one two three")
	l := must(cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{Prepare: func(pd *uverbs.PD) ([]byte, error) {
		mr, err := pd.RegSlice(table, uverbs.AccessRemoteRead)
		if err != nil {
			return nil, err
		}
		return cm.RemoteOf(mr).MarshalBinary() // the private data of each answer
	}}))
	defer l.Close()
	go func() {
		for conn, err := l.Accept(ctx); err == nil; conn, err = l.Accept(ctx) {
			go func() {
				conn.Recv(ctx) // until the client closes the connection, or is gone
				conn.Close()
			}()
		}
	}()

	conn := must(cm.Dial(ctx, l.Addr().String(), cm.DialOptions{}))
	defer conn.Close()
	var remote cm.Remote
	check(remote.UnmarshalBinary(conn.PrivateData()))
	mr := must(conn.PD().RegSlice(make([]byte, 64), uverbs.AccessLocalWrite))
	check(conn.RDMARead(ctx, mr.SGE(0, 3), remote.At(4)))
	fmt.Printf("%s\n", mr.Bytes()[:3])
	// Output: two
}

// Many READs are in flight, and one goroutine waits for the last of them.
func ExampleOp() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	l := must(cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{}))
	defer l.Close()
	go func() {
		conn := must(l.Accept(ctx))
		table := must(conn.PD().RegSlice([]byte("a table of words"), uverbs.AccessRemoteRead))
		check(conn.Send(ctx, must(cm.RemoteOf(table).MarshalBinary())))
	}()
	conn := must(cm.Dial(ctx, l.Addr().String(), cm.DialOptions{}))
	defer conn.Close()
	var remote cm.Remote
	check(remote.UnmarshalBinary(must(conn.Recv(ctx))))
	mr := must(conn.PD().RegSlice(make([]byte, 16), uverbs.AccessLocalWrite))
	var last cm.Op
	for i := range int(remote.Length) / 4 {
		last = must(conn.StartRead(ctx, mr.SGE(4*i, 4), remote.At(uint32(4*i))))
	}
	check(last.Wait(ctx)) // those before it are complete, too
	fmt.Printf("%s\n", mr.Bytes())
	// Output: a table of words
}

// Clients add to one counter of the server at the same time.
func ExampleConn_FetchAdd() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	counter := make([]byte, 8)
	l := must(cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{Prepare: func(pd *uverbs.PD) ([]byte, error) {
		return cm.RemoteOf(must(pd.RegSlice(counter, uverbs.AccessLocalWrite|uverbs.AccessRemoteAtomic))).MarshalBinary()
	}}))
	defer l.Close()
	for range 3 {
		conn := must(cm.Dial(ctx, l.Addr().String(), cm.DialOptions{}))
		var remote cm.Remote
		check(remote.UnmarshalBinary(conn.PrivateData()))
		before := must(conn.PD().RegSlice(make([]byte, 8), uverbs.AccessLocalWrite))
		check(conn.FetchAdd(ctx, before.SGE(0, 8), remote, 5))
		fmt.Println(binary.NativeEndian.Uint64(before.Bytes()))
		check(errors.Join(conn.Close(), before.Close()))
	}
	// Output:
	// 0
	// 5
	// 10
}

// A Stream is a net.Conn, so any program that talks over one can talk over RDMA.
func ExampleStream() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	l := must(cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{}))
	streams := l.Streams() // a net.Listener
	defer streams.Close()
	go func() {
		stream := must(streams.Accept())
		defer stream.Close()
		must(io.Copy(stream, stream)) // until the client has closed its direction
	}()
	stream := must(cm.DialStream(ctx, l.Addr().String(), cm.DialOptions{}))
	defer stream.Close()
	fmt.Fprint(stream, "hello")
	check(stream.CloseWrite())
	fmt.Printf("%s\n", must(io.ReadAll(stream)))
	// Output: hello
}

// A web client and its server use RDMA where they and the network between them have it, and otherwise TCP.
func ExampleDialer() {
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	l := must(new(cm.ListenConfig).Listen(context.Background(), "tcp", netip.AddrPortFrom(dev.Addr(), 0).String()))
	defer l.Close()
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }))

	dialer := cm.Dialer{Chosen: func(c cm.Choice) {
		fmt.Println("connected by", c.Conn.RemoteAddr().Network(), c.RDMAErr) // RDMAErr says why it is not RDMA
	}}
	transport := &http.Transport{DialContext: dialer.DialContext}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	resp := must(client.Get("http://" + l.Addr().String() + "/"))
	defer resp.Body.Close()
	fmt.Printf("%s\n", must(io.ReadAll(resp.Body)))
	// Output:
	// connected by rdma+tcp <nil>
	// hello
}

// A listener for RDMA and TCP also works on a host without RDMA, and says why it accepts TCP alone.
func ExampleListenConfig() {
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	var config cm.ListenConfig
	l := must(config.Listen(context.Background(), "tcp", netip.AddrPortFrom(dev.Addr(), 0).String()))
	defer l.Close()
	fmt.Println("RDMA:", l.RDMAErr() == nil)
	// Output: RDMA: true
}

// Datagrams go to one peer, which DialPacket finds at an address and port.
func ExamplePacketConn() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	server := must(cm.ListenPacket(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.PacketOptions{}))
	defer server.Close()
	client := must(cm.DialPacket(ctx, server.LocalAddr().String(), cm.PacketOptions{}))
	defer client.Close()
	to, _ := client.DialedPeer()
	check(client.Send(ctx, []byte("ping"), to))
	msg, from, err := server.Recv(ctx)
	check(err)
	check(server.Send(ctx, append(msg, " and pong"...), from))
	msg, _, err = client.Recv(ctx)
	check(err)
	fmt.Printf("%s\n", msg)
	// Output: ping and pong
}

// Two members of a multicast group: what one sends, all receive.
func ExamplePacketConn_Join() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	group := netip.MustParseAddr("239.1.2.3")
	var members [2]*cm.PacketConn
	var all cm.Peer
	for i := range members {
		members[i] = must(cm.ListenPacket(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.PacketOptions{}))
		defer members[i].Close()
		all = must(members[i].Join(ctx, group, rdmacm.JoinFullMember))
	}
	check(members[0].Send(ctx, []byte("hello"), all))
	for _, m := range members {
		msg, from, err := m.Recv(ctx)
		check(err)
		fmt.Printf("%q, from this host: %t\n", msg, from.IP() == dev.Addr())
	}
	// Output:
	// "hello", from this host: true
	// "hello", from this host: true
}

// A listener asks for a word, before the connection costs anything. The error of a client that does not have it is its
// own text.
func ExampleRequest() {
	ctx := context.Background()
	dev := must(soft.New(soft.Options{}))
	defer dev.Close()
	l := must(cm.Listen(ctx, netip.AddrPortFrom(dev.Addr(), 0).String(), cm.ListenOptions{Check: func(r *cm.Request) ([]byte, error) {
		if string(r.PrivateData) != "sesame" {
			return nil, errors.New("wrong word")
		}
		return nil, nil
	}}))
	defer l.Close()
	for _, word := range []string{"barley", "sesame"} {
		conn, err := cm.Dial(ctx, l.Addr().String(), cm.DialOptions{PrivateData: []byte(word)})
		if refused, ok := errors.AsType[*cm.RefusedError](err); ok {
			fmt.Println("refused:", refused.Why)
			continue
		}
		check(err)
		fmt.Println("connected")
		check(conn.Close())
	}
	// Output:
	// refused: wrong word
	// connected
}
