package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tableList returns the allow-list of a table.
func tableList(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("testdata/table.txt")
	must(t, err)
	return string(b)
}

// TestTable compares the table of the fixture with the one that was looked at.
func TestTable(t *testing.T) {
	got, err := generateFrom(t, "testdata/include", tableList(t), "fixture 1")
	must(t, err)
	src := got["some/table/"+compactFile]
	if len(got) != 1 || src == nil {
		t.Fatalf("%d files", len(got))
	}
	golden := filepath.Join("testdata", "golden", compactFile)
	if *update {
		must(t, os.WriteFile(golden, src, 0o666))
	}
	want, err := os.ReadFile(golden)
	must(t, err)
	if diff := cmp.Diff(string(want), string(src)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTableOtherVersion: what a table says must hold for other headers; only additions are allowed.
func TestTableOtherVersion(t *testing.T) {
	for name, tt := range map[string]struct {
		oldnew []string
		want   string
	}{
		"value":  {[]string{"#define FIX_VERSION 3", "#define FIX_VERSION 4"}, "enum FIX_VERSION FIX_VERSION: is 3, and 4 in"},
		"change": {[]string{"__s32 fd;", "__u32 fd;"}, "fd: is "},
	} {
		files, err := generateFrom(t, "testdata/include", tableList(t), "fixture 1")
		must(t, err)
		root := t.TempDir()
		must(t, write(root, files, &bytes.Buffer{}))
		files, err = generateFrom(t, fixtureHeaders(t, tt.oldnew...), tableList(t), "fixture 2")
		must(t, err)
		var out bytes.Buffer
		if err := compare(root, files, "fixture 2", &out); err == nil || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%s: %v, output %q, want %q", name, err, out.String(), tt.want)
		}
	}
}
