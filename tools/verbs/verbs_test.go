package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/tools/verbs/internal/terminal"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// endpoint is a peer's, and hello is what ibv_rc_pingpong sends for it.
var endpoint = uverbs.Endpoint{LID: 0x12, QPN: 0x345678, PSN: 0x9abcde, GID: ib.GID{10: 0xff, 11: 0xff, 12: 10, 13: 1, 14: 0, 15: 2}}

const hello = "0012:345678:9abcde:00000000000000000000ffff0a010002\x00"

func TestHello(t *testing.T) {
	if got := string(encodeHello(endpoint)); got != hello {
		t.Errorf("encoded %q, want %q", got, hello)
	}
	got, err := decodeHello([]byte(hello))
	if err != nil || got != endpoint {
		t.Errorf("decoded %+v, %v, want %+v", got, err, endpoint)
	}
	if len(hello) != 52 {
		t.Errorf("the message has %d bytes, ibv_rc_pingpong's has 52", len(hello))
	}
}

func TestHelloBad(t *testing.T) {
	for _, s := range []string{
		"",
		strings.ToUpper(hello),
		hello[:len(hello)-1] + "0",
		strings.Replace(hello, ":", " ", 1),
		strings.Replace(hello, "9abcde", "9abcdg", 1),
		"-" + hello[1:],
		hello + "x",
	} {
		if e, err := decodeHello([]byte(s)); err == nil {
			t.Errorf("%q is taken for %+v", s, e)
		} else if !strings.Contains(err.Error(), "another protocol") {
			t.Errorf("%q: %v does not say what was expected", s, err)
		}
	}
}

// TestHelloValues: a number that no queue pair can have is refused by name, value and range.
func TestHelloValues(t *testing.T) {
	const zero = "00000000000000000000000000000000\x00"
	for text, want := range map[string]string{
		"0000:000002:000000:00000000000000000000ffff0a010002\x00": "",
		"bfff:ffffff:ffffff:" + zero:                              "",
		"0001:000000:000000:" + zero:                              "the peer's QPN is 0x0, allowed: 0x2 to 0xffffff",
		"0001:000001:000000:" + zero:                              "the peer's QPN is 0x1, allowed: 0x2 to 0xffffff",
		"c000:000002:000000:" + zero:                              "the peer's LID is 0xc000, allowed: 0 to 0xbfff",
		"ffff:000002:000000:" + zero:                              "the peer's LID is 0xffff, allowed: 0 to 0xbfff",
		"0000:000002:000000:" + zero:                              "the peer's LID and GID are both 0",
		"0000:000002:000000:ff0e0000000000000000000000000001\x00": "the peer's GID is ff0e",
		"0000:000002:000000:00000000000000000000ffffe0000001\x00": "the peer's GID is ",
	} {
		_, err := decodeHello([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzHello: what is taken for an endpoint is one that a queue pair can have, and was encoded so.
func FuzzHello(f *testing.F) {
	f.Add([]byte(hello))
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Add([]byte("ffff:000001:000000:ff000000000000000000000000000000\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeHello(b)
		if err != nil {
			return
		}
		if !bytes.Equal(encodeHello(e), b) {
			t.Errorf("%q decodes to %+v, which encodes to %q", b, e, encodeHello(e))
		}
		if e.QPN < 2 || e.QPN >= 1<<24 || e.PSN >= 1<<24 || e.LID >= 0xc000 || e.GID[0] == 0xff || e.LID == 0 && e.GID.IsZero() {
			t.Errorf("%q decodes to %+v", b, e)
		}
	})
}

// listen returns a listener on loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// answer accepts one connection and plays the peer on it.
func answer(l net.Listener, play func(c net.Conn)) {
	go func() {
		c, err := l.Accept()
		if err == nil {
			play(c)
			c.Close()
		}
	}()
}

func TestExchange(t *testing.T) {
	addresses := func(n int, first uint32) (all []address) {
		for i := range uint32(n) {
			a := address{Endpoint: endpoint}
			a.QPN = first + i
			all = append(all, a)
		}
		return all
	}
	xrc := func(first uint32) []address {
		a := addresses(1, first)
		a[0].sendQPN, a[0].srqn = first+1, first+2
		return a
	}
	for name, c := range map[string]struct {
		form           exchangeForm
		client, server []address
	}{
		"one":       {oneForm, addresses(1, 7), addresses(1, 8)},
		"some":      {manyForm(3, srqQPs), addresses(3, 100), addresses(3, 200)},
		"very many": {manyForm(srqQPs-1, srqQPs), addresses(srqQPs-1, 1000), addresses(srqQPs-1, 2000)},
		"XRC":       {xrcForm, xrc(10), xrc(20)},
	} {
		t.Run(name, func(t *testing.T) { exchange(t, c.form, c.client, c.server) })
	}
}

// exchange has two sides exchange addresses, and say so in the end if the connection stays.
func exchange(t *testing.T, form exchangeForm, client, server []address) {
	l := listen(t)
	type end struct {
		remote []address
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		var connected []address
		remote, c, err := acceptExchange(t.Context(), l, io.Discard, form, func(remote []address) ([]address, error) {
			connected = remote
			return server, nil
		})
		if !slices.Equal(connected, remote) {
			err = errors.Join(err, errors.New("connect was called with other addresses"))
		}
		if c != nil {
			err = errors.Join(err, sayEnd(c), c.Close())
		}
		ended <- end{remote, err}
	}()
	got, c, err := dialExchange(t.Context(), l.Addr().String(), form, client)
	if err != nil || !slices.Equal(got, server) || (c != nil) != form.stays {
		t.Errorf("the client got %+v, %v, want %+v, and a connection %v", got, err, server, c)
	}
	if c != nil {
		err = errors.Join(sayEnd(c), c.Close())
	}
	if e := <-ended; e.err != nil || err != nil || !slices.Equal(e.remote, client) {
		t.Errorf("the server got %+v, %v, want %+v; the client ended with %v", e.remote, e.err, client, err)
	}
}

// TestManyHellos: both sides must have the same number of queue pairs.
func TestManyHellos(t *testing.T) {
	form := manyForm(2, 4)
	text := func(n int) []byte {
		return []byte(strings.Repeat(hello, n) + strings.Repeat(string(encodeHello(uverbs.Endpoint{})), 4-n))
	}
	if all, err := form.decode(text(2)); err != nil || len(all) != 2 || all[1].Endpoint != endpoint {
		t.Errorf("%+v, %v", all, err)
	}
	for n, want := range map[int]string{0: "QPN is 0x0", 1: "has 1 queue pairs, expected 2", 3: "more than 2 queue pairs", 4: "more than 2 queue pairs"} {
		if _, err := form.decode(text(n)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d queue pairs: %v, want %q", n, err, want)
		}
	}
}

// xrcHello is what ibv_xsrq_pingpong sends.
const xrcHello = "0000:000046:000047:9a8b7c:000001:00000000000000000000ffff0a010001\x00"

func TestXRCHello(t *testing.T) {
	a, err := decodeXRCHello([]byte(xrcHello))
	if err != nil || a.QPN != 0x46 || a.sendQPN != 0x47 || a.PSN != 0x9a8b7c || a.srqn != 1 || a.GID.Addr().Unmap().String() != "10.1.0.1" {
		t.Errorf("%+v, %v", a, err)
	}
	if got := string(encodeXRCHello(a)); got != xrcHello {
		t.Errorf("it is encoded as %q, want %q", got, xrcHello)
	}
	for text, want := range map[string]string{
		strings.Replace(xrcHello, "000046", "000000", 1): "QPN is 0x0",
		strings.Replace(xrcHello, "000047", "000001", 1): "QPN is 0x1",
		hello: "another protocol",
		strings.Replace(xrcHello, "\x00", " ", 1): "another protocol",
	} {
		if _, err := decodeXRCHello([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzXRCHello: what is taken for an address was encoded so.
func FuzzXRCHello(f *testing.F) {
	f.Add([]byte(xrcHello))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeXRCHello(b)
		if err != nil {
			return
		}
		if !bytes.Equal(encodeXRCHello(a), b) {
			t.Errorf("%q decodes to %+v, which encodes to %q", b, a, encodeXRCHello(a))
		}
	})
}

func TestDialBad(t *testing.T) {
	closed := listen(t)
	closed.Close()
	for name, c := range map[string]struct {
		addr string
		play func(c net.Conn)
		want string
	}{
		"nobody listens": {addr: closed.Addr().String(), want: "no pingpong server at " + closed.Addr().String()},
		"other protocol": {play: func(c net.Conn) { io.WriteString(c, strings.Repeat("SSH-2.0 ", 10)) }, want: "another protocol"},
		"hangs up":       {play: func(c net.Conn) { io.WriteString(c, hello[:20]) }, want: "got 20 of 52 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := c.addr
			if addr == "" {
				l := listen(t)
				addr = l.Addr().String()
				answer(l, func(conn net.Conn) {
					io.ReadFull(conn, make([]byte, helloLen))
					c.play(conn)
				})
			}
			_, _, err := dialExchange(t.Context(), addr, oneForm, []address{{Endpoint: endpoint}})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), addr) {
				t.Errorf("error is %v, want %q and %s in it", err, c.want, addr)
			}
		})
	}
}

func TestAcceptBad(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		send    string
		connect error
		want    string
	}{
		"cannot connect": {send: hello, connect: refused, want: "refused"},
		"no done":        {send: hello, want: "did not confirm"},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t)
			go func() {
				conn, err := net.Dial("tcp", l.Addr().String())
				if err == nil {
					io.WriteString(conn, c.send)
					conn.(*net.TCPConn).CloseWrite()
					io.Copy(io.Discard, conn)
					conn.Close()
				}
			}()
			_, _, err := acceptExchange(t.Context(), l, io.Discard, oneForm, func([]address) ([]address, error) {
				return []address{{Endpoint: endpoint}}, c.connect
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestAcceptCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := listen(t)
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, _, err := acceptExchange(ctx, l, io.Discard, oneForm, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want the context's", err)
	}
}

// TestFirstClient: many connections that say nothing leave a place for the client when one of them goes, and are
// closed when it is there.
func TestFirstClient(t *testing.T) {
	l := listen(t)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	log := make(lineChan, maxUnknown)
	type client struct {
		conn net.Conn
		said byte
		err  error
	}
	ended := make(chan client, 1)
	go func() {
		c, said, err := firstClient(t.Context(), l, log, func(_ context.Context, c net.Conn) (byte, error) {
			var b [1]byte
			_, err := io.ReadFull(c, b[:])
			return b[0], err
		})
		ended <- client{c, said, err}
	}()
	var silent []net.Conn
	for range maxUnknown / 2 { // the share of one address
		silent = append(silent, dial())
	}
	dial()
	if line := <-log; !strings.Contains(line, "is not heard, as 32 from its address are being served") {
		t.Errorf("one too many: %q", line)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	if c, err := d.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	} else {
		c.Close() // is heard, beside so many silent ones at another address
	}
	if line := <-log; !strings.HasPrefix(line, "127.0.0.9:") || !strings.Contains(line, "is not the client: EOF") {
		t.Errorf("one at another address: %q", line)
	}
	silent[0].Close()
	if line := <-log; !strings.HasPrefix(line, silent[0].LocalAddr().String()+" is not the client: EOF") {
		t.Errorf("one that is gone: %q", line)
	}
	for said := false; !said; { // its place may not be free yet
		c := dial()
		io.WriteString(c, "x")
		select {
		case <-log:
		case e := <-ended:
			if e.err != nil || e.said != 'x' || e.conn.RemoteAddr().String() != c.LocalAddr().String() {
				t.Fatalf("%+v", e)
			}
			e.conn.Close()
			said = true
		}
	}
	for _, c := range silent[1:] {
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("%d bytes came", n)
		}
	}
	if len(log) > 0 {
		t.Errorf("with the client there: %q", <-log)
	}
}

// lineChan passes what is written to it on.
type lineChan chan string

func (c lineChan) Write(b []byte) (int, error) { c <- string(b); return len(b), nil }

// run executes the command line and returns what it prints.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.Stdout = terminal.New(&out)
	root.Stderr = terminal.New(&out)
	err := root.Execute(t.Context(), args)
	return out.String(), err
}

func TestOptions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-p 0", "--port is 0, allowed: 1 to 65535"},
		{"-p 70000", "--port is 70000, allowed: 1 to 65535"},
		{"-s 0", "--size is 0, allowed: 1 and more"},
		{"-r 1", "--recv-depth is 1, allowed: 2 and more"},
		{"--rx-depth 1", "--recv-depth is 1, allowed: 2 and more"},
		{"-n 0", "--iterations is 0, allowed: 1 and more"},
		{"--iters 0", "--iterations is 0, allowed: 1 and more"},
		{"-i 0", "--ib-port is 0, allowed: 1 to 255"},
		{"-l 16", "--sl is 16, allowed: 0 to 15"},
		{"-g -2", "--gid is -2, allowed: 0 and more"},
		{"--gid-idx x", `--gid is "x", allowed: 0 and more`},
		{"-m 1500", "--mtu is 1500, allowed: 256, 512, 1024, 2048, 4096"},
		{"-m big", `--mtu is "big", allowed: a whole number`},
		{"--type rd", "--type is rd, allowed: rc, uc, ud, srq, xrc"},
		{"--type srq -q 0", "--num-qp is 0, allowed: 1 to 255"},
		{"--type srq -q 256", "--num-qp is 256, allowed: 1 to 255"},
		{"--type srq -q 16 -r 16", "--recv-depth is 16, allowed: 17 and more, for --num-qp 16"},
		{"-q 4", "--num-qp is 4, allowed: only with --type srq"},
		{"--timeout 0s", "--timeout is 0s, allowed: more than 0"},
		{"--timeout 10", "--timeout is 10, allowed: a time such as 10s or 200ms"},
		{"-e=perhaps", `--events is "perhaps", allowed: true, false`},
		{"--bogus", `unknown flag: --bogus; "verbs pingpong --help" lists the flags`},
		{"-z", `unknown shorthand flag: 'z' in -z; "verbs pingpong --help" lists the flags`},
		{"--size", `flag needs an argument: --size; "verbs pingpong --help" lists the flags`},
		{"host1 host2", `the arguments of verbs pingpong are "host1 host2", allowed: at most 1`},
		{"-s many", `--size is "many", allowed: 1 and more`},
		{"-i 300", "--ib-port is 300, allowed: 1 to 255"},
	} {
		_, err := run(t, append([]string{"pingpong"}, strings.Fields(c.args)...)...)
		if exitStatus(err) != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("pingpong %s: status %d, %v, want %q", c.args, exitStatus(err), err, c.want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"--help", []string{"devices", "info", "pingpong", "RDMAABI", "RDMADEBUG"}},
		{"pingpong --help", []string{"--recv-depth", "--gid", "--events", "-e", "ibv_rc_pingpong"}},
		{"info --help", []string{"--json", "[DEV[/PORT]]"}},
		{"devices --help", []string{"--json"}},
	} {
		out, err := run(t, strings.Fields(c.args)...)
		if err != nil {
			t.Errorf("verbs %s: %v", c.args, err)
		}
		for _, w := range c.want {
			if !strings.Contains(out, w) {
				t.Errorf("verbs %s does not mention %s", c.args, w)
			}
		}
	}
}

func TestPrintDevices(t *testing.T) {
	infos := []uverbs.DeviceInfo{
		{Name: "rxe0", NodeGUID: 0x5054_00ff_fe00_0001, Protocol: "roce", Driver: "rxe", Ports: 1, CharDev: "/dev/infiniband/uverbs0"},
		{Name: "mlx5_0", Protocol: "ib", Driver: "mlx5", Ports: 2, Err: errors.New("not permitted")},
	}
	var out bytes.Buffer
	if err := printDevices(&out, infos, false); err != nil {
		t.Fatal(err)
	}
	want := `device  node GUID            driver  protocol  ports  usable
rxe0    5054:00ff:fe00:0001  rxe     roce      1      yes
mlx5_0  0000:0000:0000:0000  mlx5    ib        2      no: not permitted
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	out.Reset()
	if err := printDevices(&out, infos, true); err != nil {
		t.Fatal(err)
	}
	var rows []deviceRow
	if err := json.Unmarshal(out.Bytes(), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 || !rows[0].Usable || rows[1].Usable || rows[0].Device != "rxe0" || rows[1].Reason != "not permitted" || rows[0].CharDev != "/dev/infiniband/uverbs0" {
		t.Errorf("JSON holds %+v", rows)
	}
}

func TestPrintInfo(t *testing.T) {
	r := deviceReport{
		Device:     "rxe0",
		Driver:     "rxe",
		Attributes: deviceAttributes(uverbs.DeviceAttr{MaxQP: 17, AtomicCap: ib.AtomicHCA, NodeGUID: 0x1234}),
		Ports: []portReport{{
			Port: 1,
			Attributes: portAttributes(uverbs.PortAttr{
				State: ib.PortActive, ActiveMTU: ib.MTU1024, LinkLayer: ib.LinkLayerEthernet, ActiveWidth: 2, ActiveSpeed: 32}),
			GIDs: []gidReport{{Index: 1, GID: "0000", Address: "10.1.0.1", Type: "RoCE v2"}},
		}},
	}
	var out bytes.Buffer
	r.print(&out)
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"device: rxe0", "max_qp: 17", "atomic_cap: ATOMIC_HCA (1)", "node_guid: 0000:0000:0000:1234", "port: 1",
		"state: PORT_ACTIVE (4)", "active_mtu: 1024 (3)", "link_layer: Ethernet", "active_width: 4X (2)", "active_speed: 25.0 Gbps (32)",
		"10.1.0.1, RoCE v2",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q:\n%s", want, out.String())
		}
	}
}
