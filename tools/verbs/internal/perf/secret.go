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
)

// A server with a secret speaks the same protocol under another name, so that a peer without one
// learns of it by the first bytes. Behind the preamble everything is encrypted (see encrypt), with keys
// of two strangers: each side then proves that it knows the secret, by an HMAC over the hash of the
// handshake (Noise, section 11.2). Whoever stands between the two has an encrypted connection with each,
// and so hashes that differ: a proof that is passed on is wrong there. The client's proof comes first,
// and nothing more is sent to a client that does not know the secret.
const guardedMagic = "goverbs mesh"

// LeastSecret is the length of the shortest secret, in bytes.
const LeastSecret = 16

// errSecret says that a peer does not know the secret.
var errSecret = errors.New("the peer does not have the same secret")

// Roles of a proof.
const (
	roleClient = "client"
	roleServer = "server"
)

// proof returns a side's proof that it knows a secret, on the connection whose handshake has a hash.
func proof(secret []byte, role string, hash []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(binary.BigEndian.AppendUint32([]byte(guardedMagic+" "+role+" "), ProtocolVersion))
	h.Write(hash)
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
// they know the secret, if there is one. Everything else goes over the connection that hail returns.
func hail(conn net.Conn, secret []byte) (net.Conn, error) {
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(preambleOf(magicOf(secret))); err != nil {
		return nil, err
	}
	version, err := checkPreamble(conn, magicOf(secret))
	if err != nil {
		return nil, err
	}
	if version != ProtocolVersion {
		return nil, versionError(version)
	}
	if secret == nil {
		return conn, conn.SetDeadline(time.Time{})
	}
	c, hash, err := encrypt(conn, roleClient)
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(proof(secret, roleClient, hash)); err != nil {
		return nil, err
	}
	if err := checkProof(c, proof(secret, roleServer, hash)); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the server closed the connection: %w, or too many clients", errSecret)
	} else if err != nil {
		return nil, err
	}
	return c, c.SetDeadline(time.Time{})
}

// answer is hail of the server.
func answer(conn net.Conn, secret []byte) (net.Conn, error) {
	if err := conn.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return nil, err
	}
	version, err := checkPreamble(conn, magicOf(secret))
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(preambleOf(magicOf(secret))); err != nil {
		return nil, err
	}
	if version != ProtocolVersion {
		return nil, versionError(version)
	}
	if secret == nil {
		return conn, conn.SetDeadline(time.Time{})
	}
	c, hash, err := encrypt(conn, roleServer)
	if err != nil {
		return nil, err
	}
	if err := checkProof(c, proof(secret, roleClient, hash)); err != nil {
		return nil, err
	}
	if _, err := c.Write(proof(secret, roleServer, hash)); err != nil {
		return nil, err
	}
	return c, c.SetDeadline(time.Time{})
}

// checkProof reads the peer's proof.
func checkProof(conn net.Conn, want []byte) error {
	got := make([]byte, sha256.Size)
	if _, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("got no proof of the secret: %w", silence(err, answerTime))
	}
	if !hmac.Equal(got, want) {
		return errSecret
	}
	return nil
}
