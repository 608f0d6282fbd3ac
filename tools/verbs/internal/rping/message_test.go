package rping

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/uverbs"
)

// TestPingText compares with what rping prints.
func TestPingText(t *testing.T) {
	for n, want := range map[int]string{
		0:   "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr\x00",
		57:  "rdma-ping-57: zABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnop\x00",
		58:  "rdma-ping-58: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopq\x00",
		101: "rdma-ping-101: lmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`a\x00",
	} {
		b := make([]byte, len(want))
		pingText(b, n)
		if string(b) != want {
			t.Errorf("ping %d is\n%q, want\n%q", n, b, want)
		}
	}
	b := make([]byte, MinPing)
	pingText(b, 1<<31-1)
	if text := string(upToNUL(b)); !strings.HasPrefix(text, "rdma-ping-2147483647: ") || len(text) != MinPing-1 {
		t.Errorf("the last ping of the least size is %q", text)
	}
}

func TestAdvert(t *testing.T) {
	a := advert{addr: 0x0123456789abcdef, rkey: 0x11223344, size: 64}
	var b [advertLen]byte
	a.put(b[:])
	if got := hex.EncodeToString(b[:]); got != "0123456789abcdef1122334400000040" {
		t.Errorf("encoded %s", got)
	}
	if got := parseAdvert(b[:]); got != a {
		t.Errorf("decoded %s, want %s", got, a)
	}
}

// TestAdvertCheck: what a peer says of its memory is refused if no ping can be there.
func TestAdvertCheck(t *testing.T) {
	for _, c := range []struct {
		a    advert
		want string
	}{
		{advert{addr: 1, size: 1}, ""},
		{advert{addr: 1<<64 - 1 - MaxPing, rkey: 1<<32 - 1, size: MaxPing}, ""},
		{advert{addr: 1, size: 0}, "is 0 bytes, allowed: 1 to 65535"},
		{advert{addr: 1, size: MaxPing + 1}, "is 65536 bytes, allowed: 1 to 65535"},
		{advert{addr: 1, size: 1<<32 - 1}, "is 4294967295 bytes, allowed: 1 to 65535"},
		{advert{addr: 1<<64 - 1, size: 64}, "is 0xffffffffffffffff, allowed for 64 bytes: up to 0xffffffffffffffbf"},
	} {
		if err := c.a.check(MaxPing); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.a, err, c.want)
		}
	}
}

// FuzzAdvert: memory that is not refused has room for a ping of its size, which does not wrap
// around.
func FuzzAdvert(f *testing.F) {
	f.Add([]byte("\x01\x23\x45\x67\x89\xab\xcd\xef\x11\x22\x33\x44\x00\x00\x00\x40"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\x11\x22\x33\x44\x00\x00\x00\x40"))
	f.Add(make([]byte, advertLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != advertLen {
			return // receive refuses it
		}
		a := parseAdvert(b)
		var again [advertLen]byte
		a.put(again[:])
		if !bytes.Equal(again[:], b) {
			t.Errorf("%x becomes %s, and that %x", b, a, again)
		}
		fits := a.size >= 1 && a.size <= MaxPing && a.addr+uint64(a.size) > a.addr
		if err := a.check(MaxPing); (err == nil) != fits {
			t.Errorf("%s: %v", a, err)
		}
	})
}

// TestRpingAccess: the memory of a server is not for its clients to read, and to write only on
// iWARP, where a READ needs that.
func TestRpingAccess(t *testing.T) {
	const write, read = uverbs.AccessRemoteWrite, uverbs.AccessRemoteRead
	for _, c := range []struct {
		server, iwarp bool
		want          uverbs.Access
	}{{true, false, 0}, {true, true, write}, {false, false, read | write}, {false, true, read | write}} {
		if got := dataAccess(c.server, c.iwarp); got != c.want|uverbs.AccessLocalWrite {
			t.Errorf("server %v, iWARP %v: %s", c.server, c.iwarp, got)
		}
	}
}

func TestRpingResult(t *testing.T) {
	r := Result{Role: "server"}
	r.add(0, 0, 0, errors.New("rejected"))
	r.add(10, 1280, time.Millisecond, nil)
	r.add(30, 3840, 3*time.Millisecond, nil)
	if r.Connections != 3 || r.Failed != 1 || r.Pings != 40 || r.MicrosPerPing != 100 {
		t.Errorf("result is %+v", r)
	}
	var out bytes.Buffer
	if err := r.print(&out, false); err != nil || out.String() != "40 pings, 5120 bytes in 0.00 seconds = 100.00 usec/ping\n" {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}

// TestRpingCompletions: a completion that is not the next one of rping's order is refused.
func TestRpingCompletions(t *testing.T) {
	message, read := awaited{recvID, uverbs.WCRecv}, awaited{memoryID, uverbs.WCRDMARead}
	recv := uverbs.WC{ID: recvID, Opcode: uverbs.WCRecv, ByteLen: advertLen}
	fetched := uverbs.WC{ID: memoryID, Opcode: uverbs.WCRDMARead, ByteLen: 64}
	send := uverbs.WC{ID: sendID, Opcode: uverbs.WCSend, ByteLen: advertLen}
	for name, err := range map[string]error{
		"message": message.check(&recv), "READ": read.check(&fetched), "send, for a message": message.check(&send), "send, for a READ": read.check(&send),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	fails := func(a awaited, wc uverbs.WC, want string) {
		if err := a.check(&wc); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", wc, err, want)
		}
	}
	imm := recv
	imm.Opcode, imm.Flags = uverbs.WCRecvRDMAWrite, uverbs.WCWithImm
	fails(message, imm, "is a RECV_RDMA_WITH_IMM of")
	fails(read, recv, "(RECV, 16 bytes), but the peer has sent before its turn")
	fails(message, fetched, "request 3 has completed (RDMA_READ, 64 bytes), which is not pending")
	fails(message, uverbs.WC{ID: 9}, "request 9 has completed (SEND, 0 bytes), which is not pending")
	fetched.Opcode = uverbs.WCRDMAWrite
	fails(read, fetched, "(RDMA_WRITE, 64 bytes), which is not pending")
	send.Opcode = uverbs.WCRDMAWrite
	fails(read, send, "(RDMA_WRITE, 16 bytes), which is not pending")
}
