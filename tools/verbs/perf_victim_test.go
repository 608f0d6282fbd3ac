package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs"
)

// TestPerfServeVictim: whatever a client says, a server sends nothing to a host that has sent it nothing: in each
// test, with a wrong token, without one, and with a path at the client's own address.
func TestPerfServeVictim(t *testing.T) {
	udp := freeUDP(t)
	victim, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 66), Port: udp})
	if err != nil {
		t.Fatal(err)
	}
	defer victim.Close()
	port := fmt.Sprint(freeTCP(t))
	server := softCommand(t, fmt.Sprintf("127.0.0.2:%d", udp), "perf", "serve", "--listen", "127.0.0.2", "--port", port)
	var out bytes.Buffer
	server.Stdout, server.Stderr = &out, &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	there, own := uverbs.GID(net.IPv4(127, 0, 0, 66).To16()), uverbs.GID(net.IPv4(127, 0, 0, 1).To16())
	type variant struct {
		gid, path uverbs.GID
		connected string
	}
	reached := 0
	for _, v := range []variant{
		{there, there, `{"kind":"connected"}`},
		{there, there, `{"kind":"connected","token":"AAAAAAAAAAAAAAAAAAAAAA=="}`},
		{there, own, `{"kind":"connected"}`},
		{there, there, ""}, // straight to the start
	} {
		for _, test := range []struct{ op, metric string }{
			{perf.Send, perf.Lat}, {perf.Send, perf.BW}, {perf.Write, perf.Lat}, {perf.Write, perf.BW},
			{perf.Read, perf.Lat}, {perf.Read, perf.BW}, {perf.Atomic, perf.Lat}, {perf.Atomic, perf.BW},
		} {
			usual := perf.Default(test.op, test.metric)
			for _, typ := range usual.Types() {
				c := usual
				if typ == perf.DC { // which software devices do not have
					continue
				}
				c.Type, c.Both, c.Timeout = typ, test.metric == perf.BW, time.Second
				if typ == perf.UD {
					c.Sizes = []int{512}
				} else if test.op != perf.Atomic {
					c.Sizes = []int{1 << 20}
				}
				if pretendPeer(t, net.JoinHostPort("127.0.0.2", port), c, v.gid, v.path, v.connected) {
					reached++
				}
			}
		}
	}
	server.Process.Signal(syscall.SIGTERM)
	if err := server.Wait(); err != nil {
		t.Errorf("server: %v", err)
	}
	if want := "has not read the token"; reached == 0 || !strings.Contains(out.String(), want) {
		t.Errorf("%d clients were heard to the end, and the server says no %q:\n%s", reached, want, out.String())
	}
	b := make([]byte, 1<<16)
	victim.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if n, _, err := victim.ReadFrom(b); err == nil {
		t.Errorf("the victim has got a datagram of %d bytes: %x", n, b[:min(n, 64)])
	}
}

// pretendPeer is a client without a device, whose queue pairs are at a GID. It reports whether the server has told
// its own.
func pretendPeer(t *testing.T, addr string, c perf.Config, gid, path uverbs.GID, connected string) (told bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	for deadline := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		conn, err = net.Dial("tcp", addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	send := func(v any) {
		b, ok := v.([]byte)
		if !ok {
			if b, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)) // the server may have hung up
	}
	read := func(kind string) bool {
		for {
			var head [4]byte
			if _, err := io.ReadFull(conn, head[:]); err != nil {
				return false
			}
			b := make([]byte, binary.BigEndian.Uint32(head[:]))
			if _, err := io.ReadFull(conn, b); err != nil {
				return false
			}
			var m struct{ Kind string }
			if json.Unmarshal(b, &m); m.Kind == kind {
				return true
			}
		}
	}
	conn.Write(binary.BigEndian.AppendUint32([]byte("goverbs perf"), perf.ProtocolVersion))
	io.ReadFull(conn, make([]byte, 16))
	limits := perf.Limits{Device: "soft0", Driver: "rxe", MaxMsg: 1 << 30, MTU: 1024, MaxWR: 1 << 14, MaxCQE: 1 << 20, MaxQPs: 1 << 10, RdAtomic: 16, Atomics: true}
	send(map[string]any{"kind": "hello", "limits": limits})
	send(map[string]any{"kind": "open", "config": c})
	if !read("opened") {
		t.Fatalf("%s over %s is not opened", c.Name(), c.Type)
	}
	peers := make([]perf.Peer, c.QPs)
	for i := range peers {
		peers[i] = perf.Peer{QPN: 17 + uint32(i), PSN: 1, GID: gid, Addr: 1 << 20, RKey: 1}
	}
	send(map[string]any{"kind": "peers", "peers": peers, "path": perf.Peer{QPN: 16, PSN: 1, GID: path}})
	if told = read("peers"); connected != "" {
		send([]byte(connected))
	}
	send(map[string]any{"kind": "start", "size": c.Sizes[0]})
	read("report") // or the end
	return told
}
