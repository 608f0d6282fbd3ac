package main

import (
	"strings"

	"github.com/goverbs/goverbs/test/testenv"
)

// Debian packages of rdma-core's programs.
var (
	ibverbs  = []string{"ibverbs-utils", "ibverbs-providers"}
	rdmacm   = append(ibverbs[:2:2], "rdmacm-utils")
	perftest = append(rdmacm[:3:3], "perftest")
	iproute2 = append(rdmacm[:3:3], "iproute2")
	diags    = append(perftest[:4:4], "infiniband-diags")
	pyverbs  = append(rdmacm[:3:3], "python3-pyverbs")

	rspreload = append(rdmacm[:3:3], "curl", "redis-tools", "iperf3", "civetweb") // for librspreload.so
)

// guest is the environment of every test that needs a VM.
const guest = "GOVERBS_KERNEL_TEST=1"

// guestEnv returns the environment of the tests on rxe.
func (c *config) guestEnv(more ...string) []string {
	env := append([]string{guest, "VERBS=/bin/verbs"}, more...)
	if c.emulated() {
		env = append(env, "GOVERBS_SLOW=1")
	}
	return env
}

// brief returns an environment with less load if another step makes all of it, as in the groups.
func (c *config) brief(env []string) []string {
	if !c.short {
		return env
	}
	return append(env[:len(env):len(env)], testenv.BriefEnv+"=1")
}

// vlan are the flags of a VM whose network interfaces can have VLANs, and vlanEnv tells the tests.
var vlan = []string{"-module", "8021q"}

const vlanEnv = "GOVERBS_VLAN=1"

// longWalk is the time of the random walk on rxe with -short. The other suites walk less.
const longWalk = "GOVERBS_WALK=30s"

// rxeSuite has the tests on rxe. The step verbs issues commands by the interface that the library
// chooses. The step write uses the other interfaces, and repeats the other tests of the verbs with
// write(); with -short it also runs the long walk. An emulated architecture is slow: there the step
// verbs has the tests of all interfaces, and nothing is repeated.
//
// With -short the step load has what the others then make less of, and the step packages the unit tests that need
// no device, which the suite unit has without a VM.
func (c *config) rxeSuite() suite {
	whole := c.guestEnv()
	env := c.brief(whole)
	verbs := step{
		name: "verbs", driver: "rxe", path: "auto", bin: []string{"verbs"},
		flags:    append(vlan[:2:2], "-file", "../../uverbs/testdata:testdata"),
		env:      append(env[:len(env):len(env)], vlanEnv, "GOVERBS_WAYS=auto", pick(c.short, "GOVERBS_WALK=3s", "GOVERBS_WALK=10s")),
		programs: append(test("netlinkrdma", "umad", "conformance"), program{name: "replay.test", run: "Exercise"}),
	}
	packages := test("mmio", "rxe", "uverbs")
	if c.short && !c.emulated() {
		verbs.programs = append(verbs.programs, c.marked("uverbs", "Guest"))
	} else {
		verbs.programs = append(packages, verbs.programs...)
	}
	write := []step{{
		name: "write", driver: "rxe", path: "write", bin: []string{"verbs"}, flags: vlan,
		env:      c.guestEnv(vlanEnv, pick(c.short, longWalk, "GOVERBS_WALK=1s"), "RDMAABI=write", "GOVERBS_WAYS=ioctl,write"),
		programs: test("conformance"),
	}}
	if c.emulated() {
		verbs.env, write = append(env[:len(env):len(env)], vlanEnv), nil
		if c.short {
			verbs.env = append(verbs.env, longWalk)
		}
	}
	steps := []step{
		{
			name: "cm", driver: "rxe", path: "auto", bin: []string{"verbs"}, env: env,
			flags:    []string{"-module", "bonding"},
			programs: append(test("cm", "rdmacm", "classic", "grpc", "websocket"), only("strangers", "TestKernelForged")),
		},
		verbs,
	}
	if c.short {
		steps = append(steps, step{
			name: "load", bin: []string{"verbs"}, with: iproute2, env: whole,
			programs: []program{c.marked("cm", "Brief"), c.marked("conformance", "Brief"), c.marked("interop", "Brief")},
		}, step{name: "packages", flags: verbs.flags, env: whole, programs: packages})
	}
	return suite{name: "rxe", doc: "soft RoCE: the verbs, connections, rdma-core's programs", steps: append(append(steps, write...), []step{
		{
			name: "interop", driver: "rxe", bin: []string{"verbs", "stdio-pingpong", "rdmacore-pingpong"}, with: iproute2,
			env: append(env[:len(env):len(env)], "GOVERBS_IPROUTE2=1", "GOVERBS_TWO_LANGUAGES=1"), skip: []testenv.Tag{testenv.Perftest},
			programs: append(test("interop"), only("broker", "TestBroker"), only("conformance", "TestIproute2")),
		},
		{
			name: "bare", driver: "rxe", bin: []string{"verbs"}, flags: []string{"-load", "none"},
			env: append(env[:len(env):len(env)], "GOVERBS_BARE=1"),
			programs: []program{
				only("conformance", "TestModuleNotLoaded"),
				only("interop", "TestDoctorNoDevices"),
				only("cm", "TestNoModuleDial"),
				only("rdmacm", "TestNoModule"),
			},
		},
		{
			name: "one", flags: []string{"-cpus", "1"}, env: whole, // where a goroutine that waits must leave the processor to others
			programs: []program{
				{name: "uverbs.test", run: "Wait"},
				only("conformance", "TestCQWait", "TestCQWaitCanceled", "TestCompChannelWait", "TestCloseWithEvents"),
			},
		},
		{name: "latest", kernel: "latest", env: env, programs: []program{only("conformance", "TestAtomicWrite", "TestBuilderAtomicWrite", "TestFlush")}}, // since 6.2
	}...)}
}

// rxeSuites are the suites on rxe.
func (c *config) rxeSuites() []suite {
	return []suite{
		c.rxeSuite(),
		{
			name: "program", doc: "the conformance tests as the program that make conformance builds, in its short form, as KTAP; runs of it that are refused or interrupted",
			steps: []step{
				{name: "ktap", programs: []program{{name: "conformance", args: []string{"-vm", "-quick", "-ktap"}}}},
				{name: "refusals", bin: []string{"conformance"}, env: c.guestEnv("CONFORMANCE=/bin/conformance"), programs: []program{only("report", "TestKernelRefusals", "TestKernelInterrupted", "TestKernelOthers", "TestKernelStrict")}},
			},
		},
		{
			name: "kernelbugs", doc: "attacks that crash kernels with certain bugs, each in a VM of its own, beside the list of known bugs: -- -run ^send",
			steps: kernelBugs("5.10", "6.1", "6.12", "latest"),
		},
		{
			name: "traced", doc: "tests of rdma-core in Python under verbs trace, also on the newest kernel; 32-bit programs that a traced program runs",
			steps: c.tracedSteps(),
		},
		{
			name: "containers", doc: "images that hold one program, run by podman: ping-pong between two containers, by device files and by names, in every kind of network namespace, with little else, and what their errors say; programs in pods with macvlan and ipvlan interfaces; programs in gVisor",
			steps: []step{
				c.containers("shared", ""), c.containers("exclusive", ""), c.containers("shared-latest", "latest"), c.containers("exclusive-latest", "latest"),
				c.pods("pods", ""), c.pods("pods-latest", "latest"),
				{
					name: "gvisor", kernel: "6.12", device: "mlx5,mode=roce", bin: []string{"runsc", "verbs"}, flags: []string{"-mem", "4G", "-timeout", "30m"},
					env: append(model[:3:3], "GOVERBS_GVISOR=1"), programs: test("containers"),
				},
			},
		},
		{
			name: "exporter", doc: "verbs exporter scraped by Prometheus, on an old kernel and with several kinds of devices, too; its cost",
			steps: []step{c.exporter("rxe", ""), c.exporter("5.10", "5.10"), c.exporter("mixed", ""), c.exporterCost()},
		},
		{
			name: "perf", doc: "verbs perf with itself and with perftest, and beside qperf, on rxe, and by DC on a modelled ConnectX",
			steps: []step{
				{
					name: "perftest", driver: "rxe", bin: []string{"verbs"}, with: append(rdmacm[:3:3], "perftest", "qperf"), env: c.guestEnv("GOVERBS_QPERF=1"),
					programs: append(test("perf"), c.marked("interop", "Perftest")),
				},
				{
					name: "card", kernel: "latest", device: "mlx5,mode=roce", bin: []string{"verbs"}, with: append(ibverbs[:2:2], "perftest"),
					env: append(model[:3:3], "VERBS=/bin/verbs"), programs: []program{only("interop", "TestPerfCard")},
				},
				{
					name: "newest", kernel: "latest", driver: "rxe", flags: []string{"-with-suite", "sid"}, bin: []string{"verbs"}, with: append(ibverbs[:2:2], "perftest"),
					env: c.guestEnv(), programs: []program{only("interop", "TestPerftestImm", "TestPerftestOptions")},
				},
				{
					name: "dc", device: "mlx5,mode=roce", bin: []string{"verbs"}, with: append(ibverbs[:2:2], "perftest"),
					env: append(model[:3:3], "VERBS=/bin/verbs"), programs: []program{only("interop", "TestPerfDC", "TestPerftestDC", "TestPerfCard")},
				},
			},
		},
		{
			name: "hosts", doc: "two hosts: rdma-core's programs, peers that die, a link that is bad or cut",
			steps: []step{{
				waits: true, flags: []string{"-hosts", "2", "-cpus", "1"}, bin: []string{"verbs"}, with: rdmacm, env: c.guestEnv(),
				programs: test("hosts"),
			}},
		},
		{
			name: "mesh", doc: "verbs mesh on four hosts, a link of which loses 1 % or has 5 ms: it names that link and no other, ten times of ten; verbs mesh run --via ssh with OpenSSH on two hosts",
			steps: []step{{
				name: "links", flags: []string{"-hosts", "4", "-cpus", "1", "-mem", "512M", "-timeout", "30m"}, bin: []string{"verbs"}, env: c.guestEnv("VERBS=/bin/verbs"),
				programs: []program{only("mesh", "TestMesh")},
			}, {
				// Verbs waits for ssh for 30 s, and several processes of OpenSSH start in an emulated VM in that time.
				name: "ssh", alone: true, with: []string{"openssh-server", "openssh-client", "dash"}, flags: []string{"-hosts", "2", "-cpus", "1"}, bin: []string{"verbs"},
				env: c.guestEnv("GOVERBS_MESH_SSH=1"), programs: []program{only("mesh", "TestSSH")},
			}},
		},
		{
			name: "probes", doc: "verbs exporter --probe on four hosts, and its package on software devices, with Prometheus: within two minutes alerts name the link that loses 1 %, or 0.1 % at a higher rate, or takes 2 ms more; latencies by the clock of a modelled ConnectX",
			steps: []step{
				c.probes("hosts", "GOVERBS_PROBES=1", "TestProbes", "-hosts", "4", "-cpus", "1"), c.probes("soft", "GOVERBS_PROBES_SOFT=1", "TestProbesSoft"),
				{name: "card", device: "mlx5,mode=roce", env: append(model[:3:3], "GOVERBS_PROBE_CARD=1"), programs: []program{only("probe", "TestCardClock")}},
			},
		},
		{
			name: "rsocket", doc: "package rsocket with rdma-core's programs as the peer, also of its newest version, and with curl, redis-cli, iperf3 and civetweb by librspreload.so; its speed",
			steps: c.rsocketSteps(),
		},
		{
			name: "valkey", doc: "package valkey with go-redis, valkey-go and rueidis, and with programs of Valkey that are built with RDMA: valkey-server also of 8.1, valkey-cli and valkey-benchmark",
			steps: c.valkeySteps(),
		},
		{
			name: "racevm", doc: "the verbs and connections on rxe, and the verbs on a modelled ConnectX without BlueFlame, under the race detector",
			steps: []step{
				{name: "verbs", race: true, flags: []string{"-mem", "2G"}, env: []string{guest}, programs: test("conformance")},
				{
					name: "cm", race: true, flags: []string{"-mem", "2G", "-module", "bonding"}, env: []string{guest},
					skip: []testenv.Tag{testenv.Race}, programs: test("cm", "rdmacm"),
				},
				{
					name: "mlx5", race: true, device: "mlx5,mode=roce,personality=unordered", flags: []string{"-mem", "2G", "-timeout", "20m"},
					env: append(model[:3:3], "GOVERBS_WAYS=auto", "GOVERBS_WALK=2s"), programs: []program{c.marked("conformance", "Unordered")},
				},
			},
		},
		{
			name: "flat", doc: "the cost of a message with 1,000 QPs beside that with 2, ours and rdma-core's",
			steps: []step{c.flat("", "-icount"), c.flat("clock", "")},
		},
		{
			name: "traffic", doc: "a connection beside the verbs, a stream beside RDMA WRITE and TCP",
			steps: []step{c.traffic("", "-icount"), c.traffic("clock", "")},
		},
	}
}

// kernelBugs has a step for each kernel. Those for older ones run if they are named.
func kernelBugs(kernels ...string) (steps []step) {
	for _, k := range kernels {
		steps = append(steps, step{
			name: k, named: k != "6.1" && k != "latest", needs: []string{"vmrun", "gcc"}, host: words("go run ./test/kernelbugs -kernel " + k),
		})
	}
	return steps
}

// containers runs podman. Of the drivers here only mlx5 lets its devices be moved to another network namespace.
func (c *config) containers(name, kernel string) step {
	s := step{
		name: name, kernel: kernel, with: []string{"podman", "crun", "dash", "coreutils", "mount", "iproute2"}, bin: []string{"verbs", "pingpong"},
		flags: []string{"-mem", "3G", "-module", "overlay", "-timeout", "30m"}, env: c.guestEnv("GOVERBS_CONTAINERS=1"), programs: test("containers"),
	}
	if strings.HasPrefix(name, "exclusive") {
		s.device, s.env = "mlx5,mode=roce", append(model[:3:3], "GOVERBS_CONTAINERS_EXCLUSIVE=1")
	}
	return s
}

// pods runs programs in network namespaces with a macvlan or an ipvlan interface on a modelled ConnectX, and without podman.
func (c *config) pods(name, kernel string) step {
	return step{
		name: name, kernel: kernel, device: "mlx5,mode=roce", with: []string{"dash", "coreutils", "grep", "iproute2"}, bin: []string{"verbs", "pingpong"},
		flags: []string{"-module", "macvlan,ipvlan,veth,crc32_generic?,rdma_rxe"}, env: append(model[:3:3], "GOVERBS_PODS=1"), programs: test("containers"),
	}
}

// tracedSteps run programs under verbs trace. The newest kernel has the newest attributes. Kernels for amd64 run 32-bit
// programs; Linux 6.7 and newer can be built so that it must be told to.
func (c *config) tracedSteps() []step {
	pyverbsStep := func(name, kernel string) step {
		return step{name: name, kernel: kernel, bin: []string{"verbs"}, with: pyverbs, env: c.guestEnv(), programs: []program{only("pyverbs", "TestTraced")}}
	}
	steps := []step{pyverbsStep("pyverbs", ""), pyverbsStep("pyverbs-latest", "latest")}
	if c.arch == "amd64" {
		steps = append(steps, step{
			name: "32bit", with: []string{"dash"}, flags: []string{"--append=ia32_emulation=on"}, env: c.guestEnv(), programs: []program{only("trace", "Test32Bit")},
		})
	}
	return steps
}

// exporter runs Prometheus.
func (c *config) exporter(name, kernel string) step {
	s := step{
		name: name, kernel: kernel, with: []string{"prometheus"}, bin: []string{"verbs"}, env: c.guestEnv("GOVERBS_EXPORTER=1"),
		flags: []string{"-mem", "2G", "-file", "../../tools/metrics/dashboard.json:dashboard.json", "-file", "../../tools/metrics/rules.yml:rules.yml"}, programs: test("exporter"),
	}
	if name == "mixed" {
		s.device, s.env = "rxe+siw+mlx5", append(s.env, "GOVERBS_MIXED=1")
	}
	return s
}

// probes runs Prometheus with exporters that probe each other.
func (c *config) probes(name, env, test string, flags ...string) step {
	return step{
		name: name, with: []string{"prometheus"}, bin: []string{"verbs"}, env: c.guestEnv(env),
		flags: append(flags, "-mem", "2G", "-timeout", "30m", "-file", "../../tools/metrics/rules.yml:rules.yml"), programs: []program{only("exporter", test)},
	}
}

// exporterCost measures by instructions. The limits are percent of a core for 1,000 QPs and a scrape each 5 s, or verbs
// top at one refresh a second, and milliseconds from the start of verbs to its first output.
func (c *config) exporterCost() step {
	return c.measure(step{
		name: "cost", bin: []string{"verbs"}, env: []string{guest, "VERBS=/bin/verbs", "GOVERBS_EXPORTER=1"}, programs: []program{benchmark("exporter", "(Exporter|Top|Start)", "20x")},
	}, "-icount", "GOVERBS_EXPORTER_MOST=2", "GOVERBS_TOP_MOST=1", "GOVERBS_START_MOST=15")
}

// flat measures by instructions if icount is the flag of vmrun for that, and else by the clock, for
// which "-- -test.benchtime 200x" is not too much.
func (c *config) flat(name, icount string) step {
	return c.measure(step{
		name: name, with: ibverbs, bin: []string{"rdmacore-flat"}, env: []string{guest, "GOVERBS_FLAT=/bin/rdmacore-flat"},
		programs: []program{benchmark("conformance", "QPs", pick(c.short, "5x", "10x"))},
	}, icount, "GOVERBS_FLAT_MOST=1.1")
}

// rsocketSteps run rsockets. The ratios of the step speed are of the time of a transfer with our server to that with rstream's,
// and of the bandwidth to that of RDMA WRITE.
func (c *config) rsocketSteps() []step {
	all, flags := test("rsocket", "rstream"), []string{"-timeout", "40m", "-mem", "2G"}
	speed := step{name: "speed", with: rspreload, env: []string{guest}, programs: []program{benchmark("rstream", "Rstream", "5x"), benchmark("rsocket", "Bandwidth", "5x")}}
	return []step{
		{name: "rxe", with: rspreload, env: c.guestEnv(), flags: flags, programs: all},
		{name: "mlx5", device: "mlx5,mode=roce", with: rspreload, env: model[:3:3], flags: flags, programs: all},
		{
			name: "siw", device: "siw", with: rspreload, env: c.guestEnv("GOVERBS_DEVICES=siw0,siw1"),
			flags: append(flags[:4:4], "-cpus", "1"), programs: all, // see siw/interop
		},
		{
			name: "newest", with: rspreload, env: c.guestEnv(), programs: test("rstream"),
			flags: append(flags[:4:4], "-with-suite", "sid", "-file", "../../test/suites/rstream/preload_config:/etc/rdma/rsocket/preload_config"),
		},
		c.measure(speed, "-icount", "GOVERBS_RSTREAM_MOST=1.0", "GOVERBS_RSOCKET_LEAST=0.9"),
	}
}

// valkeySteps run clients and servers of Valkey. Those of Valkey itself that are clients have RDMA since 9.
func (c *config) valkeySteps() []step {
	all := []string{"valkey-server", "valkey-cli", "valkey-benchmark"}
	flags := []string{"-timeout", "40m", "-mem", "6G"}
	withServer := only("valkeypeers", "TestServerClients", "TestServerMany", "TestServerRestart", "TestServerVictim", "TestServerIdle", "TestServerBusy")
	return []step{
		{name: "rxe", with: rdmacm, env: c.guestEnv(), bin: all, flags: flags, programs: test("valkey", "valkeypeers")},
		{
			name: "8.1", with: rdmacm, env: c.guestEnv("GOVERBS_VALKEY_SERVER=valkey-server-8.1", "LC_ALL=C"), bin: []string{"valkey-server-8.1"},
			flags: flags, programs: []program{withServer},
		},
		{name: "mlx5", device: "mlx5,mode=roce", with: rdmacm, env: model[:3:3], bin: all, flags: flags, programs: test("valkey", "valkeypeers")},
		{
			name: "race", race: true, with: rdmacm, env: c.guestEnv(), bin: []string{"valkey-server"}, flags: flags,
			programs: append(test("valkey"), withServer),
		},
	}
}

// traffic is like flat. The limits are the time of a Conn divided by that of the verbs, and the
// bandwidth of a stream divided by that of RDMA WRITE. Both count instructions, but in a VM whose tasks
// change at other moments in each run: the first is between 1.089 and 1.100.
func (c *config) traffic(name, icount string) step {
	return c.measure(step{
		name: name, env: []string{guest},
		programs: []program{benchmark("cm", "(PingPong|Stream)", "5x")},
	}, icount, "GOVERBS_PINGPONG_MOST=1.12", "GOVERBS_STREAM_LEAST=0.9")
}

// measure adds what a measurement needs. Only instructions are held against limits.
func (c *config) measure(s step, icount string, limits ...string) step {
	s.named = icount == ""
	s.shown = true
	if icount != "" {
		s.flags = []string{icount}
		s.env = append(s.env, limits...)
	}
	return s
}

// benchmark returns a test binary that runs benchmarks, and no test.
func benchmark(name, bench, times string) program {
	return program{name: name + ".test", run: "^$", args: []string{"-test.bench", "^Benchmark" + bench + "$", "-test.benchtime", times}}
}
