package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// cardPatience is how long the drivers of a card may take.
const cardPatience = 60 * time.Second

// cardsOf gives the RDMA devices of a machine's cards: two if it is alone.
func cardsOf(host int, driver string) []string {
	if host == 0 {
		return []string{driver + "_0", driver + "_1"}
	}
	return []string{driver + "_0"}
}

// setupCards waits for the cards, and gives the programs IP addresses to meet at: InfiniBand and
// EFA have none.
func setupCards(lo netlink.Link, host, n int, driver string) error {
	if host > 0 {
		e := linked(host)
		if err := address(e); err != nil {
			return err
		}
		if err := setUp(e.dev); err != nil {
			return err
		}
	} else {
		for _, e := range pairAt(n) {
			addr, err := netlink.ParseAddr(e.ip4)
			if err != nil {
				return fmt.Errorf("address %s: %w", e.ip4, err)
			}
			if err := netlink.AddrAdd(lo, addr); err != nil {
				return fmt.Errorf("add %s to lo: %w", e.ip4, err)
			}
		}
	}
	for _, card := range cardsOf(host, driver) {
		if err := waitDevice(end{rdma: card}, cardPatience); err != nil {
			return err
		}
	}
	return nil
}

// setupRoCE gives the cards' network devices the addresses that others have else.
func setupRoCE(host, n int) error {
	mine, err := cardEnds(host, n)
	if err != nil {
		return err
	}
	for _, e := range mine {
		if err := waitDevice(e, cardPatience); err != nil {
			return err
		}
	}
	return nil
}

// setupIPoIB starts the subnet manager, on one host, and gives the cards' network devices addresses.
func (p *initProc) setupIPoIB(n int) error {
	for _, card := range cardsOf(p.host, "mlx5") { // without a card the subnet manager ends
		if _, err := netdevOf(card, cardPatience); err != nil {
			return err
		}
	}
	if p.host <= 1 {
		if err := p.manageSubnet(); err != nil {
			return err
		}
	}
	mine, err := cardEnds(p.host, n)
	if err != nil {
		return err
	}
	for _, e := range mine {
		if err := waitDevice(end{rdma: e.rdma}, cardPatience); err != nil {
			return p.subnetError(err)
		}
		if err := waitCarrier(e.dev, cardPatience); err != nil {
			return p.subnetError(err)
		}
	}
	return nil
}

// cardEnds sets up the network devices of a machine's cards.
func cardEnds(host, n int) ([]end, error) {
	mine := endsOf(host, n)
	for i, card := range cardsOf(host, "mlx5") {
		e := mine[i]
		var err error
		if e.dev, err = netdevOf(card, cardPatience); err != nil {
			return nil, err
		}
		e.rdma = card
		if host == 0 {
			if err := acceptLocal(e.dev); err != nil {
				return nil, err
			}
		}
		if err := address(e); err != nil {
			return nil, err
		}
		if err := setUp(e.dev); err != nil {
			return nil, err
		}
		mine[i] = e
	}
	return mine, nil
}

// netdevOf waits for an RDMA device and its network device.
func netdevOf(card string, timeout time.Duration) (string, error) {
	dir := "/sys/class/infiniband/" + card + "/device/net"
	for deadline := time.Now().Add(timeout); ; time.Sleep(5 * time.Millisecond) {
		entries, err := os.ReadDir(dir)
		if err == nil && len(entries) > 0 {
			return entries[0].Name(), nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("no %s after %v, but %s", dir, timeout, strings.Join(rdmaDevices(), " and "))
		}
	}
}

// rdmaDevices says which RDMA devices there are.
func rdmaDevices() []string {
	entries, err := os.ReadDir("/sys/class/infiniband")
	if err != nil {
		return []string{err.Error()}
	}
	names := []string{"nothing else"}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
