package trace

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// aRecord returns a record of some calls.
func aRecord(t testing.TB, calls []*Call) []byte {
	t.Helper()
	var b bytes.Buffer
	r := NewRecorder(&b, Header{Kernel: "6.1", Arch: "amd64", Program: []string{"prog", "-x"}})
	for _, c := range calls {
		r.Add(c)
	}
	must(t, r.End(3))
	r.Add(&Call{Call: CallRead}) // too late
	return b.Bytes()
}

// readAll reads a record to its end or an error.
func readAll(b []byte) (calls []*Call, status int, err error) {
	r, err := NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, 0, err
	}
	for {
		c, err := r.Next()
		if errors.Is(err, io.EOF) {
			return calls, r.Status, nil
		}
		if err != nil {
			return calls, 0, err
		}
		calls = append(calls, c)
	}
}

// TestRecord: what was written is read again.
func TestRecord(t *testing.T) {
	for _, file := range goldenFiles(t) {
		want := golden(t, file)
		got, status, err := readAll(aRecord(t, want))
		if err != nil || status != 3 {
			t.Fatalf("%s: status %d, %v", file, status, err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Call{})); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}

// TestRecordCut cuts a record at every place.
func TestRecordCut(t *testing.T) {
	b := aRecord(t, golden(t, goldenFiles(t)[0])[:3])
	for n := range len(b) - 1 {
		calls, _, err := readAll(b[:n])
		if err == nil {
			t.Fatalf("%d of %d bytes are a record of %d calls", n, len(b), len(calls))
		}
		if first := bytes.IndexByte(b, '\n'); n > first && !errors.Is(err, ErrCut) {
			t.Errorf("%d of %d bytes: %v", n, len(b), err)
		}
	}
}

// TestRecordBad reads what is no record.
func TestRecordBad(t *testing.T) {
	head := `{"record":"verbs trace","version":1}` + "\n"
	for text, want := range map[string]string{
		"":      "the record is empty",
		"\n":    "is not a record",
		"hello": "is not a record",
		`{"record":"verbs trace","version":2}` + "\n":                      "the version of the record is 2, allowed: 1",
		head + "junk\n" + `{"end":true,"calls":0}` + "\n":                  "line 2: ",
		head + `{"end":true,"calls":5}` + "\n":                             "other calls",
		head + `{"call":"ioctl","attrs":[{"len":2,"in":"010203"}]}` + "\n": "the length of an attribute",
		head + `{"call":"ioctl","attrs":[null]}` + "\n":                    "the length of an attribute",
		head + "{}\n":                         "it is no call",
		head + strings.Repeat("x", maxLine+1): "line 2: ",
	} {
		if _, _, err := readAll([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

// FuzzRecord: no file makes the reader or the decoder panic.
func FuzzRecord(f *testing.F) {
	for _, file := range goldenFiles(f) {
		f.Add(aRecord(f, golden(f, file)[:4]))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		calls, _, _ := readAll(b)
		d := NewDecoder()
		for _, c := range calls {
			d.Decode(c).Text()
		}
		d.Finish()
	})
}
