package main

// Tests that the short form leaves out. On InfiniBand those that do not depend on the link are not
// repeated, nor on RoCE those of connections and streams that do not depend on the device. rdma-core's
// programs run on RoCE in the suite mlx5cm, and on the other kernels, on two hosts and where a card
// dies in the suite control.
const (
	anyLink    = `^Test(AtOnce|Limits|Many|SharedCQs|Walk|Window|Faults|CQSizes|.*Threads|CloseBeside|Injected|DeviceRemoved|Builder|Allocs|BufferPool|RegMR|Rereg|Resize|QueueFull|PeerState|PeerClosesBusy|Invalidate|Status|OtherPD|SRQImmediate|NoReceive|InlineRecv|SGELimit|PostWhileErr|RingWrap)`
	anyCM      = `^Test(ManyConns|UserChanges|DialNames|DialCancelled|NoDevice|ListenerLingers|ListenerCloses|Quiet|DialStrangers|TimewaitExit|KeepAlive|Window)|^TestStream\z/^spin`
	anyInterop = `^Test(Paths|PeerKilled|Rping\z|Perf(Options|ServerKilled|HugePages|Progress|Clients|CPU)|Perftest|RpingPersistent|Doctor(Namespace|MTU|ClosedNode|NoAddress|Memlock))`
	anyControl = `^Test(Fatal|Reload)$`
)

// model is the environment of the tests on the modelled ConnectX.
var model = []string{guest, "GOVERBS_MODEL=1", "GOVERBS_DEVICES=mlx5_0,mlx5_1"}

// mlx5Suites are the suites on the modelled ConnectX. Its conformance tests keep two processors busy, so
// two boots at once would take as long as one after the other.
func (c *config) mlx5Suites() []suite {
	walk := pick(c.short, "GOVERBS_WALK=2s", "GOVERBS_WALK=5s")
	return []suite{
		{
			name: "mlx5", doc: "the verbs on a modelled ConnectX, with RoCE and with InfiniBand",
			steps: []step{
				{
					name: "roce", driver: "mlx5-roce", alone: true, device: "mlx5,mode=roce",
					env:      append(model[:3:3], walk, pick(c.short, "GOVERBS_WAYS=auto", "GOVERBS_WAYS=auto,write")),
					programs: test("conformance"),
				},
				{
					name: "ib", driver: "mlx5-ib", alone: true, device: "mlx5,mode=ib",
					env: append(model[:3:3], walk, pick(c.short, "GOVERBS_WAYS=write", "GOVERBS_WAYS=ioctl,write")),
					programs: []program{
						{name: "conformance.test", skip: pick(c.short, anyLink, "")},
						{name: "cm.test", run: "^TestGID"},
					},
				},
			},
		},
		{
			// Connections are on RoCE, except those by GIDs, which the suite mlx5 has: on InfiniBand
			// those by IP addresses need a subnet administrator, which the model does not have.
			name: "mlx5cm", doc: "connections, two hosts and rdma-core's programs on a modelled ConnectX",
			steps: []step{
				{
					name: "cm", driver: "mlx5-roce", device: "mlx5", flags: []string{"-module", "veth", "-timeout", "20m"},
					with: diags, bin: []string{"verbs"}, env: append(model[:3:3], "VERBS=/bin/verbs"),
					programs: []program{
						{name: "cm.test", skip: pick(c.short, anyCM, "")},
						{name: "classic.test"},
						{name: "interop.test", skip: pick(c.short, anyInterop, "")},
						{name: "control.test", skip: pick(c.short, anyControl, "")},
					},
				},
				{
					name: "hosts", device: "mlx5", flags: []string{"-hosts", "2", "-cpus", "1"}, with: rdmacm,
					env: append(model[:2:2], "GOVERBS_DEVICES=mlx5_0"),
					programs: []program{
						{name: "hosts.test", skip: "^Test(Classic|Peers|Cmtime|PeerKilled|LinkDown|LinkBack|DeviceRemoved)$"},
						only("control", "TestHosts"),
					},
				},
			},
		},
		{name: "control", doc: "rdma-core's programs on a modelled ConnectX: what fails there is the model's fault", steps: c.controlSteps()},
		{
			name: "cards", doc: "some tests of the verbs on two modelled cards that differ from the usual ones",
			steps: []step{c.card("small", "ib", shortCards...), c.card("vf", "ib", shortCards...)},
		},
		{name: "personalities", doc: "the verbs and rdma-core's programs on modelled cards that differ, see -personality", steps: c.personalitySteps()},
	}
}

// controlSteps boots all of rdma-core's programs on one host, and two hosts. The short form does so with
// InfiniBand, and has the programs that transfer and connect on the kernels that other suites do not
// boot; newer kernels also have dma-bufs, and the card takes them.
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
	if !c.short {
		return []step{alone("roce", "", "roce"), hosts("roce-hosts", "", "roce"), alone("ib", "", "ib"), hosts("ib-hosts", "", "ib")}
	}
	steps := []step{alone("ib", "", "ib"), hosts("ib-hosts", "latest", "ib")}
	for _, kernel := range []string{"6.1", "6.12", "latest"} {
		if kernel == c.kernel {
			continue
		}
		steps = append(steps, step{
			name: "programs-" + kernel, kernel: kernel, device: "mlx5,mode=roce", with: diags,
			env: []string{guest, "GOVERBS_DEVICES=mlx5_0,mlx5_1"},
			programs: []program{
				only("control", "TestPingpong", "TestOnDemandPages", "TestPerftest", "TestConnectionManager"),
				only("perf", "TestDMABufTraffic"),
			},
		})
	}
	return steps
}

// Tests of test/conformance that run on special cards.
var (
	shortCards = []string{"TestSizeLimits", "TestResize", "TestResizeBusy", "TestQueryPKey", "TestAtomic", "TestInline", "TestInlineRecv",
		"TestRingWrap", "TestSRQ", "TestOnDemandQueues", "TestDatagram", "TestXRC", "TestThreadDomain", "TestManyOpens", "TestDeviceMemory"}
	unordered = []string{"TestReceivesInAnyOrder", "TestSizeLimits", "TestResizeBusy", "TestWriteRead", "TestAtomic", "TestFence", "TestTooBig"}
)

// card runs tests of the verbs on a card with a personality, see test/hca. Without names it runs all,
// but on an unordered card only those that do not expect receives in order.
func (c *config) card(personality, mode string, tests ...string) step {
	p := program{name: "conformance.test"}
	if personality == "unordered" && len(tests) == 0 {
		tests = unordered
	}
	if len(tests) > 0 {
		p = only("conformance", tests...)
	}
	return step{
		name: personality + "-" + mode, device: "mlx5,mode=" + mode + ",personality=" + personality, flags: []string{"-timeout", "20m"},
		env: append(model[:3:3], "GOVERBS_WAYS=auto", pick(c.short, "GOVERBS_WALK=2s", "GOVERBS_WALK=5s")), programs: []program{p},
	}
}

// personalitySteps runs, for each card, rdma-core's programs, which show that libmlx5 accepts the card,
// and then the tests of the verbs. The seed of a random card is printed at the start of a boot; the same
// card comes back with -personality SEED.
func (c *config) personalitySteps() (steps []step) {
	var verbs []step
	for _, p := range c.personalities {
		for _, mode := range []string{"roce", "ib"} {
			s := c.card(p, mode)
			verbs = append(verbs, s)
			steps = append(steps, step{
				name: s.name + "-control", device: s.device, with: diags, env: []string{guest},
				programs: []program{{name: "control.test", skip: "^Test(Hosts|Fatal|Reload)$"}},
			})
		}
	}
	return append(steps, verbs...)
}
