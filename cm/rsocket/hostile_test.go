package rsocket

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/goverbs/cm"
	"github.com/goverbs/goverbs/test/testenv"
)

// FuzzParseConnData: any private data gives an error, or values within their limits that encode to
// the same.
func FuzzParseConnData(f *testing.F) {
	good := connData{credits: 384, table: segment{1 << 40, 7, 2}, buffer: segment{1 << 41, 8, 65536}}.encode()
	f.Add(good)
	f.Add(append(bytes.Clone(good), make([]byte, 16)...))
	f.Add([]byte("gv\x02\x01"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseConnData(b)
		if err != nil {
			if !errors.Is(err, syscall.EPROTO) {
				t.Errorf("%v does not match EPROTO", err)
			}
			return
		}
		if d.credits == 0 || d.table.length == 0 || d.table.length > 1<<16 || d.buffer.length == 0 || d.buffer.wraps() || d.mappings > 127<<8 {
			t.Errorf("%+v is out of range", d)
		}
		if !d.bigEndian && d.mappings <= maxMappings { // this side encodes no other
			want := bytes.Clone(b[:connDataSize])
			want[1], want[4], want[5], want[6], want[7] = 0, 0, 0, 0, byte(d.mappings)
			if d.mappings > 0 {
				want[1] = flagMappings
			}
			if !bytes.Equal(d.encode(), want) {
				t.Errorf("% x encodes to % x", b, d.encode())
			}
		}
	})
}

// TestMessages: each violation has an error that says what the peer has done.
func TestMessages(t *testing.T) {
	for _, s := range []struct {
		messages []uint32
		say      string // "" if they are right
	}{
		{[]uint32{message(opData, 2048)}, ""},
		{[]uint32{message(opData, 2000), message(opData, 49)}, "written 49 bytes, and has room for 48"},
		{[]uint32{message(opData, valueMask)}, "written 536870911 bytes"},
		{bytesOf(17), "more than the 16 messages"},
		{[]uint32{message(opCredits, 100)}, ""},
		{[]uint32{message(opCredits, 101)}, "credits for 101 messages, and said at first that it has 100"},
		{[]uint32{message(opCredits, 65535)}, "credits for 65535 messages"},
		{[]uint32{message(opControl, controlShutdown), message(opData, 1)}, "data after its end"},
		{[]uint32{message(opControl, controlDisconnect)}, ""},
		{[]uint32{message(opControl, 3)}, "control message 3"},
		{[]uint32{message(opMapping, bareMappings)}, "announces mapping 2, and this side has said that it has room for 2"},
		{[]uint32{message(opMapping, 1)}, "announced a mapping with 0 bytes, want 24"},
		{[]uint32{message(1, 5)}, "message of type 1"},
	} {
		c, _ := bareState(false)
		var err error
		for _, m := range s.messages {
			written := uint32(0)
			if m>>opShift == opData {
				written = m & valueMask
			}
			if err = c.handle(m, written); err != nil {
				break
			}
		}
		if s.say == "" && err != nil || s.say != "" && (!errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), s.say)) {
			t.Errorf("%x: %v, want %q", s.messages, err, s.say)
		}
	}
}

// TestAnnouncements: each violation in the announcement of a buffer has an error that says what the peer
// has done.
func TestAnnouncements(t *testing.T) {
	for _, a := range []struct {
		entry   segment
		written uint32
		times   int
		say     string // "" if it is right
	}{
		{segment{1 << 40, 3, 4096}, segmentSize, 1, ""},
		{segment{^uint64(0) - 4095, 3, 4096}, segmentSize, 1, ""},
		{segment{^uint64(0) - 4094, 3, 4096}, segmentSize, 1, "buffer of 4096 bytes at 0xfffffffffffff001, which goes beyond"},
		{segment{1 << 40, 3, 0}, segmentSize, 1, "a buffer of 0 bytes"},
		{segment{1 << 40, 3, 4096}, 8, 1, "announced a buffer with 8 bytes, want 16"},
		{segment{1 << 40, 3, 4096}, segmentSize, 4, "has announced 3 buffers that are not used yet"},
	} {
		s, peer := bareState(false)
		s.advance(int(peer.buffer.length))
		a.entry.put(s.table[segmentSize:], s.order)
		var err error
		for range a.times {
			if err = s.handle(message(opCredits, 1), a.written); err != nil {
				break
			}
			if s.remote != a.entry {
				t.Errorf("%+v is announced, and %+v is used", a.entry, s.remote)
			}
		}
		if a.say == "" && err != nil || a.say != "" && (!errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), a.say)) {
			t.Errorf("%+v: %v, want %q", a, err, a.say)
		}
	}
}

// TestMappings: each violation in the announcement of mapped memory has an error that says what the peer has
// done.
func TestMappings(t *testing.T) {
	for _, a := range []struct {
		mapping mapping
		written uint32
		say     string // "" if it is right
	}{
		{mapping{0, segment{1 << 40, 3, 4096}}, mappingSize, ""},
		{mapping{1 << 62, segment{^uint64(0) - 4095, 3, 4096}}, mappingSize, ""},
		{mapping{0, segment{^uint64(0) - 4094, 3, 4096}}, mappingSize, "a mapping of 4096 bytes at 0xfffffffffffff001, with the offset 0x0, which goes beyond"},
		{mapping{^uint64(0) - 100, segment{1 << 40, 3, 4096}}, mappingSize, "which goes beyond"},
		{mapping{0, segment{1 << 40, 3, 0}}, mappingSize, "a mapping of 0 bytes"},
		{mapping{0, segment{1 << 40, 3, 4096}}, segmentSize, "announced a mapping with 16 bytes, want 24"},
	} {
		s, _ := bareState(false)
		a.mapping.put(s.table[tableEntries*segmentSize+mappingSize:], s.order)
		err := s.handle(message(opMapping, 1), a.written)
		if a.say == "" && err != nil || a.say != "" && (!errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), a.say)) {
			t.Errorf("%+v: %v, want %q", a, err, a.say)
		}
		m := a.mapping
		want := segment{}
		if a.say == "" {
			want = segment{m.memory.addr + 96, 3, 4000}
		}
		if got := s.mappedAt(m.offset + 96); got != want {
			t.Errorf("%+v: byte 96 is at %+v, want %+v", a, got, want)
		}
		if got := s.mappedAt(m.offset + uint64(m.memory.length)); got != (segment{}) {
			t.Errorf("%+v: the byte after the last is at %+v", a, got)
		}
	}
}

// bytesOf returns messages with a byte each.
func bytesOf(n int) (all []uint32) {
	for range n {
		all = append(all, message(opData, 1))
	}
	return all
}

// TestOtherProtocol: a peer that speaks another protocol, on each side.
func TestOtherProtocol(t *testing.T) {
	testenv.Guest(t)
	l, err := cm.Listen(t.Context(), testenv.TheRig().Addrs[0]+":0", cm.ListenOptions{})
	must(t, err)
	defer l.Close()
	_, err = Dial(t.Context(), l.Addr().String(), Options{})
	if !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, syscall.EPROTO) || !strings.Contains(err.Error(), "the protocol of cm.Conn and cm.Stream, not rsocket") {
		t.Errorf("a listener of package cm: %v", err)
	}
	ours := newListener(t, Options{})
	dial := map[string]func() error{
		"a cm.Conn": func() error {
			_, err := cm.Dial(t.Context(), ours.Addr().String(), cm.DialOptions{})
			return err
		},
		"a cm.Stream": func() error {
			_, err := new(cm.Dialer).DialContext(t.Context(), "tcp", ours.Addr().String())
			return err
		},
	}
	for name, dial := range dial {
		if err := dial(); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "this port speaks rsocket") {
			t.Errorf("our listener, from %s: %v", name, err)
		}
	}
	client, server, err := connect(ours, Options{}) // it still works
	must(t, err)
	must(t, client.Close(), server.Close())
}

// pairWith connects a hostile peer with an honest one and lets it act. The honest side then reads until
// an error, which is returned.
func pairWith(t *testing.T, l *Listener, act func(c *conn)) error {
	t.Helper()
	client, server, err := connect(l, Options{})
	must(t, err)
	hostile := client.(*Conn).c
	hostile.Mu.Lock()
	act(hostile)
	hostile.Mu.Unlock()
	must(t, server.SetDeadline(time.Now().Add(timeout)))
	_, err = io.Copy(io.Discard, struct{ io.Reader }{server})
	if err == nil {
		_, err = server.Write(make([]byte, 100<<10))
	}
	hostile.Mu.Lock()
	hostile.Fail(errors.New("the test is over"))
	hostile.Mu.Unlock()
	client.Close()
	server.Close()
	return err
}

// TestHostile: what a peer does ends its connection with an error that says so, and the listener goes
// on.
func TestHostile(t *testing.T) {
	l := newListener(t, Options{})
	for _, s := range []struct {
		name string
		act  func(c *conn)
		say  string
	}{
		{"more data than there is room for", func(c *conn) { c.sendControl(message(opData, 1<<20)) }, "has written 1048576 bytes"},
		{"forged credits", func(c *conn) { c.sendControl(message(opCredits, 30000)) }, "credits for 30000 messages"},
		{"an unknown type", func(c *conn) { c.sendControl(message(2, 0)) }, "message of type 2"},
		{"a mapping", func(c *conn) { c.sendControl(message(opMapping, 1)) }, "announces mapping 1, and this side has said that it has room for 0"},
		{"an unknown control message", func(c *conn) { c.sendControl(message(opControl, 77)) }, "control message 77"},
		{"data after the end", func(c *conn) {
			c.sendControl(message(opControl, controlShutdown))
			c.sendControl(message(opData, 1))
		}, "data after its end"},
		{"it is gone", func(c *conn) { c.ID.Disconnect() }, "gone without closing"},
	} {
		t.Run(s.name, func(t *testing.T) {
			if err := pairWith(t, l, s.act); err == nil || !strings.Contains(err.Error(), s.say) {
				t.Errorf("%v, want %q", err, s.say)
			}
		})
	}
	shared.CheckNext(t, l)
}

// TestForgedBuffer: a peer announces a buffer that does not exist.
func TestForgedBuffer(t *testing.T) {
	l := newListener(t, Options{})
	client, server, err := connect(l, Options{})
	must(t, err)
	honest, hostile := server.(*Conn).c, client.(*Conn).c
	honest.Mu.Lock()
	honest.remote.addr += 1 << 30
	honest.Mu.Unlock()
	must(t, server.SetDeadline(time.Now().Add(timeout)))
	_, err = server.Write([]byte("into nothing"))
	for err == nil {
		_, err = server.Write(make([]byte, 1000))
	}
	if !strings.Contains(err.Error(), "remote access error") && !strings.Contains(err.Error(), "remote invalid request") && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("write into a buffer that does not exist: %v", err)
	}
	hostile.Close()
	honest.Close()
}

// TestIsolation: a peer that knows address and key of another connection's buffer writes into that only if
// the two share a PD. Its own connection ends otherwise, and the other does not notice.
func TestIsolation(t *testing.T) {
	for _, isolation := range []Isolation{ConnPD, SharedPD} {
		t.Run(isolation.String(), func(t *testing.T) {
			l := newListener(t, Options{Isolation: isolation})
			client, server, err := connect(l, Options{})
			must(t, err)
			honest := server.(*Conn).c
			b := honest.RecvMem.MR.Bytes()
			end := b[honest.RecvBuffer-6 : honest.RecvBuffer] // no data gets that far
			buffer := segment{honest.RecvMem.MR.Addr() + uint64(honest.RecvBuffer) - 6, honest.RecvMem.MR.RKey(), 6}
			err = pairWith(t, l, func(c *conn) {
				c.transfer([]byte("attack"), buffer)
				c.sendControl(message(opControl, controlDisconnect))
				for c.Err == nil && !c.AllSent() {
					c.Poll()
				}
			})
			reached := string(end) == "attack"
			if want := isolation == SharedPD; reached != want || errors.Is(err, syscall.EPIPE) != want { // EPIPE: it has closed the connection in order
				t.Errorf("the buffer of another connection was written: %v, want %v; %v", reached, want, err)
			}
			_, err = client.Write([]byte("still here"))
			must(t, err, client.Close(), server.SetDeadline(time.Now().Add(timeout)))
			got, err := io.ReadAll(server)
			must(t, err, server.Close())
			if string(got) != "still here" {
				t.Errorf("%q arrives", got)
			}
		})
	}
}
