package main

import (
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// moduleOf returns the folder of the module that has a package, the package as the go command names it there, and
// the way from the folder to the root.
func moduleOf(pkg string) (dir, name, root string) {
	for _, m := range modules[1:] {
		if rest, ok := strings.CutPrefix(pkg+"/", m+"/"); ok {
			return m, strings.TrimSuffix("./"+rest, "/"), toRoot(m)
		}
	}
	return "", "./" + pkg, ""
}

// toRoot returns the way from a folder to the root, empty or with a slash at its end.
func toRoot(dir string) string {
	if dir == "" {
		return ""
	}
	return strings.Repeat("../", strings.Count(dir, "/")+1)
}

// testPackages are the packages whose test binaries run in VMs.
var testPackages = map[string]string{
	"broker":      "test/suites/broker",
	"classic":     "test/suites/classic",
	"cm":          "cm",
	"conformance": "test/suites/conformance",
	"containers":  "test/suites/containers",
	"control":     "test/suites/control",
	"diags":       "test/suites/diags",
	"exporter":    "test/suites/exporter",
	"grpc":        "test/grpc",
	"hosts":       "test/suites/hosts",
	"interop":     "test/suites/interop",
	"mesh":        "test/suites/mesh",
	"mmio":        "mmio",
	"netlinkrdma": "netlinkrdma",
	"perf":        "tools/verbs/internal/perf",
	"probe":       "tools/probe",
	"pyverbs":     "test/suites/pyverbs",
	"rdmacm":      "cm/rdmacm",
	"replay":      "uverbs/replay",
	"report":      "test/suites/conformance/report",
	"rsocket":     "cm/rsocket",
	"rstream":     "test/suites/rstream",
	"rxe":         "mmio/rxe",
	"s3rdma":      "cm/s3rdma",
	"s3sdk":       "test/s3sdk",
	"softrxe":     "test/suites/softrxe",
	"srd":         "test/srd",
	"strangers":   "cm/internal/strangers",
	"switches":    "test/suites/switches",
	"trace":       "uverbs/trace",
	"umad":        "uverbs/umad",
	"uverbs":      "uverbs",
	"valkey":      "cm/valkey",
	"valkeypeers": "test/valkey",
	"websocket":   "test/websocket",
}

// commandPackages are the programs that run in VMs.
var commandPackages = map[string]string{
	"bench":       "test/bench",
	"bench-open":  "test/bench/open",
	"bench-plain": "test/bench/plain",
	"noioctl":     "test/suites/noioctl",
	"objects":     "test/objects",
	"srd":         "test/srd",
	"srdcat":      "test/ordered/srdcat",
	"pingpong":    "test/suites/containers/pingpong",

	"stdio-pingpong": "test/pingpong",
}

// installGCC installs a C compiler where that is possible. The layout tests and the race detector need
// it, and so do the C programs that are measured.
const installGCC = `command -v gcc >/dev/null && exit
test "$(id -u)" = 0 && command -v apt-get >/dev/null || { echo 'gcc is missing: install it (Debian: apt-get install gcc libc6-dev)'; exit 1; }
apt-get update && apt-get install -y gcc libc6-dev`

// compileC compiles a C program for libibverbs, and libmlx5 or libefa if it needs that. It is linked without the libraries that libibverbs
// needs itself; the guest has them. The program efa needs the library of Debian sid.
const compileC = `set -e; mkdir -p "$(dirname "$1")"; suite=; lib=-lmlx5; case $2 in */efa.c) suite="-suite sid" lib=-lefa;; */srd.c) lib=-lefa;; esac
dir=$(.build/vmrun get $suite libibverbs-dev)
gcc -O2 -Wall -o "$1" "$2" -I"$dir/usr/include" -L"$dir/usr/lib/$(gcc -print-multiarch)" -Wl,--unresolved-symbols=ignore-in-shared-libs -Wl,--as-needed -libverbs $lib`

// compileVersity compiles a client of versitygw, whose source the cache of Go modules has, with libmlx5.
const compileVersity = `set -e; mkdir -p "$(dirname "$1")"; dir=$(.build/vmrun get libibverbs-dev)
command -v g++ >/dev/null || apt-get install -y g++
source=$(go mod download -json github.com/versity/versitygw@v1.8.0 | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')/cuwrapper
g++ -O2 -o "$1" test/s3sdk/versity/main.cpp "$source/rdma_host_client_wrapper.cpp" -I"$source" -I"$dir/usr/include" -L"$dir/usr/lib/$(gcc -print-multiarch)" \
	-static-libstdc++ -static-libgcc -Wl,--unresolved-symbols=ignore-in-shared-libs -Wl,--as-needed -libverbs -lmlx5`

// copyValkey builds the programs of a version of Valkey, which vmrun keeps, and copies one of them.
const copyValkey = `set -e; mkdir -p "$(dirname "$1")"; cp "$(.build/vmrun build -arch "$2" "$3")/$4" "$1"`

// needed returns the names of what must be built for a step, in the order of building.
func (c *config) needed(s *step) []string {
	var all []string
	if s.host == nil {
		all = append(all, "vmrun")
	}
	for device, model := range map[string]string{"mlx5": "hca", "efa": "efa"} {
		if strings.Contains(s.device, device) {
			all = append(all, model)
		}
	}
	all = append(all, slices.Concat(s.needs, s.bin)...)
	for _, p := range s.programs {
		all = append(all, p.name)
	}
	if slices.ContainsFunc(all, func(n string) bool {
		return strings.HasPrefix(n, "rdmacore-") || strings.HasPrefix(n, "valkey-") || n == "versity-client"
	}) || s.race {
		all = slices.Insert(all, 0, "gcc")
	}
	for i, name := range all {
		if s.race && strings.HasSuffix(name, ".test") {
			all[i] = "race/" + name
		}
	}
	return all
}

// build returns the command that makes what a step needs.
func (c *config) build(name string) (command, error) {
	out := path.Join(".build", c.arch, name)
	target := []string{"GOARCH=" + c.arch}
	base := strings.TrimSuffix(path.Base(name), ".test")
	switch {
	case name == "gcc":
		return command{args: []string{"sh", "-c", installGCC}}, nil
	case name == "vmrun":
		return command{args: []string{"go", "build", "-C", "tools/vmrun", "-o", "../../.build/vmrun", "."}}, nil
	case name == "ibsim":
		return command{args: []string{"sh", "-c", linkIBSim}}, nil
	case name == "hca" || name == "efa":
		return command{dir: "test/" + name, args: []string{"go", "build", "-trimpath", "-o", "../../.build/" + name, "./cmd/" + name}}, nil
	case name == "runsc": // gVisor's program, in a module of its own for its dependencies; the first time it takes minutes
		return command{dir: runscModule, env: target, args: words("go build -trimpath -ldflags -s -o ../../" + out + " gvisor.dev/gvisor/runsc")}, nil
	case name == "staticcheck":
		return command{args: []string{"go", "build", "-C", "tools/vmrun", "-o", "../../.build/staticcheck", "honnef.co/go/tools/cmd/staticcheck"}}, nil
	case name == "verbs": // see make build
		return command{env: target, args: []string{"sh", "-c", `exec go build $(cat tools/verbs/build-flags) "$@"`, "sh",
			"-ldflags", "-s -w -funcalign=8 -X main.version=" + c.version, "-o", out, "./tools/verbs"}}, nil
	case name == "conformance": // see make conformance
		return command{dir: suitesModule, env: target, args: []string{"sh", "-c", `exec go test -c $(cat ../../tools/verbs/build-flags) "$@"`, "sh",
			"-ldflags", "-s -w -funcalign=8 -X github.com/goverbs/goverbs/test/suites/conformance/report.Version=" + c.version, "-o", "../../" + out, "./conformance"}}, nil
	case strings.HasPrefix(name, "rdmacore-"):
		source := "test/bench/rdmacore/" + strings.TrimPrefix(name, "rdmacore-") + ".c"
		return command{args: []string{"sh", "-c", compileC, "sh", out, source}}, nil
	case name == "versity-client":
		return command{args: []string{"sh", "-c", compileVersity, "sh", out}}, nil
	case name == "valkey-server-8.1":
		return command{args: []string{"sh", "-c", copyValkey, "sh", out, c.arch, "valkey-8.1", "valkey-server"}}, nil
	case strings.HasPrefix(name, "valkey-"):
		return command{args: []string{"sh", "-c", copyValkey, "sh", out, c.arch, "valkey", name}}, nil
	case commandPackages[name] != "":
		dir, pkg, root := moduleOf(commandPackages[name])
		return command{dir: dir, env: target, args: []string{"go", "build", "-trimpath", "-ldflags", "-s -w", "-o", root + out, pkg}}, nil
	case strings.HasPrefix(name, "race/") && testPackages[base] != "":
		dir, pkg, root := moduleOf(testPackages[base])
		return command{dir: dir, env: []string{"CGO_ENABLED=1"}, args: []string{"go", "test", "-race", "-c", "-tags", "netgo,osusergo",
			"-ldflags", "-linkmode external -extldflags -static", "-o", root + ".build/" + name, pkg}}, nil // static, like all programs of a guest
	case strings.HasSuffix(name, ".test") && testPackages[base] != "":
		dir, pkg, root := moduleOf(testPackages[base])
		return command{dir: dir, env: target, args: []string{"go", "test", "-c", "-ldflags=-w", "-o", root + out, pkg}}, nil // compiled as for the suite unit
	}
	return command{}, fmt.Errorf("nothing says how to build %s", name)
}

// gitVersion returns the version that verbs and the benchmarks report.
func gitVersion(root string) string {
	cmd := exec.Command("git", "describe", "--tags", "--always", "--dirty")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "devel"
	}
	return strings.TrimSpace(string(out))
}
