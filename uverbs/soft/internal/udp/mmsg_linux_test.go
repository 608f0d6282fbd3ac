package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/uverbs/soft/internal/wire"
)

// TestSegmentIDs: the IDs with which packets are sealed count up within the segments of one buffer, and
// are 0 without segments.
func TestSegmentIDs(t *testing.T) {
	local := netip.MustParseAddrPort("127.0.0.1:0")
	for _, c := range []struct {
		name string
		o    Options
		want []uint16
	}{
		{"GSO", Options{}, []uint16{0, 1, 2, 3, 0, 1, 0, 0, 1}},
		{"no GSO", Options{NoGSO: true}, make([]uint16, 9)},
		{"plain", Options{Plain: true}, make([]uint16, 9)},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := open(t, local, c.o), open(t, local, Options{})
			var batch Batch
			for i, size := range []int{64, 64, 64, 20, 32, 32, 64} {
				fill(t, &batch, b.LocalAddr(), size, uint64(i))
			}
			for i := range 2 {
				fill(t, &batch, b.LocalAddr(), 64, uint64(i))
				batch.SetIP(IP{TrafficClass: 4}) // not a segment with packets of another class
			}
			if err := a.Send(&batch); err != nil {
				t.Fatal(err)
			}
			var got []uint16
			_, metas := collect(t, b, len(c.want))
			for _, m := range metas {
				got = append(got, m.ID)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestManySegments: no buffer has more than 64 segments or 65507 bytes.
func TestManySegments(t *testing.T) {
	to := netip.MustParseAddrPort("127.0.0.1:4791")
	for _, c := range []struct{ size, packets, want int }{
		{16, 100, 64}, {1024, 100, 63}, {4112, 50, 15}, {40000, 2, 1}, {16, 1, 1},
	} {
		var b Batch
		for range c.packets {
			b.Reserve(to, c.size)
		}
		if got := segments(&b, 0); got != c.want {
			t.Errorf("%d packets of %d bytes: %d segments, want %d", c.packets, c.size, got, c.want)
		}
	}
}

// TestGSOFallback: if the kernel refuses segments, the packets go one by one, and no more segments are
// tried. Without checksums, as with a link that cannot compute them, the kernel refuses segments.
func TestGSOFallback(t *testing.T) {
	local := netip.MustParseAddrPort("127.0.0.1:0")
	a, b := open(t, local, Options{}), open(t, local, Options{})
	m := a.t.(*mmsg)
	if err := m.set("SO_NO_CHECK", unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
		t.Fatal(err)
	}
	var batch Batch
	for i, size := range []int{64, 20, 64, 64, 64, 20, 100} {
		fill(t, &batch, b.LocalAddr(), size, uint64(i))
	}
	for round := range 2 {
		if err := a.Send(&batch); err != nil {
			t.Fatal(err)
		}
		got, metas := collect(t, b, batch.Len())
		if diff := cmp.Diff(sent(a, &batch), got); diff != "" {
			t.Errorf("round %d (-sent +received):\n%s", round, diff)
		}
		for i, meta := range metas {
			if meta.ID != 0 {
				t.Errorf("round %d: packet %d is sealed with ID %d", round, i, meta.ID)
			}
		}
	}
	if n := a.Counters().GSOFallbacks; n != 1 || m.gso.Load() {
		t.Errorf("%d fallbacks, GSO is %v, want 1, false", n, m.gso.Load())
	}
}

// TestGSOStays: packets that the kernel refuses one by one, too, do not turn GSO off.
func TestGSOStays(t *testing.T) {
	a := open(t, netip.MustParseAddrPort("127.0.0.1:0"), Options{})
	m := a.t.(*mmsg)
	var batch Batch
	for i := range 3 {
		fill(t, &batch, netip.MustParseAddrPort("198.51.100.7:4791"), 64, uint64(i)) // not from 127.0.0.1
	}
	if err := a.Send(&batch); err == nil {
		t.Error("packets from 127.0.0.1 to another host were sent")
	}
	if c := a.Counters(); c.NoRoute+c.SendFailures != 3 || c.GSOFallbacks != 1 || !m.gso.Load() {
		t.Errorf("GSO is %v, want true; counters: %+v", m.gso.Load(), c)
	}
}

// TestNoConnect: the socket is not connected and discovers the path MTU by PROBE, on which ID 0 depends.
func TestNoConnect(t *testing.T) {
	for _, o := range []Options{{}, {Plain: true}} {
		s := open(t, netip.MustParseAddrPort("127.0.0.1:0"), o)
		check := func(fd uintptr) {
			if v, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER); err != nil || v != unix.IP_PMTUDISC_PROBE {
				t.Errorf("IP_MTU_DISCOVER is %d, %v", v, err)
			}
			if sa, err := unix.Getpeername(int(fd)); err != unix.ENOTCONN {
				t.Errorf("the peer's name is %v, %v, want ENOTCONN", sa, err)
			}
		}
		var err error
		switch x := s.t.(type) {
		case *mmsg:
			err = x.raw.Control(check)
		case *plain:
			raw, _ := x.conn.SyscallConn()
			err = raw.Control(check)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// TestOverflows: packets that the kernel drops because the receive buffer is full are counted.
func TestOverflows(t *testing.T) {
	local := netip.MustParseAddrPort("127.0.0.1:0")
	a, b := open(t, local, Options{}), open(t, local, Options{ReceiveBuffer: 4096})
	var batch Batch
	for i := range 60 {
		fill(t, &batch, b.LocalAddr(), 4096, uint64(i))
	}
	for range 4 {
		if err := a.Send(&batch); err != nil {
			t.Fatal(err)
		}
	}
	if c := b.Counters(); c.Overflows == 0 {
		t.Errorf("no overflows: %+v", c)
	}
}

// fakeProc makes a /proc and a /sys with the given files.
func fakeProc(t *testing.T, files map[string]string) (proc, sys string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if link, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(link, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "proc"), filepath.Join(dir, "sys")
}

const (
	udpHead = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"
	// rxe binds to all addresses.
	rxe4 = "  291: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 5801 2 0000000000000000 0\n"
	rxe6 = "  291: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 5802 2 0000000000000000 0\n"
	// 127.0.0.1 and ::1, user 1000
	own4 = "  292: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4711 2 0000000000000000 0\n"
	own6 = "  292: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4712 2 0000000000000000 0\n"
)

func TestPortHolder(t *testing.T) {
	const rxeModule = "sys/module/rdma_rxe/refcnt"
	const rxe = "the kernel's rdma_rxe (\"verbs devices\" lists its devices; \"verbs link delete NAME\" removes one, and \"modprobe -r rdma_rxe\" the module)"
	for _, c := range []struct {
		name  string
		files map[string]string
		addr  string
		want  string
	}{
		{"rdma_rxe", map[string]string{"proc/thread-self/net/udp": udpHead + rxe4, rxeModule: "0"}, "10.0.0.1:4791", rxe},
		{"rdma_rxe, IPv6", map[string]string{"proc/thread-self/net/udp": udpHead + rxe4, "proc/thread-self/net/udp6": udpHead + rxe6, rxeModule: "0"}, "[fd00::1]:4791", rxe},
		{"a process", map[string]string{"proc/thread-self/net/udp": udpHead + own4, "proc/77/fd/3": "-> socket:[4711]", "proc/77/comm": "rping\n", rxeModule: "0"}, "127.0.0.1:4791", `process 77 ("rping")`},
		{"a process whose name clears the screen", map[string]string{"proc/thread-self/net/udp": udpHead + own4, "proc/77/fd/3": "-> socket:[4711]", "proc/77/comm": "a\x1b[2J\n"}, "127.0.0.1:4791", `process 77 ("a\x1b[2J")`},
		{"a process, IPv6", map[string]string{"proc/thread-self/net/udp6": udpHead + own6, "proc/77/fd/3": "-> socket:[4712]", "proc/78/fd/3": "-> socket:[4711]"}, "[::1]:4791", "process 77"},
		{"all addresses of both families", map[string]string{"proc/thread-self/net/udp6": udpHead + rxe6, "proc/77/fd/3": "-> socket:[5802]", "proc/77/comm": "x"}, "127.0.0.1:4791", `process 77 ("x")`},
		{"this process", map[string]string{"proc/thread-self/net/udp": udpHead + own4, fmt.Sprintf("proc/%d/fd/3", os.Getpid()): "-> socket:[4711]"}, "127.0.0.1:4791", "this process"},
		{"another user's", map[string]string{"proc/thread-self/net/udp": udpHead + own4}, "127.0.0.1:4791", "a process of user ID 1000 that this process may not look into"},
		{"without the module", map[string]string{"proc/thread-self/net/udp": udpHead + rxe4}, "127.0.0.1:4791", "a process of user ID 0 that this process may not look into"},
		{"another address", map[string]string{"proc/thread-self/net/udp": udpHead + own4}, "127.0.0.2:4791", ""},
		{"another port", map[string]string{"proc/thread-self/net/udp": udpHead + own4}, "127.0.0.1:4792", ""},
		{"nonsense", map[string]string{"proc/thread-self/net/udp": "a b c\n" + "1: xx:12B7 2 3 4 5 6 7 8 9 10\n1: 01:12B7 2 3 4 5 6 7 8 9 10\n" + strings.Replace(own4, "1000", "user", 1)}, "127.0.0.1:4791", ""},
		{"no /proc", nil, "127.0.0.1:4791", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			proc, sys := fakeProc(t, c.files)
			if got := holderUnder(proc, sys, netip.MustParseAddrPort(c.addr)); got != c.want {
				t.Errorf("the holder is %q, want %q", got, c.want)
			}
		})
	}
}

// TestPoll: Poll receives without waiting, beside a goroutine that waits in Receive, and the packets stay
// in order.
func TestPoll(t *testing.T) {
	a, b := open(t, netip.MustParseAddrPort("127.0.0.1:0"), Options{NoGSO: true}), open(t, netip.MustParseAddrPort("127.0.0.1:0"), Options{})
	var next, done int // only one of both counts at a time
	inOrder := func(_ netip.AddrPort, packet []byte, _ Meta) {
		if int(packet[len(packet)-wire.ICRCSize-1]) != next&0xff {
			t.Errorf("packet %d ends with %#x", next, packet[len(packet)-wire.ICRCSize-1])
		}
		next++
	}
	batches := func() bool {
		done++
		return true
	}
	if b.Poll(inOrder, batches) || done != 0 {
		t.Fatal("Poll has received something before anything was sent")
	}
	var batch Batch
	send := func(n int) {
		batch.Reset()
		packet := batch.Reserve(b.LocalAddr(), 64)
		(&wire.Header{Opcode: wire.RC | wire.SendOnly, DestQP: 17}).Put(packet)
		packet[64-wire.ICRCSize-1] = byte(n)
		if err := a.Send(&batch); err != nil {
			t.Fatal(err)
		}
	}
	send(0)
	if !b.Poll(inOrder, batches) || next != 1 || done != 1 {
		t.Fatalf("Poll has handled %d packets in %d batches, want 1 in 1", next, done)
	}
	if allocs := testing.AllocsPerRun(100, func() {
		send(next)
		b.Poll(inOrder, batches)
	}); allocs != 0 {
		t.Errorf("Poll allocates %v times", allocs)
	}

	ended, first := make(chan bool), next
	go func() {
		b.Receive(inOrder, batches)
		close(ended)
	}()
	for n := range 1000 {
		send(first + n)
		b.Poll(inOrder, batches)
	}
	for b.Counters().Received < uint64(first+1000) {
		runtime.Gosched()
	}
	b.Close()
	<-ended
	if next != first+1000 || b.Poll(inOrder, batches) {
		t.Errorf("%d packets were handled, want %d; or a closed socket receives", next, first+1000)
	}
}

// TestReceiveCalls: a call of Receive handles all batches, and asks the kernel once for each, not again when
// nothing is left.
func TestReceiveCalls(t *testing.T) {
	for _, o := range []Options{{}, {NoGRO: true}} {
		a, b := open(t, netip.MustParseAddrPort("127.0.0.1:0"), Options{NoGSO: true}), open(t, netip.MustParseAddrPort("127.0.0.1:0"), o)
		var batch Batch
		send := func(n int) {
			batch.Reset()
			fill(t, &batch, b.LocalAddr(), n, 1)
			if err := a.Send(&batch); err != nil {
				t.Fatal(err)
			}
		}
		const before, later = 3 * plainBuffers, 200
		for range before {
			send(64)
		}
		handled, ended := make(chan bool, before), make(chan error)
		go func() {
			ended <- b.Receive(func(netip.AddrPort, []byte, Meta) { handled <- true }, func() bool { return true })
		}()
		for range before {
			<-handled
		}
		empty := b.t.(*mmsg).r.empty.Load
		first := empty()
		for range later {
			send(64)
			<-handled
		}
		if n := empty() - first; n > later/4 {
			t.Errorf("%d calls found nothing, for %d packets one by one", n, later)
		}
		b.Close()
		if err := <-ended; err != net.ErrClosed {
			t.Errorf("Receive returned %v, want net.ErrClosed", err)
		}
	}
}
