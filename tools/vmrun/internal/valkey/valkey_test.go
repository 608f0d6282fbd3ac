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
	libraries := t.TempDir()
	tree(t, libraries, map[string]string{"usr/include/rdma/rdma_cma.h": "cma", "usr/include/infiniband/verbs.h": "verbs", "usr/include/stdio.h": "", "usr/lib/x/librdmacm.so": ""})
	source := map[string]string{
		"v-1/src/rdma.c": "",
		"v-1/src/Makefile": `
valkey-%:
	test "$(BUILD_RDMA)" = yes
	cat $$C_INCLUDE_PATH/rdma/rdma_cma.h $$C_INCLUDE_PATH/infiniband/verbs.h > $@
	printf %s "$(BUILD_LUA)" >> $@
	! test -e $$C_INCLUDE_PATH/stdio.h
	test -e $$LIBRARY_PATH/librdmacm.so
`,
	}
	for name, r := range releases {
		root := t.TempDir()
		tree(t, root, source)
		if err := r.build(t.Context(), root, libraries); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		left, err := os.ReadDir(root)
		if err != nil || len(left) != len(r.programs) {
			t.Errorf("%s: %v are left, %v", name, left, err)
		}
		want := "cmaverbs"
		if r.lua != "" {
			want += "no"
		}
		for _, p := range r.programs {
			if b, err := os.ReadFile(filepath.Join(root, p)); err != nil || string(b) != want {
				t.Errorf("%s of %s: %q, %v", p, name, b, err)
			}
		}
	}
}

// TestUnknown: a version that is not known is an error that names those that are.
func TestUnknown(t *testing.T) {
	if _, err := Programs(t.Context(), nil, "valkey-7.2", "amd64", "bookworm"); err == nil || !strings.Contains(err.Error(), `"valkey-7.2" is not known, only valkey and valkey-8.1`) {
		t.Errorf("%v", err)
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
		if err := releases["valkey"].build(t.Context(), root, libraries); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
