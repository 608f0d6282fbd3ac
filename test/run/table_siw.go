package main

import "github.com/goverbs/goverbs/test/testenv"

// siwSuite has the tests on soft iWARP. It allows five seconds for a handshake, so there is less load.
func (c *config) siwSuite() suite {
	env := []string{guest, "GOVERBS_SLOW=1", "GOVERBS_DEVICES=siw0,siw1"}
	return suite{
		name: "siw", doc: "soft iWARP: the verbs, connections, rdma-core's programs, several drivers in one guest",
		steps: []step{
			{
				name: "verbs", driver: "siw", device: "siw", env: env,
				programs: test("cm", "rdmacm", "conformance"),
			},
			{
				// rdma-core's programs hang now and then if a client's first message arrives while
				// the server's kernel accepts the connection. With one processor they do not, unless
				// the server can be preempted there, as on Linux 7.2.
				name: "interop", driver: "siw", device: "siw", flags: []string{"-cpus", "1"}, with: perftest,
				bin: []string{"verbs"}, env: append(env[:3:3], "VERBS=/bin/verbs"),
				skip: []testenv.Tag{testenv.AnyTransport}, programs: test("interop"),
			},
			{
				name: "mixed", driver: "siw", device: "rxe+siw+mlx5", bin: []string{"verbs"},
				env:      []string{guest, "GOVERBS_MIXED=1", "VERBS=/bin/verbs"},
				programs: []program{c.marked("interop", "Mixed")},
			},
		},
	}
}
