package valkey

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree makes files below a directory.
func tree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBuild: the programs are what make leaves in the source, and nothing else stays. make gets rdma-core's headers
// and libraries.
func TestBuild(t *testing.T) {
	if err := tools("none"); err == nil || !strings.Contains(err.Error(), "the guest must be") {
		t.Errorf("another architecture: %v", err)
	}
	root, libraries := t.TempDir(), t.TempDir()
	tree(t, libraries, map[string]string{"usr/include/rdma/rdma_cma.h": "cma", "usr/include/infiniband/verbs.h": "verbs", "usr/include/stdio.h": "", "usr/lib/x/librdmacm.so": ""})
	tree(t, root, map[string]string{
		"v-1/src/rdma.c": "",
		"v-1/src/Makefile": `
valkey-%:
	test "$(BUILD_RDMA)" = yes
	cat $$C_INCLUDE_PATH/rdma/rdma_cma.h $$C_INCLUDE_PATH/infiniband/verbs.h > $@
	! test -e $$C_INCLUDE_PATH/stdio.h
	test -e $$LIBRARY_PATH/librdmacm.so
`,
	})
	if err := build(t.Context(), root, libraries); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(root)
	if err != nil || len(left) != len(programs) {
		t.Errorf("%v are left, %v", left, err)
	}
	for _, p := range programs {
		if b, err := os.ReadFile(filepath.Join(root, p)); err != nil || string(b) != "cmaverbs" {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
}

// TestBuildErrors: a source without RDMA, and one that does not compile.
func TestBuildErrors(t *testing.T) {
	libraries := t.TempDir()
	tree(t, libraries, map[string]string{"usr/lib/x/librdmacm.so": ""})
	for want, files := range map[string]map[string]string{
		"0 files rdma.c":     {"v-1/src/server.c": ""},
		"this is what fails": {"v-1/src/rdma.c": "", "v-1/src/Makefile": "valkey-%:\n\t@echo this is what fails; false\n"},
	} {
		root := t.TempDir()
		tree(t, root, files)
		if err := build(t.Context(), root, libraries); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
