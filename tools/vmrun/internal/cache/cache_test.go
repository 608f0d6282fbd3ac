package cache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func open(t *testing.T) *Dir {
	t.Helper()
	d, err := Open(filepath.Join(t.TempDir(), "a", "cache"), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// fill makes an entry with one file in it.
func fill(text string) func(string) error {
	return func(tmp string) error {
		return errors.Join(os.Mkdir(tmp, 0o755), os.WriteFile(filepath.Join(tmp, "file"), []byte(text), 0o644))
	}
}

func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path, "file"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestMakeOnce(t *testing.T) {
	d := open(t)
	if d.Has("x") {
		t.Error("an empty cache has x")
	}
	p, err := d.Make(t.Context(), "x", false, fill("one"))
	if err != nil || content(t, p) != "one" || p != d.Path("x") || !d.Has("x") {
		t.Fatalf("%s, %v", p, err)
	}
	if p, err = d.Make(t.Context(), "x", false, fill("two")); err != nil || content(t, p) != "one" {
		t.Errorf("made again: %v", err)
	}
	if p, err = d.Make(t.Context(), "x", true, fill("three")); err != nil || content(t, p) != "three" {
		t.Errorf("not renewed: %v", err)
	}
}

// A try that fails or is cut off half-way leaves no entry and does not disturb the next try; a
// failed renewal leaves the old one.
func TestMakeFails(t *testing.T) {
	d := open(t)
	half := func(tmp string) error {
		if err := fill("half")(tmp); err != nil {
			return err
		}
		return errors.New("cut off")
	}
	if _, err := d.Make(t.Context(), "x", false, half); err == nil || d.Has("x") || d.Has("x.tmp") {
		t.Errorf("error %v, entry %v, rest %v", err, d.Has("x"), d.Has("x.tmp"))
	}
	// A process that was killed can't clean up after itself.
	if err := fill("stale")(d.Path("x.tmp")); err != nil {
		t.Fatal(err)
	}
	p, err := d.Make(t.Context(), "x", false, fill("whole"))
	if err != nil || content(t, p) != "whole" || d.Has("x.tmp") {
		t.Errorf("after a stale one: %v", err)
	}
	if _, err := d.Make(t.Context(), "x", true, half); err == nil || content(t, p) != "whole" || d.Has("x.tmp") || d.Has("x.old") {
		t.Errorf("failed renewal: %v, entry holds %q", err, content(t, p))
	}
}

func TestMakeTogether(t *testing.T) {
	d := open(t)
	var made atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			p, err := d.Make(context.Background(), "x", false, func(tmp string) error {
				made.Add(1)
				return fill("once")(tmp)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if b, err := os.ReadFile(filepath.Join(p, "file")); err != nil || string(b) != "once" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
	wg.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("made %d times", n)
	}
}

func TestLockCancelled(t *testing.T) {
	d := open(t)
	unlock, err := d.Lock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := d.Lock(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), d.Path("x.lock")) {
		t.Errorf("waiting for a lock that is held: %v", err)
	}
	other, err := d.Lock(t.Context(), "y")
	if err != nil {
		t.Errorf("another name: %v", err)
	}
	other()
	unlock()
	if unlock, err = d.Lock(t.Context(), "x"); err != nil {
		t.Errorf("after unlock: %v", err)
	}
	unlock()
}
