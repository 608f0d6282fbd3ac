package perftest

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Version is what this side says it is. Whoever is 6.28 or newer leaves its exchange of
// parameters out for it.
const Version = "6.06"

// DefaultPort is the port of a perftest server, on TCP and with -R.
const DefaultPort = 18515

// The versions that matter.
const (
	oldest     = 5.70 // perftest itself speaks to no older one
	negotiates = 6.28 // has a struct of parameters, whose layout depends on how it was built
	validates  = 6.29 // can compare data
	versionLen = 16   // MAX_VERSION, perftest_parameters.h
)

// checkVersion reads a version and refuses one that cannot be spoken to.
func checkVersion(b []byte) (string, error) {
	text, pad, found := strings.Cut(string(b), "\x00")
	v, err := strconv.ParseFloat(text, 64)
	if !found || strings.Trim(pad, "\x00") != "" || err != nil || !(v > 0 && v < 1000) {
		return "", fmt.Errorf("the peer is not perftest: got %s, expected its version, such as %q", peertext.Quote(b), Version)
	}
	if v < oldest {
		return "", fmt.Errorf("the peer is perftest %s, which is too old: expected %.2f or newer", text, oldest)
	}
	return text, nil
}

// atLeast reports whether a version is this one, or newer.
func atLeast(version string, this float64) bool {
	v, err := strconv.ParseFloat(version, 64)
	return err == nil && v >= this
}

// Forms of a record on a TCP connection, by length (KEY_MSG_SIZE, perftest_communication.h).
const (
	textLen        = 59  // without GID
	textGIDLen     = 108 // with GID
	binaryLen      = 56  // of a SEND: struct pingpong_dest, perftest_resources.h
	binaryDVLen    = 64  // the same of 6.29 and newer, with a second address
	binaryAddr2    = 32  // where that is; it is 0 unless data is validated
	reportFieldLen = 8
)

// done ends a TCP connection.
const done = "done\x00"

// Record describes a queue pair to the peer.
type Record struct {
	LID      uint16
	OutReads int    // OutReads is how many READs and atomics the side takes at a time.
	QPN      uint32 // QPN is the number of the queue pair, 24 bits.
	PSN      uint32 // PSN is the first packet sequence number that it sends, 24 bits.
	RKey     uint32
	Addr     uint64 // Addr is the memory that the peer reads or writes.
	GID      ib.GID // GID is the zero GID on InfiniBand without a GRH.
	SRQN     uint32 // SRQN is the number of an SRQ, of XRC or of a target of DC.
	GIDIndex uint32 // GIDIndex is only in the records of SENDs, and the peer ignores it.
}

// ErrValidates says that the peer wants data to be compared.
var ErrValidates = errors.New("the peer runs with --data_validation, which is not spoken here")

// errNoSRQ says that the peer has no SRQ, which XRC and a target of DC have.
var errNoSRQ = errors.New("the peer has queue pairs of another type, and this side has those of --type xrc or dc")

// errSRQ says that the peer has an SRQ, which no other types have.
var errSRQ = errors.New("the peer runs with -c XRC or -c DC, which needs --type xrc or dc here")

// text returns the record as it is sent on a TCP connection.
func (r *Record) text(gid bool) []byte {
	b := fmt.Appendf(make([]byte, 0, textGIDLen), "%04x:%04x:%06x:%06x:%08x:%016x:", r.LID, r.OutReads, r.QPN, r.PSN, r.RKey, r.Addr)
	if gid {
		for _, octet := range r.GID {
			b = fmt.Appendf(b, "%02x:", octet)
		}
	}
	b = fmt.Appendf(b, "%08x", r.SRQN)
	if gid {
		b = append(b, ':')
	}
	return append(b, 0)
}

// textForm returns the length of a record, from its first textLen bytes. With data validation it
// has a second address.
func textForm(b []byte) (length int, err error) {
	const addrEnd, gidOctet = 49, 3
	switch {
	case b[addrEnd] != ':' || b[textLen-1] == 0:
		return textLen, nil // or not a record at all
	case b[addrEnd+gidOctet] == ':':
		return textGIDLen, nil
	}
	return 0, ErrValidates
}

// parseText reads a record that came on a TCP connection.
func parseText(b []byte) (r Record, err error) {
	bad := func() (Record, error) {
		return Record{}, fmt.Errorf("got %s (%d bytes), expected a record of perftest, LID:READS:QPN:PSN:RKEY:ADDRESS:[GID:]SRQN in hexadecimal", peertext.Quote(b), len(b))
	}
	if len(b) != textLen && len(b) != textGIDLen || b[len(b)-1] != 0 {
		return bad()
	}
	fields := strings.Split(strings.TrimSuffix(string(b[:len(b)-1]), ":"), ":")
	widths := []int{4, 4, 6, 6, 8, 16}
	if len(b) == textGIDLen {
		for range r.GID {
			widths = append(widths, 2)
		}
	}
	widths = append(widths, 8)
	if len(fields) != len(widths) {
		return bad()
	}
	values := make([]uint64, len(fields))
	for i, f := range fields {
		raw, err := hex.DecodeString(f)
		if err != nil || len(f) != widths[i] {
			return bad()
		}
		for _, octet := range raw {
			values[i] = values[i]<<8 | uint64(octet)
		}
	}
	r = Record{
		LID: uint16(values[0]), OutReads: int(values[1]), QPN: uint32(values[2]), PSN: uint32(values[3]),
		RKey: uint32(values[4]), Addr: values[5], SRQN: uint32(values[len(values)-1]),
	}
	if len(b) == textGIDLen {
		for i := range r.GID {
			r.GID[i] = byte(values[6+i])
		}
	}
	return r, nil
}

// binary returns the record as a SEND has it.
func (r *Record) binary() []byte {
	b := make([]byte, binaryLen)
	be := binary.BigEndian
	be.PutUint32(b, uint32(r.LID))
	be.PutUint32(b[4:], uint32(r.OutReads))
	be.PutUint32(b[8:], r.QPN)
	be.PutUint32(b[12:], r.PSN)
	be.PutUint32(b[16:], r.RKey)
	be.PutUint64(b[24:], r.Addr)
	copy(b[32:], r.GID[:])
	be.PutUint32(b[48:], r.SRQN)
	be.PutUint32(b[52:], r.GIDIndex)
	return b
}

// parseBinary reads a record that came as a SEND.
func parseBinary(b []byte) (r Record, err error) {
	tail := 0 // where the fields after the address are
	switch len(b) {
	case binaryLen:
	case binaryDVLen:
		tail = binaryDVLen - binaryLen
	default:
		return r, fmt.Errorf("got a message of %d bytes, expected a record of perftest, %d bytes, or %d of version 6.29 and newer", len(b), binaryLen, binaryDVLen)
	}
	be := binary.BigEndian
	if tail > 0 && be.Uint64(b[binaryAddr2:]) != 0 {
		return r, ErrValidates
	}
	for _, f := range []struct {
		name string
		at   int
		max  uint32
	}{{"LID", 0, math.MaxUint16}, {"number of READs", 4, math.MaxUint16}, {"QP number", 8, 1<<24 - 1}, {"PSN", 12, 1<<24 - 1}} {
		if v := be.Uint32(b[f.at:]); v > f.max {
			return r, fmt.Errorf("got a record with the %s %#x, expected up to %#x", f.name, v, f.max)
		}
	}
	r = Record{
		LID: uint16(be.Uint32(b)), OutReads: int(be.Uint32(b[4:])), QPN: be.Uint32(b[8:]), PSN: be.Uint32(b[12:]),
		RKey: be.Uint32(b[16:]), Addr: be.Uint64(b[24:]), SRQN: be.Uint32(b[48+tail:]), GIDIndex: be.Uint32(b[52+tail:]),
	}
	copy(r.GID[:], b[32+tail:])
	return r, nil
}

// Report is what a bandwidth test has measured.
type Report struct {
	Size       uint64  // Size is the size of a message, in bytes.
	Iterations uint64  // Iterations is the number of messages of all queue pairs.
	Peak       float64 // Peak is the highest bandwidth, in MiB/s, or Gb/s with --report_gbits.
	Average    float64 // Average is the bandwidth, in the same unit.
	Rate       float64 // Rate is in millions of messages per second.
}

// fields returns the report as it is sent, a message each.
func (r *Report) fields() (f [5][reportFieldLen]byte) {
	for i, v := range [...]uint64{r.Size, r.Iterations, math.Float64bits(r.Peak), math.Float64bits(r.Average), math.Float64bits(r.Rate)} {
		binary.BigEndian.PutUint64(f[i][:], v)
	}
	return f
}

// parseReport reads one.
func parseReport(f [5][reportFieldLen]byte) Report {
	number := func(i int) uint64 { return binary.BigEndian.Uint64(f[i][:]) }
	float := func(i int) float64 { return math.Float64frombits(number(i)) }
	return Report{Size: number(0), Iterations: number(1), Peak: float(2), Average: float(3), Rate: float(4)}
}

// check refuses a report that cannot be one.
func (r *Report) check() error {
	for _, v := range []float64{r.Peak, r.Average, r.Rate} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("got a report with the bandwidths %g and %g and the rate %g, expected numbers of 0 and more", r.Peak, r.Average, r.Rate)
		}
	}
	return nil
}
