package cm

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestParseHeader: the bytes of a message's header.
func TestParseHeader(t *testing.T) {
	for _, c := range []struct {
		b    []byte
		want header // the zero value: refused
	}{
		{[]byte{1, 0, 1, 2, 0, 0, 0, 2, 'a', 'b'}, header{kind: msgData, credits: 0x102, length: 2}},
		{[]byte{1, 0, 0, 0, 0, 0, 0, 0}, header{kind: msgData}},
		{[]byte{2, 0, 0, 3, 0, 0, 0, 0}, header{kind: msgCredits, credits: 3}},
		{[]byte{3, 0, 0, 0, 0, 0, 0, 0}, header{kind: msgEnd}},
		{[]byte{3, 1, 0, 0, 0, 0, 0, 0}, header{kind: msgEnd, closesRead: true}},
		{[]byte{4, 0, 0, 0, 0, 0, 0, 0}, header{kind: msgWant}},
		{[]byte{5, 0, 0, 12, 1, 2, 3, 4}, header{kind: msgGrown, credits: 12, recvs: 0x1020304}},
		{[]byte{6, 0, 0, 0, 0, 0, 0, 0}, header{kind: msgPad}},
		{b: []byte{1, 0, 0, 0, 0, 0, 0}},
		{b: []byte{0, 0, 0, 0, 0, 0, 0, 0}},
		{b: []byte{7, 0, 0, 0, 0, 0, 0, 0}},
		{b: []byte{3, 2, 0, 0, 0, 0, 0, 0}},
		{b: []byte{1, 1, 0, 0, 0, 0, 0, 0}},
		{b: []byte{1, 0, 0, 0, 0, 0, 0, 1}},
		{b: []byte{1, 0, 0, 0, 0, 0, 0, 0, 'a'}},
		{b: []byte{2, 0, 0, 0, 0, 0, 0, 1, 'a'}},
		{b: []byte{5, 0, 0, 0, 0, 0, 0, 1, 'a'}},
	} {
		got, err := parseHeader(c.b)
		if got != c.want || (err == nil) != (c.want != header{}) || err != nil && !errors.Is(err, syscall.EPROTO) {
			t.Errorf("% x: %+v, %v, want %+v", c.b, got, err, c.want)
		}
	}
}

// TestFrameBytes: what is on the wire, byte by byte, as PROTOCOL.md has it.
func TestFrameBytes(t *testing.T) {
	var got [][]byte
	for _, h := range []greeting{
		{kind: greetingRequest, depth: 0x0102, size: 0x03040506, first: 7, data: []byte("ab")},
		{kind: greetingAnswer, depth: 16, size: 32768}, {kind: greetingRefusal, data: []byte("no")},
	} {
		got = append(got, h.encode())
	}
	for _, h := range []header{
		{kind: msgData, credits: 0x0102, length: 0x03040506}, {kind: msgCredits, credits: 3}, {kind: msgEnd}, {kind: msgEnd, closesRead: true},
		{kind: msgWant}, {kind: msgGrown, credits: 12, recvs: 0x01020304}, {kind: msgPad},
	} {
		b := bytes.Repeat([]byte{0xff}, headerSize)
		h.put(b)
		got = append(got, b)
	}
	want := [][]byte{
		{'g', 'v', 2, 1, 1, 2, 7, 2, 3, 4, 5, 6, 'a', 'b'}, {'g', 'v', 2, 2, 0, 16, 0, 0, 0, 0, 128, 0}, {'g', 'v', 2, 3, 0, 0, 0, 2, 0, 0, 0, 0, 'n', 'o'},
		{1, 0, 1, 2, 3, 4, 5, 6}, {2, 0, 0, 3, 0, 0, 0, 0}, {3, 0, 0, 0, 0, 0, 0, 0}, {3, 1, 0, 0, 0, 0, 0, 0},
		{4, 0, 0, 0, 0, 0, 0, 0}, {5, 0, 0, 12, 1, 2, 3, 4}, {6, 0, 0, 0, 0, 0, 0, 0},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("frames (-want +got):\n%s", diff)
	}
	if firstSize != 448 || firstData != 440 || headerSize != 8 || greetingSize != 12 || firstDepth != 4 || spareRecv != 5 {
		t.Error("a size that is part of the protocol has changed")
	}
}

// TestVersions: a request of a later version is answered with the version of this side; an answer and
// messages have no other.
func TestVersions(t *testing.T) {
	greeting := func(version, kind uint8) []byte {
		return []byte{'g', 'v', version, kind, 0, 4, 0, 0, 0, 0, 0, 100}
	}
	for _, c := range []struct {
		version, kind uint8
		want          uint8 // 0: refused
	}{
		{1, greetingRequest, 0}, {2, greetingRequest, 2}, {3, greetingRequest, 2}, {255, greetingRequest, 2},
		{1, greetingAnswer, 0}, {2, greetingAnswer, 2}, {3, greetingAnswer, 0},
		{1, greetingRefusal, 1}, {2, greetingRefusal, 2}, {3, greetingRefusal, 3}, // the text is where it was
	} {
		h, err := parseGreeting(greeting(c.version, c.kind), c.kind)
		if (err == nil) != (c.want != 0) || err == nil && h.version != c.want || err != nil && !errors.Is(err, syscall.EPROTO) {
			t.Errorf("version %d of kind %d: %d, %v, want %d", c.version, c.kind, h.version, err, c.want)
		}
	}
}

// FuzzHello: no private data makes a listener panic, and what is taken is what was sent. The same holds for the
// header of a message.
func FuzzHello(f *testing.F) {
	f.Add(greeting{kind: greetingRequest, depth: 4, size: 100, first: 4, data: []byte("data")}.encode(), uint8(greetingRequest))
	f.Add(greeting{kind: greetingRefusal, data: []byte("no")}.encode(), uint8(greetingRefusal))
	f.Add([]byte{msgData, 0, 1, 2, 0, 0, 0, 2, 'a', 'b'}, uint8(0))
	f.Add([]byte{msgGrown, 0, 0, 12, 1, 2, 3, 4}, uint8(0))
	f.Add([]byte{msgEnd, 1, 0, 0, 0, 0, 0, 0}, uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, kind uint8) {
		if h, err := parseHeader(b); err == nil {
			again := make([]byte, headerSize)
			h.put(again)
			if !bytes.Equal(again, b[:headerSize]) || h.length != len(b)-headerSize {
				t.Errorf("the message %x has the header %+v, which becomes %x", b, h, again)
			}
		} else if !errors.Is(err, syscall.EPROTO) {
			t.Error(err)
		}
		h, err := parseGreeting(b, kind)
		if err != nil {
			if !errors.Is(err, syscall.EPROTO) {
				t.Error(err)
			}
			return
		}
		if again := h.encode(); !bytes.Equal(again[3:], b[3:len(again)]) || h.kind != kind || h.version > b[2] {
			t.Errorf("%x becomes %+v, and %x", b, h, again)
		}
		if kind != greetingRefusal && (h.depth < 1 || h.depth > maxDepth || h.size < 1 || h.size > maxMessageSize || h.first > h.depth) {
			t.Errorf("%x is taken as %+v", b, h)
		}
	})
}

// FuzzRemote: memory of a peer's that was described in a message keeps its description.
func FuzzRemote(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), uint32(3))
	f.Add([]byte("short"), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, offset uint32) {
		var r Remote
		err := r.UnmarshalBinary(b)
		if (err == nil) != (len(b) >= remoteSize) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err != nil {
			return
		}
		if again := value(r.MarshalBinary())(t); !bytes.Equal(again, b[:remoteSize]) {
			t.Errorf("%x becomes %x", b[:remoteSize], again)
		}
		at := r.At(offset)
		if at.RKey != r.RKey || at.Length > r.Length || at.Addr-r.Addr != uint64(r.Length-at.Length) {
			t.Errorf("%+v from byte %d on is %+v", r, offset, at)
		}
	})
}
