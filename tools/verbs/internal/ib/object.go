package ib

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// An object is an attribute as JSON: keys in the order of the attribute's fields, with the fields of
// attributes in it on the same level.
type object []member

// A member is a field of an object.
type member struct {
	key   string
	value any // a number, a bool, a text, or a list of these
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", m.key, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// text returns a value as a table shows it.
func (o object) text(key string) string {
	for _, m := range o {
		if m.key != key {
			continue
		}
		list, ok := m.value.([]any)
		if !ok {
			return fmt.Sprint(m.value)
		}
		var b strings.Builder
		for i, v := range list { // what is not 0, with its place in the table
			if text := fmt.Sprint(v); strings.Trim(text, "0x:") != "" {
				fmt.Fprintf(&b, "%d:%s ", i, text)
			}
		}
		return strings.TrimSpace(b.String())
	}
	return ""
}

// objectOf returns an attribute as an object.
func objectOf(a mad.Attribute) (o object) {
	for _, f := range fieldsOf(reflect.ValueOf(a).Elem()) {
		o = append(o, member{f.key, valueOf(f.key, f.value)})
	}
	return o
}

// RecordKeys returns the keys of the records that "verbs ib sa" prints as JSON, by the name of their kind.
func RecordKeys() map[string][]string {
	all := map[string][]string{}
	for _, k := range kinds {
		for _, m := range objectOf(k.zero) {
			all[k.name] = append(all[k.name], m.key)
		}
	}
	return all
}

// A recordField is a field of an attribute, or of an attribute in it.
type recordField struct {
	key   string
	value reflect.Value
}

// fieldsOf lists the fields of a struct and of the structs in it. A field that is itself a table, such as
// LinearForwardingTable, is the list in it.
func fieldsOf(v reflect.Value) (all []recordField) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Type.Kind() == reflect.Struct {
			all = append(all, fieldsOf(v.Field(i))...)
		} else {
			all = append(all, recordField{keyOf(f), v.Field(i)})
		}
	}
	return all
}

// keyOf returns the key of a field: its name in snake_case, in the plural if it is a list, and with a unit
// if the number is converted.
func keyOf(f reflect.StructField) string {
	name := strings.NewReplacer("LIDs", "Lids", "VLs", "Vls", "SLtoVL", "SlToVl", "TClass", "Tclass", "SMLID", "SmLid", "SMSL", "SmSl").Replace(f.Name)
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			before, after := rune(name[i-1]), rune('A')
			if i+1 < len(name) {
				after = rune(name[i+1])
			}
			if !unicode.IsUpper(before) || unicode.IsLower(after) {
				b.WriteByte('_')
			}
		}
		b.WriteRune(unicode.ToLower(r))
	}
	key := b.String()
	switch {
	case f.Name == "Rate":
		return "rate_gbps"
	case f.Type.Kind() == reflect.Array && f.Type != reflect.TypeFor[mad.GID]() && unicode.IsLower(rune(key[len(key)-1])) && !strings.HasSuffix(key, "key"):
		return key + "s"
	case strings.HasSuffix(key, "p_key") && f.Type.Kind() == reflect.Array:
		return key + "s"
	}
	return key
}

// rates are the rates of paths in Gbit/s, by their number in the specification.
var rates = [...]float64{2: 2.5, 3: 10, 4: 30, 5: 5, 6: 20, 7: 40, 8: 60, 9: 80, 10: 120, 11: 14, 12: 56, 13: 112, 14: 168, 15: 25, 16: 100,
	17: 200, 18: 300, 19: 28, 20: 50, 21: 400, 22: 600, 23: 800}

// smStates are the states of a subnet manager.
var smStates = [...]string{"NOT_ACTIVE", "DISCOVERING", "STANDBY", "MASTER"}

// smState returns the word for a state of a subnet manager.
func smState(n uint8) string {
	if int(n) < len(smStates) {
		return smStates[n]
	}
	return fmt.Sprintf("SMState(%d)", n)
}

// valueOf returns the value of a field as JSON has it.
func valueOf(key string, v reflect.Value) any {
	switch x := v.Interface().(type) {
	case mad.GUID:
		return x.String()
	case mad.GID:
		return netip.AddrFrom16(x).StringExpanded()
	case netlinkrdma.PortState:
		return x.String()
	case netlinkrdma.NodeType:
		return x.String()
	case netlinkrdma.PhysState:
		return uverbs.PortAttr{PhysState: uint8(x)}.Phys()
	}
	switch v.Kind() {
	case reflect.String, reflect.Bool:
		return v.Interface()
	case reflect.Array:
		if key == "service_key" {
			return fmt.Sprintf("0x%x", v.Interface())
		}
		list := make([]any, v.Len())
		for i := range list {
			list[i] = valueOf(key, v.Index(i))
		}
		return list
	}
	n := v.Uint()
	switch {
	case key == "sm_state":
		return smState(uint8(n))
	case key == "rate_gbps":
		if n < uint64(len(rates)) {
			return rates[n]
		}
		return 0
	case key == "mtu", key == "neighbor_mtu", key == "mtu_cap":
		if n < 1 || n > 5 {
			return 0
		}
		return 128 << n
	case strings.Contains(key, "mask"), strings.Contains(key, "_key"), key == "mlid", key == "gid_prefix", key == "service_id":
		return fmt.Sprintf("0x%0*x", v.Type().Bits()/4, n)
	}
	return n
}

// setField sets the field of an attribute that has a key.
func setField(a mad.Attribute, key, text string) error {
	for _, f := range fieldsOf(reflect.ValueOf(a).Elem()) {
		if f.key == key {
			if allowed := setValue(f.value, text); allowed != "" {
				return fmt.Errorf("%s is %s, allowed: %s", key, peertext.Quote(text), allowed)
			}
			return nil
		}
	}
	return fmt.Errorf("there is no field %s", key)
}

// setValue sets a field. It returns what is allowed if the text is not.
func setValue(v reflect.Value, text string) (allowed string) {
	switch v.Interface().(type) {
	case mad.GID:
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" {
			return "a GID such as fe80::1"
		}
		v.Set(reflect.ValueOf(mad.GID(ip.As16())))
		return ""
	case mad.GUID:
		guid, ok := parseGUID(text)
		if !ok {
			return "a GUID such as 0002:c903:0001:0001 or 0x2c90300010001"
		}
		v.SetUint(uint64(guid))
		return ""
	case netlinkrdma.NodeType:
		n, ok := map[string]uint64{"ca": 1, "switch": 2, "router": 3}[strings.ToLower(text)]
		v.SetUint(n)
		if !ok {
			return "CA, switch, router"
		}
		return ""
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return "true, false"
		}
		v.SetBool(b)
	case reflect.Array:
		return "nothing, since it is a list"
	default:
		n, err := strconv.ParseUint(text, 0, v.Type().Bits())
		if err != nil {
			return fmt.Sprintf("a number up to %d", uint64(1)<<v.Type().Bits()-1)
		}
		v.SetUint(n)
	}
	return ""
}

// parseGUID reads a GUID in hexadecimal: with 0x, or in four groups.
func parseGUID(text string) (mad.GUID, bool) {
	digits, prefixed := strings.CutPrefix(strings.ToLower(text), "0x")
	if !prefixed && strings.Count(text, ":") != 3 {
		return 0, false
	}
	if !prefixed {
		groups := strings.Split(text, ":")
		digits = ""
		for _, g := range groups {
			digits += strings.Repeat("0", max(4-len(g), 0)) + g
		}
	}
	n, err := strconv.ParseUint(digits, 16, 64)
	return mad.GUID(n), err == nil && len(digits) <= 16
}
