package jsontext

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestExplain: each kind of mistake is said with its place, and without the words of Go's decoder.
func TestExplain(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "it is empty",
		" \n":                     "it is empty",
		`{"n": 1`:                 "it ends before the JSON value does",
		`{"n": 1,}`:               `it is no JSON from column 9 on: "}"`,
		"{\n \"n\": nil\n}":       "it is no JSON from line 2, column 8 on: \"il\\n}\"",
		"n: 1 and so on and more": `it is no JSON from column 2 on: ": 1 and so on and mo"`,
		`[]`:                      "it is an array, allowed: an object",
		`{"n": "1"}`:              "n is a string, allowed: a whole number",
		`{"n": 1.5}`:              "n is 1.5, allowed: a whole number",
		`{"n": ` + strings.Repeat("9", 1000) + `}`: "n is " + strings.Repeat("9", 40) + ", allowed: a whole number",
		`{"u": -1}`:          "u is -1, allowed: a whole number from 0 to 65535",
		`{"f": true}`:        "f is a bool, allowed: a number",
		`{"b": 1}`:           "b is a number, allowed: true, false",
		`{"s": {}}`:          "s is an object, allowed: a string",
		`{"l": 1}`:           "l is a number, allowed: an array",
		`{"in": 1}`:          "in is a number, allowed: an object",
		`{"t": "yesterday"}`: `"yesterday" is no time, allowed: one such as 2026-11-30T10:00:00Z`,
		`{"x": 1}`:           `there is no field "x", allowed: n, u`,
	} {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.DisallowUnknownFields()
		var v struct {
			N  int
			U  uint16
			F  float64
			B  bool
			S  string
			L  []int
			In struct{ M int }
			T  time.Time
		}
		err := d.Decode(&v)
		if err == nil {
			t.Fatalf("%s is taken", text)
		}
		if err = Explain([]byte(text), err, "n", "u"); !strings.EqualFold(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
