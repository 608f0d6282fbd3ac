//go:build unix

package privatefile

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// TestCreate: only the owner can read a file, whatever it was before, and the umask does not matter.
func TestCreate(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	must(t, os.WriteFile(old, []byte("what was there before"), 0o644))
	for _, name := range []string{old, filepath.Join(dir, "new")} {
		f, err := Create(name)
		must(t, err)
		if _, err := io.WriteString(f, "secret"); err != nil {
			t.Fatal(err)
		}
		must(t, f.Close())
		info, err := os.Stat(name)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %s, %v, want 0600", name, info.Mode(), err)
		}
		if b, err := os.ReadFile(name); string(b) != "secret" || err != nil {
			t.Errorf("%s has %q: %v", name, b, err)
		}
	}
}

// TestRefused: a link leads to no other file, and what it points to is not changed or made.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	must(t, os.WriteFile(target, []byte("precious"), 0o644))
	link := func(name, to string) string {
		name = filepath.Join(dir, name)
		must(t, os.Symlink(to, name))
		return name
	}
	hard := filepath.Join(dir, "hard")
	must(t, os.Link(target, hard))
	for name, why := range map[string]string{
		link("link", target):                              "symbolic link",
		link("dangling", filepath.Join(dir, "not-there")): "symbolic link",
		hard: "has 2 names, allowed: 1",
		dir:  "allowed: a regular file, a named pipe, a character device",
	} {
		f, err := Create(name)
		if err == nil {
			f.Close()
		}
		if check := Check(name); check == nil || err != nil && check.Error() != err.Error() {
			t.Errorf("%s: Check says %v, and Create %v", name, check, err)
		}
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error is %v, want one about %q", name, err, why)
		}
	}
	info, err := os.Stat(target)
	if err != nil || info.Mode() != 0o644 || info.Size() != int64(len("precious")) {
		t.Errorf("the target of the link has changed: %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "not-there")); !os.IsNotExist(err) {
		t.Errorf("the target of a dangling link was made: %v", err)
	}
}

// TestOtherUser: a file that another user has put there is not written.
func TestOtherUser(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, err)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	if err := check(info, os.Geteuid()+1); err == nil || !strings.Contains(err.Error(), "file of user") {
		t.Errorf("error is %v", err)
	}
}

// TestNotRegular: devices and pipes are written as they are.
func TestNotRegular(t *testing.T) {
	null, err := Create(os.DevNull)
	must(t, err)
	null.Close()
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode()&fs.ModePerm != 0o666 {
		t.Errorf("%s is %v, %v", os.DevNull, info.Mode(), err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	r, err := os.OpenFile(pipe, os.O_RDWR, 0)
	must(t, err)
	defer r.Close()
	w, err := Create(pipe)
	must(t, err)
	defer w.Close()
	b := make([]byte, 1)
	if _, err := io.WriteString(w, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(b); err != nil || b[0] != 'x' {
		t.Errorf("read %q: %v", b, err)
	}
	info, err := r.Stat()
	must(t, err)
	if err := check(info, os.Geteuid()+1); os.Geteuid() != 0 && (err == nil || !strings.Contains(err.Error(), "pipe")) {
		t.Errorf("another user's pipe: error is %v", err)
	}
}
