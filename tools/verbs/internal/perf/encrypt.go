package perf

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/flynn/noise"
)

// encrypted is a connection whose bytes are encrypted. They go in records: the length of 2 bytes, in
// network byte order, and a message of Noise of that length. A record that is changed, repeated, left out
// or moved does not decrypt, and nothing after it does. One goroutine may read.
type encrypted struct {
	net.Conn
	in   *noise.CipherState
	r    *bufio.Reader
	rest []byte // decrypted, but not read yet

	mu  sync.Mutex
	out *noise.CipherState // guarded by mu
}

// Sizes in bytes.
const (
	publicKey  = 32              // of a key of X25519
	tag        = 16              // what encryption adds
	mostPlain  = 16 << 10        // in a record
	recordHead = 2               // the length of a record
	mostRecord = mostPlain + tag // behind its length
)

// encrypt agrees on keys with a peer that may be anybody: Noise_NN_25519_ChaChaPoly_SHA256.
// It returns the connection encrypted with them, and the hash of the handshake, which no other connection
// has and on which both sides agree.
func encrypt(conn net.Conn, role string) (_ net.Conn, hash []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("agree on keys: %w", silence(err, answerTime))
		}
	}()
	h, err := noise.NewHandshakeState(noise.Config{
		CipherSuite: noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashSHA256),
		Pattern:     noise.HandshakeNN,
		Initiator:   role == roleClient,
		Prologue:    preambleOf(guardedMagic),
	})
	if err != nil {
		return nil, nil, err
	}
	c := &encrypted{Conn: conn, r: bufio.NewReaderSize(conn, recordHead+mostRecord)}
	var own []byte
	theirs := make([]byte, publicKey, publicKey+tag)
	if role == roleClient {
		if own, _, _, err = h.WriteMessage(nil, nil); err != nil {
			return nil, nil, err
		}
		if _, err := conn.Write(own); err != nil {
			return nil, nil, err
		}
		theirs = theirs[:publicKey+tag]
	}
	if _, err := io.ReadFull(c.r, theirs); err != nil {
		return nil, nil, err
	}
	if _, c.out, c.in, err = h.ReadMessage(nil, theirs); err != nil {
		return nil, nil, err
	}
	if role == roleServer {
		if own, c.in, c.out, err = h.WriteMessage(nil, nil); err != nil {
			return nil, nil, err
		}
		if _, err := conn.Write(own); err != nil {
			return nil, nil, err
		}
	}
	return c, h.ChannelBinding(), nil
}

// Read implements net.Conn.
func (c *encrypted) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for len(c.rest) == 0 {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// next decrypts a record. The part of a record that has come stays until the rest comes.
func (c *encrypted) next() error {
	b, err := c.peek(recordHead)
	if err != nil {
		return err
	}
	n := int(binary.BigEndian.Uint16(b))
	if n < tag || n > mostRecord {
		return refusef("an encrypted record of %d bytes, allowed: %d to %d", n, tag, mostRecord)
	}
	if b, err = c.peek(recordHead + n); err != nil {
		return err
	}
	if c.rest, err = c.in.Decrypt(nil, nil, b[recordHead:]); err != nil {
		return refusef("an encrypted record is not what was sent")
	}
	_, err = c.r.Discard(len(b))
	return err
}

// peek waits for the next n bytes. The end of the connection inside of a record is unexpected.
func (c *encrypted) peek(n int) ([]byte, error) {
	b, err := c.r.Peek(n)
	if errors.Is(err, io.EOF) && (len(b) > 0 || n > recordHead) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// Write implements net.Conn.
func (c *encrypted) Write(b []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(b) > 0 {
		plain := b[:min(len(b), mostPlain)]
		record := binary.BigEndian.AppendUint16(nil, uint16(len(plain)+tag))
		if record, err = c.out.Encrypt(record, nil, plain); err != nil {
			return n, err
		}
		if _, err := c.Conn.Write(record); err != nil {
			return n, err
		}
		n += len(plain)
		b = b[len(plain):]
	}
	return n, nil
}
