package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/tools/verbs/internal/places"
	"github.com/goverbs/goverbs/uverbs"
)

// verbsEnv names the command verbs.
const verbsEnv = "VERBS"

// runs is a process of the command.
type runs struct {
	cmd  *exec.Cmd
	mu   sync.Mutex
	said bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (r *runs) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.Write(b)
}

// output returns what the process has printed.
func (r *runs) output() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said.String()
}

// until waits until the process has printed a text.
func (r *runs) until(t *testing.T, text string) {
	t.Helper()
	for start := time.Now(); !strings.Contains(r.output(), text); time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("%v does not say %q, but: %s", r.cmd.Args, text, r.output())
		}
	}
}

// verbs starts the command.
func verbs(t *testing.T, args ...string) *runs {
	t.Helper()
	r := &runs{cmd: exec.CommandContext(t.Context(), os.Getenv(verbsEnv), args...)}
	r.cmd.Stdout, r.cmd.Stderr = r, r
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// resident returns the memory that a process has, in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(text + " none")[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// raw is a connection whose client sends what it likes.
func raw(t *testing.T, addr string) *hostile {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	conn.Write(preamble())
	return &hostile{conn: conn}
}

// told returns the error that the server tells in the end, or "".
func (h *hostile) told(t *testing.T) string {
	t.Helper()
	defer h.conn.Close()
	h.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadFull(h.conn, make([]byte, preambleLen)); err != nil {
		return ""
	}
	for {
		b, err := readFrame(h.conn, func() int { return peersFrame(1) })
		if err != nil {
			return ""
		}
		if m, err := decodeMessage(b, 1); err != nil || m.Kind == kindError {
			return m.Error
		}
	}
}

// reaches sends the messages up to open, and waits for the answer.
func (h *hostile) reaches(t *testing.T, c *Config) {
	t.Helper()
	h.send(message{Kind: kindHello, Limits: &limits0})
	h.send(message{Kind: kindOpen, Config: c})
	b := make([]byte, preambleLen)
	io.ReadFull(h.conn, b)
	for seen := ""; seen != kindOpened; {
		b, err := readFrame(h.conn, func() int { return maxFrame })
		if err != nil {
			t.Fatalf("the server does not say %s: %v", kindOpened, err)
		}
		m, err := decodeMessage(b, 0)
		if err != nil || m.Kind == kindError {
			t.Fatalf("the server does not say %s, but %s", kindOpened, b)
		}
		seen = m.Kind
	}
}

// error reads messages until there is an error.
func (h *hostile) error() string {
	for {
		b, err := readFrame(h.conn, func() int { return peersFrame(1) })
		if err != nil {
			return err.Error()
		}
		if m, _ := decodeMessage(b, 1); m.Kind == kindError {
			return m.Error
		}
	}
}

// scribble is a client that keeps to the protocol until its test runs, and then writes all over the
// memory that the server's queue pair has, the counters for iWARP included, and sends what it
// should not.
func scribble(t *testing.T, port int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ctx, over := context.WithCancelCause(ctx)
	defer over(nil)
	s := &scribbler{t: t, ctx: ctx}
	defer s.close()
	s.start(port, over)
	s.post(uverbs.SendWR{Opcode: uverbs.WRSend, SGL: s.sge(64)}) // so that the server begins, too
	s.overwrite()
	remote := &s.flows[0].remote
	want := "a message of 1 bytes has come, expected 64"
	if s.Limits.IWARP {
		s.post(uverbs.SendWR{Opcode: uverbs.WRSend, SGL: s.sge(1)})
	} else {
		want = "has taken a receive, expected a SEND"
		s.post(uverbs.SendWR{Opcode: uverbs.WRRDMAWriteWithImm, SGL: s.sge(64), RemoteAddr: remote.Addr, RKey: remote.RKey})
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), want) {
		t.Errorf("the server tells %v, want %q", cause, want)
	}
}

// scribbler is the end of a client in its test.
type scribbler struct {
	*End
	t      *testing.T
	ctx    context.Context
	closes []func()
}

// close undoes start, in the opposite order.
func (s *scribbler) close() {
	for _, f := range slices.Backward(s.closes) {
		f()
	}
}

// start connects to the server and starts a test with messages of 64 bytes.
func (s *scribbler) start(port int, over context.CancelCauseFunc) {
	t := s.t
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c := with(Send, BW, func(c *Config) {
		c.Both, c.Sizes, c.Duration, c.Timeout = true, []int{64}, time.Minute, 20*time.Second
	})
	cl := &Client{Config: c, Local: Local{GID: Auto, CPU: Auto}, Host: serverAddr, Port: port}
	conn, err := dialServer(s.ctx, net.JoinHostPort(serverAddr, strconv.Itoa(port)), cl.Secret, nil)
	must(err)
	cl.conn = &control{conn: conn, name: "server", inbox: make(chan received, inboxRoom), cancel: over, end: func(int64) error { return nil }}
	s.closes = append(s.closes, func() { conn.Close() }, cl.conn.start())
	dev, devPort, err := OpenDevice(cl.Local, places.AddrOf(conn.LocalAddr()))
	must(err)
	s.closes = append(s.closes, func() { dev.Close() })
	attr, err := dev.Port(devPort)
	must(err)
	cl.Config.CM = limits(dev, attr).IWARP
	must(cl.agree(s.ctx, dev, devPort))
	cl.end, err = NewEnd(dev, devPort, cl.Config, cl.Local, false)
	must(err)
	s.End = cl.end
	s.closes = append(s.closes, func() { s.Close() })
	must(cl.connect(s.ctx))
	must(s.Prepare(64))
	must(cl.conn.put(message{Kind: kindStart, Size: 64}))
	_, err = cl.conn.take(s.ctx, answerTime, kindReady)
	must(err)
}

// sge is the first n bytes of the memory.
func (s *scribbler) sge(n int) []uverbs.SGE { return []uverbs.SGE{s.MR.SGE(0, n)} }

// post posts a work request and returns the status of its completion; ok is false if the connection
// has ended, as on iWARP.
func (s *scribbler) post(wr uverbs.SendWR) (status uverbs.WCStatus, ok bool) {
	wr.Flags = uverbs.SendSignaled
	if err := s.flows[0].qp.PostSend(wr); err != nil {
		return 0, false
	}
	for s.ctx.Err() == nil {
		if n, _ := s.SendCQ.Poll(s.wcs[:1]); n == 1 {
			return s.wcs[0].Status, true
		}
	}
	s.t.Fatal("a work request does not complete")
	return 0, false
}

// overwrite writes four values all over the server's memory.
func (s *scribbler) overwrite() {
	const junk = 1024
	mem := s.MR.Bytes()[:junk]
	remote := &s.flows[0].remote
	written := 0
	for _, value := range []byte{0xff, 0x80, 0x7f, 0x00} {
		for i := range mem {
			mem[i] = value
		}
		from := remote.Addr - uint64(s.memory.base)
		for at := 0; at+junk <= s.memory.size; at += junk {
			if status, ok := s.post(uverbs.SendWR{Opcode: uverbs.WRRDMAWrite, SGL: s.sge(junk), RemoteAddr: from + uint64(at), RKey: remote.RKey}); ok && status == uverbs.WCSuccess {
				written++
			}
		}
	}
	if written == 0 {
		s.t.Error("nothing could be written into the server's memory")
	}
}

// TestHostileClients: a server that gets malformed messages, RDMA WRITEs all over its memory and
// thousands of connections serves an honest client to its end, takes no more memory, and serves
// another client afterwards.
func TestHostileClients(t *testing.T) {
	testenv.Guest(t)
	const port, most = 19516, 16
	addr := net.JoinHostPort(serverAddr, strconv.Itoa(port))
	server := verbs(t, "perf", "serve", "--listen", serverAddr, "-p", strconv.Itoa(port), "--max-clients", strconv.Itoa(most))
	server.until(t, "serving on")
	args := []string{serverAddr, "-p", strconv.Itoa(port), "--ack-timeout", "20", "--json"}
	dev, devPort, err := OpenDevice(Local{}, places.AddrOf(&net.TCPAddr{IP: net.ParseIP(serverAddr)}))
	if err != nil {
		t.Fatal(err)
	}
	attr, err := dev.Port(devPort)
	if err != nil {
		t.Fatal(err)
	}
	c := with(Write, BW, func(c *Config) { c.Sizes = []int{64} })
	recvs := "own is 1, allowed: 0 to 0"
	if limits(dev, attr).IWARP {
		args, c.CM, recvs = append(args, "--cm"), true, "recvs is -1, allowed: 1 to"
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	if out := verbs(t, append([]string{"perf", "send-lat"}, args...)...); out.cmd.Wait() != nil {
		t.Fatalf("before: %s", out.output())
	}
	honest := verbs(t, append([]string{"perf", "send-bw", "-D", "40s"}, args...)...)
	server.until(t, "begins: send-bw")
	before := resident(t, server.cmd.Process.Pid)

	attacks := 0
	for start := time.Now(); attacks < 3 || time.Since(start) < 8*time.Second; attacks++ {
		sendMalformed(t, addr, c, recvs)
	}
	scribble(t, port)
	refused, floods := 0, 10
	if os.Getenv(testenv.SlowEnv) != "" {
		floods = 2
	}
	for range floods {
		refused += flood(t, addr)
	}
	if refused == 0 {
		t.Errorf("none of %d clients was told that there are too many", 300*floods)
	}
	after := resident(t, server.cmd.Process.Pid)
	t.Logf("%d rounds of bad messages and %d connections; the server had %d KiB before and has %d KiB now; %d clients were told that there are too many", attacks, 300*floods, before>>10, after>>10, refused)
	if after > before+48<<20 {
		t.Errorf("the server had %d bytes of memory before and has %d now", before, after)
	}
	if err := honest.cmd.Wait(); err != nil {
		t.Fatalf("the honest client: %v: %s", err, honest.output())
	}
	var r Report
	if err := json.Unmarshal([]byte(honest.output()), &r); err != nil || len(r.Results) != 1 || r.Results[0].Iterations == 0 || r.Results[0].Lost != 0 {
		t.Errorf("the honest client's report is %s (%v)", honest.output(), err)
	}
	serveLater(t, args)
	server.cmd.Process.Signal(syscall.SIGTERM)
	if err := server.cmd.Wait(); err != nil {
		t.Errorf("the server: %v: %s", err, server.output())
	}
}

// sendMalformed sends malformed messages on four connections. The server tells recvs of a queue pair
// that has -1 receives.
func sendMalformed(t *testing.T, addr string, c Config, recvs string) {
	h := raw(t, addr)
	h.reaches(t, &c)
	h.send([]byte(`{"kind":"peers","peers":[{"qpn":17,"own":1,"recvs":-1}]}`))
	if got := h.error(); !strings.Contains(got, recvs) {
		t.Errorf("-1 receives: the server tells %q, want %q", got, recvs)
	}
	h.conn.Close()

	h = raw(t, addr)
	h.reaches(t, &c)
	h.send([]byte(`{"kind":"peers","peers":[` + strings.Repeat("{},", 8<<20/3) + `{}]}`))
	h.conn.Close()

	h = raw(t, addr)
	h.send([]byte(`{"kind":"hello","limits":` + strings.Repeat("[", 2000) + `}`))
	if got := h.told(t); !strings.Contains(got, "not valid JSON") {
		t.Errorf("nested arrays: the server tells %q", got)
	}
	huge := c
	huge.QPs, huge.Sizes = 1000, []int{1 << 23}
	h = raw(t, addr)
	h.send(message{Kind: kindHello, Limits: &limits0})
	h.send(message{Kind: kindOpen, Config: &huge})
	if got := h.told(t); !strings.Contains(got, "allowed") {
		t.Errorf("1,000 queue pairs with 8 MiB: the server tells %q", got)
	}
}

// flood connects 300 clients that never speak the protocol, and returns how many of them were told
// that there are too many.
func flood(t *testing.T, addr string) (refused int) {
	var all []net.Conn
	for range 300 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	for i, conn := range all {
		switch i % 3 {
		case 0:
			conn.Write(preamble())
		case 1:
			io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
		}
	}
	b := make([]byte, preambleLen+len(tooMany))
	for _, conn := range all {
		conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, _ := io.ReadFull(conn, b); bytes.Contains(b[:n], []byte(tooMany[:20])) {
			refused++
		}
		conn.Close()
	}
	return refused
}

// serveLater fails if the server does not serve another client, once it has missed those that are gone.
func serveLater(t *testing.T, args []string) {
	t.Helper()
	var err error
	for range 50 { // the last of the connections may not have been missed yet
		later := verbs(t, append([]string{"perf", "send-lat"}, args...)...)
		err = later.cmd.Wait()
		if err == nil {
			break
		}
		if !strings.Contains(later.output(), tooMany) {
			t.Fatalf("a later client: %v: %s", err, later.output())
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		t.Errorf("a later client: %v", err)
	}
}

// TestStranger: a stranger that connects to the listener of a test is rejected, and the client's
// queue pairs are connected all the same.
func TestStranger(t *testing.T) {
	testenv.Guest(t)
	to := places.AddrOf(&net.TCPAddr{IP: net.ParseIP(serverAddr)}).Unmap()
	c := with(Send, BW, func(c *Config) { c.CM, c.QPs, c.Sizes = true, 2, []int{64} })
	var ends [3]*End // the server, the client, and the stranger
	for i := range ends {
		dev, port, err := OpenDevice(Local{}, to)
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		if ends[i], err = NewEnd(dev, port, c, Local{GID: Auto, CPU: Auto}, i == 0); err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	listener, err := listenIDs(ends[0], to)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() { accepted <- listener.accept(t.Context()) }()
	var sides [3]*connections
	for i := 1; i < len(sides); i++ {
		if sides[i], err = resolve(t.Context(), ends[i], listener.addr.String(), listener.token); err != nil {
			t.Fatal(err)
		}
	}
	for i, data := range [][]byte{nil, append(make([]byte, tokenSize), 0, 0, 0, 0)} { // both are zeros to the server
		p := sides[2].param()
		p.PrivateData = data
		if _, err := sides[2].ids[i].ConnectWait(t.Context(), p); err == nil {
			t.Fatalf("a stranger who says %v is connected", data)
		}
	}
	if err := sides[1].connect(t.Context()); err != nil {
		t.Errorf("the client: %v", err)
	}
	if err := <-accepted; err != nil {
		t.Errorf("the server: %v", err)
	}
}
