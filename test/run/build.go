package main

import (
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// testPackages are the packages whose test binaries run in VMs.
var testPackages = map[string]string{
	"broker":      "test/broker",
	"classic":     "test/classic",
	"cm":          "cm",
	"conformance": "test/conformance",
	"containers":  "test/containers",
	"control":     "test/control",
	"diags":       "test/diags",
	"exporter":    "test/exporter",
	"grpc":        "test/grpc",
	"hosts":       "test/hosts",
	"interop":     "test/interop",
	"mesh":        "test/mesh",
	"mmio":        "mmio",
	"netlinkrdma": "netlinkrdma",
	"perf":        "tools/verbs/internal/perf",
	"pyverbs":     "test/pyverbs",
	"replay":      "uverbs/replay",
	"report":      "test/conformance/report",
	"rsocket":     "cm/rsocket",
	"rstream":     "test/rstream",
	"rxe":         "mmio/rxe",
	"softrxe":     "test/softrxe",
	"switches":    "test/switches",
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
	"noioctl":     "test/noioctl",
	"pingpong":    "test/containers/pingpong",
}

// installGCC installs a C compiler where that is possible. The layout tests and the race detector need
// it, and so do the C programs that are measured.
const installGCC = `command -v gcc >/dev/null && exit
test "$(id -u)" = 0 && command -v apt-get >/dev/null || { echo 'gcc is missing: install it (Debian: apt-get install gcc libc6-dev)'; exit 1; }
apt-get update && apt-get install -y gcc libc6-dev`

// compileC compiles a C program for libibverbs, and libmlx5 if it needs that. It is linked without the libraries that libibverbs
// needs itself; the guest has them.
const compileC = `set -e; mkdir -p "$(dirname "$1")"; dir=$(.build/vmrun get libibverbs-dev)
gcc -O2 -Wall -o "$1" "$2" -I"$dir/usr/include" -L"$dir/usr/lib/$(gcc -print-multiarch)" -Wl,--unresolved-symbols=ignore-in-shared-libs -Wl,--as-needed -libverbs -lmlx5`

// copyValkey builds the programs of a version of Valkey, which vmrun keeps, and copies one of them.
const copyValkey = `set -e; mkdir -p "$(dirname "$1")"; cp "$(.build/vmrun build -arch "$2" "$3")/$4" "$1"`

// needed returns the names of what must be built for a step, in the order of building.
func (c *config) needed(s *step) []string {
	var all []string
	if s.host == nil {
		all = append(all, "vmrun")
	}
	if strings.Contains(s.device, "mlx5") {
		all = append(all, "hca")
	}
	all = append(all, slices.Concat(s.needs, s.bin)...)
	for _, p := range s.programs {
		all = append(all, p.name)
	}
	if slices.ContainsFunc(all, func(n string) bool { return strings.HasPrefix(n, "rdmacore-") || strings.HasPrefix(n, "valkey-") }) || s.race {
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
	case name == "hca":
		return command{args: []string{"go", "build", "-trimpath", "-o", ".build/hca", "./test/hca/cmd/hca"}}, nil
	case name == "staticcheck":
		return command{args: []string{"go", "build", "-C", "tools/vmrun", "-o", "../../.build/staticcheck", "honnef.co/go/tools/cmd/staticcheck"}}, nil
	case name == "verbs": // see make build
		return command{env: target, args: []string{"sh", "-c", `exec go build $(cat tools/verbs/build-flags) "$@"`, "sh",
			"-ldflags", "-s -w -funcalign=16 -X main.version=" + c.version, "-o", out, "./tools/verbs"}}, nil
	case name == "conformance": // see make conformance
		return command{env: target, args: []string{"sh", "-c", `exec go test -c $(cat tools/verbs/build-flags) "$@"`, "sh",
			"-ldflags", "-s -w -funcalign=16 -X github.com/goverbs/goverbs/test/conformance/report.Version=" + c.version, "-o", out, "./test/conformance"}}, nil
	case strings.HasPrefix(name, "rdmacore-"):
		source := "test/bench/rdmacore/" + strings.TrimPrefix(name, "rdmacore-") + ".c"
		return command{args: []string{"sh", "-c", compileC, "sh", out, source}}, nil
	case name == "valkey-server-8.1":
		return command{args: []string{"sh", "-c", copyValkey, "sh", out, c.arch, "valkey-8.1", "valkey-server"}}, nil
	case strings.HasPrefix(name, "valkey-"):
		return command{args: []string{"sh", "-c", copyValkey, "sh", out, c.arch, "valkey", name}}, nil
	case commandPackages[name] != "":
		return command{env: target, args: []string{"go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, "./" + commandPackages[name]}}, nil
	case strings.HasPrefix(name, "race/") && testPackages[base] != "":
		dir, pkg, up := ".", "./"+testPackages[base], ""
		if slices.Contains(modules, testPackages[base]) {
			dir, pkg, up = testPackages[base], ".", "../../"
		}
		return command{env: []string{"CGO_ENABLED=1"}, args: []string{"go", "test", "-C", dir, "-race", "-c", "-tags", "netgo,osusergo",
			"-ldflags", "-linkmode external -extldflags -static", "-o", up + ".build/" + name, pkg}}, nil // static, like all programs of a guest
	case strings.HasSuffix(name, ".test") && slices.Contains(modules, testPackages[base]):
		return command{env: target, args: []string{"go", "test", "-C", testPackages[base], "-c", "-trimpath", "-o", "../../" + out, "."}}, nil
	case strings.HasSuffix(name, ".test") && testPackages[base] != "":
		return command{env: target, args: []string{"go", "test", "-c", "-trimpath", "-o", out, "./" + testPackages[base]}}, nil
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
