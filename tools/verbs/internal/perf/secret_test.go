package perf

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var secretA, secretB = []byte("0123456789abcdef"), []byte("0123456789abcdeX")

// meet has a client and a server begin a connection, and returns what the client sent, and both errors.
func meet(t *testing.T, client, server []byte) (sent []byte, clientErr, serverErr error) {
	t.Helper()
	l := listen(t)
	var all sync.WaitGroup
	defer all.Wait()
	result := make(chan error, 1)
	all.Go(func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = answer(conn, server)
			conn.Close()
		}
		result <- err
	})
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var seen bytes.Buffer
	_, clientErr = hail(&tap{Conn: conn, sent: &seen}, client)
	conn.Close()
	return seen.Bytes(), clientErr, <-result
}

// tap records what is sent.
type tap struct {
	net.Conn
	sent *bytes.Buffer
}

func (t *tap) Write(b []byte) (int, error) {
	t.sent.Write(b)
	return t.Conn.Write(b)
}

// TestSecret: the same secret on both sides is the only way in, and is never sent.
func TestSecret(t *testing.T) {
	sent, client, server := meet(t, secretA, secretA)
	if client != nil || server != nil || bytes.Contains(sent, secretA) {
		t.Errorf("the same secret: %v, %v, sent %q", client, server, sent)
	}
	again, _, _ := meet(t, secretA, secretA)
	if bytes.Equal(sent, again) {
		t.Error("two connections have the same proof")
	}
	_, client, server = meet(t, secretB, secretA)
	if !errors.Is(client, errSecret) || !errors.Is(server, errSecret) {
		t.Errorf("another secret: %v, %v", client, server)
	}
	const want = "the server closed the connection: the peer does not have the same secret, or too many clients"
	if client == nil || client.Error() != want {
		t.Errorf("another secret: %v, want %s", client, want)
	}
	_, client, server = meet(t, nil, secretA)
	if client == nil || server == nil || !strings.Contains(server.Error(), `expected "goverbs mesh"`) {
		t.Errorf("a client without a secret: %v, %v", client, server)
	}
	_, client, server = meet(t, secretA, nil)
	if client == nil || server == nil || !strings.Contains(server.Error(), `expected "goverbs perf"`) {
		t.Errorf("a server without a secret: %v, %v", client, server)
	}
}

// TestSecretReflected: a proof does not hold for the other role, another connection or another secret.
func TestSecretReflected(t *testing.T) {
	one, two := bytes.Repeat([]byte{1}, sha256.Size), bytes.Repeat([]byte{2}, sha256.Size)
	proofs := [][]byte{proof(secretA, roleClient, one), proof(secretA, roleServer, one), proof(secretA, roleClient, two), proof(secretB, roleClient, one)}
	for i, a := range proofs {
		for j, b := range proofs {
			if i != j && bytes.Equal(a, b) {
				t.Errorf("proofs %d and %d are the same", i, j)
			}
		}
	}
}

// pretend is a server that does not know the secret up to its proof, and returns the encrypted connection to a client.
func pretend(l net.Listener) (net.Conn, error) {
	conn, err := l.Accept()
	if err != nil {
		return nil, err
	}
	io.ReadFull(conn, make([]byte, preambleLen))
	conn.Write(preambleOf(guardedMagic))
	c, _, err := encrypt(conn, roleServer)
	return c, err
}

// TestSecretServer: a server that is not the fleet's gets no request: it must send its proof first.
func TestSecretServer(t *testing.T) {
	l := listen(t)
	got := make(chan []byte, 1)
	go func() {
		conn, err := pretend(l)
		if err != nil {
			t.Error(err)
			return
		}
		conn.Write(make([]byte, sha256.Size)) // a wrong proof
		all, _ := io.ReadAll(conn)
		got <- all
		conn.Close()
	}()
	r := Remote{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Secret: secretA}
	if _, err := r.Rails(t.Context()); !errors.Is(err, errSecret) {
		t.Errorf("error is %v", err)
	}
	if n := len(<-got); n != sha256.Size {
		t.Errorf("the client sent %d bytes, want its proof of %d", n, sha256.Size)
	}
}

// TestSecretRelayed: a host without the secret that a coordinator connects to by mistake cannot use the proofs of
// the coordinator and of a server: encrypted with each they are wrong, and what it only passes on it cannot read, nor
// add to.
func TestSecretRelayed(t *testing.T) {
	serve := func(t *testing.T) (net.Listener, chan string) {
		l, said := listen(t), make(chan string, 10)
		s := &Server{Local: Local{GID: Auto, CPU: Auto}, Secret: secretA, Log: func(format string, args ...any) { said <- fmt.Sprintf(format, args...) }}
		var all sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() { s.Serve(ctx, l) })
		t.Cleanup(func() { cancel(); all.Wait() })
		return l, said
	}
	coordinate := func(l net.Listener) error {
		_, err := (&Remote{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Secret: secretA}).Rails(t.Context())
		return err
	}
	t.Run("encrypted with each", func(t *testing.T) {
		server, said := serve(t)
		l := listen(t)
		got := make(chan int, 1)
		go func() {
			victim, err := pretend(l)
			if err != nil {
				t.Error(err)
				return
			}
			defer victim.Close()
			conn, err := net.Dial("tcp", server.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			conn.Write(preambleOf(guardedMagic))
			io.ReadFull(conn, make([]byte, preambleLen))
			c, _, err := encrypt(conn, roleClient)
			if err != nil {
				t.Error(err)
				return
			}
			stolen := make([]byte, sha256.Size)
			io.ReadFull(victim, stolen)
			c.Write(stolen)
			c.Write(framed(`{"kind":"inventory"}`))
			b, _ := io.ReadAll(c)
			got <- len(b)
		}()
		if err := coordinate(l); !errors.Is(err, errSecret) {
			t.Errorf("the coordinator: %v", err)
		}
		if n := <-got; n != 0 {
			t.Errorf("the server has answered with %d bytes", n)
		}
		if s := <-said; !strings.Contains(s, errSecret.Error()) {
			t.Errorf("the server says %q", s)
		}
	})
	t.Run("byte by byte", func(t *testing.T) {
		server := guarded(t, framed(`{"kind":"rails","rails":[{"device":"rail0","driver":"rxe","gid":"::"}]}`))
		l := listen(t)
		seen := make(chan []byte, 1)
		go func() {
			victim, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer victim.Close()
			conn, err := net.Dial("tcp", net.JoinHostPort(server.Host, strconv.Itoa(server.Port)))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			var there, back bytes.Buffer
			var all sync.WaitGroup
			all.Go(func() { io.Copy(victim, io.TeeReader(conn, &back)) })
			io.Copy(&tap{Conn: conn, sent: &there}, victim)
			conn.(*net.TCPConn).CloseWrite()
			all.Wait()
			seen <- append(there.Bytes(), back.Bytes()...)
		}()
		if err := coordinate(l); err != nil {
			t.Errorf("the coordinator: %v", err)
		}
		if b := <-seen; len(b) < 2*preambleLen || bytes.Contains(b, []byte(kindInventory)) || bytes.Contains(b, []byte("rail0")) || bytes.Contains(b, secretA) {
			t.Errorf("the host between sees requests and answers: %q", b)
		}
	})
}

// guarded is a server that knows the secret and then sends what a test wants.
func guarded(t *testing.T, frames ...[]byte) *Remote {
	t.Helper()
	l := listen(t)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if conn, err = answer(conn, secretA); err != nil {
			return
		}
		readFrame(conn, func() int { return maxFrame })
		for _, f := range frames {
			conn.Write(f)
		}
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		io.Copy(io.Discard, conn)
	}()
	return &Remote{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Secret: secretA}
}

// framed returns the frame of a text.
func framed(text string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
}

// TestHostileFleet: a coordinator takes no number, name or frame of a server on trust.
func TestHostileFleet(t *testing.T) {
	result := func(text string) string { return `{"kind":"probed","result":{"size":2,"iterations":10,` + text + `}}` }
	for name, c := range map[string]struct{ frame, want string }{
		"negative":     {result(`"latency":{"samples":10,"min_us":-1,"median_us":2,"p99_us":3,"p99_9_us":4,"max_us":5}`), "a number of a result is -1"},
		"out of order": {result(`"latency":{"samples":10,"min_us":1,"median_us":9,"p99_us":3,"p99_9_us":4,"max_us":5}`), "quantiles in their order"},
		"huge":         {result(`"latency":{"samples":10,"min_us":1,"median_us":2,"p99_us":3,"p99_9_us":4,"max_us":1e300}`), "a number of a result is 1e+300"},
		"no number":    {result(`"latency":{"min_us":"x"}`), "not valid JSON"},
		"long number":  {result(`"size":` + strings.Repeat("9", 1000)), "not valid JSON"},
		"both":         {result(`"latency":{},"bandwidth":{}`), "not exactly one"},
		"none":         {`{"kind":"probed"}`, "probed has no result"},
		"bandwidth":    {result(`"bandwidth":{"gbit_per_s":1}`), "not one of send-lat"},
		"lost":         {result(`"latency":{},"lost":-5`), "lost is -5"},
		"another kind": {`{"kind":"rails"}`, `"rails" instead of "probed"`},
		"a request":    {`{"kind":"probe"}`, "instead of"},
		"an error":     {`{"kind":"probed","error":"no \u001b[31mdevice"}`, `"no \x1b[31mdevice"`},
		"long":         {strings.Repeat(" ", railsFrame+1), "a message of 262145 bytes, allowed: 1 to 262144"},
		"hangs up":     {"", "allowed: 1 to"},
	} {
		r := guarded(t, framed(c.frame))
		p := Probe{Host: "127.0.0.2", Port: 1, Device: "a", PeerDevice: "b", Config: Default(Send, Lat)}
		if _, err := r.Probe(t.Context(), p); err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 2*maxError {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	many, _ := json.Marshal(message{Kind: kindRails, Rails: make([]Rail, maxRails+1)})
	for name, c := range map[string]struct{ frame, want string }{
		"too many": {string(many), "number of rails is 65, allowed: 0 to 64"},
		"control":  {`{"kind":"rails","rails":[{"device":"a\u001b[2J","driver":"b","gid":"::"}]}`, "device is"},
		"no name":  {`{"kind":"rails","rails":[{"device":"","driver":"b","gid":"::"}]}`, "device is"},
		"mtu":      {`{"kind":"rails","rails":[{"device":"a","driver":"b","gid":"::","mtu":-1}]}`, "mtu is -1"},
	} {
		if _, err := guarded(t, framed(c.frame)).Rails(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	// A server that says nothing ends with the context of the run.
	ctx, cancel := context.WithCancel(t.Context())
	silent := guarded(t)
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := silent.Rails(ctx); err == nil {
		t.Error("a server that says nothing has devices")
	}
}

// TestHostileCoordinator: a server checks all requests, also from clients that know the secret.
func TestHostileCoordinator(t *testing.T) {
	good := Probe{Host: "127.0.0.2", Port: 1, Device: "a", PeerDevice: "b", Config: Default(Send, Lat)}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Probe){
		"host is":                      func(p *Probe) { p.Host = "" },
		"up to 253":                    func(p *Probe) { p.Host = strings.Repeat("a", 254) },
		`host is "a\nb"`:               func(p *Probe) { p.Host = "a\nb" },
		"port is 65536":                func(p *Probe) { p.Port = 65536 },
		"device is":                    func(p *Probe) { p.Device = "" },
		"peer_device is":               func(p *Probe) { p.PeerDevice = strings.Repeat("a", 65) },
		"a probe has 2 sizes":          func(p *Probe) { p.Config.Sizes = []int{1, 2} },
		"--flow-label is 1048576":      func(p *Probe) { p.Config.FlowLabel = 1 << 20 },
		"--iterations is -1, allowed:": func(p *Probe) { p.Config.Iterations = -1 },
	} {
		bad := good
		change(&bad)
		m := message{Kind: kindProbe, Probe: &bad}
		if err := m.validate(nil, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := (&message{Kind: kindProbe}).validate(nil, true); err == nil {
		t.Error("a probe without a test is valid")
	}
	// A server at a pipe connects to no other port, and one that listens has no pipe to others.
	for port, pipe := range map[int]*Pipe{0: nil, 1: {}} {
		bad := good
		bad.Port = port
		want := fmt.Sprintf("port is %d, allowed: 0 of a server that the coordinator has started, and 1 to 65535 of others", port)
		if _, err := (&session{limited: &Server{coordinator: pipe}}).probe(t.Context(), &bad); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// Without a secret, a server serves tests only.
	sv := &Server{Local: Local{GID: Auto, CPU: Auto}}
	for _, kind := range []string{kindInventory, kindProbe} {
		conn, peer := net.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := sv.serve(t.Context(), peer, "client", &devices{server: sv})
			done <- err
		}()
		conn.Write(preamble())
		io.ReadFull(conn, make([]byte, preambleLen))
		b, _ := json.Marshal(message{Kind: kind, Probe: &good})
		conn.Write(framed(string(b)))
		go io.Copy(io.Discard, conn)
		if err := <-done; err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q instead of %q", kind, kindHello)) {
			t.Errorf("%s without a secret: %v", kind, err)
		}
		conn.Close()
	}
}
