package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// The tag "res" of a list in resReport is the kind of its objects, for --kinds. In a row it is the key of
// --filter, with the name that iproute2's rdma has for it. With ",more" --details shows the field.

// lists returns the lists of a report by kind.
func (r *resReport) lists(each func(kind string, list reflect.Value)) {
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		if kind := v.Type().Field(i).Tag.Get("res"); kind != "" {
			each(kind, v.Field(i))
		}
	}
}

// fields calls each for the fields of a row that have a tag, embedded ones included.
func fields(row reflect.Value, each func(key string, more, empty bool, v reflect.Value)) {
	for i := range row.NumField() {
		f := row.Type().Field(i)
		if f.Anonymous {
			fields(row.Field(i), each)
		}
		key, more, _ := strings.Cut(f.Tag.Get("res"), ",")
		if key != "" {
			each(key, more != "", strings.Contains(f.Tag.Get("json"), "omitempty"), row.Field(i))
		}
	}
}

// field returns the field of a row with a name, embedded ones included; it is not valid if there is none.
// It is smaller than what reflect has for that.
func field(row reflect.Value, name string) reflect.Value {
	for i := range row.NumField() {
		f := row.Type().Field(i)
		if f.Name == name {
			return row.Field(i)
		}
		if f.Anonymous {
			if v := field(row.Field(i), name); v.IsValid() {
				return v
			}
		}
	}
	return reflect.Value{}
}

// kindsWith returns the kinds of objects that have a key, or all for the key "".
func kindsWith(key string) (kinds []string) {
	new(resReport).lists(func(kind string, list reflect.Value) {
		if key == "" || slices.Contains(keysOfKind(kind), key) {
			kinds = append(kinds, kind)
		}
	})
	slices.Sort(kinds)
	return kinds
}

// keysOfKind returns the keys of a kind, or those of all kinds for "".
func keysOfKind(kind string) (keys []string) {
	new(resReport).lists(func(k string, list reflect.Value) {
		if kind == "" || k == kind {
			fields(reflect.Zero(list.Type().Elem()), func(key string, _, _ bool, _ reflect.Value) { keys = append(keys, key) })
		}
	})
	slices.Sort(keys)
	return slices.Compact(keys)
}

// rawKinds are the kinds that a driver can dump.
var rawKinds = []string{netlinkrdma.RawQP: "qp", netlinkrdma.RawCQ: "cq", netlinkrdma.RawMR: "mr", netlinkrdma.RawSRQ: "srq"}

// wordsOf lists the values that a key of words can have in the given kinds; none if there are too many.
func wordsOf(kinds []string, key string) (all []string) {
	each := func(last int, name func(i int) string) {
		for i := range last + 1 {
			if n := name(i); !strings.Contains(n, "(") && !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	}
	switch key {
	case "state":
		if slices.Contains(kinds, "qp") {
			each(6, func(i int) string { return ib.QPState(i).String() })
		}
		if slices.Contains(kinds, "cm_id") {
			each(10, func(i int) string { return netlinkrdma.CMState(i).String() })
		}
	case "type", "qp-type": // qp-type is of CM IDs
		if key != "type" || slices.Contains(kinds, "qp") {
			each(int(ib.XRCRecv), func(i int) string { return ib.QPType(i).String() }) // DC QPs are of type DRIVER
			all = append(all, ib.DriverQP.String())
		}
		if slices.Contains(kinds, "srq") {
			each(2, func(i int) string { return netlinkrdma.SRQType(i).String() })
		}
	case "path-mig-state":
		each(2, func(i int) string { return ib.PathMigState(i).String() })
	case "poll-ctx":
		each(3, func(i int) string { return netlinkrdma.PollContext(i).String() })
	case "adaptive-moderation":
		return []string{"true", "false"}
	case "ps":
		return []string{"TCP", "UDP", "IPoIB", "IB"}
	}
	return all
}

// filter is one --filter: a key, and the values of which an object must have one.
type filter struct {
	key    string
	ranges [][2]uint64 // of numbers, inclusive
	words  []string
}

// bitsOf returns the size of the numbers of a key, which is 0 if its values are words.
func bitsOf(key string) (bits int) {
	new(resReport).lists(func(_ string, list reflect.Value) {
		fields(reflect.Zero(list.Type().Elem()), func(k string, _, _ bool, v reflect.Value) {
			t := v.Type()
			if t.Kind() == reflect.Pointer {
				t = t.Elem()
			}
			switch {
			case k != key || t.Kind() == reflect.String || t.Kind() == reflect.Bool:
			case strings.HasSuffix(k, "qpn") || strings.HasSuffix(k, "-psn"): // also the list of an SRQ
				bits = 24
			default:
				bits = t.Bits()
			}
		})
	})
	return bits
}

// parseFilter reads KEY=VALUE[,VALUE...]. It returns the values, for parse.
func parseFilter(text string) (f filter, values string, err error) {
	key, values, ok := strings.Cut(text, "=")
	if !ok {
		return f, "", command.Usagef("--filter is %s, allowed: KEY=VALUE[,VALUE...], such as lqpn=5-9,17", peertext.Quote(text))
	}
	if key == "" || len(kindsWith(key)) == 0 {
		return f, "", command.Usagef("the key of --filter is %s, allowed: %s", peertext.Quote(key), strings.Join(keysOfKind(""), ", "))
	}
	return filter{key: key}, values, nil
}

// parse reads the values, which must be possible for an object of one of the kinds.
func (f *filter) parse(values string, kinds []string) error {
	bits := bitsOf(f.key)
	for v := range strings.SplitSeq(values, ",") {
		allowed := ""
		if bits == 0 {
			allowed = f.addWord(v, kinds)
		} else {
			allowed = f.addRange(v, bits)
		}
		if allowed != "" {
			return command.Usagef("%s of --filter is %s, allowed%s", f.key, peertext.Quote(v), allowed)
		}
	}
	return nil
}

// addRange adds a number, or a range of numbers. If it is neither, it returns what is allowed.
func (f *filter) addRange(value string, bits int) (allowed string) {
	number := func(text string) (uint64, error) {
		if digits, ok := strings.CutPrefix(text, "0x"); ok {
			return strconv.ParseUint(digits, 16, bits)
		}
		return strconv.ParseUint(text, 10, bits)
	}
	first, last, isRange := strings.Cut(value, "-")
	if !isRange {
		last = first
	}
	a, err := number(first)
	b, lerr := number(last)
	if err != nil || lerr != nil || a > b {
		return fmt.Sprintf(": numbers from 0 to %d, also in hexadecimal with 0x, and ranges such as 5-9", uint64(1)<<bits-1)
	}
	f.ranges = append(f.ranges, [2]uint64{a, b})
	return ""
}

// addWord adds a word or an address. If it is not allowed, it returns what is.
func (f *filter) addWord(value string, kinds []string) (allowed string) {
	of := wordsOf(kinds, f.key)
	if strings.HasSuffix(f.key, "-addr") {
		a, err := netip.ParseAddr(value)
		if err != nil {
			return ": an IP address"
		}
		value = a.WithZone("").String()
	} else if i := slices.IndexFunc(of, func(w string) bool { return strings.EqualFold(w, value) }); i >= 0 {
		value = of[i]
	} else if len(of) > 0 {
		return " for " + strings.Join(kinds, ", ") + ": " + strings.Join(of, ", ")
	} else if value == "" {
		return ": a name"
	}
	f.words = append(f.words, value)
	return ""
}

// sent reports whether the kernel sent a field (fill_res_*_entry in nldev.c). A field that it left out is 0
// in the row, and matches nothing. The numbers of contexts, PDs, MRs, CQs, SRQs and CM IDs start at 0.
func sent(row any, key string, v reflect.Value) bool {
	if key == "pid" || key == "port" {
		return !v.IsZero()
	}
	switch r := row.(type) {
	case pdRow:
		return key != "ctxn" || r.Kernel == ""
	case mrRow:
		return key != "pdn" || r.Kernel == ""
	case cqRow:
		return key != "ctxn" || r.Kernel == ""
	case srqRow:
		return key != "cqn" || r.Type != "BASIC"
	case qpRow:
		connected := r.Type == "RC" || r.Type == "UC"
		switch key {
		case "pdn":
			return r.Kernel == ""
		case "rqpn", "rq-psn":
			return connected
		case "path-mig-state":
			return connected || strings.HasPrefix(r.Type, "XRC_")
		}
	case cmIDRow:
		switch key {
		case "lqpn":
			return r.QPNum != 0
		case "src-port":
			return r.Local != ""
		case "dst-port":
			return r.Remote != ""
		}
	}
	return true
}

// matches reports whether a field has one of the values.
func (f *filter) matches(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return slices.Contains(f.words, v.String())
	case reflect.Bool:
		return slices.Contains(f.words, strconv.FormatBool(v.Bool()))
	case reflect.Pointer:
		return !v.IsNil() && f.matches(v.Elem())
	case reflect.Slice: // qpRanges
		for i := range v.Len() {
			if f.overlaps(v.Index(i).Field(0).Uint(), v.Index(i).Field(1).Uint()) {
				return true
			}
		}
		return false
	}
	return f.overlaps(v.Uint(), v.Uint())
}

func (f *filter) overlaps(first, last uint64) bool {
	return slices.ContainsFunc(f.ranges, func(r [2]uint64) bool { return r[0] <= last && first <= r[1] })
}

// resQuery is what "verbs res" has to print.
type resQuery struct {
	kinds   []string
	filters []filter
	details bool
	raw     bool
}

// newResQuery checks the values of --kinds and --filter. Without --kinds it has the kinds that have
// every key, and a dump.
func newResQuery(kinds string, filters []string, details, raw bool) (*resQuery, error) {
	q := &resQuery{details: details, raw: raw}
	values := make([]string, len(filters))
	for i, text := range filters {
		f, v, err := parseFilter(text)
		if err != nil {
			return nil, err
		}
		q.filters = append(q.filters, f)
		values[i] = v
	}
	if err := q.choose(kinds); err != nil {
		return nil, err
	}
	for i := range q.filters {
		if err := q.filters[i].parse(values[i], q.kinds); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// choose sets the kinds of objects.
func (q *resQuery) choose(kinds string) error {
	all := kindsWith("")
	if kinds != "" {
		for k := range strings.SplitSeq(kinds, ",") {
			if !slices.Contains(all, k) {
				return command.Usagef("--kinds is %s, allowed: %s", peertext.Quote(k), strings.Join(all, ", "))
			}
			if err := q.possible(k); err != nil {
				return err
			}
			q.kinds = append(q.kinds, k)
		}
		return nil
	}
	for _, k := range all {
		if q.possible(k) == nil {
			q.kinds = append(q.kinds, k)
		}
	}
	if len(q.kinds) == 0 {
		return command.Usagef("no kind of objects has all keys of --filter; \"verbs res --help\" lists the keys of each kind")
	}
	return nil
}

// possible returns an error unless objects of a kind have every key, and a dump if the query is for
// dumps.
func (q *resQuery) possible(kind string) error {
	if q.raw && !slices.Contains(rawKinds, kind) {
		return command.Usagef("--kinds is %s, allowed with --raw: cq, mr, qp, srq", peertext.Quote(kind))
	}
	for i := range q.filters {
		if keys := keysOfKind(kind); !slices.Contains(keys, q.filters[i].key) {
			return command.Usagef("the key of --filter is %s, allowed for %s: %s", peertext.Quote(q.filters[i].key), kind, strings.Join(keys, ", "))
		}
	}
	return nil
}

// keep reports whether a row matches every filter.
func (q *resQuery) keep(row any) bool {
	for i := range q.filters {
		found := false
		fields(reflect.ValueOf(row), func(key string, _, _ bool, v reflect.Value) {
			found = found || key == q.filters[i].key && sent(row, key, v) && q.filters[i].matches(v)
		})
		if !found {
			return false
		}
	}
	return true
}

// hidden reports whether a filter is for a key of memory that the kernel does not show to this process.
func (q *resQuery) hidden(row any) bool {
	asked := slices.ContainsFunc(q.filters, func(f filter) bool { return strings.HasSuffix(f.key, "key") })
	switch r := row.(type) {
	case mrRow:
		return asked && r.LKey == nil
	case pdRow:
		return asked && r.LKey == nil && r.Kernel != ""
	}
	return false
}

// dump adds what the driver dumps of each object. An object without a dump is described in Missing. It ends
// when the device is gone, and without CAP_NET_ADMIN.
func (c *resCollector) dump(raw func(netlinkrdma.Device, netlinkrdma.RawOptions) ([]byte, error)) {
	end := false
	c.lists(func(kind string, list reflect.Value) {
		noPort, unsupported := 0, false
		for i := 0; i < list.Len() && !end; i++ {
			row := list.Index(i)
			o := netlinkrdma.RawOptions{Kind: netlinkrdma.RawKind(slices.Index(rawKinds, kind)), ID: uint32(row.Field(0).Uint())}
			if kind == "qp" { // one in state RESET has no port, and every device has port 1
				o.Port = uint32(max(row.Field(1).Uint(), 1))
			}
			b, err := raw(c.dev, o)
			switch {
			case err == nil:
				field(row, "Raw").SetString(fmt.Sprintf("%x", b))
			case errors.Is(err, syscall.ENOENT): // the object is gone meanwhile
			case kind == "qp" && errors.Is(err, syscall.EAGAIN):
				noPort++
			case unsupported && errors.Is(err, errors.ErrUnsupported): // the first error says why
			default:
				c.Missing = append(c.Missing, err.Error())
				unsupported = unsupported || errors.Is(err, errors.ErrUnsupported)
				end = errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist)
			}
		}
		if noPort > 0 {
			c.Missing = append(c.Missing, fmt.Sprintf("raw dumps of %d QPs that have no port, such as QPs in state RESET", noPort))
		}
	})
}

// filterCompletions completes the value of --filter.
func filterCompletions(text string) (all []command.Completion) {
	key, values, ok := strings.Cut(text, "=")
	if !ok {
		for _, k := range keysOfKind("") {
			all = append(all, command.Completion{Text: k + "=", About: strings.Join(kindsWith(k), ", ")})
		}
		return all
	}
	for _, c := range command.ListCompletions(plain(wordsOf(kindsWith(key), key)), values) {
		all = append(all, command.Completion{Text: key + "=" + c.Text})
	}
	return all
}
