package main

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/goverbs/test/internal/program"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs/soft"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// listening starts the server and returns its address.
func listening(t *testing.T) string {
	t.Helper()
	return program.Server(t, program.Self(t, testenv.SoftAddr(0), "serve", testenv.SoftAddr(0)+":0"), "listening on ", "")
}

// TestPrograms: what one client has put, another one gets, and a later value replaces the first.
func TestPrograms(t *testing.T) {
	where := listening(t)
	client := func(args ...string) (string, error) {
		cmd := program.Self(t, testenv.SoftAddr(1), args...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	longest := strings.Repeat("v", maxValue)
	for _, value := range []string{"blue", longest, "red"} {
		if out, err := client("put", where, "sky", value); err != nil || out != "" {
			t.Fatalf("put: %v %s", err, out)
		}
		if out, err := client("get", where, "sky"); err != nil || out != value+"\n" {
			t.Errorf("get: %v %q, want %q", err, out, value)
		}
	}
	if out, err := client("get", where, "sea"); err == nil || out != "there is no key \"sea\"\n" {
		t.Errorf("get of a key that is not there: %v %q", err, out)
	}
	if out, err := client("put", where, "sky", longest+"v"); err == nil || !strings.HasPrefix(out, "usage") {
		t.Errorf("put of a value that is too long: %v %q", err, out)
	}
}

// TestClients: clients change one key and keys of their own at the same time, of which several belong to the same
// slots, and find what they have put.
func TestClients(t *testing.T) {
	where := listening(t)
	soft.NewT(t, soft.Options{Addr: netip.MustParseAddr(testenv.SoftAddr(1))})
	const clients, keys = 4, 100
	stores := make([]*store, clients)
	var wg sync.WaitGroup
	for i := range stores {
		stores[i] = dial(t.Context(), where)
		wg.Go(func() {
			for k := range keys {
				stores[i].put(t.Context(), fmt.Sprint(i, k), fmt.Sprint("first ", i, k))
				stores[i].put(t.Context(), "all", fmt.Sprint(i, k))
				stores[i].put(t.Context(), fmt.Sprint(i, k), fmt.Sprint("second ", i, k))
			}
		})
	}
	wg.Wait()
	for i, s := range stores {
		for k := range keys {
			if s.find(t.Context(), fmt.Sprint(i, k)); s.field(valueAt, maxValue) != fmt.Sprint("second ", i, k) {
				t.Errorf("key %d %d has the value %q", i, k, s.field(valueAt, maxValue))
			}
		}
	}
	stores[0].find(t.Context(), "all")
	version, last := stores[0].version(), stores[0].field(valueAt, maxValue)
	if version != 2*clients*keys || !strings.HasSuffix(last, fmt.Sprint(keys-1)) {
		t.Errorf("the key of all has version %d and value %q", version, last)
	}
	for _, s := range stores {
		if err := s.conn.Close(); err != nil {
			t.Error(err)
		}
		if err := s.mr.Close(); err != nil {
			t.Error(err)
		}
	}
}
