package guest

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Netem is what the kernel's network emulator does to the packets that leave
// through a device. The zero value is nothing.
type Netem struct {
	Loss    float64       // Loss is how many of them are lost, in percent.
	Delay   time.Duration // Delay is how long they are held back.
	Reorder float64       // Reorder is how many are not held back and so overtake others, in percent.
}

// maxDelay is what is accepted; the kernel's own limit is 274 s.
const maxDelay = time.Minute

// ParseNetem parses pairs of words: loss 1% delay 5ms reorder 10%.
func ParseNetem(words []string) (Netem, error) {
	var n Netem
	seen := map[string]bool{}
	for len(words) > 0 {
		name, value := words[0], ""
		if len(words) > 1 {
			value = words[1]
		}
		if seen[name] {
			return n, fmt.Errorf("%s is given twice", name)
		}
		seen[name] = true
		var err error
		switch name {
		case "loss":
			n.Loss, err = percent(value)
		case "reorder":
			n.Reorder, err = percent(value)
		case "delay":
			if n.Delay, err = time.ParseDuration(value); err != nil || n.Delay < time.Microsecond || n.Delay > maxDelay {
				err = fmt.Errorf("want a time such as 5ms, from 1us to %v", maxDelay)
			}
		default:
			return n, fmt.Errorf("%q: want loss P%%, delay TIME or reorder P%%", name)
		}
		if err != nil {
			return n, fmt.Errorf("%s %q: %w", name, value, err)
		}
		words = words[min(2, len(words)):]
	}
	if n.Reorder > 0 && n.Delay == 0 {
		return n, errors.New("reorder needs a delay: packets that are not held back overtake those that are")
	}
	return n, nil
}

func percent(s string) (float64, error) {
	number, ok := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(v >= 0 && v <= 100) {
		return 0, errors.New("want a percentage such as 1% or 0.5%, from 0% to 100%")
	}
	return v, nil
}

// setNetem sets what happens to the packets that leave through a device.
func setNetem(dev string, n Netem) error {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("device %s: %w", dev, err)
	}
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if n == (Netem{}) {
		return clearNetem(link, attrs)
	}
	q := netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{
		Loss: float32(n.Loss), Latency: uint32(n.Delay / time.Microsecond), ReorderProb: float32(n.Reorder),
	})
	err = netlink.QdiscReplace(q)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("netem on %s: %w: the kernel has no sch_netem", dev, err)
	}
	if err != nil {
		return fmt.Errorf("netem on %s: %w", dev, err)
	}
	return nil
}

// clearNetem gives the device its default queue again. Packets that are held back
// are lost.
func clearNetem(link netlink.Link, attrs netlink.QdiscAttrs) error {
	all, err := netlink.QdiscList(link)
	if err != nil {
		return fmt.Errorf("netem on %s: %w", link.Attrs().Name, err)
	}
	for _, q := range all {
		if q.Type() == "netem" && q.Attrs().Parent == netlink.HANDLE_ROOT {
			if err := netlink.QdiscDel(&netlink.Netem{QdiscAttrs: attrs}); err != nil {
				return fmt.Errorf("netem off on %s: %w", link.Attrs().Name, err)
			}
		}
	}
	return nil
}

// setLink sets a device up or down. IPv6 addresses outlast it, as those of IPv4 do.
func setLink(dev string, up bool) error {
	if up {
		return setUp(dev)
	}
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("device %s: %w", dev, err)
	}
	err = os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/keep_addr_on_down", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := netlink.LinkSetDown(link); err != nil {
		return fmt.Errorf("set %s down: %w", dev, err)
	}
	return nil
}
