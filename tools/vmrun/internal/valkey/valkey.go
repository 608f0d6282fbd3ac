// Package valkey builds Valkey's programs with RDMA: Debian's binaries do not have it, but Debian's source
// of Valkey does.
//
// The upstream source in the source package is compiled with this system's gcc and make, against the
// libraries of rdma-core from the archive. The programs need these libraries in the guest.
package valkey

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/tools/vmrun/internal/apt"
)

// release is a version of Valkey that can be built.
type release struct {
	suite    string   // the release of Debian that has the source
	programs []string // the programs that are built
	lua      string   // the setting of make that leaves Lua out; before Valkey 9 the server needs it
}

// releases are the versions by the names that users give them.
var releases = map[string]release{
	"valkey": {suite: "testing", programs: []string{"valkey-server", "valkey-cli", "valkey-benchmark"}, lua: "BUILD_LUA=no"},
	// The first version with RDMA, in Debian 13. Its valkey-cli and valkey-benchmark do not have RDMA.
	"valkey-8.1": {suite: "trixie", programs: []string{"valkey-server"}},
}

// Names returns the names of the versions that can be built.
func Names() []string { return slices.Sorted(maps.Keys(releases)) }

// Programs returns the directory with the programs of a version, from the cache if they are there.
// librarySuite is the release of Debian whose libraries the guest has.
func Programs(ctx context.Context, store *apt.Store, name, arch, librarySuite string) (string, error) {
	r, ok := releases[name]
	if !ok {
		return "", fmt.Errorf("valkey: %q is not known, only %s", name, strings.Join(Names(), " and "))
	}
	libraries := ""
	dir, err := store.Source(ctx, apt.SourceRequest{
		Entry: "valkey-" + r.suite + "-" + arch + "-" + librarySuite, Suite: r.suite, Package: "valkey",
		Check: func() (err error) {
			if err := tools(arch); err != nil {
				return err
			}
			libraries, err = store.Get(ctx, apt.Request{Suite: librarySuite, Arch: arch, Packages: []string{"librdmacm-dev"}, Deps: true})
			return err
		},
		Finish: func(root string) (err error) {
			end := store.Progress.Work("Valkey with RDMA", "building", "built")
			defer func() { end(err) }()
			return r.build(ctx, root, libraries)
		},
	})
	if err != nil {
		return "", fmt.Errorf("valkey: %w", err)
	}
	return dir, nil
}

// tools finds out before anything is fetched whether the programs can be built here.
func tools(arch string) error {
	if arch != runtime.GOARCH {
		return fmt.Errorf("it is built with this machine's compiler, so the guest must be %s too, not %s", runtime.GOARCH, arch)
	}
	for _, tool := range []string{"gcc", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("it has to be built, and %s is not installed (as root: apt-get install gcc make)", tool)
		}
	}
	return nil
}

// build compiles the programs from the source below root, and leaves nothing else there.
func (r release) build(ctx context.Context, root, libraries string) error {
	found, err := filepath.Glob(filepath.Join(root, "*/src/rdma.c"))
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("%d files rdma.c in the source instead of one", len(found))
	}
	src := filepath.Dir(found[0])
	include := filepath.Join(root, "include") // rdma-core's headers alone, without those of that release's C library
	if err := os.Mkdir(include, 0o755); err != nil {
		return err
	}
	for _, dir := range []string{"infiniband", "rdma"} {
		if err := os.Symlink(filepath.Join(libraries, "usr/include", dir), filepath.Join(include, dir)); err != nil {
			return err
		}
	}
	libs, err := filepath.Glob(filepath.Join(libraries, "usr/lib/*/librdmacm.so"))
	if err != nil {
		return err
	}
	if len(libs) != 1 {
		return fmt.Errorf("%d libraries librdmacm.so instead of one", len(libs))
	}
	if err := r.compile(ctx, src, include, filepath.Dir(libs[0])); err != nil {
		return err
	}
	for _, p := range r.programs {
		if err := os.Rename(filepath.Join(src, p), filepath.Join(root, p)); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(filepath.Dir(src)), os.RemoveAll(include))
}

// compile runs make. The libraries are linked without those that they need themselves, which the guest has.
// A comma in LDFLAGS would make Valkey's Makefile build its parts anew each time, and remove those it needs.
func (r release) compile(ctx context.Context, src, include, libs string) error {
	args := []string{"-C", src, "-j" + strconv.Itoa(runtime.NumCPU()), "BUILD_RDMA=yes", "BUILD_TLS=no", "USE_SYSTEMD=no", "MALLOC=libc",
		"OPTIMIZATION=-O2", "LDFLAGS=-Xlinker --unresolved-symbols=ignore-in-shared-libs"}
	if r.lua != "" {
		args = append(args, r.lua)
	}
	cmd := exec.CommandContext(ctx, "make", append(args, r.programs...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LC_ALL=C", "TMPDIR=" + os.TempDir(), "C_INCLUDE_PATH=" + include, "LIBRARY_PATH=" + libs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		const most = 25
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("make: %w:\n%s", err, strings.Join(lines[max(0, len(lines)-most):], "\n"))
	}
	return nil
}
