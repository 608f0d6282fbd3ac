package perf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// encryptedPair returns both ends of an encrypted connection, what the client has sent so far, and a
// connection whose other end gets to the server as what the client sends.
func encryptedPair(t *testing.T) (client, server net.Conn, raw *tap) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	raw = &tap{Conn: a, sent: new(bytes.Buffer)}
	var all sync.WaitGroup
	var hashes [2][]byte
	var errs [2]error
	all.Go(func() { client, hashes[0], errs[0] = encrypt(raw, roleClient) })
	all.Go(func() { server, hashes[1], errs[1] = encrypt(b, roleServer) })
	all.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(hashes[0], hashes[1]) {
		t.Errorf("the sides have the hashes %x and %x", hashes[0], hashes[1])
	}
	raw.sent.Reset()
	return client, server, raw
}

// TestEncrypted: what is written is read, in both directions, in more than a record, and in small pieces.
func TestEncrypted(t *testing.T) {
	client, server, raw := encryptedPair(t)
	want := bytes.Repeat([]byte("goverbs"), 3*mostPlain/7)
	for _, c := range []struct{ from, to net.Conn }{{client, server}, {server, client}} {
		go func() {
			if n, err := c.from.Write(want); n != len(want) || err != nil {
				t.Errorf("wrote %d of %d bytes: %v", n, len(want), err)
			}
		}()
		got, b := []byte(nil), make([]byte, 1000)
		for len(got) < len(want) {
			n, err := c.to.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, b[:n]...)
		}
		if !bytes.Equal(got, want) {
			t.Error("what is read is not what was written")
		}
	}
	if bytes.Contains(raw.sent.Bytes(), []byte("goverbs")) {
		t.Error("the text is on the wire")
	}
}

// TestEncryptedHostile: nothing is read of a record that the peer did not send in this place.
func TestEncryptedHostile(t *testing.T) {
	const changed = "an encrypted record is not what was sent"
	for name, c := range map[string]struct {
		change func(first, second []byte) []byte
		reads  string
		want   string
	}{
		"nothing changed": {func(a, b []byte) []byte { return append(a, b...) }, "firstsecond", "EOF"},
		"a bit":           {func(a, b []byte) []byte { a[recordHead] ^= 1; return append(a, b...) }, "", changed},
		"the tag":         {func(a, b []byte) []byte { a[len(a)-1] ^= 1; return append(a, b...) }, "", changed},
		"repeated":        {func(a, b []byte) []byte { return append(a, a...) }, "first", changed},
		"left out":        {func(a, b []byte) []byte { return b }, "", changed},
		"moved":           {func(a, b []byte) []byte { return append(b, a...) }, "", changed},
		"cut":             {func(a, b []byte) []byte { return append(a, b[:len(b)-1]...) }, "first", "unexpected EOF"},
		"cut head":        {func(a, b []byte) []byte { return append(a, b[:1]...) }, "first", "unexpected EOF"},
		"cut behind head": {func(a, b []byte) []byte { return append(a, b[:2]...) }, "first", "unexpected EOF"},
		"short":           {func(a, b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, tag-1), a...) }, "", "an encrypted record of 15 bytes, allowed: 16 to 16400"},
		"long":            {func(a, b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, mostRecord+1), a...) }, "", "an encrypted record of 16401 bytes, allowed: 16 to 16400"},
	} {
		client, server, raw := encryptedPair(t)
		wire, conn := raw.Conn, raw
		conn.Conn = sink{wire}
		client.Write([]byte("first"))
		first := bytes.Clone(raw.sent.Bytes())
		raw.sent.Reset()
		client.Write([]byte("second"))
		second := bytes.Clone(raw.sent.Bytes())
		go func() {
			wire.Write(c.change(first, second))
			wire.Close()
		}()
		got, err := io.ReadAll(server)
		if string(got) != c.reads {
			t.Errorf("%s: %q is read, want %q", name, got, c.reads)
		}
		if err == nil {
			err = io.EOF
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want %q", name, err, c.want)
		}
		if _, err := server.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s: the connection reads on behind its end", name)
		}
	}
}

// sink takes what is written, and sends nothing.
type sink struct{ net.Conn }

func (sink) Write(b []byte) (int, error) { return len(b), nil }

// TestEncryptedKeys: a public key that makes the common key known to everybody is refused.
func TestEncryptedKeys(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go a.Write(make([]byte, publicKey))
	if _, _, err := encrypt(b, roleServer); err == nil || !strings.Contains(err.Error(), "agree on keys: ") {
		t.Errorf("a key of zeros: %v", err)
	}
}
