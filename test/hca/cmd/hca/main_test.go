package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/hca"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"-mode", "roce", "-loss", "0.5", "-report", "r", "a", "fd:3"})
	if err != nil || o.mode != hca.RoCE || o.fabric.Loss != 0.5 || o.report != "r" || len(o.sockets) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	o, err = parse([]string{"-personality", "7", "a"})
	if err != nil || o.personality != hca.DrawPersonality(7) {
		t.Errorf("%+v, %v", o, err)
	}
	o, err = parse([]string{"-personality", "vf", "-describe"})
	if err != nil || o.personality.Name != "vf" || !o.describe {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range [][]string{nil, {"-personality", "big", "a"}, {"-mode", "opa", "a"}, {"-mode", "ib"}, {"-loss", "2", "a"}, {"-duplicate", "NaN", "a"}, {"-delay", "-1s", "a"}} {
		if _, err := parse(bad); err == nil || errors.Is(err, flag.ErrHelp) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestParseManaged: -topology and -managed are for InfiniBand.
func TestParseManaged(t *testing.T) {
	for _, args := range [][]string{{"-managed", "a"}, {"-topology", "ring:3", "a"}} {
		o, err := parse(args)
		if err != nil || !o.managed || (o.topology != nil) != (len(args) == 3) {
			t.Errorf("%q: %+v, %v", args, o, err)
		}
		want := args[0] + ": with -mode roce there is no subnet manager; want -mode ib"
		if _, err := parse(append([]string{"-mode", "roce"}, args...)); err == nil || err.Error() != want {
			t.Errorf("%q with -mode roce: error %v, want %q", args, err, want)
		}
	}
	for word, want := range map[string]string{"ring:2": "-topology: a ring of 2 switches", "/nowhere": `-topology: topology "/nowhere", allowed`} {
		if _, err := parse([]string{"-topology", word, "a"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-topology %s: error %v, want %q", word, err, want)
		}
	}
}

// visit connects to a card, says one thing, and goes.
func visit(t *testing.T, path, message string) {
	t.Helper()
	for {
		c, err := net.Dial("unix", path)
		if err != nil {
			time.Sleep(time.Millisecond) // not yet
			continue
		}
		if _, err := c.Write([]byte(message)); err != nil {
			t.Error(err)
		}
		if message == getInfo {
			if _, err := io.ReadFull(c, make([]byte, 32)); err != nil {
				t.Error(err)
			}
		}
		c.Close()
		return
	}
}

const (
	getInfo = "\x01\x00\x04\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	// readUAR is a load of 8 bytes at 0x100800 of BAR 0, which is a violation.
	readUAR = "\x02\x00\x09\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x08\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00"
)

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		message    string
		violations uint64
		fails      bool
	}{{getInfo, 0, false}, {readUAR, 1, false}, {"\x00\x00\x04\x00\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00", 0, true}} {
		dir := t.TempDir()
		path, report := filepath.Join(dir, "card"), filepath.Join(dir, "report")
		go visit(t, path, tt.message)
		var out bytes.Buffer
		violations, err := run(options{mode: hca.IB, report: report, sockets: []string{path}}, &out)
		if violations != tt.violations || (err != nil) != tt.fails {
			t.Errorf("%q: %d violations, %v", tt.message, violations, err)
		}
		if want := "card 0 (ib): 0 commands, 0 refused, " + strconv.FormatUint(tt.violations, 10) + " violations\n"; !strings.HasPrefix(out.String(), want) {
			t.Errorf("%q, want %q", out.String(), want)
		}
		b, err := os.ReadFile(report)
		if err != nil {
			t.Fatal(err)
		}
		var cards []hca.Report
		if err := json.Unmarshal(b, &cards); err != nil || len(cards) != 1 || cards[0].Violations != tt.violations || cards[0].Mode != hca.IB {
			t.Errorf("%+v, %v", cards, err)
		}
	}
	path := filepath.Join(t.TempDir(), "card")
	go visit(t, path, getInfo)
	var out bytes.Buffer
	p := hca.DrawPersonality(7)
	if _, err := run(options{mode: hca.IB, personality: p, sockets: []string{path}}, &out); err != nil || !strings.HasPrefix(out.String(), "personality "+p.String()+"\n") {
		t.Errorf("%q, %v, want personality %s first", out.String(), err, p)
	}
	if _, err := run(options{mode: hca.IB, sockets: []string{"/no/such/dir/card"}, quiet: true}, io.Discard); err == nil {
		t.Error("a socket in no directory: no error")
	}
	if _, err := run(options{mode: hca.IB, sockets: []string{"fd:x"}, quiet: true}, io.Discard); err == nil {
		t.Error("a descriptor that is no number: no error")
	}
}
