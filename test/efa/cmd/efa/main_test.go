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
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/efa"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"-personality", "first", "-report", "r", "-seed", "7", "a", "fd:3"})
	if err != nil || o.personality.Name != "first" || o.report != "r" || o.seed != 7 || len(o.sockets) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err = parse([]string{"-describe"}); err != nil || !o.describe || o.personality.Name != "plain" {
		t.Errorf("%+v, %v", o, err)
	}
	for _, bad := range [][]string{nil, {"-personality", "big", "a"}, {"-seed", "x", "a"}, make([]string, 256)} {
		if _, err := parse(bad); err == nil || errors.Is(err, flag.ErrHelp) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// visit connects to a card, says one thing, waits for the answer, and goes.
func visit(t *testing.T, path, message string) {
	t.Helper()
	for {
		c, err := net.Dial("unix", path)
		if err != nil {
			time.Sleep(time.Millisecond) // not yet
			continue
		}
		defer c.Close()
		if _, err := c.Write([]byte(message)); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 16)); err != nil {
			t.Error(err)
		}
		return
	}
}

// loadStatus is a load of the register DEV_STS, which is a violation.
const loadStatus = "\x02\x00\x09\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x58\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00"

// getInfo asks for the regions of the device.
const getInfo = "\x01\x00\x04\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func TestRun(t *testing.T) {
	first, err := efa.ParsePersonality("first")
	if err != nil {
		t.Fatal(err)
	}
	for message, want := range map[string]uint64{getInfo: 0, loadStatus: 1} {
		dir := t.TempDir()
		o := options{personality: first, report: filepath.Join(dir, "report"), verbose: true, sockets: []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}}
		go visit(t, o.sockets[0], getInfo)
		go visit(t, o.sockets[1], message)
		var out bytes.Buffer
		if got, err := run(o, &out); got != want || err != nil {
			t.Errorf("%d violations, want %d; %v", got, want, err)
		}
		if !strings.HasPrefix(out.String(), "personality first no-read") || !strings.Contains(out.String(), "card 0 (first): 0 commands, 0 refused, 0 violations\n") {
			t.Errorf("%q", out.String())
		}
		b, err := os.ReadFile(o.report)
		var cards []efa.Report
		if err != nil || json.Unmarshal(b, &cards) != nil || len(cards) != 2 || uint64(cards[1].Total()) != want || cards[1].Name != "card 1" {
			t.Errorf("report %s, %v", b, err)
		}
	}
	if _, err := run(options{sockets: []string{"/no/such/dir/card"}}, io.Discard); err == nil {
		t.Error("a socket in no directory: no error")
	}
}
