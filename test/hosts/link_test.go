package hosts

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/test/hca/bench"
	"github.com/goverbs/goverbs/test/testenv"
)

// changeLink gives vmlink's arguments to vmlink, or to the fabric of modelled cards, whose
// packets do not pass through the kernel.
func changeLink(args []string) error {
	if testenv.Modelled() {
		return changeFabric(args)
	}
	if out, err := exec.Command("vmlink", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("vmlink %s: %s%w", strings.Join(args, " "), out, err)
	}
	return nil
}

// changeFabric does what vmlink's arguments say to all packets on the fabric, both hosts'. Each
// that is held back takes its own time there, so that some overtake others anyway.
func changeFabric(args []string) error {
	loss, delay := 0.0, "0s"
	words := args[1:] // behind netem
	for i := 0; i+1 < len(words); i += 2 {
		switch words[i] {
		case "loss":
			percent, err := strconv.ParseFloat(strings.TrimSuffix(words[i+1], "%"), 64)
			if err != nil {
				return err
			}
			loss = percent / 100
		case "delay":
			delay = words[i+1]
		}
	}
	b, err := bench.Open(testenv.TheRig().Devices[0])
	if err != nil {
		return err
	}
	defer b.Close()
	_, err = b.Do("fabric %v 0 %s", loss, delay)
	return err
}
