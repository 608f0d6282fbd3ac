package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// LinkPath is a link to init in the guest. Under this name it changes the network
// while programs run.
const LinkPath = "/bin/vmlink"

const linkUsage = `usage: vmlink [DEVICE] down       stop a device: its own port is down, its peer hears nothing
       vmlink [DEVICE] up         start it again
       vmlink [DEVICE] netem [to IPV4] [loss P%] [delay TIME] [reorder P%]
                                  lose, hold back, reorder the packets it sends, or
                                  those to one address; what was set before ends
       vmlink [DEVICE] netem off  do so no longer
DEVICE is eth0 with several hosts and ve0 with one, unless it is named.
`

// IsLink reports whether this process is vmlink.
func IsLink() bool { return filepath.Base(os.Args[0]) == filepath.Base(LinkPath) }

// LinkMain is vmlink. It gives the exit status.
func LinkMain(args []string) int {
	if err := link(args, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "vmlink: %v\n", err)
		return 1
	}
	return 0
}

func link(args []string, stdout io.Writer) error {
	c, err := parseLink(args)
	if err != nil {
		return err
	}
	if c.do == nil {
		_, err := io.WriteString(stdout, linkUsage)
		return err
	}
	b, err := os.ReadFile(ConfigPath)
	if err != nil {
		return err
	}
	var cfg Config
	if err := json.Unmarshal(b, &cfg); err != nil {
		return fmt.Errorf("%s: %w", ConfigPath, err)
	}
	if c.dev == "" {
		c.dev = pairAt(0)[0].dev
		if len(cfg.Hosts) > 1 {
			c.dev = linkDevice
		}
	}
	if c.netem {
		if err := loadModules(cfg.Netem); err != nil {
			return err
		}
	}
	return c.do(c.dev)
}

// linkCommand is vmlink's command line, understood.
type linkCommand struct {
	dev   string // empty for the default
	do    func(dev string) error
	netem bool // it needs netem's modules
}

func parseLink(args []string) (linkCommand, error) {
	var c linkCommand
	if len(args) == 1 && (args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help") {
		return c, nil
	}
	isVerb := func(s string) bool { return s == "up" || s == "down" || s == "netem" }
	if len(args) > 0 && !isVerb(args[0]) {
		c.dev, args = args[0], args[1:]
	}
	switch {
	case len(args) == 0:
		return c, errors.New("nothing to do: want up, down or netem; see vmlink help")
	case !isVerb(args[0]):
		return c, fmt.Errorf("%q: want up, down or netem; see vmlink help", args[0])
	case args[0] == "netem":
		err := c.parseNetem(args[1:])
		return c, err
	case len(args) > 1:
		return c, fmt.Errorf("%q after %s: want nothing more; a device comes first", args[1], args[0])
	}
	up := args[0] == "up"
	c.do = func(dev string) error { return setLink(dev, up) }
	return c, nil
}

func (c *linkCommand) parseNetem(words []string) error {
	if len(words) == 0 {
		return errors.New("netem: want off, or to IPV4, loss P%, delay TIME, reorder P%")
	}
	if len(words) == 1 && words[0] == "off" {
		c.do = func(dev string) error { return setNetem(dev, netip.Addr{}, Netem{}) }
		return nil
	}
	var to netip.Addr
	if words[0] == "to" {
		var err error
		address := strings.Join(words[1:min(2, len(words))], "")
		if to, err = netip.ParseAddr(address); err != nil || !to.Is4() {
			return fmt.Errorf("netem: to %q: want an IPv4 address", address)
		}
		if words = words[2:]; len(words) == 0 {
			return fmt.Errorf("netem: to %s: want loss P%%, delay TIME or reorder P%% behind it", address)
		}
	}
	n, err := ParseNetem(words)
	if err != nil {
		return fmt.Errorf("netem: %w", err)
	}
	c.netem = true
	c.do = func(dev string) error { return setNetem(dev, to, n) }
	return nil
}
