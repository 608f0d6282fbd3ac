package soft

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ParseOptions reads the text form of Options, for environment variables and command lines:
//
//	ADDRESS[:PORT][,FIELD=VALUE]...
//
// ADDRESS is the IP address of the device, or auto for [Options].Auto, or local for neither, that is
// for a device that only this process reaches. Brackets separate an IPv6 address from a port. Fields
// may stand in any order:
//
//	name=soft7       name of the device
//	via=socket       [Options].ViaSocket
//	mtu=1024         active MTU in bytes
//	seed=7           seed of QPNs, keys and other random numbers
//	qps=100          limit of the number of queue pairs; also cqs, srqs, mrs, mws, pds and ahs
//	faults=(...)     faults, see Faults in the description of the package
//	trace=FILE       each packet in words
//	capture=FILE     each packet for Wireshark, in the pcapng format
//
// A value may stand in parentheses. There, commas, semicolons and blanks separate nothing.
//
// For example:
//
//	auto
//	local,mtu=1024
//	127.0.0.2:4792,name=left,mtu=1024
//	[fe80::1%eth0]:4791,seed=7
//	auto,faults=(loss=1%,reorder=1%,seed=7),capture=/tmp/loss.pcapng
//
// ParseOptions refuses what [New] would refuse on every host. A value that is not allowed is an
// [OptionError]. Other errors name the field and say which fields there are.
func ParseOptions(text string) (Options, error) {
	address, rest, more := strings.Cut(text, ",")
	var o Options
	if err := o.parseAddress(address); err != nil {
		return Options{}, err
	}
	fields, seen := textFields(), map[string]bool{}
	for more {
		var part string
		part, rest, more = cut(rest, func(c rune) bool { return c == ',' })
		name, value, ok := strings.Cut(part, "=")
		i := slices.IndexFunc(fields, func(f textField) bool { return f.name == name })
		switch {
		case i < 0:
			return Options{}, fmt.Errorf("soft: unknown field %q in %q; the fields are %s", name, text, textFieldNames())
		case !ok:
			return Options{}, fmt.Errorf("soft: field %s has no value in %q, such as %s", name, text, fields[i].example)
		case seen[name]:
			return Options{}, fmt.Errorf("soft: field %s stands twice in %q", name, text)
		}
		seen[name] = true
		if err := fields[i].set(&o, unwrap(value)); err != nil {
			return Options{}, err
		}
	}
	checked := o // check fills in what String leaves out
	if err := checked.check(); err != nil {
		return Options{}, err
	}
	return o, nil
}

// SplitList returns the texts of a list of devices, such as that of the environment variable
// GOVERBS_SOFT: they are separated by blanks or semicolons that do not stand in parentheses.
func SplitList(list string) []string {
	var all []string
	for more := true; more; {
		var text string
		text, list, more = cut(list, func(c rune) bool { return c == ';' || unicode.IsSpace(c) })
		if text != "" {
			all = append(all, text)
		}
	}
	return all
}

// cut returns the parts of a text before and behind the first separator that does not stand in
// parentheses, and whether there is one.
func cut(text string, separator func(rune) bool) (before, after string, found bool) {
	depth := 0
	for i, c := range text {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth <= 0 && separator(c):
			return text[:i], text[i+utf8.RuneLen(c):], true
		}
	}
	return text, "", false
}

// depth returns how many parentheses of a text are not closed, or -1 if one is closed that was not
// opened.
func depth(text string) int {
	depth := 0
	for _, c := range text {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth < 0 {
			return -1
		}
	}
	return depth
}

// wrap returns a value for the text form: in parentheses, if it has a separator or begins with one.
func wrap(value string) string {
	if strings.HasPrefix(value, "(") || strings.ContainsFunc(value, func(c rune) bool {
		return c == ',' || c == ';' || unicode.IsSpace(c)
	}) {
		return "(" + value + ")"
	}
	return value
}

// unwrap is the inverse of wrap.
func unwrap(value string) string {
	if inner, ok := strings.CutPrefix(value, "("); ok && strings.HasSuffix(inner, ")") {
		if inner = inner[:len(inner)-1]; depth(inner) == 0 {
			return inner
		}
	}
	return value
}

// Texts that stand for an address.
const (
	auto  = "auto"
	local = "local"
)

// parseAddress reads the address and the port.
func (o *Options) parseAddress(text string) error {
	if o.parseHost(text) {
		return nil
	}
	i := max(0, strings.LastIndexByte(text, ':'))
	host, port := text[:i], strings.TrimPrefix(text[i:], ":")
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	} else if strings.Contains(host, ":") {
		host = ""
	}
	if !o.parseHost(host) {
		return &OptionError{Field: "Addr", Value: text,
			Allowed: "an IP address, auto or local, and perhaps a port, such as 127.0.0.2:4791 or [fd00::1]:4791"}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return &OptionError{Field: "Port", Value: port, Allowed: "1 to 65535"}
	}
	o.Port = uint16(n)
	return nil
}

// parseHost reads the address, and reports whether the text is one.
func (o *Options) parseHost(text string) bool {
	switch text {
	case local:
		return true
	case auto:
		o.Auto = true
		return true
	}
	addr, err := netip.ParseAddr(text)
	o.Addr = addr.Unmap()
	return err == nil
}

// viaSocket is the text form of ViaSocket.
const viaSocket = "socket"

// textField is a field of the text form.
type textField struct {
	name    string
	example string
	set     func(o *Options, value string) error
	get     func(o *Options) string // empty for the zero value
}

// textFields returns the fields in the order in which String writes them. A variable would cost each
// program some time before main.
func textFields() []textField {
	return []textField{
		{
			"name", "name=soft7",
			func(o *Options, v string) error { o.Name = v; return o.checkName() },
			func(o *Options) string { return wrap(o.Name) },
		},
		{
			"via", "via=socket",
			func(o *Options, v string) error {
				if o.ViaSocket = v == viaSocket; !o.ViaSocket {
					return &OptionError{Field: "ViaSocket", Value: v, Allowed: viaSocket + ", or left out"}
				}
				return nil
			},
			func(o *Options) string {
				if o.ViaSocket {
					return viaSocket
				}
				return ""
			},
		},
		intField("mtu", "mtu=1024", "MTU", allowedMTU, func(o *Options) *int { return &o.MTU }),
		{
			"seed", "seed=7",
			func(o *Options, v string) (err error) {
				if o.Seed, err = strconv.ParseUint(v, 10, 64); err != nil {
					return &OptionError{Field: "Seed", Value: v, Allowed: "a number of 64 bits, or 0 for what differs in each run"}
				}
				return nil
			},
			func(o *Options) string { return number(o.Seed) },
		},
		limitField("qps", "QPs", maxQPs, func(l *Limits) *int { return &l.QPs }),
		limitField("cqs", "CQs", maxObjects, func(l *Limits) *int { return &l.CQs }),
		limitField("srqs", "SRQs", maxSRQs, func(l *Limits) *int { return &l.SRQs }),
		limitField("mrs", "MRs", maxMRs, func(l *Limits) *int { return &l.MRs }),
		limitField("mws", "MWs", maxMWs, func(l *Limits) *int { return &l.MWs }),
		limitField("pds", "PDs", maxObjects, func(l *Limits) *int { return &l.PDs }),
		limitField("ahs", "AHs", maxAHs, func(l *Limits) *int { return &l.AHs }),
		{
			"faults", "faults=(loss=1%,seed=7)",
			func(o *Options, v string) (err error) { o.Faults, err = ParseFaults(v); return err },
			func(o *Options) string { return wrap(o.Faults.String()) },
		},
		fileField("trace", "trace=packets.txt", func(o *Options) *string { return &o.TraceFile }),
		fileField("capture", "capture=packets.pcapng", func(o *Options) *string { return &o.CaptureFile }),
	}
}

// intField returns a field that is a number.
func intField(name, example, field, allowed string, at func(*Options) *int) textField {
	return textField{
		name, example,
		func(o *Options, v string) error {
			n, err := strconv.ParseUint(v, 10, 31)
			if err != nil {
				return &OptionError{Field: field, Value: v, Allowed: allowed}
			}
			*at(o) = int(n)
			return nil
		},
		func(o *Options) string { return number(uint64(*at(o))) },
	}
}

// fileField returns a field that is the name of a file.
func fileField(name, example string, at func(*Options) *string) textField {
	return textField{
		name, example,
		func(o *Options, v string) error { *at(o) = v; return o.checkFaults() },
		func(o *Options) string { return wrap(*at(o)) },
	}
}

// limitField returns a field of Limits.
func limitField(name, field string, max int, at func(*Limits) *int) textField {
	return intField(name, name+"=100", "Limits."+field, allowedLimit(max), func(o *Options) *int { return at(&o.Limits) })
}

// number returns a number in decimal, and nothing for 0.
func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// textFieldNames lists the names of the fields.
func textFieldNames() string {
	var names []string
	for _, f := range textFields() {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

// String returns the text form, from which [ParseOptions] returns the same Options if [New] allows
// them. The fields Trace and Capture have no text form.
func (o Options) String() string {
	host := local
	switch {
	case o.Auto:
		host = auto
	case o.Addr.IsValid():
		host = o.Addr.String()
	}
	text := host
	if o.Port != 0 {
		text = net.JoinHostPort(host, strconv.Itoa(int(o.Port)))
	}
	for _, f := range textFields() {
		if v := f.get(&o); v != "" {
			text += "," + f.name + "=" + v
		}
	}
	return text
}
