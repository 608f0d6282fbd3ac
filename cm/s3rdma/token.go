package s3rdma

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// tokenHeader is the header of a request that offers memory.
const tokenHeader = "X-Amz-Rdma-Token"

// Lengths of a token, and of the address and the size at the end of older ones, in characters.
const (
	tokenSize  = 81
	suffixSize = 34
)

// Token says where the memory of a client is, and by which target it is reached. It is the value of
// the header x-amz-rdma-token: whoever has it and the access key can read or write this memory as
// long as its key exists.
type Token struct {
	Addr uint64 // Addr is the address of the first byte, as the key knows it.
	Size uint32 // Size is how many bytes the server may touch from there.
	RKey uint32 // RKey is the key of the memory.
	LID  uint16 // LID is the LID of the client's port; 0 on Ethernet.
	DCTN uint32 // DCTN is the number of the target, from 1 to 0xffffff.
	GID  ib.GID // GID is the GID of the client's port; zero on InfiniBand without one.
}

// ErrForeignToken says that a token is of a protocol that this package does not speak, such as
// hipObject's or that of elbencho's tests. A server declines such an offer, and the client uses the
// body.
var ErrForeignToken = errors.New("the token is of another protocol for S3 over RDMA")

// String returns the token as the header has it: 81 characters.
func (t Token) String() string {
	has := 1
	if t.GID.IsZero() {
		has = 0
	}
	return fmt.Sprintf("%016x:%08x:%08x:%04x:%06x:%d:%x", t.Addr, t.Size, t.RKey, t.LID, t.DCTN, has, t.GID[:])
}

// ParseToken parses the value of the header. It takes hexadecimal digits of either case, and a
// semicolon or a NUL at the end. Older clients repeat the address and the size at the end, which is
// ignored. A token of a protocol that has other tokens fails with an error that matches
// [ErrForeignToken].
func ParseToken(s string) (t Token, err error) {
	s = strings.TrimSuffix(strings.TrimSuffix(s, "\x00"), ";")
	if len(s) == tokenSize+suffixSize && s[tokenSize] == ':' && s[tokenSize+17] == ':' && isHex(s[tokenSize+1:tokenSize+17]+s[tokenSize+18:]) {
		s = s[:tokenSize]
	}
	first, _, _ := strings.Cut(s, ":")
	switch {
	case len(first) == 88 && isHex(first), first == "rc":
		return t, ErrForeignToken
	case len(s) != tokenSize:
		return t, fmt.Errorf("the token has %d characters, want %d", len(s), tokenSize)
	}
	fields := strings.Split(s, ":")
	if len(fields) != len(tokenFields) {
		return t, fmt.Errorf("the token has %d fields, want %d", len(fields), len(tokenFields))
	}
	var values [len(tokenFields) - 1]uint64
	for i, f := range tokenFields {
		if len(fields[i]) != f.digits || !isHex(fields[i]) {
			return t, fmt.Errorf("the field %s of the token is %q, want %d hexadecimal digits", f.name, fields[i], f.digits)
		}
		if i < len(values) {
			values[i], _ = strconv.ParseUint(fields[i], 16, 64) // it has at most 16 digits
		}
	}
	t = Token{Addr: values[0], Size: uint32(values[1]), RKey: uint32(values[2]), LID: uint16(values[3]), DCTN: uint32(values[4])}
	hex.Decode(t.GID[:], []byte(fields[6])) // it is hexadecimal, and has 32 digits
	if has := values[5]; has > 1 || (has == 1) == t.GID.IsZero() {
		return Token{}, fmt.Errorf("the flag of the token is %d and its GID %s, want 1 with a GID or 0 with zeros", has, t.GID)
	}
	return t, t.check()
}

// tokenFields are the fields of a token.
var tokenFields = [...]struct {
	name   string
	digits int
}{{"address", 16}, {"size", 8}, {"key", 8}, {"LID", 4}, {"target", 6}, {"flag", 1}, {"GID", 32}}

// check returns an error if no target can have sent the token.
func (t *Token) check() error {
	switch {
	case t.DCTN == 0:
		return errors.New("the target of the token is 0, want 1 to 0xffffff")
	case t.GID.IsZero() && t.LID == 0:
		return errors.New("the token has neither a GID nor a LID")
	case t.Addr+uint64(t.Size) < t.Addr:
		return fmt.Errorf("the memory of the token, %d bytes from %#x, goes past the last address", t.Size, t.Addr)
	}
	return nil
}

// isHex reports whether a string has hexadecimal digits alone.
func isHex(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }

// offered returns the token of a request, or "".
func offered(h http.Header) (string, error) {
	switch v := h.Values(tokenHeader); len(v) {
	case 0:
		return "", nil
	case 1:
		return v[0], nil
	default:
		return "", fmt.Errorf("the request has %d headers %s, want 1", len(v), strings.ToLower(tokenHeader))
	}
}
