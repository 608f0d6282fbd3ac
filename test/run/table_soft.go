package main

import (
	"slices"

	"github.com/goverbs/goverbs/test/testenv"
)

// softLoss are the faults of the step that tests the verbs with loss. A responder does not repeat a NAK that
// ends the connection, so tests of errors need it.
const softLoss = "class=nak;loss=1%,reorder=1%,behind=3,seed=1"

// cmLoss are the faults of the step that tests connections with loss, for all packets. The last packet of an
// exchange that is lost costs 2 s, so each is in danger only where it is sent.
const cmLoss = "direction=sent,loss=1%,reorder=1%,behind=3,seed=1"

// softSuite has the tests of the verbs and of the connection manager on software devices (package
// uverbs/soft), which need no VM. Each step of the verbs gives commands to the devices in one way. The random
// walk goes all of them in each step, so only one walks for long. With lost packets, both are also tested
// through sockets and in both ways.
func (c *config) softSuite() suite {
	const (
		sockets = testenv.SoftSocketsEnv + "=1"
		walk    = "GOVERBS_WALK=1s"
		byIoctl = "RDMAABI=ioctl"
		byWrite = "RDMAABI=write"
	)
	on := func(name, driver, pkg string, env ...string) step {
		return step{
			name: name, driver: driver, path: "auto", host: words("go test -count=1 " + pkg),
			env: append([]string{"GOVERBS_DEVICES=soft0,soft1"}, env...),
		}
	}
	verbs := func(name, driver, way string, more ...string) step {
		s := on(name, driver, "./test/conformance", append([]string{"GOVERBS_WAYS=" + way}, more...)...)
		s.path = way
		return s
	}
	cm := func(name, driver string, env ...string) step { return on(name, driver, "./cm", env...) }
	racing := func(s step) step {
		s.driver, s.alone, s.needs = "", true, []string{"gcc"}
		s.host = slices.Insert(s.host, 3, "-race", "-timeout", "30m")
		s.env = append(s.env, "CGO_ENABLED=1")
		return s
	}
	noMemory := testenv.SkipTagsEnv + "=" + string(testenv.Memory) // sync.Pool drops its contents under the race detector, delayed packets use memory
	lossy := func(name, driver, way string, more ...string) step {
		return verbs(name, driver, way, append(more, testenv.SoftFaultsEnv+"="+softLoss, noMemory)...)
	}
	cmLossy := testenv.SoftFaultsEnv + "=" + cmLoss
	return suite{
		name: "soft", doc: "software devices on this machine: the verbs, over each way of giving commands, and connections, within the process and through sockets, also under the race detector and with lost packets",
		steps: []step{
			verbs("auto", "soft", "auto"), verbs("ioctl", "soft", "ioctl", byIoctl, walk), verbs("write", "soft", "write", byWrite, walk),
			cm("cm", "soft"), cm("cmwrite", "soft", byWrite),
			on("rsocket", "", "./cm/rsocket"),
			verbs("sockets", "soft-sockets", "auto", sockets, walk), cm("cmsockets", "soft-sockets", sockets, byIoctl),
			racing(verbs("race", "", "auto", noMemory)), racing(cm("cmrace", "")),
			lossy("loss", "soft", "auto"),
			lossy("lossioctl", "soft-sockets", "ioctl", byIoctl, sockets, walk), cm("cmlossioctl", "soft-sockets", byIoctl, sockets, cmLossy),
			lossy("losswrite", "soft-sockets", "write", byWrite, sockets, walk), cm("cmlosswrite", "soft-sockets", byWrite, sockets, cmLossy),
		},
	}
}

// softUnitSuite has the unit tests that are about software devices. The suite unit has them, too.
func softUnitSuite() suite {
	return suite{
		name: "softunit", doc: "what the suite unit has about software devices: their packages, recorded exchanges, many connections, a random walk, the programs",
		steps: []step{
			{name: "packages", needs: []string{"gcc"}, host: words("go test -count=1 ./uverbs/soft/... ./cm/internal/... ./test/softrig ./test/softrxe ./test/hello ./test/demo")},
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
	captures := tests("captures", "^TestCaptures$")
	captures.with, captures.flags = append(rdmacm[:3:3], "tshark"), append(captures.flags, "-mem", "2G")
	return suite{
		name: "softrxe", doc: "software devices against the kernel's rxe: the verbs, connections, our programs and rdma-core's, captures read by Wireshark, many connections (GOVERBS_CONNS=10000), a random walk (GOVERBS_WALK=1h), also with lost packets",
		steps: []step{
			tests("verbs", "^Test(RC|UC|UD)"),
			tests("exchanges", "^TestExchanges"),
			tests("programs", "^TestP"),
			captures,
			tests("cm", "^TestCM"),
			many,
			within("2h", "walk", "^TestWalk$", pick(c.short, "GOVERBS_WALK=1m", "GOVERBS_WALK=3m")),
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
			tests("verbs", "^Test(RC|RCIPv6|UC|UD)$"),
			tests("cm", "^TestCM(Rping|Programs|Conns|Refused)$"),
		},
	}
}
