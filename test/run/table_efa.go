package main

// efaSuite is the suite on modelled EFA cards.
func (c *config) efaSuite() suite {
	env := []string{guest, "GOVERBS_EFA=1"}
	srd := only("srd", "TestMany", "TestUD", "TestRDMA", "TestUnsolicited", "TestFailures", "TestFull", "TestInline", "TestReset")
	model := func(name, kernel, device string) step {
		return step{
			name: name, kernel: kernel, device: device, bin: []string{"verbs"}, with: append(pyverbs[:4:4], "perftest", "rdma-core", "coreutils"), env: env,
			// The driver is unloaded last.
			programs: []program{srd, only("pyverbs", "TestEFA"), only("control", "TestEFA", "TestEFAVerbs"), only("control", "TestEFAReload")},
		}
	}
	newest := model("newest", "latest", "efa")
	newest.flags, newest.with, newest.env = []string{"-with-suite", "sid"}, append(newest.with, "iproute2"), append(env[:2:2], "GOVERBS_EFA_NEWEST=1")
	return suite{
		name: "efa", doc: "the verbs on modelled EFA cards, and rdma-core's and libfabric's programs: what fails there is the model's fault",
		steps: []step{
			{
				// The driver of Linux 6.1 has no WRITE.
				name: "conformance", driver: "efa", kernel: pick(c.kernel == "latest", "latest", "6.12"), device: "efa", flags: []string{"-timeout", "20m"},
				env:      []string{guest, "GOVERBS_SLOW=1", "GOVERBS_DEVICES=efa_0,efa_1"},
				programs: test("conformance"),
			},
			// A card of the first generation on a kernel without WRITE.
			{
				name: "conformance-first", kernel: "6.1", device: "efa,personality=first", flags: []string{"-timeout", "20m"},
				env: []string{guest, "GOVERBS_SLOW=1", "GOVERBS_DEVICES=efa_0,efa_1", "GOVERBS_WAYS=write"}, programs: test("conformance"),
			},
			{name: "verbs", kernel: "latest", device: "efa", env: env, programs: []program{{name: "srd.test"}}},
			{name: "next", kernel: "next", device: "efa", env: env, programs: []program{{name: "srd.test"}}},
			model("model", "", "efa"), newest, model("6.12", "6.12", "efa"),
			model("first", "", "efa,personality=first"), model("batch", "", "efa,personality=batch"), model("read", "", "efa,personality=read"),
			{
				name: "hosts", kernel: "6.12", device: "efa", flags: []string{"-hosts", "2", "-cpus", "1"}, with: ibverbs, bin: []string{"srd", "srdcat"}, env: env,
				programs: []program{only("control", "TestEFAHosts")},
			},
			{
				name: "perf", kernel: "latest", device: "efa", flags: newest.flags, with: []string{"perftest", "ibverbs-providers", "ibverbs-utils"}, bin: []string{"verbs", "srdcat"},
				env:      append(env[:1:1], "GOVERBS_EFA_PERF=1"),
				programs: []program{only("control", "TestEFAPerftest"), only("control", "TestEFAPerf"), only("control", "TestEFAPingpong"), only("control", "TestEFAOrdered")},
			},
			{
				name: "libfabric", kernel: "latest", device: "efa", flags: []string{"-with-suite", "sid", "-hosts", "2", "-cpus", "1", "-mem", "2G"},
				with: []string{"libfabric-bin", "ibverbs-providers"}, env: []string{guest, "GOVERBS_LIBFABRIC=1", "FI_EFA_RX_SIZE=256"},
				programs: []program{only("control", "TestLibfabric")},
			},
		},
	}
}
