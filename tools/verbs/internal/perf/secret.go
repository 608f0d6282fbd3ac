package perf

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"time"
)

// A server with a secret speaks the same protocol under another name, so that a peer without one
// learns of it by the first bytes. Behind the preamble everything is inside TLS 1.3. The server's
// certificate proves nothing: each side proves instead that it knows the secret, by an HMAC over keying
// material of the connection (RFC 8446, section 7.5). Whoever stands between the two has a TLS connection
// with each, and so keying material that differs: a proof that is passed on is wrong there. The client's
// proof comes first, and nothing more is sent to a client that does not know the secret.
const (
	guardedMagic = "goverbs mesh"
	keyLabel     = "EXPORTER-goverbs-mesh"
	keySize      = 32
)

// LeastSecret is the length of the shortest secret, in bytes.
const LeastSecret = 16

// errSecret says that a peer does not know the secret.
var errSecret = errors.New("the peer does not have the same secret")

// Roles of a proof.
const (
	roleClient = "client"
	roleServer = "server"
)

// proof returns a side's proof that it knows a secret, on a connection with such keying material.
func proof(secret []byte, role string, key []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(binary.BigEndian.AppendUint32([]byte(guardedMagic+" "+role+" "), ProtocolVersion))
	h.Write(key)
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
	c, key, err := encrypt(tls.Client(conn, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // the proof of the secret is what counts
	}))
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(proof(secret, roleClient, key)); err != nil {
		return nil, err
	}
	if err := checkProof(c, proof(secret, roleServer, key)); errors.Is(err, io.EOF) {
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
	config, err := serverTLS()
	if err != nil {
		return nil, err
	}
	c, key, err := encrypt(tls.Server(conn, config))
	if err != nil {
		return nil, err
	}
	if err := checkProof(c, proof(secret, roleClient, key)); err != nil {
		return nil, err
	}
	if _, err := c.Write(proof(secret, roleServer, key)); err != nil {
		return nil, err
	}
	return c, c.SetDeadline(time.Time{})
}

// serverTLS makes the certificate that a server of TLS must have, once in a process.
var serverTLS = sync.OnceValues(func() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}},
		SessionTicketsDisabled: true,
	}, nil
})

// encrypt begins with TLS, and returns keying material that no other connection has.
func encrypt(c *tls.Conn) (*tls.Conn, []byte, error) {
	if err := c.Handshake(); err != nil {
		return nil, nil, fmt.Errorf("TLS: %w", silence(err, answerTime))
	}
	state := c.ConnectionState()
	key, err := state.ExportKeyingMaterial(keyLabel, nil, keySize)
	return c, key, err
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
