package soft

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// TestRecordFiles: others cannot read a record, and a link in its place is not followed.
func TestRecordFiles(t *testing.T) {
	dir := t.TempDir()
	file, target, link := filepath.Join(dir, "file"), filepath.Join(dir, "target"), filepath.Join(dir, "link")
	for _, name := range []string{file, target} {
		if err := os.WriteFile(name, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{{TraceFile: link}, {CaptureFile: link}} {
		if f, err := newFaults(&o, netip.IPv4Unspecified(), nil, nil); err == nil {
			t.Errorf("%+v: no error", o)
			f.closeFiles()
		}
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "old" {
		t.Errorf("the target of the link has %q, %v", b, err)
	}
	for _, name := range []string{file, filepath.Join(dir, "new")} {
		f, err := createRecord(name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil || info.Mode() != 0o600 || info.Size() != 0 {
			t.Errorf("%s has mode %s and %d bytes, %v", name, info.Mode(), info.Size(), err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
