package hosts

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/test/testenv"
	"github.com/goverbs/goverbs/uverbs"
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
	if args[0] == "down" {
		loss = 1
	}
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
	b, err := testenv.OpenCard(testenv.TheRig().Devices[0])
	if err != nil {
		return err
	}
	defer b.Close()
	_, err = b.Do("fabric %v 0 %s", loss, delay)
	return err
}

// Words that control understands, each with a time for which that lasts.
const (
	cutWord     = "cut"      // the network interface is down
	cutAnewWord = "cut-anew" // the same, and the RDMA device is made again when it is up: see remake
	removeWord  = "remove"   // the RDMA device is deleted
)

// soon is how long it takes until control does so, for its answer to arrive.
const soon = 250 * time.Millisecond

// without has this host be without its link or its device for a time.
func without(what string, lasts time.Duration) error {
	gone, back := func() error { return changeLink([]string{"down"}) }, func() error { return changeLink([]string{"up"}) }
	if what == removeWord {
		gone, back = removeDevice, addDevice
	}
	err := gone()
	time.Sleep(lasts)
	if err = errors.Join(err, back()); err == nil && what == cutAnewWord {
		err = remake()
	}
	return err
}

// remake makes the RDMA device again. With rxe of Linux 6.1 nobody could connect in the minute after a
// long cut without that, probably since the QP of the kernel's connection manager fails when it sends
// while the port is down.
func remake() error { return errors.Join(removeDevice(), addDevice()) }

// device and netdev are the RDMA device of a host, and the network interface that it is on.
const (
	device = "rxe0"
	netdev = "eth0"
)

// removeDevice deletes the RDMA device.
func removeDevice() error { return netlinkrdma.DeleteLink(device) }

// addDevice makes it again, and returns when it has the host's addresses.
func addDevice() error {
	if err := netlinkrdma.AddLink(device, netlinkrdma.RXE, netdev); err != nil {
		return err
	}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		dev, err := uverbs.Open(device, uverbs.OpenOptions{})
		if err != nil {
			continue // its file comes a moment later
		}
		table, err := dev.GIDTable(1)
		dev.Close()
		if err == nil && slices.ContainsFunc(table, func(e uverbs.GIDEntry) bool { return e.GID.Addr().Unmap().Is4() }) {
			return nil
		}
	}
	return fmt.Errorf("%s has no GID of an IPv4 address after %s", device, limit)
}
