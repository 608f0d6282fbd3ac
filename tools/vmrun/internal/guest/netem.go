package guest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
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

// setNetem sets what happens to the packets that leave through a device, or to those of them that go
// to an address.
func setNetem(dev string, to netip.Addr, n Netem) error {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return fmt.Errorf("device %s: %w", dev, err)
	}
	if err := clearNetem(link); err != nil || n == (Netem{}) {
		return err
	}
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if to.IsValid() {
		if err := divert(attrs, to); err != nil {
			return fmt.Errorf("netem on %s: %w: the kernel needs sch_prio and cls_u32", dev, err)
		}
		attrs.Handle, attrs.Parent = netlink.MakeHandle(2, 0), diverted
	}
	err = netlink.QdiscReplace(netlink.NewNetem(attrs, netlink.NetemQdiscAttrs{
		Loss: float32(n.Loss), Latency: uint32(n.Delay / time.Microsecond), ReorderProb: float32(n.Reorder),
	}))
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("netem on %s: %w: the kernel has no sch_netem", dev, err)
	}
	if err != nil {
		return fmt.Errorf("netem on %s: %w", dev, err)
	}
	return nil
}

// diverted is the second of two queues, for the packets to one address.
var diverted = netlink.MakeHandle(1, 2)

// divert gives a device two queues: the second one for what goes to an address, and the first for all else.
func divert(root netlink.QdiscAttrs, to netip.Addr) error {
	prio := netlink.NewPrio(root)
	prio.Bands, prio.PriorityMap = 2, [netlink.PRIORITY_MAP_LEN]uint8{}
	if err := netlink.QdiscReplace(prio); err != nil {
		return err
	}
	const destination = 16 // where in the header of IPv4 it is
	return netlink.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: root.LinkIndex, Parent: root.Handle, Priority: 1, Protocol: unix.ETH_P_IP},
		ClassId:     diverted,
		Sel: &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: 1, Keys: []netlink.TcU32Key{{
			Mask: 0xffffffff, Val: binary.BigEndian.Uint32(to.AsSlice()), Off: destination,
		}}},
	})
}

// clearNetem gives the device its default queue again. Packets that are held back
// are lost.
func clearNetem(link netlink.Link) error {
	all, err := netlink.QdiscList(link)
	if err != nil {
		return fmt.Errorf("netem on %s: %w", link.Attrs().Name, err)
	}
	for _, q := range all {
		if (q.Type() == "netem" || q.Type() == "prio") && q.Attrs().Parent == netlink.HANDLE_ROOT {
			if err := netlink.QdiscDel(q); err != nil {
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
