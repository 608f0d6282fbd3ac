package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/test/testenv"
)

// modules are the folders of the modules, except of test/kubernetes: to compile Kubernetes takes minutes, so that only
// the suite kubernetes does it. Programs that import the library get the first one alone.
var modules = []string{"", "tools/vmrun", "test/grpc", hcaModule, efaModule, suitesModule, releaseModule, "test/s3sdk", "test/valkey", "test/websocket"}

const (
	efaModule        = "test/efa"        // the model of an EFA card, which imports the PCI server of test/hca
	hcaModule        = "test/hca"        // the model of a card, which imports nothing of the other modules
	releaseModule    = "test/release"    // what a release has besides programs, and the check of the API
	kubernetesModule = "test/kubernetes" // tests with parts of Kubernetes
	runscModule      = "test/runsc"      // no packages; what gVisor's program needs
	suitesModule     = "test/suites"     // tests of several packages, most of them in VMs
)

// newestHeaders gets the headers of the newest kernel that Debian has: experimental has one before sid does.
const newestHeaders = `$(.build/vmrun get -suite experimental -update linux-libc-dev || .build/vmrun get -suite sid -update linux-libc-dev)`

// checkABI holds the generated files against these headers, and those of the stable release.
const checkABI = `set -e; new=` + newestHeaders + `; old=$(.build/vmrun get linux-libc-dev)
go run ./tools/abigen -check -include $new/usr/include
for dir in $new $old; do
	GOVERBS_UAPI_INCLUDE=$dir/usr/include go test -count=1 -run '^TestLayout$' ./tools/abigen
done`

// generate writes the generated files from the newest headers.
const generate = `set -e; dir=` + newestHeaders + `; go run ./tools/abigen -include $dir/usr/include`

// checkSize limits the size of a static program, in bytes.
const checkSize = `size=$(stat -c %s "$1"); echo "$1: $size bytes, limit $2"; test $size -lt $2`

// hotpathLimit adds the limit to what go test prints of posting and polling. It is not enforced.
const hotpathLimit = `go test -run '^$' -bench '^BenchmarkPost(Poll|QPs)$' "$@" ./mmio/rxe ./mmio/mlx5 ./mmio/siw ./mmio/efa ./uverbs | awk '1
$1 == "pkg:" { n = split($2, part, "/") }
$1 ~ /PostPoll\/16-/ { for (i = 3; i <= NF; i++) if ($i == "ns/both")
	printf "  %s, 16 at a time: post and poll %s ns, limit 25: %s\n", part[n], $(i-1), $(i-1) <= 25 ? "within" : "above" }'`

// shell runs a script; args are its $1 and so on.
func shell(script string, args ...string) []string {
	return append([]string{"sh", "-c", script, "sh"}, args...)
}

// checkRelease makes a release, checks its checksums, SBOMs and man pages, and runs the container's program with
// nothing else in its root directory.
const checkRelease = `set -e; make release; cd .build/dist; sha256sum -c SHA256SUMS
for arch in amd64 arm64; do
	grep -q '"bomFormat": "CycloneDX"' verbs-*-linux-$arch.cdx.json
	tar -tzf verbs-*-linux-$arch.tar.gz >files
	for file in /verbs /LICENSE /man1/verbs.1 /man1/verbs-perf.1 /completions/verbs.bash; do grep -q "$file\$" files; done
done
rm -rf image root; mkdir image root; tar -xf verbs-image.tar -C image
here=$(sha256sum $(go env GOARCH)/verbs | cut -d" " -f1)
for blob in image/blobs/sha256/*; do
	tar -xf $blob -C root 2>/dev/null && test "$(sha256sum root/verbs | cut -d" " -f1)" = $here && break
done
GOVERBS_SOFT=127.0.0.1 unshare -r chroot root /verbs devices | tee files; grep -q soft files`

// words splits a command line.
func words(line string) []string { return strings.Fields(line) }

// checkSteps look at the source of every module. Staticcheck, which reads the source of all dependencies and
// has to be built itself, takes the most time.
func checkSteps() (check, staticcheck []step) {
	check = []step{{name: "gofmt", host: shell(`files=$(gofmt -l .) || exit 1; test -z "$files" || { echo "gofmt: run gofmt -w on:" $files; exit 1; }`)}}
	for _, dir := range modules {
		name, suffix, root := "goverbs", "", "./"
		if dir != "" {
			name, root = path.Base(dir), toRoot(dir)
			suffix = "-" + name
		}
		check = append(check,
			step{name: "vet" + suffix, dir: dir, host: words("go vet ./...")},
			step{name: "tidy" + suffix, dir: dir, host: words("go mod tidy -diff")})
		staticcheck = append(staticcheck, step{name: name, dir: dir, needs: []string{"staticcheck"}, host: []string{root + ".build/staticcheck", "./..."}})
	}
	return append(check, step{name: "api", dir: releaseModule, host: words("go run . api")}), staticcheck
}

// crossSteps compile for other architectures and systems.
func crossSteps() []step {
	build := words("go build ./mmio/... ./uverbs/... ./netlinkrdma/... ./cm/... ./test/hello")
	arm64 := []string{"GOARCH=arm64"}
	steps := []step{
		{name: "vet-arm64", env: arm64, host: words("go vet ./...")},
		{name: "vet-arm64-hca", dir: hcaModule, env: arm64, host: words("go vet ./...")},
		{name: "vet-arm64-suites", dir: suitesModule, env: arm64, host: words("go vet ./...")},
		{name: "build-riscv64", env: []string{"GOARCH=riscv64"}, host: build},
	}
	for _, system := range []string{"darwin", "freebsd", "windows"} { // where there are software devices only
		for _, arch := range []string{"amd64", "arm64"} {
			steps = append(steps, step{name: "build-" + system + "-" + arch, env: []string{"GOOS=" + system, "GOARCH=" + arch}, host: build})
		}
		steps = append(steps, step{name: "vet-" + system, env: []string{"GOOS=" + system}, host: words("go vet ./uverbs/soft/... ./cm/internal/... ./test/testenv")})
	}
	return steps
}

// hostSuites need no VM of their own.
func (c *config) hostSuites() []suite {
	gcc := []string{"gcc"}
	const noSoft = testenv.DevicesEnv + "=rxe0,rxe1" // the suite soft has the tests that run on software devices by default
	cgo := []string{"CGO_ENABLED=1"}
	check, staticcheck := checkSteps()
	return []suite{
		{name: "check", doc: "gofmt, vet, tidy modules, the exported API beside that of the last tag", steps: check},
		{name: "staticcheck", doc: "staticcheck of every module", steps: staticcheck},
		{name: "cross", doc: "the source compiled for other architectures and systems", steps: crossSteps()},
		{
			name: "unit", doc: "the tests that need no kernel",
			steps: []step{
				{name: "goverbs", needs: gcc, env: []string{noSoft}, host: words("go test ./...")},
				{name: "vmrun", dir: "tools/vmrun", needs: gcc, host: words("go test -short ./...")},
				{name: "suites", dir: suitesModule, waits: true, env: []string{noSoft}, host: words("go test ./...")},
				{name: "hca", dir: hcaModule, host: words("go test ./...")},
				{name: "efa", dir: efaModule, host: words("go test ./...")},
				{name: "grpc", dir: "test/grpc", host: words("go test ./...")},
				{name: "valkey", dir: "test/valkey", host: words("go test ./...")},
				{name: "release", dir: releaseModule, host: words("go test -count=1 ./...")}, // it reads files of other modules
				{name: "websocket", dir: "test/websocket", host: words("go test ./...")},
			},
		},
		{
			name: "race", doc: "tests that need no kernel under the race detector: the library on software devices, with the conformance tests; other packages",
			steps: []step{
				{name: "library", needs: gcc, env: append(cgo[:1:1], noMemory+","+string(testenv.Race)), host: words("go test -count=1 -race -short -timeout 30m ./netlinkrdma/... ./uverbs/... ./cm/...")},
				{name: "suites", dir: suitesModule, needs: gcc, env: c.brief(append(cgo[:1:1], noMemory+","+string(testenv.Race), pick(c.short, "GOVERBS_WALK=3s", "GOVERBS_WALK=10s"))), host: words("go test -count=1 -race -timeout 30m ./conformance ./fabric")},
				{name: "others", needs: gcc, env: cgo, host: words("go test -race ./mmio/... ./tools/health ./tools/internal/... ./tools/metrics ./tools/verbs/...")},
				{name: "hca", dir: hcaModule, needs: gcc, env: cgo, host: words("go test -race ./...")},
				{name: "efa", dir: efaModule, needs: gcc, env: cgo, host: words("go test -race ./...")},
				{name: "vmrun", dir: "tools/vmrun", needs: gcc, env: cgo, host: words("go test -race -short ./...")},
				{name: "pairs", needs: gcc, env: append(cgo[:1:1], "GOVERBS_PAIRS=10m"), host: words("go test -count=1 -race -timeout 2h -run ^TestPairs$ -v ./uverbs")},
				{name: "connpairs", needs: gcc, env: append(cgo[:1:1], "GOVERBS_PAIRS=2m"), host: words("go test -count=1 -race -timeout 1h -run ^TestPairs$ -v ./cm ./cm/rdmacm ./cm/rsocket ./cm/valkey ./uverbs/soft")},
			},
		},
		{name: "abi", doc: "the generated files against the kernel's headers", steps: []step{{needs: []string{"gcc", "vmrun"}, host: shell(checkABI)}}},
		{name: "release", doc: "a release, without publishing it", steps: []step{{alone: true, host: shell(checkRelease)}}},
		{
			name: "kubernetes", doc: "verbs mesh run --via kubectl exec, with kubectl and the kubelet's server, and the manifest against the API's types",
			steps: []step{
				{name: "test", dir: kubernetesModule, host: words("go test -count=1 -timeout 30m ./...")},
				{name: "vet", dir: kubernetesModule, host: words("go vet ./...")},
				{name: "tidy", dir: kubernetesModule, host: words("go mod tidy -diff")},
			},
		},
		{name: "vmtest", doc: "the tests of vmrun that boot VMs", steps: []step{{dir: "tools/vmrun", host: words("go test -count=1 -timeout 20m -run VM .")}}},
		{name: "benchonce", doc: "every Go benchmark once", steps: []step{{host: words("go test -run ^$ -bench . -benchtime 1x ./mmio/... ./uverbs/...")}}},
		{name: "size", doc: "the sizes of the static programs", steps: []step{
			{name: "verbs", needs: []string{"verbs"}, host: shell(checkSize, ".build/"+c.arch+"/verbs", "11000000")},
			{name: "conformance", needs: []string{"conformance"}, host: shell(checkSize, ".build/"+c.arch+"/conformance", "15000000")},
		}},
		{
			name: "hotpaths", doc: "post and poll on ring memory alone: instructions beside the recorded ones, and by function; by the clock beside the limit of 25 ns: hotpaths/clock -- -count 5",
			steps: []step{
				{name: "compare", alone: true, shown: true, host: words("go run ./test/bench hotpaths -brief")},
				{name: "functions", alone: true, shown: true, named: true, host: words("go run ./test/bench hotpaths")},
				{name: "clock", alone: true, shown: true, named: true, host: shell(hotpathLimit, "-count", "3")},
			},
		},
	}
}

// fuzzTests returns a step for every fuzz test. An input that fails becomes a file in the package's
// testdata, and is tested from then on. An input of some kilobytes would be made smaller for up to a
// minute each time without -fuzzminimizetime.
func (c *config) fuzzSuite() suite {
	s := suite{name: "fuzz", doc: "every fuzz test, for -fuzztime each: -suite 'fuzz/*Hello'"}
	for _, f := range fuzzFuncs(c.root) {
		s.steps = append(s.steps, step{
			name: strings.ReplaceAll(f.dir, "/", ".") + "." + f.name, dir: f.dir, alone: true,
			host: []string{"go", "test", "-run", "^$", "-fuzz", "^" + f.name + "$", "-fuzztime", c.fuzztime, "-fuzzminimizetime", "5s", "."},
		})
	}
	return s
}

// taskSuites are tasks of developers, and tests that take too long for every day. They run alone.
func (c *config) taskSuites() []suite {
	run := func(name, env string) step {
		return step{flags: []string{"-timeout", "2h"}, env: []string{guest, env}, shown: true,
			programs: []program{{name: "cm.test", run: "^" + name + "$", args: []string{"-test.timeout", "110m"}}}}
	}
	walk := step{flags: []string{"-timeout", "1000h"}, env: []string{guest, "GOVERBS_WALK=1h"}, programs: []program{only("conformance", "TestWalk")}, shown: true}
	const manyAttacks = "GOVERBS_ATTACKS=10000"
	attacks := []step{run("TestHostilePeers", manyAttacks), {
		name: "soft", alone: true, shown: true, env: []string{"GOVERBS_DEVICES=soft0,soft1", manyAttacks},
		host: words("go test -count=1 -timeout 110m -run ^TestHostilePeers$ ./cm"),
	}}
	onModel := run("TestHostilePeers", manyAttacks)
	onModel.name, onModel.alone, onModel.device, onModel.env = "mlx5", true, "mlx5", append(model[:3:3], manyAttacks)
	attacks[0].name = "kernel"
	attacks = append(attacks, onModel)
	const manyConns = "GOVERBS_CONNS=10000"
	onSoft := func(name, test, pkg string) step {
		return step{name: name, alone: true, shown: true, env: []string{"GOVERBS_DEVICES=soft0,soft1", manyConns},
			host: words("go test -count=1 -v -timeout 30m -run ^" + test + "$ " + pkg)}
	}
	conns := []step{
		run("TestConnLeaks", "GOVERBS_CONNS=10100"), run("TestStreamLeaks", manyConns), run("TestLeaks", manyConns),
		onSoft("stream-soft", "TestStreamLeaks", "./cm"), onSoft("rsocket-soft", "TestLeaks", "./cm/rsocket"),
	}
	conns[0].name, conns[1].name = "kernel", "stream"
	conns[2].name, conns[2].programs[0].name = "rsocket", "rsocket.test"
	golden := []string{"gcc", "vmrun", "hca", "verbs", "noioctl", "replay.test", "rdmacore-wqes", "rdmacore-queues", "rdmacore-ethernet", "efa", "rdmacore-efa", "softrxe.test"}
	return []suite{
		{name: "walk", doc: "random steps for an hour: -kernel latest -env GOVERBS_WALK=10m -env GOVERBS_SEED=N", steps: []step{walk}},
		{name: "conns", doc: "10,100 connections made and closed, and what is left of them; 10,000 streams and 10,000 of rsocket, also on software devices", steps: conns},
		{name: "attacks", doc: "10,000 attacks on a listener while honest clients work, on rxe, software devices and the ConnectX model: -env GOVERBS_ATTACKS=N", steps: attacks},
		c.fuzzSuite(),
		// As make bench measures it, with fewer rounds.
		{name: "demo-vm", doc: "ping-pong of a plain program and rdma-core's, side by side: -- -rounds 15", steps: []step{{bin: []string{"bench-plain"}, with: ibverbs, flags: []string{"--append=idle=poll"}, shown: true,
			programs: []program{{name: "bench", args: []string{"-commit", c.version, "-rows", "^plain/", "-sizes", "64,4096", "-rounds", "5", "-progress=false"}}}}}},
		{name: "bench", doc: "ours beside rdma-core's programs, as a table, JSON and a page: -- -rows ^send -rounds 9", steps: c.benchSteps()},
		{name: "benchsiw", doc: "traffic and connections on soft iWARP, as a table", steps: []step{
			c.side([]string{"-device", "siw", "--append=idle=poll"}, "-cm", "-guest", "-commit", c.version, "-sizes", "2,64,4096,65536")}},
		{name: "benchsoft", doc: "software devices beside UDP and TCP, on this machine: -- -rounds 9 -json FILE", steps: []step{
			{alone: true, shown: true, host: words("go run ./test/bench/soft")}}},
		{name: "benchmemory", doc: "the memory of a PD, MR, CQ, QP and connection", steps: []step{
			{flags: []string{"-icount", "-cpus", "1"}, shown: true, programs: []program{{name: "bench", args: []string{"memory"}}}}}},
		{name: "costs", doc: "instructions, beside the recorded ones; to record them: -suite costs/measure,costs/record", steps: c.costSteps()},
		{name: "sidebyside", doc: "a short form of bench, and post and poll on a modelled ConnectX and EFA by instructions", steps: c.sideBySide()},
		{name: "golden", doc: "record what rdma-core's programs and rxe do, which unit tests compare with ours", steps: []step{{needs: golden, host: []string{"sh", "test/run/golden.sh", c.kernel, c.arch}}}},
		{name: "generate", doc: "write the generated files from the kernel's newest headers", steps: []step{{needs: []string{"gcc", "vmrun"}, host: shell(generate)}}},
	}
}

// side measures ours beside rdma-core's programs in a guest.
func (c *config) side(flags []string, args ...string) step {
	bin := []string{"verbs", "bench-open", "bench-plain"}
	for _, p := range []string{"calls", "dc", "open", "mr", "qps", "srd", "start"} {
		bin = append(bin, "rdmacore-"+p)
	}
	return step{
		alone: true, shown: true, with: perftest, bin: bin,
		flags:    append([]string{"-timeout", "2h"}, flags...),
		programs: []program{{name: "bench", args: append(args, "-progress=false")}},
	}
}

// benchSteps measure by the clock and by instructions, and keep the results under the architecture, kernel
// and commit, where they can be compared: .build/amd64/bench compare A B. The guest's processors poll while
// they are idle: an emulator needs tens of microseconds to wake one that halts, and which of the two programs
// sleeps when would decide the figures.
func (c *config) benchSteps() []step {
	clock := c.side([]string{"-mem", "4G", "--append=idle=poll", "-out", "bench.json:bench.json"}, "-commit", c.version, "-json", "bench.json")
	count := c.side([]string{"-mem", "4G", "-icount", "-cpus", "1", "-out", "count.json:count.json"}, "-commit", c.version, "-json", "count.json",
		"-counted", "-rounds", "3", "-sizes", "64,4096", "-mr", "4096", "-qps", "1,10,100,1000,10000", "-rows", "^(open|connect|dial|call|mr|qps|cqs|mrs|plain)/|^conns/n=(1|10|100|1000)/")
	clock.name, count.name = "measure", "count"
	keep := step{name: "keep", dir: ".build/" + c.arch, host: shell(`for run in count bench; do
	if grep -q '"name"' $run.json; then ./bench keep -dir "${KEEP:-../results}" $run.json; fi || exit 1
done
rm count.json bench.json`)}
	return []step{clock, count, keep}
}

// costSteps count the instructions of a few cheap operations on Linux 6.1 and print a warning for each that
// executes more of them than recorded.
func (c *config) costSteps() []step {
	measure := c.side([]string{"-icount", "-cpus", "1", "-out", "costs.json:costs.json"}, "-commit", c.version, "-json", "costs.json", "-rounds", "3",
		"-sizes", "64", "-iterations", "500", "-mr", "4096", "-qps", "100", "-rows", "^(call|mr|qps|dial)/|^plain/.*events$")
	measure.name, measure.kernel = "measure", "6.1"
	compare := words("go run ./test/bench costs .build/" + c.arch + "/costs.json")
	return []step{measure,
		{name: "compare", shown: true, host: compare},
		{name: "record", named: true, host: slices.Insert(slices.Clone(compare), 4, "-record")}}
}

// sideBySide measures few rows.
func (c *config) sideBySide() []step {
	rounds := []string{"-rounds", pick(c.short, "1", "5")}
	rxe := c.side([]string{"--append=idle=poll"}, append([]string{"-mr", "4096,1048576",
		"-rows", "^(call|open|connect|mr)/|^(send-lat|write-bw)/size=(2|65536)/wait=poll$"}, rounds...)...)
	// By two programs, so that it is an error if either has no rows.
	count := func(rows string) step {
		return c.side([]string{"-icount", "-cpus", "1"}, append([]string{"-rows", rows, "-counted"}, rounds...)...)
	}
	onModel := count("^call/")
	onModel.programs = append(onModel.programs, count("^dc/").programs...)
	rxe.name, onModel.name, onModel.device = "rxe", "mlx5", "mlx5,mode=ib"
	onModel.alone = false // instructions are the same on a busy machine
	onEFA := count("^srd/")
	onEFA.name, onEFA.device, onEFA.alone = "efa", "efa", false
	return []step{rxe, onModel, onEFA}
}

// suites returns all suites.
func (c *config) suites() []suite {
	return slices.Concat(c.hostSuites(), []suite{c.softSuite(), softUnitSuite()}, c.rxeSuites(), c.mlx5Suites(), []suite{c.efaSuite(), c.softRxeSuite(), c.softMlx5Suite(), c.siwSuite(), c.fabricSuite(), fabricLongSuite()}, c.taskSuites())
}

// Groups are lists of suites and steps that run in this order, in the short form. Test is what proves most; testall
// is the rest of what runs every day; testlong, before a release, repeats much of it in other ways and with the whole
// load, and tests the tools of the tests. On rxe, which software devices play, test has the kernel take commands in
// one way only, and the suite soft has another. In test and testall the longest steps come first, behind those that
// run alone and the check, so that the processors have something to do until the end.
var groups = map[string][]string{
	"test": {"check", "rxe/interop", "unit/goverbs", "rxe/cm", "mlx5/ib", "unit/suites", "rxe/verbs", "siw/mixed", "soft/cm", "soft/auto", "soft/sockets", "soft/write", "soft/rsocket",
		"rxe/bare", "soft/valkey", "soft/s3rdma", "unit/valkey", "unit/vmrun", "unit/grpc", "unit/hca", "unit/efa", "unit/websocket", "unit/release"},
	"testall": {"sidebyside/rxe", "mlx5/roce", "mlx5ip", "perf/perftest", "s3/sdk", "siw/verbs", "race/library", "softrxe/cm", "hosts", "staticcheck", "softrxe/walk", "fabric/switches",
		"cross/vet-arm64", "softrxe/verbs", "race/suites", "cards/random-ib", "cards/ece", "cards/random-roce", "control/programs", "efa/verbs", "efa/model", "efa/conformance", "fabric/diags", "soft/losswrite", "fabric/xdr", "fabric/partitions", "flat",
		"cards/random-roce-control", "costs", "hotpaths", "fabric/cards", "traffic", "fabric/events", "rxe/one", "fabric/ibsim", "cross/build-windows-amd64", "rxe/latest", "abi", "benchonce",
		"cross/vet-arm64-suites", "cross/vet-arm64-hca", "size"},
	"testlong": {"sidebyside/mlx5", "sidebyside/efa", "cross/build-riscv64", "cross/build-darwin-amd64", "cross/build-darwin-arm64", "cross/vet-darwin", "cross/build-freebsd-amd64", "cross/build-freebsd-arm64", "cross/vet-freebsd", "cross/build-windows-arm64", "cards/small-ib", "cards/vf-ib", "cards/late-roce", "cards/ece-2", "fabric/no-smi", "fabriclong", "perf/dc", "perf/newest", "perf/card",
		"cross/vet-windows", "race/others", "race/hca", "race/vmrun", "race/pairs", "race/connpairs", "rxe/load", "rxe/packages", "rxe/write", "soft/strangers", "soft/ioctl", "soft/cmioctl", "soft/cmwrite", "soft/cmsockets", "soft/loss", "soft/lossioctl", "soft/cmlossioctl", "soft/cmlosswrite", "racevm",
		"mlx5cm", "release", "vmtest", "control/pyverbs", "control/pyverbs-newest", "control/dpdk", "control/dpdk-receive", "control/ucx", "control/ucx-ib", "control/ib", "control/ib-hosts", "control/programs-6.12", "mlx5/wq-5.10", "softrxe/exchanges", "softrxe/programs",
		"softrxe/captures", "softrxe/many", "softrxe/loss", "softmlx5", "rsocket", "valkey", "siw/interop", "program", "kernelbugs", "traced", "containers", "mesh", "kubernetes", "probes/hosts", "probes/soft", "exporter", "s3/heap", "s3/large", "s3/cost", "s3/versity", "race/efa", "efa/newest", "efa/next", "efa/6.12", "efa/first", "efa/conformance-first", "efa/batch", "efa/read", "efa/hosts", "efa/libfabric", "probes/card", "efa/perf"},
}

// errSuite is the error of a name that no suite has.
func errSuite(name string) error {
	return fmt.Errorf("no suite or step is called %q: -list has the names", name)
}
