package perf

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// A server with a secret speaks the same protocol under another name, so that a peer without one
// learns of it by the first bytes. Behind the preamble each side sends nonceSize random bytes. Then the
// client sends a code over both, made with the secret, and the server answers with its own after it has
// checked the client's. The secret is never sent, and each code is good for one connection. Nothing
// more is sent to a client that does not know the secret.
const (
	guardedMagic = "goverbs mesh"
	nonceSize    = 32
)

// LeastSecret is the length of the shortest secret, in bytes.
const LeastSecret = 16

// errSecret says that a peer does not know the secret.
var errSecret = errors.New("the peer does not have the same secret")

// code returns a side's proof that it knows a secret.
func code(secret []byte, role string, client, server []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(binary.BigEndian.AppendUint32([]byte(guardedMagic+" "+role+" "), ProtocolVersion))
	h.Write(client)
	h.Write(server)
	return h.Sum(nil)
}

// magicOf returns the name of the protocol with a secret or without one.
func magicOf(secret []byte) string {
	if secret != nil {
		return guardedMagic
	}
	return magic
}

// hail opens a connection as the client: both sides name the protocol and its version, and prove that
// they know the secret, if there is one.
func hail(conn net.Conn, secret []byte) error {
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if _, err := conn.Write(preambleOf(magicOf(secret))); err != nil {
		return err
	}
	version, err := checkPreamble(conn, magicOf(secret))
	if err != nil {
		return err
	}
	if version != ProtocolVersion {
		return versionError(version)
	}
	if secret == nil {
		return conn.SetDeadline(time.Time{})
	}
	mine, theirs, err := nonces(conn)
	if err != nil {
		return err
	}
	if _, err := conn.Write(code(secret, "client", mine, theirs)); err != nil {
		return err
	}
	if err := checkCode(conn, code(secret, "server", mine, theirs)); errors.Is(err, io.EOF) {
		return fmt.Errorf("%w, or has no place for another client: it has hung up", errSecret)
	} else if err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// answer is hail of the server.
func answer(conn net.Conn, secret []byte) error {
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	version, err := checkPreamble(conn, magicOf(secret))
	if err != nil {
		return err
	}
	if _, err := conn.Write(preambleOf(magicOf(secret))); err != nil {
		return err
	}
	if version != ProtocolVersion {
		return versionError(version)
	}
	if secret == nil {
		return conn.SetDeadline(time.Time{})
	}
	mine, theirs, err := nonces(conn)
	if err != nil {
		return err
	}
	if err := checkCode(conn, code(secret, "client", theirs, mine)); err != nil {
		return err
	}
	if _, err := conn.Write(code(secret, "server", theirs, mine)); err != nil {
		return err
	}
	return conn.SetDeadline(time.Time{})
}

// nonces sends random bytes and gets the peer's.
func nonces(conn net.Conn) (mine, theirs []byte, err error) {
	mine, theirs = make([]byte, nonceSize), make([]byte, nonceSize)
	if _, err := unix.Getrandom(mine, 0); err != nil { // it is all or nothing up to 256 bytes
		return nil, nil, fmt.Errorf("get random bytes: %w", err)
	}
	if _, err := conn.Write(mine); err != nil {
		return nil, nil, err
	}
	if _, err := io.ReadFull(conn, theirs); err != nil {
		return nil, nil, fmt.Errorf("got no challenge: %w", silence(err, answerTime))
	}
	return mine, theirs, nil
}

// checkCode reads the peer's proof.
func checkCode(conn net.Conn, want []byte) error {
	got := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("got no proof of the secret: %w", silence(err, answerTime))
	}
	if !hmac.Equal(got, want) {
		return errSecret
	}
	return nil
}
