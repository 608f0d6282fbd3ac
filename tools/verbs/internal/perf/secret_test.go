package perf

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
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
			err = answer(conn, server)
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
	clientErr = hail(&tap{Conn: conn, sent: &seen}, client)
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
		t.Error("two connections have the same challenge and proof")
	}
	_, client, server = meet(t, secretB, secretA)
	if !errors.Is(client, errSecret) || !errors.Is(server, errSecret) {
		t.Errorf("another secret: %v, %v", client, server)
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

// TestSecretReflected: a proof does not hold for the other role, another challenge or another secret.
func TestSecretReflected(t *testing.T) {
	one, two := bytes.Repeat([]byte{1}, nonceSize), bytes.Repeat([]byte{2}, nonceSize)
	codes := [][]byte{
		code(secretA, "client", one, two), code(secretA, "server", one, two), code(secretA, "client", two, one),
		code(secretB, "client", one, two), code(secretA, "client", one, one),
	}
	for i, a := range codes {
		for j, b := range codes {
			if i != j && bytes.Equal(a, b) {
				t.Errorf("proofs %d and %d are the same", i, j)
			}
		}
	}
}

// TestSecretServer: a server that is not the fleet's gets no request: it is asked for its proof first.
func TestSecretServer(t *testing.T) {
	l := listen(t)
	got := make(chan []byte, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conn.Write(preambleOf(guardedMagic))
		conn.Write(make([]byte, nonceSize+nonceSize)) // a challenge, and a wrong proof
		all, _ := io.ReadAll(conn)
		got <- all
		conn.Close()
	}()
	r := Remote{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Secret: secretA}
	if _, err := r.Rails(t.Context()); !errors.Is(err, errSecret) {
		t.Errorf("error is %v", err)
	}
	const proof = 32
	if n := len(<-got); n != preambleLen+nonceSize+proof {
		t.Errorf("the client sent %d bytes", n)
	}
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
		if answer(conn, secretA) != nil {
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
		if _, err := r.Probe(t.Context(), p); err == nil || !strings.Contains(err.Error(), c.want) {
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

// TestHostileCoordinator: a server checks what it is asked for, also by those who know the secret.
func TestHostileCoordinator(t *testing.T) {
	good := Probe{Host: "127.0.0.2", Port: 1, Device: "a", PeerDevice: "b", Config: Default(Send, Lat)}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Probe){
		"host is":                      func(p *Probe) { p.Host = "" },
		"up to 253":                    func(p *Probe) { p.Host = strings.Repeat("a", 254) },
		`host is "a\nb"`:               func(p *Probe) { p.Host = "a\nb" },
		"port is 0, allowed: 1 to":     func(p *Probe) { p.Port = 0 },
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
