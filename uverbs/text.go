package uverbs

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// MarshalText implements [encoding.TextMarshaler]. Its result is also the form in JSON and suits
// [flag.TextVar], for example "qpn=17,psn=4711,gid=0000:0000:0000:0000:0000:ffff:0a01:0001" or, on
// InfiniBand, "qpn=17,psn=4711,lid=3".
func (e Endpoint) MarshalText() ([]byte, error) {
	text := fmt.Appendf(nil, "qpn=%d,psn=%d", e.QPN, e.PSN)
	if e.LID != 0 {
		text = fmt.Appendf(text, ",lid=%d", e.LID)
	}
	if !e.GID.IsZero() {
		text = fmt.Appendf(text, ",gid=%s", e.GID)
	}
	return text, nil
}

// UnmarshalText implements [encoding.TextUnmarshaler] for the text that MarshalText returns. The
// fields may be in any order, lid and gid may be missing, and the GID may be an IP address. The
// error names the invalid field.
func (e *Endpoint) UnmarshalText(text []byte) error {
	var parsed Endpoint
	seen := map[string]bool{}
	for field := range strings.SplitSeq(string(text), ",") {
		name, value, _ := strings.Cut(field, "=")
		err := parsed.set(name, value)
		if seen[name] {
			err = fmt.Errorf("%s is given twice", name)
		}
		if err != nil {
			return fmt.Errorf("uverbs: Endpoint %q: %w", text, err)
		}
		seen[name] = true
	}
	for _, name := range []string{"qpn", "psn"} {
		if !seen[name] {
			return fmt.Errorf("uverbs: Endpoint %q: %s is missing", text, name)
		}
	}
	*e = parsed
	return nil
}

// set sets a field of the text form.
func (e *Endpoint) set(name, value string) (err error) {
	number := func(bits int) uint32 {
		n, parseErr := strconv.ParseUint(value, 10, bits)
		if parseErr != nil {
			err = fmt.Errorf("%s is %q, allowed: 0 to %d", name, value, 1<<bits-1)
		}
		return uint32(n)
	}
	switch name {
	case "qpn":
		e.QPN = number(24)
	case "psn":
		e.PSN = number(24)
	case "lid":
		e.LID = uint16(number(16))
	case "gid":
		e.GID, err = ib.ParseGID(value)
	default:
		err = fmt.Errorf("there is no field %q, allowed: qpn, psn, lid, gid", name)
	}
	return err
}
