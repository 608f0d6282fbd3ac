package soft

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// must fails a test on an error.
var must = testenv.Must

// TestRecordFiles: others cannot read a record, and a link in its place is not followed.
func TestRecordFiles(t *testing.T) {
	dir := t.TempDir()
	file, target, link := filepath.Join(dir, "file"), filepath.Join(dir, "target"), filepath.Join(dir, "link")
	for _, name := range []string{file, target} {
		must(t, os.WriteFile(name, []byte("old"), 0o644))
	}
	must(t, os.Symlink(target, link))
	hard := filepath.Join(dir, "hard")
	must(t, os.Link(target, hard))
	for _, o := range []Options{{TraceFile: link}, {CaptureFile: link}, {CaptureFile: hard}, {CaptureFile: dir}} {
		if f, err := newFaults(&o, netip.IPv4Unspecified(), nil, nil); err == nil {
			t.Errorf("%+v: no error", o)
			f.closeFiles()
		}
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "old" {
		t.Errorf("the target of the link has %q, %v", b, err)
	}
	if os.Geteuid() == 0 { // only root can make the file of another user
		other := filepath.Join(dir, "other")
		must(t, errors.Join(os.WriteFile(other, nil, 0o666), os.Chown(other, 65534, 65534)))
		if f, err := createRecord(other); err == nil {
			t.Error("the file of another user is written to")
			f.Close()
		}
	}
	for _, name := range []string{file, filepath.Join(dir, "new")} {
		f, err := createRecord(name)
		must(t, err)
		info, err := f.Stat()
		if err != nil || info.Mode() != 0o600 || info.Size() != 0 {
			t.Errorf("%s has mode %s and %d bytes, %v", name, info.Mode(), info.Size(), err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
