package main

import (
	"path/filepath"

	"github.com/goverbs/goverbs/test/ibsim"
)

// linkIBSim makes .build/ibsim the directory in which the programs of Debian's simulator, subnet manager
// and diagnostics are unpacked.
const linkIBSim = `dir=$(.build/vmrun get ibsim-utils libumad2sim0 opensm infiniband-diags) && ln -sfn "$dir" .build/ibsim`

// fabricSuite tests the management of InfiniBand subnets.
func (c *config) fabricSuite() suite {
	sim := []string{ibsim.Env + "=" + filepath.Join(c.root, ".build/ibsim")}
	card := func(name, device string, with []string, env string, p program) step {
		return step{name: name, device: device, with: with, env: append(model[:3:3], env+"=1"), programs: []program{p}}
	}
	return suite{
		name: "fabric", doc: "management of InfiniBand subnets",
		steps: []step{
			{name: "ibsim", needs: []string{"vmrun", "ibsim"}, env: sim, host: words("go test -count=1 -timeout 10m ./test/ibsim ./uverbs/umad/fabric ./tools/verbs/internal/ib")},
			{
				name: "switches", device: "mlx5,mode=ipoib,topology=../../test/suites/switches/testdata/triangle.txt", with: diags,
				flags: []string{"-file", "../../test/suites/switches/testdata/opensm.conf:/etc/opensm/opensm.conf"},
				env:   append(model[:3:3], "GOVERBS_SWITCHES=1", "VERBS=/bin/verbs"), bin: []string{"verbs"},
				programs: []program{only("switches", "TestRuled", "TestText", "TestAcross", "TestReroute", "TestSlowCable", "TestStat", "TestEvents")},
			},
			{
				name: "xdr", device: "mlx5,mode=ipoib,topology=../../test/suites/switches/testdata/xdr.txt", with: diags,
				flags: []string{"-with-suite", "trixie", "-file", "../../test/suites/switches/testdata/opensm.conf:/etc/opensm/opensm.conf"},
				env:   append(model[:3:3], "GOVERBS_XDR=1", "VERBS=/bin/verbs"), bin: []string{"verbs"},
				programs: []program{only("switches", "TestXDR", "TestQuery", "TestPort")},
			},
			{
				name: "partitions", device: "mlx5,mode=ipoib", with: diags, bin: []string{"verbs"},
				flags: []string{"-file", "../../test/suites/switches/testdata/partitions.conf:/etc/opensm/partitions.conf"},
				env:   append(model[:3:3], "GOVERBS_PARTITIONS=1", "VERBS=/bin/verbs"), programs: []program{{name: "switches.test", run: "^TestPartition"}},
			},
			card("cards", "mlx5,mode=ipoib", diags, "GOVERBS_SM", only("control", "TestSubnetManager", "TestPortCounters", "TestPortReset")),
			card("events", "mlx5,mode=ib", nil, "GOVERBS_SUBNET", only("conformance", "TestSubnetEvents")),
			card("no-smi", "mlx5,mode=ib,personality=no-smi", nil, "GOVERBS_NO_SMI", only("umad", "TestKernelNoSMI", "TestKernelOpen")),
			{
				name: "diags", device: "mlx5,mode=ipoib", with: append(diags[:len(diags):len(diags)], "dash", "coreutils"), bin: []string{"verbs"},
				env: append(model[:3:3], "VERBS=/bin/verbs", "GOVERBS_SM=1"), programs: test("diags"),
			},
		},
	}
}

// fabricLongSuite has what takes longer.
func fabricLongSuite() suite {
	return suite{
		name: "fabriclong", doc: "management of an InfiniBand subnet with 324 adapters",
		steps: []step{{
			name: "many", device: "mlx5,mode=ipoib,topology=fattree:324", flags: []string{"-cpus", "1"}, with: diags,
			env: append(model[:3:3], "GOVERBS_MANY=1"), programs: []program{only("switches", "TestMany")},
		}},
	}
}
