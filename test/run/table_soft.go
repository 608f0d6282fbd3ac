package main

import "github.com/goverbs/goverbs/test/testenv"

// softSuite has the tests of the verbs and of the connection manager on software devices (package
// uverbs/soft), which need no VM. Each step of the verbs gives commands to the devices in one way.
func (c *config) softSuite() suite {
	verbs := func(way string, more ...string) step {
		return step{
			name: way, host: words("go test -count=1 ./test/conformance"),
			env: append([]string{"GOVERBS_DEVICES=soft0,soft1", "GOVERBS_WAYS=" + way}, more...),
		}
	}
	race := verbs("auto", "CGO_ENABLED=1", testenv.SkipTagsEnv+"="+string(testenv.Memory)) // sync.Pool drops what it holds there
	race.name, race.alone, race.needs = "race", true, []string{"gcc"}
	race.host = words("go test -count=1 -race -timeout 30m ./test/conformance")
	cm := step{name: "cm", host: words("go test -count=1 ./cm"), env: []string{"GOVERBS_DEVICES=soft0,soft1"}}
	cmRace := step{
		name: "cmrace", alone: true, needs: []string{"gcc"}, env: []string{"GOVERBS_DEVICES=soft0,soft1", "CGO_ENABLED=1"},
		host: words("go test -count=1 -race -timeout 30m ./cm"),
	}
	return suite{
		name: "soft", doc: "software devices on this machine: the verbs, over each way of giving commands, and connections, also under the race detector",
		steps: []step{verbs("auto"), verbs("ioctl", "RDMAABI=ioctl"), verbs("write", "RDMAABI=write"), cm, race, cmRace},
	}
}
