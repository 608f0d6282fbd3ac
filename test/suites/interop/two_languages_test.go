package interop

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestTwoLanguages plays the two programs of uverbs/RDMA-CORE.md, in Go and in C, in all combinations.
func TestTwoLanguages(t *testing.T) {
	testenv.Boot(t, "GOVERBS_TWO_LANGUAGES", "rxe/interop")
	inGo, inC := []string{"/bin/stdio-pingpong"}, []string{"/bin/rdmacore-pingpong", dev0, strconv.Itoa(rig.GID)}
	for name, pair := range map[string][2][]string{"Go-C": {inGo, inC}, "C-Go": {inC, inGo}, "C-C": {inC, inC}, "Go-Go": {inGo, inGo}} {
		t.Run(name, func(t *testing.T) {
			var ins, outs [2]*os.File
			var err error
			for i := range ins {
				ins[i], outs[1-i], err = os.Pipe()
				must(t, err)
			}
			var cmds [2]*exec.Cmd
			var said [2]bytes.Buffer
			for i, line := range pair {
				if i == 0 {
					line = append(line[:len(line):len(line)], "begin")
				}
				cmds[i] = exec.CommandContext(timed(t), line[0], line[1:]...)
				cmds[i].Stdin, cmds[i].Stdout, cmds[i].Stderr = ins[i], outs[i], &said[i]
				must(t, cmds[i].Start(), ins[i].Close(), outs[i].Close())
			}
			for i, cmd := range cmds {
				if err := cmd.Wait(); err != nil || !strings.HasPrefix(said[i].String(), "1000 messages") {
					t.Errorf("%s: %v: %s", cmd, err, said[i].String())
				}
			}
		})
	}
}
