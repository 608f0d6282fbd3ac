package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fakeModel is an app whose model is a script.
func fakeModel(t *testing.T, script string, change func(*options)) (*app, *bytes.Buffer) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hca")
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	o := defaults()
	o.dev, o.hca = "mlx5,mode=ib", path
	if change != nil {
		change(&o)
	}
	must(t, o.check())
	var out bytes.Buffer
	return &app{options: o, stderr: &out}, &out
}

// The model is told what to play, and what it prints is passed on.
func TestModelArguments(t *testing.T) {
	for _, tt := range []struct {
		guests int
		change func(*options)
		want   string
	}{
		{1, nil, "-mode ib fd:3 fd:4"},
		{2, func(o *options) { o.hosts, o.dev = 2, "mlx5" }, "-mode roce fd:3 fd:4"},
		{1, func(o *options) { o.hcaReport, o.hcaVerbose = "r.json", true }, "-mode ib -report r.json -verbose fd:3 fd:4"},
		{1, func(o *options) { o.loss, o.delay = "0.5%", "2ms" }, "-mode ib -loss 0.005 -delay 2ms fd:3 fd:4"},
		{1, func(o *options) { o.dev = "mlx5,mode=ib,personality=vf" }, "-mode ib -personality vf fd:3 fd:4"},
		{1, func(o *options) { o.dev = "mlx5,strict,personality=vf" }, "-mode roce -personality vf -strict fd:3 fd:4"},
		{1, func(o *options) { o.dev = "mlx5,mode=ipoib" }, "-mode ib -managed fd:3 fd:4"},
		{1, func(o *options) { o.dev = "mlx5,mode=ipoib,topology=net" }, "-mode ib -topology net fd:3 fd:4"},
		{2, func(o *options) { o.hosts, o.dev = 2, "efa,personality=first" }, "-personality first fd:3 fd:4"},
	} {
		a, out := fakeModel(t, "echo $*", tt.change)
		m, err := a.startModel(tt.guests)
		must(t, err)
		if status, err := m.finish(0); status != 0 || err != nil {
			t.Errorf("status %d, %v", status, err)
		}
		if want := a.modelled().program() + ": " + tt.want + "\n"; out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	}
}

// A personality is drawn before the guests boot: the model and the programs have the same.
func TestDrawPersonality(t *testing.T) {
	a, out := fakeModel(t, "if [ $1 = -describe ]; then echo 4711 noise $3; else echo $*; fi", func(o *options) { o.dev = "mlx5,personality=random" })
	must(t, a.drawPersonality(t.Context()))
	m, err := a.startModel(1)
	must(t, err)
	if status, err := m.finish(0); status != 0 || err != nil {
		t.Errorf("status %d, %v", status, err)
	}
	if got, want := out.String(), "hca: -mode roce -personality 4711 fd:3 fd:4\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	env, err := a.environ("/")
	if err != nil || !slices.Contains(env, "VMRUN_PERSONALITY=4711 noise random") {
		t.Errorf("environment %q, %v", env, err)
	}
	for _, script := range []string{"exit 2", "exit 0"} {
		a, _ := fakeModel(t, script, func(o *options) { o.dev = "mlx5,personality=x" })
		if err := a.drawPersonality(t.Context()); err == nil || !strings.Contains(err.Error(), "-device mlx5,personality=x") {
			t.Errorf("a model that does %q: %v", script, err)
		}
	}
}

// A model that reports violations makes a good run a bad one; one that fails is an error.
func TestModelStatus(t *testing.T) {
	for _, tt := range []struct {
		exit, run, want int
		fails           bool
	}{{0, 0, 0, false}, {0, 3, 3, false}, {1, 0, statusModel, false}, {1, 3, 3, false}, {2, 0, 0, true}} {
		a, _ := fakeModel(t, "exit "+strconv.Itoa(tt.exit), nil)
		m, err := a.startModel(1)
		must(t, err)
		status, err := m.finish(tt.run)
		if status != tt.want || (err != nil) != tt.fails {
			t.Errorf("model %d, run %d: status %d, %v", tt.exit, tt.run, status, err)
		}
	}
	var none *model
	if status, err := none.finish(7); status != 7 || err != nil || none.endsOf(0, 1) != nil {
		t.Errorf("without a model: %d, %v", status, err)
	}
	none.kill()
}

// A model whose guests never came is told to end.
func TestModelWaits(t *testing.T) {
	a, out := fakeModel(t, "trap 'echo ended; exit 1' TERM; while :; do sleep 0.05; done", nil)
	m, err := a.startModel(1)
	must(t, err)
	if status, err := m.finish(0); status != statusModel || err != nil || out.String() != "hca: ended\n" {
		t.Errorf("status %d, %v: %q", status, err, out.String())
	}
}

func TestModelMissing(t *testing.T) {
	a, _ := fakeModel(t, "", func(o *options) { o.hca = "/no/such/hca" })
	if _, err := a.startModel(1); err == nil || !strings.Contains(err.Error(), "/no/such/hca") {
		t.Errorf("%v", err)
	}
	a, _ = fakeModel(t, "", func(o *options) { o.hca = "" })
	t.Setenv("PATH", "")
	if _, err := a.startModel(1); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("%v", err)
	}
}

// Each guest has its own cards.
func TestModelEnds(t *testing.T) {
	m := &model{ends: []*os.File{os.Stdin, os.Stdout}}
	if a, b := m.endsOf(0, 2), m.endsOf(1, 2); len(a) != 1 || a[0] != os.Stdin || len(b) != 1 || b[0] != os.Stdout {
		t.Errorf("%v, %v", a, b)
	}
	if all := m.endsOf(0, 1); len(all) != 2 {
		t.Errorf("%v", all)
	}
}

// QEMU gets sockets that can be connected to, though no file of them is left in a directory.
func TestSocket(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	listener, door, err := socket()
	must(t, err)
	defer listener.Close()
	defer door.Close()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	l, err := net.FileListener(listener)
	must(t, err)
	defer l.Close()
	conn, err := net.DialTimeout("unix", "/proc/self/fd/"+strconv.Itoa(int(door.Fd())), time.Minute)
	must(t, err)
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	server, err := l.Accept()
	must(t, err)
	defer server.Close()
	if b, err := io.ReadAll(server); string(b) != "x" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}
