package grpc

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/softrig"
	"github.com/goverbs/goverbs/test/testenv"
)

func TestMain(m *testing.M) {
	if testenv.TheRig().Soft {
		if _, err := softrig.Make(); err != nil {
			fmt.Fprintln(os.Stderr, "software devices:", err)
			os.Exit(2)
		}
	}
	os.Exit(testenv.MainFor(m, map[string]string{"rxe": "", "mlx5": "", "soft": ""}))
}

// limit bounds a test.
const limit = time.Minute

// Methods of the service.
const (
	service    = "goverbs.Echo"
	sayMethod  = "/" + service + "/Say"
	talkMethod = "/" + service + "/Talk"
)

// words is what is sent to and fro.
type words = wrapperspb.BytesValue

// echo is the service: Say answers with the peer's address before what was said, Talk sends back
// each message of a stream.
var echo = grpc.ServiceDesc{
	ServiceName: service,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Say", Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var said words
		if err := decode(&said); err != nil {
			return nil, err
		}
		if len(said.Value) == 0 {
			return nil, status.Error(codes.InvalidArgument, "nothing is said")
		}
		p, ok := peer.FromContext(ctx)
		if !ok {
			return nil, status.Error(codes.Internal, "nobody has said it")
		}
		return wrapperspb.Bytes(fmt.Appendf(nil, "%s: %s", p.Addr, said.Value)), nil
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Talk", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
		for {
			var said words
			switch err := s.RecvMsg(&said); {
			case err == io.EOF:
				return nil
			case err != nil:
				return err
			}
			if err := s.SendMsg(&said); err != nil {
				return err
			}
		}
	}}},
}

// network is how a server listens and a client dials.
type network struct {
	listen func(ctx context.Context, address string) (net.Listener, error)
	dial   func(ctx context.Context, address string) (net.Conn, error)
}

// networks are the ways to connect: by RDMA alone, and by the dialer that also has TCP.
var networks = map[string]network{
	"stream": {
		listen: func(ctx context.Context, address string) (net.Listener, error) {
			l, err := cm.Listen(ctx, address, cm.ListenOptions{})
			if err != nil {
				return nil, err
			}
			return l.Streams(), nil
		},
		dial: func(ctx context.Context, address string) (net.Conn, error) {
			return cm.DialStream(ctx, address, cm.DialOptions{})
		},
	},
	"dialer": {
		listen: func(ctx context.Context, address string) (net.Listener, error) {
			return new(cm.ListenConfig).Listen(ctx, "tcp", address)
		},
		dial: func(ctx context.Context, address string) (net.Conn, error) {
			d := cm.Dialer{FallbackDelay: limit}
			return d.DialContext(ctx, "tcp", address)
		},
	},
}

// connect starts a server on an RDMA device, and returns a client's connection and the client's
// address once it has dialled.
func connect(t *testing.T, n network, server, client credentials.TransportCredentials) (conn *grpc.ClientConn, from func() net.Addr) {
	t.Helper()
	testenv.Guest(t)
	l, err := n.listen(t.Context(), testenv.TheRig().Addrs[0]+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(server), grpc.MaxRecvMsgSize(8<<20))
	s.RegisterService(&echo, nil)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.GracefulStop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	dialled := make(chan net.Addr, 1)
	conn, err = grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(client),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(8<<20)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := n.dial(ctx, address)
			if err != nil {
				return nil, err
			}
			dialled <- c.LocalAddr()
			return c, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn, func() net.Addr { return <-dialled }
}

// certificate returns one for example.com, and who trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"example.com"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(c)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// TestCalls: calls with one answer, and streams of messages both ways, with and without TLS.
func TestCalls(t *testing.T) {
	cert, pool := certificate(t)
	for _, c := range []struct {
		name           string
		server, client credentials.TransportCredentials
	}{
		{"plain", insecure.NewCredentials(), insecure.NewCredentials()},
		{"TLS", credentials.NewServerTLSFromCert(&cert), credentials.NewClientTLSFromCert(pool, "example.com")},
	} {
		for name, n := range networks {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				conn, from := connect(t, n, c.server, c.client)
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				say(t, ctx, conn, from)
				talk(t, ctx, conn)
			})
		}
	}
}

// say makes calls with one answer each.
func say(t *testing.T, ctx context.Context, conn *grpc.ClientConn, from func() net.Addr) {
	t.Helper()
	var address net.Addr
	for i := range 20 {
		said := bytes.Repeat([]byte{'a' + byte(i)}, 1+i*5000)
		var got words
		if err := conn.Invoke(ctx, sayMethod, wrapperspb.Bytes(said), &got); err != nil {
			t.Fatal(err)
		}
		if address == nil {
			if address = from(); address.Network() != "rdma+tcp" {
				t.Errorf("the client has connected by %s", address.Network())
			}
		}
		if want := fmt.Appendf(nil, "%s: %s", address, said); !bytes.Equal(got.Value, want) {
			t.Fatalf("the answer to %d bytes has %d, or others: %.60q", len(said), len(got.Value), got.Value)
		}
	}
	if err := conn.Invoke(ctx, sayMethod, wrapperspb.Bytes(nil), &words{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("the service's error arrives as %v", err)
	}
	short, cancel := context.WithTimeout(ctx, time.Nanosecond)
	defer cancel()
	if err := conn.Invoke(short, sayMethod, wrapperspb.Bytes([]byte("late")), &words{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call without time ends with %v", err)
	}
}

// talk sends messages of up to a megabyte on one stream and on another at the same time, and
// compares what comes back.
func talk(t *testing.T, ctx context.Context, conn *grpc.ClientConn) {
	t.Helper()
	ended := make(chan error, 2)
	for range cap(ended) {
		go func() { ended <- exchange(ctx, conn) }()
	}
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Error(err)
	}
}

// exchange has a stream of messages sent back.
func exchange(ctx context.Context, conn *grpc.ClientConn) error {
	s, err := conn.NewStream(ctx, &echo.Streams[0], talkMethod)
	if err != nil {
		return err
	}
	sizes := []int{0, 1, 1000, 40_000, 1 << 20}
	sent := make(chan error, 1)
	go func() {
		for i, size := range sizes {
			if err := s.SendMsg(wrapperspb.Bytes(bytes.Repeat([]byte{byte(i)}, size))); err != nil {
				sent <- err
				return
			}
		}
		sent <- s.CloseSend()
	}()
	for i, size := range sizes {
		var got words
		if err := s.RecvMsg(&got); err != nil {
			return err
		}
		if !bytes.Equal(got.Value, bytes.Repeat([]byte{byte(i)}, size)) {
			return fmt.Errorf("message %d of %d bytes comes back with %d, or others", i, size, len(got.Value))
		}
	}
	if err := s.RecvMsg(&words{}); err != io.EOF {
		return fmt.Errorf("after the last message: %w", err)
	}
	return <-sent
}
