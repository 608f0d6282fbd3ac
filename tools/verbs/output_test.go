package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/goverbs/goverbs/tools/verbs/internal/perf"
	"github.com/goverbs/goverbs/uverbs/trace"
)

// hostile is text that a terminal would obey: ESC and its sequence for the title, CR, the C1 form of CSI in UTF-8,
// a change of direction, and the C1 form as a byte.
const hostile = "\x1b]0;title\x07\r\u009b31m\u202eabc\x9b5m"

// checkPrintable fails if output has anything that a terminal obeys.
func checkPrintable(t *testing.T, what string, out []byte) {
	t.Helper()
	if !utf8.Valid(out) || bytes.ContainsFunc(out, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsGraphic(r) }) {
		t.Errorf("%s prints what a terminal obeys: %q", what, out)
	}
}

// spoil puts hostile text into all strings of a value.
func spoil(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		spoil(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				spoil(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			spoil(v.Index(0))
		}
	case reflect.String:
		v.SetString(hostile)
	}
}

// TestHostileRecord: whatever a record says, its text is escaped in each form that is printed.
func TestHostileRecord(t *testing.T) {
	var calls []*trace.Call
	for _, kind := range []string{trace.CallOpen, trace.CallIoctl, trace.CallWrite, trace.CallRead, trace.CallMmap, trace.CallExec, trace.CallExit, hostile} {
		for _, file := range []string{"uverbs0", "rdma_cm", "event", hostile} {
			c := &trace.Call{}
			spoil(reflect.ValueOf(c))
			c.Call, c.File = kind, file
			ok := *c
			ok.Errno = ""
			calls = append(calls, c, &ok)
		}
	}
	name := filepath.Join(t.TempDir(), "record")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := trace.Header{}
	spoil(reflect.ValueOf(&h))
	r := trace.NewRecorder(f, h)
	for _, c := range calls {
		r.Add(c)
	}
	if err := r.End(0); err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"--failed=false", "--failed", "--summary", "--json", "--summary --json"} {
		out, err := softCommand(t, "auto", append([]string{"trace", "show", name}, strings.Fields(flag)...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "title") {
			t.Errorf("%s: %v, %q", flag, err, out)
		}
		checkPrintable(t, "verbs trace show "+flag, out)
		if strings.Contains(flag, "json") {
			for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
				var v any
				if err := d.Decode(&v); err != nil {
					t.Fatalf("%s: %v", flag, err)
				}
			}
		}
	}
}

// TestHostilePeer: what a server says to a client of any command is escaped, and so are names on the command line.
func TestHostilePeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	frame := func(text string) string {
		return string([]byte{0, 0, byte(len(text) >> 8), byte(len(text))}) + text
	}
	for name, answer := range map[string]string{
		"noise":           strings.Repeat(hostile, 20),
		"error":           "goverbs perf\x00\x00\x00" + string(rune(perf.ProtocolVersion)) + frame(`{"kind":"error","error":"\u001b]0;title\u0007\u009b31m\u202e"}`),
		"kind":            "goverbs perf\x00\x00\x00" + string(rune(perf.ProtocolVersion)) + frame(`{"kind":"\u001b]0;title\u0007\u009b31m\u202e"}`),
		"perftest record": "6.29" + hostile + strings.Repeat(hostile, 30),
	} {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Write([]byte(answer))
				c.(*net.TCPConn).CloseWrite()
			}
		}()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		for _, args := range [][]string{
			{"perf", "send-lat", "127.0.0.1", "-p", port},
			{"perf", "write-bw", "127.0.0.1", "-p", port, "--json"},
			{"perf", "send-bw", "127.0.0.1", "-p", port, "--perftest"},
			{"pingpong", "127.0.0.1", "-p", port},
			{"mesh", "run", "127.0.0.1:" + port, "127.0.0.2:" + port},
			{"mesh", "run", "127.0.0.1:" + port, "127.0.0.2:" + port, "--json"},
			{"perf", "send-lat", hostile}, {"pingpong", hostile}, {"rping", "-c", "-a", hostile},
			{hostile}, {"info", hostile}, {"res", hostile}, {"trace", hostile}, {"perf", "read-bw", "--" + hostile},
		} {
			cmd := softCommand(t, "auto", args...)
			cmd.Env = append(cmd.Env, secretEnv+"=of this test and no other")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Errorf("%s: verbs %q succeeds: %q", name, args, out)
			}
			checkPrintable(t, name+": verbs "+strings.Join(args, " "), out)
		}
	}
}

// TestPrivateFiles: records and pictures are their owner's alone, and a link in their place is not followed.
func TestPrivateFiles(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.svg")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		devices string
		args    []string // without the file
	}{
		{"auto", []string{"trace", "--", "true", "-o"}},
		{"auto,capture=", []string{"devices"}},
		{"auto,trace=", []string{"devices"}},
		{"auto", []string{"perf", "send-lat", "127.0.0.1", "--plot"}},
		{"auto", []string{"mesh", "run", "127.0.0.1:1", "127.0.0.1:2", "--html"}},
	} {
		run := func(file string) string {
			devices, args := c.devices, c.args
			switch {
			case strings.HasSuffix(devices, "="):
				devices += file
			case args[0] == "trace":
				args = []string{"trace", "-o", file, "--", "true"}
			default:
				args = append(args[:len(args):len(args)], file)
			}
			cmd := softCommand(t, devices, args...)
			cmd.Env = append(cmd.Env, secretEnv+"=of this test and no other")
			out, _ := cmd.CombinedOutput()
			return string(out)
		}
		if out := run(link); !strings.Contains(out, "symbolic link") {
			t.Errorf("%s %q: a link is followed: %q", c.devices, c.args, out)
		}
		if b, err := os.ReadFile(target); string(b) != "precious" || err != nil {
			t.Fatalf("%s %q: the target of the link has %q: %v", c.devices, c.args, b, err)
		}
		file := filepath.Join(t.TempDir(), "new.svg")
		out := run(file)
		if info, err := os.Stat(file); err == nil && info.Mode() != 0o600 || err != nil && c.args[0] != "perf" { // which has nothing to draw
			t.Errorf("%s %q: mode is %v, %v, want 0600: %s", c.devices, c.args, info, err, out)
		}
	}
}
