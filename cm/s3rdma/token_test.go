package s3rdma

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/goverbs/uverbs/ib"
)

// tokens are tokens and what they say: one that shows each field, and one that libcuobjclient 1.2.0
// has sent.
var tokens = map[string]Token{
	"0102030405060708:01020304:01020305:0102:010203:1:0102030405060708090a0b0c0d0e0f10": {
		Addr: 0x0102030405060708, Size: 0x01020304, RKey: 0x01020305, LID: 0x0102, DCTN: 0x010203,
		GID: ib.GID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
	},
	"000073967e5ff000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0f0f0fdf": {
		Addr: 0x73967e5ff000, Size: 4 << 20, RKey: 0x01f2e973, DCTN: 0x7a03, GID: ib.GID(netip.MustParseAddr("15.15.15.223").As16()),
	},
	"0000000000001000:ffffffff:00000001:0007:ffffff:0:00000000000000000000000000000000": {Addr: 0x1000, Size: 0xffffffff, RKey: 1, LID: 7, DCTN: 0xffffff},
}

func TestToken(t *testing.T) {
	for text, want := range tokens {
		for _, s := range []string{text, strings.ToUpper(text), text + ";", text + "\x00", text + ";\x00", text + ":000073967e5ff000:0000000000400000"} {
			got, err := ParseToken(s)
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("ParseToken(%q): %v\n%s", s, err, diff)
			}
		}
		if got := want.String(); got != text {
			t.Errorf("String: %q, want %q", got, text)
		}
	}
}

// TestTokenErrors parses what no target has sent.
func TestTokenErrors(t *testing.T) {
	const good = "000073967e5ff000:00400000:01f2e973:0000:007a03:1:00000000000000000000ffff0f0f0fdf"
	for name, test := range map[string]struct{ text, want string }{
		"empty":              {"", "0 characters, want 81"},
		"short":              {good[:80], "80 characters"},
		"other suffix":       {good + ":000073967e5ff000:000000000040000g", "115 characters"},
		"two semicolons":     {good + ";;", "82 characters"},
		"fewer fields":       {strings.Replace(good, ":1:", "010", 1), "5 fields, want 7"},
		"address":            {"0x" + good[2:], `the field address of the token is "0x0073967e5ff000", want 16 hexadecimal digits`},
		"sign":               {"+" + good[1:], "the field address"},
		"size":               {strings.Replace(good, "00400000", "0040000g", 1), `the field size of the token is "0040000g"`},
		"other widths":       {strings.Replace(good, ":0000:007a03", ":00000:07a03", 1), `the field LID of the token is "00000"`},
		"flag":               {strings.Replace(good, ":1:", ":2:", 1), "the flag of the token is 2"},
		"flag without a GID": {strings.Replace(good, "ffff0f0f0fdf", "000000000000", 1), "the flag of the token is 1"},
		"GID without a flag": {strings.Replace(good, ":1:", ":0:", 1), "the flag of the token is 0"},
		"target 0":           {strings.Replace(good, "007a03", "000000", 1), "the target of the token is 0"},
		"past the end":       {"ffffffffffffffff" + good[16:], "goes past the last address"},
		"nowhere":            {good[:47] + "0:00000000000000000000000000000000", "neither a GID nor a LID"},
	} {
		if got, err := ParseToken(test.text); err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrForeignToken) {
			t.Errorf("%s: %+v, %v, want an error with %q", name, got, err, test.want)
		}
	}
	for _, s := range []string{"rc:00112233445566778899aabbccddeeff:0000000000001000:00001000:00000001", strings.Repeat("01", 44), strings.Repeat("01", 44) + ":1000:20"} {
		if _, err := ParseToken(s); !errors.Is(err, ErrForeignToken) {
			t.Errorf("ParseToken(%q): %v, want ErrForeignToken", s, err)
		}
	}
}

// FuzzToken parses anything: what is a token has a string that parses to the same.
func FuzzToken(f *testing.F) {
	for s := range tokens {
		f.Add(s)
	}
	f.Add("rc:1:2")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		if err != nil {
			return
		}
		if again := tok.String(); !strings.EqualFold(again, s[:tokenSize]) {
			t.Errorf("%q becomes %q", s, again)
		}
	})
}
