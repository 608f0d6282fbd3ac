package main

import "github.com/goverbs/goverbs/test/testenv"

// softLoss are the faults of the steps that test the verbs with loss. A responder does not repeat a NAK that
// ends the connection, so tests of errors need it.
const softLoss = "class=nak;loss=1%,reorder=1%,behind=3,seed=1"

// cmLoss are the faults of the steps that test connections with loss, for all packets. The last packet of an
// exchange that is lost costs 2 s, so each is in danger only where it is sent.
const cmLoss = "direction=sent,loss=1%,reorder=1%,behind=3,seed=1"

// noMemory leaves out tests of the use of memory: sync.Pool drops its contents under the race detector, and
// delayed packets use memory.
const noMemory = testenv.SkipTagsEnv + "=" + string(testenv.Memory)

// softSuite has the tests of the verbs and of the connection manager on software devices (package
// uverbs/soft), which need no VM. Each step gives commands to the devices in one way. The random walk goes all
// of them in each step, so only one walks for long. With lost packets, the verbs are tested within the process,
// and the verbs and connections through sockets, by ioctl and by write.
func (c *config) softSuite() suite {
	const (
		sockets = testenv.SoftSocketsEnv + "=1"
		walk    = "GOVERBS_WALK=1s"
	)
	on := func(name, driver, way, pkg string, env ...string) step {
		dir, pkg, _ := moduleOf(pkg)
		s := step{
			name: name, driver: driver, path: way, dir: dir, host: words("go test -count=1 " + pkg),
			env: []string{"GOVERBS_DEVICES=soft0,soft1"},
		}
		if way != "auto" {
			s.env = append(s.env, "RDMAABI="+way)
		}
		s.env = append(s.env, env...)
		return s
	}
	verbs := func(name, driver, way string, env ...string) step {
		return on(name, driver, way, testPackages["conformance"], append([]string{"GOVERBS_WAYS=" + way}, env...)...)
	}
	cm := func(name, driver, way string, env ...string) step {
		s := on(name, driver, way, "cm", env...)
		s.host = words("go test -count=1 -p 1 ./cm ./cm/rdmacm")
		return s
	}
	lossy := func(name, driver, way string, env ...string) step {
		return verbs(name, driver, way, append(env, testenv.SoftFaultsEnv+"="+softLoss, noMemory)...)
	}
	cmLossy := testenv.SoftFaultsEnv + "=" + cmLoss
	return suite{
		name: "soft", doc: "software devices on this machine: the verbs, over each way of giving commands, and connections, within the process and through sockets, also with lost packets",
		steps: []step{
			verbs("auto", "soft", "auto"), verbs("ioctl", "soft", "ioctl", walk), verbs("write", "soft", "write", c.brief([]string{walk})...),
			cm("cm", "soft", "auto"), cm("cmioctl", "soft", "ioctl"), cm("cmwrite", "soft", "write"),
			on("rsocket", "", "auto", "cm/rsocket"), on("valkey", "", "auto", "cm/valkey"), on("s3rdma", "", "auto", "cm/s3rdma"),
			verbs("sockets", "soft-sockets", "auto", c.brief([]string{sockets, walk})...), cm("cmsockets", "soft-sockets", "auto", sockets),
			lossy("loss", "soft", "auto"),
			lossy("lossioctl", "soft-sockets", "ioctl", sockets, walk), cm("cmlossioctl", "soft-sockets", "ioctl", sockets, cmLossy),
			lossy("losswrite", "soft-sockets", "write", sockets, walk), cm("cmlosswrite", "soft-sockets", "write", sockets, cmLossy),
			{name: "strangers", alone: true, shown: true, env: []string{"GOVERBS_STRANGERS=60s"}, host: words("go test -count=1 -v ./cm/internal/strangers")},
		},
	}
}

// softUnitSuite has the unit tests that are about software devices. The suite unit has them, too.
func softUnitSuite() suite {
	return suite{
		name: "softunit", doc: "what the suite unit has about software devices: their packages, recorded exchanges, many connections, a random walk, the programs",
		steps: []step{
			{name: "packages", needs: []string{"gcc"}, host: words("go test -count=1 ./uverbs/soft/... ./cm/internal/... ./test/softrig ./test/hello ./test/demo")},
			{name: "softrxe", dir: suitesModule, host: words("go test -count=1 ./softrxe")},
			{name: "verbs", host: words("go test -count=1 -run ^TestSoft ./tools/verbs ./tools/health")},
		},
	}
}

// softRxeSuite has the tests of software devices against the kernel's rxe.
func (c *config) softRxeSuite() suite {
	within := func(most, name, run string, more ...string) step {
		return step{
			name: name, env: c.guestEnv(more...), bin: []string{"verbs"}, with: perftest,
			flags: []string{"-timeout", most}, programs: []program{{name: "softrxe.test", run: run, args: []string{"-test.timeout", most}}},
		}
	}
	tests := func(name, run string, more ...string) step { return within("40m", name, run, more...) }
	many := tests("many", "^TestMany")
	many.flags = append(many.flags, "-mem", "4G") // 10,000 connections have 20,000 ends in one guest
	cm := tests("cm", "^TestCM")
	cm.waits = true // for peers that are dead, and for lost packets
	captures := tests("captures", "^TestCaptures$")
	captures.with, captures.flags = append(rdmacm[:3:3], "tshark"), append(captures.flags, "-mem", "2G")
	return suite{
		name: "softrxe", doc: "software devices against the kernel's rxe: the verbs, connections, our programs and rdma-core's, captures read by Wireshark, many connections (GOVERBS_CONNS=10000), a random walk (GOVERBS_WALK=1h), also with lost packets",
		steps: []step{
			tests("verbs", "^Test(RC|UC|UD|SourcePort)"),
			tests("exchanges", "^TestExchanges"),
			tests("programs", "^TestP"),
			captures,
			cm,
			many,
			within("2h", "walk", "^TestWalk$", pick(c.short, "GOVERBS_WALK=30s", "GOVERBS_WALK=3m")),
			tests("loss", "^TestWalkLoss$", pick(c.short, "GOVERBS_WALK=30s", "GOVERBS_WALK=1m")),
		},
	}
}

// softMlx5Suite has the tests of software devices against a modelled ConnectX card, over the network of the
// model: the same as against rxe, but for what only rxe has and does.
func (c *config) softMlx5Suite() suite {
	tests := func(name, run string) step {
		return step{
			name: name, device: "mlx5,mode=roce", env: append(model[:3:3], "VERBS=/bin/verbs"), bin: []string{"verbs"}, with: perftest,
			flags: []string{"-timeout", "20m"}, programs: []program{{name: "softrxe.test", run: run, args: []string{"-test.timeout", "19m"}}},
		}
	}
	return suite{
		name: "softmlx5", doc: "software devices against a modelled ConnectX card: the verbs and connections",
		steps: []step{
			tests("verbs", "^Test(RC|RCIPv6|UC|UD|SourcePort)$"),
			tests("cm", "^TestCM(Rping|Programs|Conns|Refused)$"),
		},
	}
}
