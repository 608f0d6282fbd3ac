package containers

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/goverbs/test/testenv"
)

// TestExporter: verbs exporter, outside of the containers, names the container of a process that uses RDMA.
func TestExporter(t *testing.T) {
	testenv.Boot(t, sharedEnv, "containers/shared")
	image(t)
	id := strings.TrimSpace(shell(t, `podman run --detach --user 1000 --network host --device /dev/infiniband/uverbs0 \
		--device /dev/infiniband/rdma_cm --ulimit memlock=-1 pingpong -listen 10.1.0.1:7473`))
	if len(id) != 64 {
		t.Fatalf("podman names the container %q", id)
	}
	want := fmt.Sprintf(`rdma_process_objects{device=%q,type="cm_id",process="pingpong",pid="`, testenv.TheRig().Devices[0])
	for begun := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		out, err := exec.Command("verbs", "exporter", "--once", "--doctor-interval", "0").Output()
		must(t, err)
		_, rest, ok := strings.Cut(string(out), "\n"+want)
		line, _, _ := strings.Cut(rest, "\n")
		if ok && strings.Contains(line, `",container="`+id+`",netns="`) {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("there is no %s with the container %s:\n%s", want, id, out)
		}
	}
}
