package mesh

import (
	"slices"
	"strings"
	"testing"
)

// TestSplitWords: a line is split as a shell splits simple ones.
func TestSplitWords(t *testing.T) {
	for line, want := range map[string][]string{
		"":                                 nil,
		"  ssh\t{host} ":                   {"ssh", "{host}"},
		`ssh -o 'Proxy Command=x "y"' h`:   {"ssh", "-o", `Proxy Command=x "y"`, "h"},
		`a "b c"'d e'f "" '' g\ h \"`:      {"a", "b cd ef", "", "", "g h", `"`},
		`'a\b' "c\"d" $HOME ;x`:            {`a\b`, `c"d`, "$HOME", ";x"},
		"--context=ü 'kubectl' exec -i --": {"--context=ü", "kubectl", "exec", "-i", "--"},
	} {
		if got, err := SplitWords(line); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v, want %q", line, got, err, want)
		}
	}
	for line, want := range map[string]string{
		`a 'b`: "ends within ' quotes", `a "b'`: `ends within " quotes`, `a \`: "ends with a backslash",
		"a\nb": "allowed: up to 4096 printable characters", strings.Repeat("a", 4097): "allowed: up to 4096",
	} {
		if got, err := SplitWords(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v, want %q", line, got, err, want)
		}
	}
}

// FuzzSplitWords: words that are quoted come back as they were.
func FuzzSplitWords(f *testing.F) {
	f.Add("a b", `"'\`)
	f.Fuzz(func(t *testing.T, a, b string) {
		quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
		got, err := SplitWords(quote(a) + " " + quote(b))
		if err == nil && !slices.Equal(got, []string{strings.ToValidUTF8(a, "\ufffd"), strings.ToValidUTF8(b, "\ufffd")}) && strings.ToValidUTF8(a+b, "") == a+b {
			t.Errorf("%q and %q come back as %q", a, b, got)
		}
	})
}

// TestViaCommand: the name of a host is put into each word, whole or in part.
func TestViaCommand(t *testing.T) {
	v, err := NewVia("sh -H name={host} root@{host}", "sudo -n '/opt/my verbs'")
	if err != nil {
		t.Fatal(err)
	}
	h, err := v.ParseHost("ns/pod-1.example:2")
	if want := []string{"sh", "-H", "name=ns/pod-1.example:2", "root@ns/pod-1.example:2", "sudo", "-n", "/opt/my verbs", "mesh", "serve", "--stdio"}; err != nil || !slices.Equal(v.command(h), want) {
		t.Errorf("%q, %v, want %q", v.command(h), err, want)
	}
	for _, name := range []string{"", "-", "-oProxyCommand=x", "a b", "a;b", "a$b", "a`b", "a\nb", "a'b", "a\\b", "ä", "a*", "a~b", strings.Repeat("a", 254)} {
		if _, err := v.ParseHost(name); err == nil {
			t.Errorf("a host may be %q", name)
		}
	}
}

// TestTail: of what a program prints, the end is kept.
func TestTail(t *testing.T) {
	var said tail
	for range 1000 {
		said.Write([]byte(strings.Repeat("x", 79) + "\n"))
	}
	said.Write([]byte("the last"))
	said.Write([]byte(" line\r\n\n"))
	if got := said.last(); got != "the last line" || len(said.text) != lastWords {
		t.Errorf("%q of %d bytes", got, len(said.text))
	}
}
