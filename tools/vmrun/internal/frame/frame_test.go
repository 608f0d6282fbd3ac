package frame

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestReadWhatWasSent(t *testing.T) {
	want := []Message{
		{Hello, []byte(`{"Release":"6.1"}`)}, {Stdout, []byte("out")}, {Stdout, []byte{}},
		{Signal, []byte{3}}, {Kmsg, bytes.Repeat([]byte("k"), MaxPayload)}, {Done, []byte{}},
	}
	var wire bytes.Buffer
	w := NewWriter(&wire)
	for _, m := range want {
		if err := w.Send(m.Kind, m.Payload); err != nil {
			t.Fatal(err)
		}
	}
	r := iotest.OneByteReader(&wire)
	for i, m := range want {
		got, err := Read(r)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(m, got); d != "" {
			t.Errorf("message %d: %s", i, d)
		}
	}
	if _, err := Read(r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want EOF", err)
	}
}

func TestSendTooLong(t *testing.T) {
	long := make([]byte, MaxPayload+1)
	var wire bytes.Buffer
	w := NewWriter(&wire)
	if err := w.Send(Stdout, long); err == nil || wire.Len() != 0 {
		t.Errorf("a stream's piece of %d bytes: %v, %d bytes sent", len(long), err, wire.Len())
	}
	// Text is cut, since what it tells stands at its beginning.
	if err := w.Send(Fatal, long); err != nil {
		t.Fatal(err)
	}
	if m, err := Read(&wire); err != nil || len(m.Payload) != MaxPayload {
		t.Errorf("cut text: %d bytes, %v", len(m.Payload), err)
	}
}

func TestReadGarbage(t *testing.T) {
	for _, tt := range []struct {
		name, wire string
		want       error
	}{
		{"nothing", "", io.EOF},
		{"half a header", "o\x01", io.ErrUnexpectedEOF},
		{"no payload", "o\x01\x00\x00\x00", io.ErrUnexpectedEOF},
		{"half a payload", "o\x02\x00\x00\x00x", io.ErrUnexpectedEOF},
		{"unknown kind", "?\x00\x00\x00\x00", ErrFormat},
		{"console text", "[    0.000000] Linux version", ErrFormat},
		{"too long", "o\x01\x80\x00\x00", ErrFormat},
		{"far too long", "o\xff\xff\xff\xff", ErrFormat},
	} {
		if _, err := Read(strings.NewReader(tt.wire)); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestParseCredit(t *testing.T) {
	var wire bytes.Buffer
	if err := NewWriter(&wire).SendCredit(Stderr, 4711); err != nil {
		t.Fatal(err)
	}
	m, err := Read(&wire)
	if err != nil {
		t.Fatal(err)
	}
	if k, n, err := ParseCredit(m.Payload); k != Stderr || n != 4711 || err != nil {
		t.Errorf("credit %q %d %v", byte(k), n, err)
	}
	for _, bad := range []string{"", "o", "o\x00\x00\x00", "o\x00\x00\x00\x00\x00", "o\x01\x00\x04\x00"} {
		if _, _, err := ParseCredit([]byte(bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v, want ErrFormat", bad, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("o\x03\x00\x00\x00outd\x00\x00\x00\x00"))
	f.Add(Append(nil, Credit, []byte("o\x00\x00\x01\x00")))
	f.Add([]byte("k\xff\xff\x00\x00"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := bytes.NewReader(wire)
		var again []byte
		for {
			m, err := Read(r)
			if err != nil {
				break
			}
			again = Append(again, m.Kind, m.Payload)
			_, _, _ = ParseCredit(m.Payload)
		}
		if !bytes.HasPrefix(wire, again) {
			t.Errorf("read % x from % x", again, wire)
		}
	})
}
