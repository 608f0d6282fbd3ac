package ib

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// An object is an attribute as JSON: keys in the order of the attribute's fields, with the fields of
// attributes in it on the same level.
type object []member

// A member is a field of an object.
type member struct {
	key   string
	value any // a number, a bool, a text, an object, or a list of these
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	return command.MarshalObject(len(o), func(i int) (string, any) { return o[i].key, o[i].value })
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
		for i, v := range list { // elements that are not 0, with their index in the table
			if text := fmt.Sprint(v); strings.Trim(text, "0x:") != "" {
				fmt.Fprintf(&b, "%d:%s ", i, text)
			}
		}
		return strings.TrimSpace(b.String())
	}
	return ""
}

// objectOf returns an attribute as an object.
func objectOf(a mad.Attribute) object { return objectOfStruct(reflect.ValueOf(a).Elem()) }

// objectOfStruct returns a struct as an object.
func objectOfStruct(v reflect.Value) (o object) {
	for _, f := range fieldsOf(v) {
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
	bits  int // of a number or text
}

// fieldsOf lists the fields of a struct and of the structs in it. A field that is itself a table, such as
// LinearForwardingTable, is the list in it.
func fieldsOf(v reflect.Value) (all []recordField) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Type.Kind() == reflect.Struct {
			all = append(all, fieldsOf(v.Field(i))...)
		} else {
			all = append(all, recordField{keyOf(f), v.Field(i), fieldBits(f)})
		}
	}
	return all
}

// fieldBits returns how many bits of a MAD a number or text has.
func fieldBits(f reflect.StructField) int {
	if _, width, ok := strings.Cut(f.Tag.Get("mad"), " "); ok {
		return atoi(width)
	}
	return int(f.Type.Size()) * 8
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
	case f.Type.Kind() == reflect.Array && f.Type != reflect.TypeFor[ib.GID]() && unicode.IsLower(rune(key[len(key)-1])) && !strings.HasSuffix(key, "key"):
		if stem, ok := strings.CutSuffix(key, "y"); ok {
			return stem + "ies"
		}
		return key + "s"
	case strings.HasSuffix(key, "p_key") && f.Type.Kind() == reflect.Array:
		return key + "s"
	}
	return key
}

// rates are the rates of paths in Gbit/s, by their number in the specification.
var rates = [...]float64{2: 2.5, 3: 10, 4: 30, 5: 5, 6: 20, 7: 40, 8: 60, 9: 80, 10: 120, 11: 14, 12: 56, 13: 112, 14: 168, 15: 25, 16: 100,
	17: 200, 18: 300, 19: 28, 20: 50, 21: 400, 22: 600, 23: 800, 24: 1200}

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
	case ib.GUID, ib.GID, ib.PortState, ib.NodeType:
		return x.(fmt.Stringer).String()
	case ib.MTU:
		return x.Bytes()
	case ib.PhysState:
		return x.Words()
	}
	switch v.Kind() {
	case reflect.String, reflect.Bool:
		return v.Interface()
	case reflect.Struct:
		return objectOfStruct(v)
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
	case strings.Contains(key, "mask"), strings.HasSuffix(key, "_key"), key == "p_keys", key == "mlid", key == "gid_prefix", key == "service_id":
		return fmt.Sprintf("0x%0*x", v.Type().Bits()/4, n)
	}
	return n
}

// setField sets the field of an attribute that has a key.
func setField(a mad.Attribute, key, text string) error {
	for _, f := range fieldsOf(reflect.ValueOf(a).Elem()) {
		if f.key == key {
			if allowed := f.set(text); allowed != "" {
				return fmt.Errorf("%s is %s, allowed: %s", key, peertext.Quote(text), allowed)
			}
			return nil
		}
	}
	return fmt.Errorf("there is no field %s", key)
}

// set sets a field. It returns what is allowed if the text is not.
func (f recordField) set(text string) (allowed string) {
	v := f.value
	switch v.Interface().(type) {
	case ib.GID:
		gid, err := ib.ParseGID(text)
		if err != nil {
			return "a GID such as fe80::1"
		}
		v.Set(reflect.ValueOf(gid))
		return ""
	case ib.GUID:
		guid, err := ib.ParseGUID(text)
		if err != nil {
			return "a GUID such as 0002:c903:0001:0001 or 0x2c90300010001"
		}
		v.SetUint(uint64(guid))
		return ""
	case ib.NodeType:
		return f.setWord(text, 3)
	case ib.PortState:
		return f.setWord(text, 4)
	case ib.PhysState:
		return f.setWord(text, 7)
	}
	switch v.Kind() {
	case reflect.String:
		if len(text)*8 > f.bits {
			return fmt.Sprintf("a text of up to %d bytes", f.bits/8)
		}
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return "true, false"
		}
		v.SetBool(b)
	case reflect.Array:
		b, err := hex.DecodeString(strings.TrimPrefix(text, "0x"))
		if err != nil || len(b) != v.Len() {
			return fmt.Sprintf("0x and %d hexadecimal digits", 2*v.Len())
		}
		reflect.Copy(v, reflect.ValueOf(b))
	default:
		n, err := strconv.ParseUint(text, 0, f.bits)
		if err != nil {
			return fmt.Sprintf("0 to %d", uint64(1)<<f.bits-1)
		}
		v.SetUint(n)
	}
	return ""
}

// setWord sets a field to a value from 1 to last, which JSON has as words, or to its number.
func (f recordField) setWord(text string, last uint64) (allowed string) {
	for n := uint64(1); n <= last; n++ {
		f.value.SetUint(n)
		word := fmt.Sprint(valueOf(f.key, f.value))
		if text == strconv.FormatUint(n, 10) || strings.EqualFold(text, word) {
			return ""
		}
		allowed += word + ", "
	}
	return fmt.Sprintf("%s1 to %d", allowed, last)
}
