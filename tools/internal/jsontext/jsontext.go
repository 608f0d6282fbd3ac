// Package jsontext says in plain words what is wrong with the JSON of a file that a person or another program has written.
package jsontext

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
)

// Explain returns an error for one with which package encoding/json refuses a text. fields are those that may be in it,
// for a decoder that disallows others.
func Explain(text []byte, err error, fields ...string) error {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	var date *time.ParseError
	unknown, isUnknown := strings.CutPrefix(err.Error(), "json: unknown field ")
	switch {
	case errors.As(err, &typ):
		value, isNumber := strings.CutPrefix(typ.Value, "number ")
		switch {
		case isNumber:
		case value[0] == 'a' || value[0] == 'o': // array, object
			value = "an " + value
		default:
			value = "a " + value
		}
		return fmt.Errorf("%s is %.40s, allowed: %s", cmp.Or(typ.Field, "it"), value, kind(typ.Type))
	case isUnknown:
		return fmt.Errorf("there is no field %.64s, allowed: %s", unknown, strings.Join(fields, ", "))
	case errors.As(err, &date):
		return fmt.Errorf("%.40q is no time, allowed: one such as 2026-11-30T10:00:00Z", strings.Trim(date.Value, `"`))
	case len(bytes.TrimSpace(text)) == 0:
		return errors.New("it is empty")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &syntax) && strings.HasPrefix(syntax.Error(), "unexpected end"):
		return errors.New("it ends before the JSON value does")
	case syntax != nil:
		before := text[:max(syntax.Offset-1, 0)]
		at := fmt.Sprintf("column %d", len(before)-bytes.LastIndexByte(before, '\n'))
		if n := bytes.Count(text, []byte("\n")); n > 0 {
			at = fmt.Sprintf("line %d, %s", bytes.Count(before, []byte("\n"))+1, at)
		}
		return fmt.Errorf("it is no JSON from %s on: %.20q", at, text[len(before):])
	}
	return err
}

// kind returns what JSON has for a type.
func kind(t reflect.Type) string {
	switch k := t.Kind(); {
	case k == reflect.String:
		return "a string"
	case k >= reflect.Int && k <= reflect.Int64:
		return "a whole number"
	case k >= reflect.Uint && k <= reflect.Uint64:
		return fmt.Sprintf("a whole number from 0 to %d", ^uint64(0)>>(64-t.Bits()))
	case k == reflect.Float64, k == reflect.Float32:
		return "a number"
	case k == reflect.Bool:
		return "true, false"
	case k == reflect.Slice, k == reflect.Array:
		return "an array"
	}
	return "an object"
}
