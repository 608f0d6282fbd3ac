package cm

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/cm/internal/abi"
	"github.com/goverbs/goverbs/cm/rdmacm"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
)

// cancelAtCommand cancels a context when a command is given to the kernel.
type cancelAtCommand struct {
	mu     sync.Mutex
	cmd    uint32
	cancel context.CancelFunc // nil for none
}

// set chooses the command and what it cancels.
func (c *cancelAtCommand) set(cmd uint32, cancel context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cmd, c.cancel = cmd, cancel
}

// given is called with each command.
func (c *cancelAtCommand) given(cmd uint32) syscall.Errno {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cmd == c.cmd && c.cancel != nil {
		c.cancel()
	}
	return 0
}

// setDialLoop makes Dial use an event loop.
func setDialLoop(l *eventLoop) {
	dialLoop.mu.Lock()
	defer dialLoop.mu.Unlock()
	if testenv.TheRig().Soft {
		dialLoop.soft = l
	} else {
		dialLoop.loop = l
	}
}

// TestDialCancelled: the end of the context ends Dial in each of its steps, and nothing is left of it.
func TestDialCancelled(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	before := quiet(t)
	ctx := within(t)
	c := value(rdmacm.OpenChannel(rdmacm.ChannelOptions{}))(t)
	silent, to := listenNow(t, c, netip.AddrPortFrom(first, 0)) // nobody answers what comes
	l := value(Listen(ctx, firstAny, ListenOptions{ConnOptions: small}))(t)

	var at cancelAtCommand
	h := runEventLoop(interposed(t, at.given))
	setDialLoop(h)
	steps := map[string]uint32{
		"making the ID": abi.RDMA_USER_CM_CMD_CREATE_ID, "the address": abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, "the route": abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE,
		"the addresses": abi.RDMA_USER_CM_CMD_QUERY, "the request": abi.RDMA_USER_CM_CMD_CONNECT,
	}
	if !testenv.TheRig().IWARP() {
		steps["the QP"] = abi.RDMA_USER_CM_CMD_INIT_QP_ATTR
	}
	for step, cmd := range steps {
		short, cancel := context.WithCancel(ctx)
		devices.mu.Lock()
		clear(devices.open) // of which Dial would have the attributes without the command
		devices.mu.Unlock()
		at.set(cmd, cancel)
		conn, err := Dial(short, to.String(), DialOptions{ConnOptions: small})
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), to.String()) {
			t.Errorf("%s: %v, %v", step, conn, err)
		}
		at.set(0, nil)
		cancel()
	}
	// While it waits for a neighbor that does not exist, and for an answer that does not come.
	for addr, cmd := range map[string]uint32{noHost.String() + ":9": abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, to.String(): abi.RDMA_USER_CM_CMD_CONNECT} {
		short, stop := context.WithCancel(ctx)
		at.set(cmd, func() { time.AfterFunc(50*time.Millisecond, stop) })
		if conn, err := Dial(short, addr, DialOptions{ConnOptions: small}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: %v, %v", addr, conn, err)
		}
		stop()
	}
	// At the last step, Dial may succeed.
	short, stop := context.WithCancel(ctx)
	at.set(abi.RDMA_USER_CM_CMD_ACCEPT, stop)
	if conn, err := Dial(short, l.Addr().String(), DialOptions{ConnOptions: small}); err == nil {
		must(t, conn.Close())
	} else if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	stop()
	must(t, l.Close())
	h.release()
	for { // requests that were sent before the context ended
		e := takeNow(c)
		if e == nil {
			break
		}
		if e.Type == rdmacm.EventConnectRequest {
			must(t, e.ID.Close())
		}
	}
	must(t, silent.Close(), c.Close())
	nothingLeft(t, before)
}

// refuseCommand refuses one command, but none that reads an event.
type refuseCommand struct {
	mu      sync.Mutex
	left    int // commands until the one that is refused; below 0: none is
	errno   syscall.Errno
	refused uint32
}

// given is called with each command.
func (r *refuseCommand) given(cmd uint32) syscall.Errno {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cmd == abi.RDMA_USER_CM_CMD_GET_EVENT || r.left < 0 {
		return 0
	}
	if r.left--; r.left >= 0 {
		return 0
	}
	r.refused = cmd
	return r.errno
}

// during calls a function and has its n-th command refused, from 0. It returns whether there were that many.
func (r *refuseCommand) during(n int, errno syscall.Errno, f func()) (cmd uint32, refused bool) {
	const none = 1<<32 - 1
	r.mu.Lock()
	r.left, r.errno, r.refused = n, errno, none
	r.mu.Unlock()
	f()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = -1
	return r.refused, r.refused != none
}

// TestDialRefused has each command of Dial refused in turn. Dial returns the kernel's error and leaves
// nothing, and the next Dial works.
func TestDialRefused(t *testing.T) {
	before := quiet(t)
	ctx := within(t)
	l := value(Listen(ctx, firstAny, ListenOptions{ConnOptions: small}))(t)
	dial := func() error {
		conn, err := Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small})
		if err != nil {
			return err
		}
		server, err := l.Accept(ctx)
		if err == nil {
			err = server.Close()
		}
		return errors.Join(err, conn.Close())
	}
	var r refuseCommand
	h := runEventLoop(interposed(t, r.given))
	setDialLoop(h)
	for n := 0; ; n++ {
		var conn *Conn
		var err error
		cmd, refused := r.during(n, syscall.EPERM, func() { conn, err = Dial(ctx, l.Addr().String(), DialOptions{ConnOptions: small}) })
		if !refused {
			must(t, err, value(l.Accept(ctx))(t).Close(), conn.Close())
			break
		}
		if !errors.Is(err, syscall.EPERM) || !strings.Contains(err.Error(), l.Addr().String()) {
			t.Errorf("command %d, %d of Dial: %v, want EPERM", cmd, n, err)
		}
		if n > 40 {
			t.Fatal("Dial gives more than 40 commands")
		}
	}
	must(t, dial())
	// If the process has another user than when the channel was opened, Dial opens another one.
	if cmd, _ := r.during(0, syscall.EACCES, func() { must(t, dial()) }); cmd != abi.RDMA_USER_CM_CMD_CREATE_ID {
		t.Errorf("the first command of Dial is %d, want CREATE_ID", cmd)
	}
	must(t, l.Close())
	h.release()
	nothingLeft(t, before)
}

// takeNow returns an event that is there, or nil.
func takeNow(c *rdmacm.Channel) *rdmacm.Event {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	e, err := c.Next(ctx)
	if err != nil {
		return nil
	}
	return e
}

// listenNow makes a listener, which the caller closes.
func listenNow(t *testing.T, c *rdmacm.Channel, at netip.AddrPort) (*rdmacm.ID, netip.AddrPort) {
	t.Helper()
	id := value(c.NewID(rdmacm.TCP))(t)
	must(t, id.Bind(rdmacm.AddrOf(at)), id.Listen(0))
	return id, netip.AddrPortFrom(at.Addr(), value(id.Addrs())(t).Local.Port)
}

// badAnswer is an answer to a connection request for which Dial must return an error.
type badAnswer struct {
	reject, vanish bool // reject the request or close its ID; accept it if neither is set
	data           []byte
	is             error
	say            string // must be in the text of the error
}

// badAnswers returns answers by name.
func badAnswers() map[string]badAnswer {
	answer := greeting{kind: greetingAnswer, depth: 4, size: 100, data: []byte("data")}.encode()
	change := func(i int, b byte) []byte {
		changed := bytes.Clone(answer)
		changed[i] = b
		return changed
	}
	return map[string]badAnswer{
		"nothing":                      {is: syscall.EPROTO, say: "not a greeting"},
		"text":                         {data: []byte("SSH-2.0-OpenSSH_9.2"), is: syscall.EPROTO, say: "not a greeting"},
		"as much as there can be":      {data: bytes.Repeat([]byte{0xff}, 196), is: syscall.EPROTO, say: "not a greeting"},
		"version 9":                    {data: change(2, 9), is: syscall.EPROTO, say: "version 9"},
		"a request":                    {data: change(3, greetingRequest), is: syscall.EPROTO, say: "kind 1"},
		"a refusal, and it accepts":    {data: change(3, greetingRefusal), is: syscall.EPROTO, say: "kind 3"},
		"no room":                      {data: change(5, 0), is: syscall.EPROTO, say: "0 messages"},
		"a huge room":                  {data: change(4, 0xff), is: syscall.EPROTO, say: "messages"},
		"no size":                      {data: change(11, 0), is: syscall.EPROTO, say: "of 0 bytes"},
		"a huge size":                  {data: change(8, 0xff), is: syscall.EPROTO, say: "bytes"},
		"more at first than there is":  {data: change(6, 5), is: syscall.EPROTO, say: "5 of them at first"},
		"more data than there is":      {data: change(7, 250), is: syscall.EPROTO, say: "250 bytes of data"},
		"a rejection":                  {reject: true, is: syscall.ECONNREFUSED, say: "reject"},
		"a rejection with text":        {reject: true, data: []byte("go away"), is: syscall.ECONNREFUSED, say: "reject"},
		"a rejection with an answer":   {reject: true, data: answer, is: syscall.ECONNREFUSED, say: "reject"},
		"a rejection that is too long": {reject: true, data: bytes.Repeat([]byte{0xff}, 148), is: syscall.ECONNREFUSED, say: "reject"},
		"a refusal of control characters": {reject: true, data: greeting{kind: greetingRefusal, data: []byte("\x1b[2J\x00")}.encode(), is: syscall.ECONNREFUSED,
			say: `refuses: "\x1b[2J\x00"`},
		"no answer, and it ends": {vanish: true, is: syscall.ECONNREFUSED},
	}
}

// TestDialProtocolViolations: a listener that does not speak the protocol, or does not mean well.
func TestDialProtocolViolations(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	before := quiet(t)
	ctx := within(t)
	c := value(rdmacm.OpenChannel(rdmacm.ChannelOptions{}))(t)
	silent, to := listenNow(t, c, netip.AddrPortFrom(first, 0))
	dev := value(uverbs.Open(testenv.TheRig().Devices[0], uverbs.OpenOptions{}))(t)
	pd := value(dev.AllocPD())(t)
	cq := value(dev.CreateCQ(uverbs.CQOptions{Size: 8}))(t)
	for name, s := range badAnswers() {
		if (s.reject || s.vanish) && testenv.SoftFaults() != "" {
			continue // a refusal that is lost is not repeated
		}
		done := make(chan error, 1)
		go func() {
			conn, err := Dial(ctx, to.String(), DialOptions{ConnOptions: small})
			if err == nil {
				err = errors.Join(errors.New("it is connected"), conn.Close())
			}
			done <- err
		}()
		attempts := 1
		if (s.vanish || s.reject && s.data == nil) && !testenv.TheRig().IWARP() { // what says nothing may pass
			attempts = 4
		}
		var e *rdmacm.Event
		for range attempts {
			e = value(silent.NextRequest(ctx))(t)
			switch {
			case s.reject:
				must(t, e.ID.Reject(s.data, rdmacm.ReasonConsumer))
			case !s.vanish:
				value(e.ID.CreateQP(pd, uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
				must(t, e.ID.Accept(rdmacm.ConnParam{PrivateData: s.data, RNRRetryCount: 6}))
			}
			if s.vanish || s.reject {
				must(t, e.ID.Close())
			}
		}
		err := <-done
		if !errors.Is(err, s.is) || !strings.Contains(err.Error(), s.say) || !strings.Contains(err.Error(), to.String()) {
			t.Errorf("%s: %v", name, err)
		}
		if ctx.Err() != nil {
			t.Fatal(ctx.Err())
		}
		must(t, e.ID.Close())
	}
	// One that says nothing: the context is the only end.
	short, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- second1(Dial(short, to.String(), DialOptions{ConnOptions: small}))
	}()
	e := value(silent.NextRequest(ctx))(t)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("no answer: %v", err)
	}
	must(t, e.ID.Close(), silent.Close(), c.Close(), cq.Close(), pd.Close(), dev.Close())
	nothingLeft(t, before)
}

// TestPrivateDataRemote: each side tells the other of memory in its private data, and both write to it.
func TestPrivateDataRemote(t *testing.T) {
	before := quiet(t)
	ctx := within(t)
	type advertised struct {
		pd  *uverbs.PD
		buf *uverbs.Buffer
		mr  *uverbs.MR
	}
	register := func(pd *uverbs.PD) (advertised, []byte) {
		buf := value(uverbs.AllocBuffer(4096, uverbs.BufferOptions{}))(t)
		mr := value(pd.RegMR(buf, uverbs.MROptions{Access: uverbs.AccessLocalWrite | uverbs.AccessRemoteWrite | uverbs.AccessRemoteRead}))(t)
		return advertised{pd, buf, mr}, value(RemoteOf(mr).MarshalBinary())(t)
	}
	var mine, its advertised
	l := value(Listen(ctx, firstAny, ListenOptions{Check: func(r *Request) (data []byte, err error) {
		if string(r.PrivateData) == "" {
			return nil, errors.New("no memory")
		}
		its, data = register(value(r.PD())(t))
		return data, nil
	}}))(t)
	prepare := func(pd *uverbs.PD) (data []byte, err error) {
		mine, data = register(pd)
		return data, nil
	}
	client := value(Dial(ctx, l.Addr().String(), DialOptions{Prepare: prepare, PrivateData: []byte("not this")}))(t)
	server := value(l.Accept(ctx))(t)
	if client.PD() != mine.pd || server.PD() != its.pd {
		t.Error("the PD is not that of the connection")
	}
	for _, s := range []struct {
		name      string
		from      *Conn
		own, peer advertised
	}{{"the client", client, mine, its}, {"the server", server, its, mine}} {
		var remote Remote
		must(t, remote.UnmarshalBinary(s.from.PrivateData()))
		if remote != RemoteOf(s.peer.mr) {
			t.Errorf("%s is told of %+v", s.name, remote)
		}
		copy(s.own.buf.Bytes()[1000:], "by "+s.name)
		must(t, s.from.RDMAWrite(ctx, s.own.mr.SGE(1000, 20), remote.At(2000)))
		if !bytes.HasPrefix(s.peer.buf.Bytes()[2000:], []byte("by "+s.name)) {
			t.Errorf("%s has written %q", s.name, s.peer.buf.Bytes()[2000:2020])
		}
	}
	// Attempts that fail release what there is.
	mem := mine
	broken := errors.New("no way")
	if _, err := Dial(ctx, l.Addr().String(), DialOptions{Prepare: func(*uverbs.PD) ([]byte, error) { return nil, broken }}); !errors.Is(err, broken) {
		t.Errorf("Dial: %v", err)
	}
	var arg *rdmacm.ArgError
	if _, err := Dial(ctx, l.Addr().String(), DialOptions{Prepare: func(*uverbs.PD) ([]byte, error) { return make([]byte, MaxDialData+1), nil }}); !errors.As(err, &arg) || arg.Op != "Prepare" {
		t.Errorf("Dial: %v", err)
	}
	var refused *RefusedError
	if _, err := Dial(ctx, l.Addr().String(), DialOptions{}); !errors.As(err, &refused) || refused.Why != "no memory" {
		t.Errorf("Dial: %v", err)
	}
	for _, m := range []advertised{mem, its} {
		must(t, m.mr.Close(), m.buf.Close())
	}
	must(t, client.Close(), server.Close(), l.Close())
	nothingLeft(t, before)
}

// TestNoDevice: addresses of interfaces without an RDMA device, and of none.
func TestNoDevice(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	testenv.NeedsKernel(t, "network interfaces that can be added")
	before := quiet(t)
	ctx := within(t)
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "plain0"}, PeerName: "plain1"}))
	plain, peer := value(netlink.LinkByName("plain0"))(t), value(netlink.LinkByName("plain1"))(t)
	t.Cleanup(func() { must(t, netlink.LinkDel(plain)) })
	must(t, netlink.AddrAdd(plain, value(netlink.ParseAddr("10.7.0.1/24"))(t)), netlink.AddrAdd(peer, value(netlink.ParseAddr("10.7.0.2/24"))(t)),
		netlink.LinkSetUp(peer), netlink.LinkSetUp(plain))
	packets := !testenv.TheRig().IWARP()
	type bad struct {
		addr string
		is   error
		say  string
	}
	local := []bad{
		{"10.7.0.1:0", syscall.ENODEV, "without an RDMA device"},
		{"192.0.2.1:0", syscall.EADDRNOTAVAIL, "no network interface"},
	}
	remote := []bad{
		{"10.7.0.1:9", syscall.ENODEV, "without an RDMA device"}, // its own address
		{"10.7.0.2:9", syscall.ENODEV, "without an RDMA device"}, // a neighbour of its
	}
	if !loopbackReached() {
		for _, host := range []string{"127.0.0.1", "[::1]"} {
			local, remote = append(local, bad{host + ":0", syscall.ENODEV, "loopback"}), append(remote, bad{host + ":9", syscall.ENODEV, "loopback"})
		}
	}
	for _, s := range local {
		if l, err := Listen(ctx, s.addr, ListenOptions{}); !errors.Is(err, s.is) || !strings.Contains(err.Error(), s.say) || !strings.Contains(err.Error(), s.addr) {
			t.Errorf("Listen %s: %v, %v", s.addr, l, err)
		}
		p, err := ListenPacket(ctx, s.addr, PacketOptions{})
		if packets && (!errors.Is(err, s.is) || !strings.Contains(err.Error(), s.say) || !strings.Contains(err.Error(), s.addr)) || err == nil {
			t.Errorf("ListenPacket %s: %v, %v", s.addr, p, err)
		}
	}
	for _, s := range remote {
		for _, o := range []DialOptions{{}, {LocalAddr: netip.MustParseAddrPort("10.7.0.1:0")}} {
			if strings.HasPrefix(s.addr, "[") && o.LocalAddr.IsValid() {
				continue
			}
			short, cancel := context.WithTimeout(ctx, 2*timeout)
			if _, err := Dial(short, s.addr, o); !errors.Is(err, s.is) || !strings.Contains(err.Error(), s.say) || !strings.Contains(err.Error(), s.addr) {
				t.Errorf("Dial %s from %s: %v", s.addr, o.LocalAddr, err)
			}
			if packets {
				if _, err := DialPacket(short, s.addr, PacketOptions{LocalAddr: o.LocalAddr}); !errors.Is(err, s.is) || !strings.Contains(err.Error(), s.say) || !strings.Contains(err.Error(), s.addr) {
					t.Errorf("DialPacket %s from %s: %v", s.addr, o.LocalAddr, err)
				}
			}
			cancel()
		}
	}
	nothingLeft(t, before)
}

// TestDialNames: a host's name, one with several addresses of which the last answers, and one that
// nobody has.
func TestDialNames(t *testing.T) {
	testenv.Tags(t, testenv.AnyCard)
	testenv.Guest(t)
	testenv.NeedsKernel(t, "neighbors, and a list of hosts that may be changed,")
	ctx := within(t)
	const hosts = "/etc/hosts"
	old, err := os.ReadFile(hosts)
	must(t, os.MkdirAll("/etc", 0o755), os.WriteFile(hosts, []byte("10.1.0.1 one\n10.1.0.99 several\n10.1.0.2 several\n10.1.0.1 several\n10.1.0.99 nobody\n127.0.0.1 nobody\n"), 0o644))
	t.Cleanup(func() {
		if err != nil {
			must(t, os.Remove(hosts))
		} else {
			must(t, os.WriteFile(hosts, old, 0o644))
		}
	})
	l := newListener(t, ListenOptions{ConnOptions: small})
	_, port, _ := strings.Cut(l.Addr().String(), ":")
	o := DialOptions{ConnOptions: small}
	attempts := 0
	o.Prepare = func(*uverbs.PD) ([]byte, error) { attempts++; return []byte("by name"), nil }
	for name, atMost := range map[string]int{"one": 1, "several": 2} {
		attempts = 0
		dialCtx, cancel := context.WithTimeout(ctx, 2*timeout)
		conn := value(Dial(dialCtx, name+":"+port, o))(t)
		cancel()
		server := value(l.Accept(ctx))(t)
		if string(server.PrivateData()) != "by name" || conn.RemoteAddr().String() != l.Addr().String() || attempts < 1 || attempts > atMost {
			t.Errorf("%s is at %s, after %d attempts", name, conn.RemoteAddr(), attempts)
		}
		must(t, conn.Close(), server.Close())
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := Dial(short, "nobody:"+port, DialOptions{ConnOptions: small}); err == nil || !strings.Contains(err.Error(), "10.1.0.99:"+port) && !strings.Contains(err.Error(), "127.0.0.1:"+port) {
		t.Errorf("Dial nobody: %v", err)
	}
	if _, err := Dial(ctx, "no-such-host.invalid:"+port, DialOptions{ConnOptions: small}); err == nil || !strings.Contains(err.Error(), "no-such-host.invalid") {
		t.Errorf("Dial no-such-host.invalid: %v", err)
	}
	// A listener too.
	named := value(Listen(ctx, "one:0", ListenOptions{ConnOptions: small}))(t)
	if named.addr.IP != first {
		t.Errorf("it listens on %s", named.addr)
	}
	must(t, named.Close())
}
