package main

import "github.com/goverbs/goverbs/test/testenv"

// model is the environment of the tests on the modelled ConnectX.
var model = []string{guest, modelled, "GOVERBS_DEVICES=mlx5_0,mlx5_1"}

// modelled says that the programs are ours, and know that the cards are modelled.
const modelled = "GOVERBS_MODEL=1"

// mlx5Suites are the suites on the modelled ConnectX.
//
// The short form leaves out what another suite shows: on InfiniBand what does not depend on the link, and
// on RoCE what of connections and of rdma-core's programs does not depend on the card. The suite control
// has the programs on the other kernels, on two hosts, and with a card that dies.
func (c *config) mlx5Suites() []suite {
	var anyLink, anyCard, noPerf []testenv.Tag
	if c.short {
		anyLink, anyCard = []testenv.Tag{testenv.AnyLink}, []testenv.Tag{testenv.AnyCard, testenv.DeadCard}
		noPerf = append(anyCard[:2:2], testenv.Perftest)
	}
	walk := pick(c.short, "GOVERBS_WALK=2s", "GOVERBS_WALK=5s")
	return []suite{
		{
			name: "mlx5", doc: "the verbs on a modelled ConnectX, with RoCE and with InfiniBand",
			steps: []step{
				{
					name: "roce", driver: "mlx5-roce", device: "mlx5,mode=roce", flags: append(vlan[:len(vlan):len(vlan)], "-timeout", "20m"),
					env:      append(model[:3:3], vlanEnv, walk, pick(c.short, "GOVERBS_WAYS=auto", "GOVERBS_WAYS=auto,write")),
					programs: test("conformance", "umad", "s3rdma"),
				},
				{
					name: "ib", driver: "mlx5-ib", device: "mlx5,mode=ib", flags: []string{"-timeout", "20m"},
					env:  append(model[:3:3], walk, pick(c.short, "GOVERBS_WAYS=write", "GOVERBS_WAYS=ioctl,write")),
					with: diags, // for ibping
					skip: anyLink, programs: append(test("conformance", "umad", "s3rdma"), program{name: "rdmacm.test", run: "^TestGID"}),
				},
				// The last kernel here on which a WQ that has failed can be closed.
				{name: "wq-5.10", kernel: "5.10", device: "mlx5,mode=roce", env: model, programs: []program{only("conformance", "TestInjectedWQ")}},
			},
		},
		{
			name: "mlx5cm", doc: "connections, with gRPC and a WebSocket library, too, two hosts and rdma-core's programs on a modelled ConnectX",
			steps: []step{
				{
					name: "cm", driver: "mlx5-roce", device: "mlx5", flags: []string{"-module", "veth", "-timeout", "20m"},
					with: append(diags[:len(diags):len(diags)], "iproute2"), bin: []string{"verbs"},
					env: append(model[:3:3], "VERBS=/bin/verbs", "GOVERBS_IPROUTE2=1"),
					// Control, whose last tests unload the driver, comes last.
					skip: anyCard, programs: append(test("cm", "rdmacm", "classic", "interop"), only("broker", "TestBroker"), only("strangers", "TestKernelForged"), only("netlinkrdma", "TestKernelMove"), program{name: "control.test"}),
				},
				{name: "libraries", device: "mlx5", env: model[:3:3], programs: test("grpc", "websocket")},
				{
					name: "hosts", device: "mlx5", flags: []string{"-hosts", "2", "-cpus", "1"}, with: rdmacm,
					env:      append(model[:2:2], "GOVERBS_DEVICES=mlx5_0"),
					skip:     []testenv.Tag{testenv.AnyCard, testenv.KernelLink},
					programs: append(test("hosts"), only("control", "TestHosts")),
				},
			},
		},
		{
			name: "mlx5ip", doc: "connections and rdma-core's programs with IP over InfiniBand, on a modelled ConnectX",
			steps: []step{{
				driver: "mlx5-ipoib", device: "mlx5,mode=ipoib", flags: []string{"-module", "veth", "-timeout", "20m"},
				with: diags, bin: []string{"verbs"}, env: append(model[:3:3], "VERBS=/bin/verbs", "GOVERBS_SM=1"),
				skip: noPerf, programs: test("cm", "rdmacm", "classic", "interop", "umad"),
			}},
		},
		{
			name: "s3", doc: "objects of S3 by RDMA on a modelled ConnectX: with aws-sdk-go-v2 and minio-go, with versitygw's client, and the example",
			steps: []step{
				{name: "sdk", device: "mlx5,mode=roce", env: model[:3:3], programs: []program{only("s3sdk", "TestClients"), {name: "objects", args: []string{"try"}}}},
				{name: "heap", kernel: "latest", device: "mlx5,mode=roce", env: model[:3:3], programs: []program{only("s3rdma", "TestHeap")}},
				{name: "large", device: "mlx5,mode=roce", flags: []string{"-mem", "4G"}, env: append(model[:3:3], "GOVERBS_LARGE=1"), programs: []program{only("s3rdma", "TestLarge")}},
				{name: "cost", device: "mlx5,mode=roce", flags: []string{"-mem", "2G", "-cpus", "1", "-icount"}, env: model[:3:3], programs: []program{benchmark("s3rdma", "Objects", "5x")}},
				{
					name: "versity", device: "mlx5,mode=roce", bin: []string{"versity-client"}, with: ibverbs,
					env: append(model[:3:3], "GOVERBS_VERSITY=1"), programs: []program{only("s3sdk", "TestVersity")},
				},
			},
		},
		{name: "control", doc: "rdma-core's programs, and DPDK, on a modelled ConnectX: what fails there is the model's fault", steps: c.controlSteps()},
		{
			name: "cards", doc: "some tests of the verbs on modelled cards that differ from the usual ones, two of them random",
			steps: []step{
				c.cardControl("random", "roce", only("control", "TestPingpong")), c.card("random", "roce", "SpecialCard"), c.card("random", "ib", "SpecialCard"),
				c.card("small", "ib", "SpecialCard"), c.card("vf", "ib", "SpecialCard"), c.card("late", "roce", "SpecialCard"),
				c.cardECE("ece", ""), c.cardECE("ece-2", pick(c.kernel == "latest", "6.1", "latest")),
			},
		},
		{name: "personalities", doc: "the verbs and rdma-core's programs on modelled cards that differ, see -personality", steps: c.personalitySteps()},
	}
}

// controlSteps boots all of rdma-core's programs on one host, and two hosts. The short form does so with
// InfiniBand, and has the programs that transfer and connect on other kernels; newer ones also have
// dma-bufs, and the card takes them.
func (c *config) controlSteps() []step {
	alone := func(name, kernel, mode string) step {
		return step{name: name, kernel: kernel, device: "mlx5,mode=" + mode, with: diags, env: []string{guest}, programs: test("control")}
	}
	hosts := func(name, kernel, mode string) step {
		return step{
			name: name, kernel: kernel, device: "mlx5,mode=" + mode, flags: []string{"-hosts", "2", "-cpus", "1"},
			with: rdmacm, env: []string{guest}, programs: []program{only("control", "TestHosts")},
		}
	}
	// rdma-core's tests in Python take a link layer as they find it: one is enough.
	python := step{name: "pyverbs", device: "mlx5,mode=ib", bin: []string{"verbs"}, with: pyverbs, env: append(model[:3:3], "VERBS=/bin/verbs"), programs: test("pyverbs")}
	// The newest version has tests of what newer kernels have.
	pythonNewest := step{
		name: "pyverbs-newest", kernel: "latest", device: "mlx5,mode=roce", flags: []string{"-with-suite", "sid"}, with: append(pyverbs[:4:4], "rdma-core", "coreutils", "iproute2"),
		env: append(model[:3:3], "GOVERBS_PYVERBS_NEWEST=1"), programs: []program{only("pyverbs", "TestOutOfOrder", "TestDCStreams")},
	}
	// DPDK's driver, which neither this library nor rdma-core has.
	dpdk := step{
		name: "dpdk", device: "mlx5,mode=roce", flags: []string{"-mem", "3G"}, with: []string{"dpdk-dev"},
		env: []string{guest, "GOVERBS_DEVICES=mlx5_0,mlx5_1", "GOVERBS_DPDK=1"}, programs: []program{only("control", "TestDPDK")},
	}
	// By instructions.
	received := step{
		name: "dpdk-receive", device: "mlx5,mode=roce", flags: []string{"-mem", "3G", "-icount", "-cpus", "1", "-timeout", "30m"}, with: []string{"dpdk-dev"},
		env: []string{guest, "GOVERBS_DEVICES=mlx5_0,mlx5_1", "GOVERBS_DPDK_RECEIVE=1"}, programs: []program{only("control", "TestDPDKReceive")},
	}
	ucx := func(name, mode string) step {
		return step{
			name: name, device: "mlx5,mode=" + mode, flags: []string{"-hosts", "2", "-cpus", "1", "-mem", "2G"}, with: []string{"ucx-utils"},
			env: []string{guest, "GOVERBS_DEVICES=mlx5_0", "GOVERBS_UCX=1"}, programs: []program{only("control", "TestUCX")},
		}
	}
	if !c.short {
		return []step{python, pythonNewest, dpdk, received, ucx("ucx", "roce"), ucx("ucx-ib", "ib"), alone("roce", "", "roce"), hosts("roce-hosts", "", "roce"), alone("ib", "", "ib"), hosts("ib-hosts", "", "ib")}
	}
	programs := func(name, kernel string) step {
		return step{
			name: name, kernel: kernel, device: "mlx5,mode=roce", with: diags,
			env: []string{guest, "GOVERBS_DEVICES=mlx5_0,mlx5_1"},
			programs: []program{
				only("control", "TestPingpong", "TestOnDemandPages", "TestPerftest", "TestConnectionManager", "TestDC"),
				only("perf", "TestDMABufTraffic"),
			},
		}
	}
	return []step{
		python, pythonNewest, dpdk, received, ucx("ucx", "roce"), ucx("ucx-ib", "ib"), alone("ib", "", "ib"), hosts("ib-hosts", "latest", "ib"),
		programs("programs", pick(c.kernel == "latest", "6.1", "latest")), programs("programs-6.12", "6.12"),
	}
}

// card runs the tests of the verbs that have a mark on a card with a personality, see test/hca. Without a
// mark it runs all, but on an unordered card only those that do not expect receives in order. On InfiniBand
// it also connects by GIDs, since a card may require a GRH. On RoCE without a mark it connects, too, since a
// card may have no atomics.
func (c *config) card(personality, mode, mark string) step {
	p := program{name: "conformance.test"}
	if personality == "unordered" && mark == "" {
		mark = "Unordered"
	}
	if mark != "" {
		p = c.marked("conformance", mark)
	}
	s := step{
		name: personality + "-" + mode, device: c.cardDevice(personality, mode), flags: []string{"-timeout", "20m"},
		env: append(model[:3:3], "GOVERBS_WAYS=auto", pick(c.short, "GOVERBS_WALK=2s", "GOVERBS_WALK=5s")), programs: []program{p},
	}
	switch {
	case mode == "ib" && personality != "unordered":
		s.programs = append(s.programs, program{name: "rdmacm.test", run: "^TestGID"})
	case mode == "roce" && mark == "":
		s.programs = append(s.programs, only("cm", "TestConnRDMA", "TestStream"))
	}
	return s
}

// cardECE agrees on options for enhanced connections on a card that has them, between our programs and with
// librdmacm and libmlx5, and has libmlx5 use raw packets. Both give commands to the firmware (DEVX), which set
// UDP source ports and ports of a LAG.
func (c *config) cardECE(name, kernel string) step {
	with := append(pyverbs[:len(pyverbs):len(pyverbs)], "coreutils", "iproute2") // rdma-core's tests run ls and ip
	return step{
		name: name, kernel: kernel, device: c.cardDevice("late", "roce"), flags: []string{"-module", "veth"}, with: with,
		bin: []string{"verbs"}, env: append(model[:3:3], "VERBS=/bin/verbs"),
		programs: []program{
			only("conformance", "TestECE", "TestDEVX", "TestUDPSourcePort", "TestLAG"), only("cm", "TestConnECE"), only("rdmacm", "TestECE", "TestECEAnswer", "TestECEBadAnswer"),
			only("interop", "TestECE"), only("pyverbs", "TestECE", "TestRaw", "TestSourcePort", "TestLAG"),
		},
	}
}

// cardControl runs rdma-core's programs on a card with a personality, which shows that libmlx5 accepts it.
func (c *config) cardControl(personality, mode string, programs ...program) step {
	return step{
		name: personality + "-" + mode + "-control", device: c.cardDevice(personality, mode), with: diags, env: []string{guest},
		skip: []testenv.Tag{testenv.DeadCard}, programs: programs,
	}
}

// cardDevice is the device of vmrun for a personality. A random card is the same in all steps of a run, and
// comes back with -personality SEED, where SEED is what the start of a boot has printed.
func (c *config) cardDevice(personality, mode string) string {
	if personality == "random" {
		personality = c.randomCard
	}
	return "mlx5,mode=" + mode + ",personality=" + personality
}

// personalitySteps runs, for each card, rdma-core's programs and then the tests of the verbs.
func (c *config) personalitySteps() (steps []step) {
	var verbs []step
	for _, p := range c.personalities {
		for _, mode := range []string{"roce", "ib"} {
			steps = append(steps, c.cardControl(p, mode, test("control")...))
			verbs = append(verbs, c.card(p, mode, ""))
		}
	}
	return append(steps, verbs...)
}
