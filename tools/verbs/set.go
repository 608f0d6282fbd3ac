package main

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// The commands that change what the kernel has. They take the words of iproute2's rdma in any order.

// exactly returns a check that a command gets n arguments.
func exactly(n int) func(*command.Command, []string) error {
	return func(cmd *command.Command, args []string) error {
		return cmp.Or(atLeast(n)(cmd, args), command.Arguments(n)(cmd, args))
	}
}

// atLeast returns a check that a command gets min arguments or more.
func atLeast(min int) func(*command.Command, []string) error {
	return func(cmd *command.Command, args []string) error {
		if len(args) < min {
			return command.Usagef("arguments are missing; usage: %s", cmd.UseLine())
		}
		return nil
	}
}

func newLink() *command.Command {
	var asJSON bool
	link := &command.Command{
		Use:   "link [flags] [show [DEV[/PORT]]] | COMMAND",
		Short: "Show the ports of devices, and add and delete RDMA devices in the kernel's software",
		Long: `It shows the same as "verbs status", but a port that is not active is no failure. The kernel has
two drivers that need no card: rxe speaks RoCE v2 over any Ethernet interface, siw speaks iWARP over
TCP.`,
		Example: `  verbs link
  verbs link show rxe0/1
  verbs link add rxe0 type rxe netdev eth0
  verbs link delete rxe0`,
		Args: shows(1),
		Run: func(cmd *command.Command, args []string) error {
			rows, err := collectStatus(afterShow(args))
			if err != nil {
				return err
			}
			if asJSON {
				return command.PrintJSON(cmd.Out(), rows)
			}
			return printStatus(cmd.Out(), rows)
		},
	}
	command.JSONFlag(link, &asJSON)
	link.Add(&command.Command{
		Use:   "add [flags] NAME type rxe|siw netdev NETDEV",
		Short: "Add a device to a network interface",
		Long:  `It needs CAP_NET_ADMIN. The kernel loads the driver's module.`,
		Example: `  verbs link add rxe0 type rxe netdev eth0
  verbs link add siw_lo type siw netdev lo`,
		Args: atLeast(1),
		Run: func(cmd *command.Command, args []string) error {
			w := readWords(cmd, args[1:], "type", "netdev")
			kind := chosen(w, "type", map[string]netlinkrdma.LinkKind{"rxe": netlinkrdma.RXE, "siw": netlinkrdma.SIW})
			w.try(func() error { return netlinkrdma.AddLink(args[0], kind, w.of["netdev"]) })
			return w.err
		},
	}, &command.Command{
		Use:     "delete [flags] DEV",
		Aliases: []string{"del"},
		Short:   "Delete a device",
		Long: `It needs CAP_NET_ADMIN. The device leaves all lists at once. Programs that have it open go on with
it, and the command waits until the last of them has closed it.`,
		Example: `  verbs link delete rxe0`,
		Args:    exactly(1),
		Run: func(_ *command.Command, args []string) error {
			return objects.OfKernel(args[0], notOfKernel, netlinkrdma.DeleteLink(args[0]))
		},
	})
	return link
}

func newDev() *command.Command {
	var asJSON bool
	dev := &command.Command{
		Use:   "dev [flags] [show [DEV]] | COMMAND",
		Short: "Show devices, change the settings of one, and add devices for subnet management",
		Long:  `It shows the same as "verbs devices".`,
		Example: `  verbs dev
  verbs dev show mlx5_0
  verbs dev set mlx5_0 name storage0
  verbs dev set rxe0 netns blue
  verbs dev add smi0 type smi parent mlx5_0`,
		Args: shows(1),
		Run: func(cmd *command.Command, args []string) error {
			infos, err := chosenDevices(afterShow(args))
			if err != nil {
				return err
			}
			return printDevices(cmd.Out(), infos, asJSON)
		},
	}
	command.JSONFlag(dev, &asJSON)
	dev.Add(newSubDevice()...)
	dev.Add(&command.Command{
		Use:   "set [flags] DEV [name NAME] [netns NAME|PATH|PID] [adaptive-moderation on|off]",
		Short: "Rename a device, move it to a network namespace, or switch adaptive moderation",
		Long: `It needs CAP_NET_ADMIN. With more than one setting, the name comes first and the namespace last.
Both together need the name to be free in the new namespace; before Linux 7.3 in the old one, too.

  name                 the new name
  netns                a namespace of "ip netns", the path of one, or the PID of a process in it;
                       the devices must be seen in their own namespaces only: "verbs system set
                       netns exclusive"
  adaptive-moderation  adapt the rate of interrupts of kernel queues to the load`,
		Example: `  verbs dev set mlx5_0 name storage0
  verbs dev set rxe0 netns blue
  verbs dev set rxe0 netns /proc/4711/ns/net
  verbs dev set mlx5_3 name mlx5_0 netns blue
  verbs dev set mlx5_0 adaptive-moderation on`,
		Args: atLeast(3),
		Run: func(cmd *command.Command, args []string) error {
			w := readWords(cmd, args[1:], "name?", "netns?", "adaptive-moderation?")
			adapt := chosen(w, "adaptive-moderation", onOff)
			dev := w.device(args[0])
			name := w.of["name"]
			ns, move := w.of["netns"]
			if w.has("name") && !move {
				w.try(func() error { return netlinkrdma.RenameDevice(dev, name) })
				dev.Name = name
			}
			if w.has("adaptive-moderation") {
				w.try(func() error { return netlinkrdma.SetAdaptiveModeration(dev, adapt) })
			}
			if move {
				w.try(func() error { return moveDevice(dev, name, w.has("name"), ns) })
			}
			return w.err
		},
	})
	return dev
}

// newSubDevice makes the commands for devices that are part of others.
func newSubDevice() []*command.Command {
	return []*command.Command{{
		Use:   "add [flags] NAME type smi parent DEV",
		Short: "Add a device that is part of another",
		Long: `It needs CAP_NET_ADMIN and Linux 6.11. A device of type smi has a port for the subnet management of
each plane of the parent; only cards with several planes have such devices. "verbs link add" adds
software devices.`,
		Example: `  verbs dev add smi0 type smi parent mlx5_0`,
		Args:    atLeast(1),
		Run: func(cmd *command.Command, args []string) error {
			w := readWords(cmd, args[1:], "type", "parent")
			w.of["type"] = strings.ToLower(w.of["type"])
			typ := chosen(w, "type", map[string]netlinkrdma.DeviceType{"smi": netlinkrdma.DeviceTypeSMI})
			parent := w.device(w.of["parent"])
			w.try(func() error { return netlinkrdma.AddSubDevice(parent, args[0], typ) })
			return w.err
		},
	}, {
		Use:     "delete [flags] DEV",
		Aliases: []string{"del"},
		Short:   "Delete a device that is part of another",
		Long:    `It needs CAP_NET_ADMIN and Linux 6.11. "verbs link delete" deletes software devices.`,
		Example: `  verbs dev delete smi0`,
		Args:    exactly(1),
		Run: func(_ *command.Command, args []string) error {
			dev, err := kernelDevice(args[0])
			if err != nil {
				return err
			}
			return netlinkrdma.DeleteSubDevice(dev)
		},
	}}
}

// moveDevice moves a device to the network namespace of a name, a path or a process, and renames it if there is a new name.
func moveDevice(dev netlinkrdma.Device, name string, rename bool, ns string) error {
	path := ns
	if pid, err := strconv.Atoi(ns); err == nil {
		if pid < 1 {
			return command.Usagef("netns is %d, allowed: a name, a path, or a PID of 1 and more", pid)
		}
		path = fmt.Sprintf("/proc/%d/ns/net", pid)
	} else if !strings.Contains(ns, "/") {
		path = "/run/netns/" + ns
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("netns is %s: %w; \"ip netns\" lists the names", peertext.Quote(ns), err)
	}
	defer f.Close()
	if rename {
		return netlinkrdma.MoveDeviceAs(dev, name, f)
	}
	return netlinkrdma.MoveDevice(dev, f)
}

// systemReport is what "verbs system" prints.
type systemReport struct {
	NetNS          string `json:"netns"`
	CopyOnFork     bool   `json:"copy_on_fork"`
	Monitor        bool   `json:"monitor"`
	PrivilegedQKey bool   `json:"privileged_qkey"`
}

func newSystem() *command.Command {
	var asJSON bool
	sys := &command.Command{
		Use:   "system [flags] [show] | COMMAND",
		Short: "Show and change the settings of the kernel's RDMA for all devices",
		Long: `  netns            which network namespaces see a device: exclusive, the one that it belongs to;
                   shared, all
  copy-on-fork     memory that is registered is copied for a child process at fork
  monitor          the kernel reports devices that appear and disappear; Linux 6.12
  privileged-qkey  processes without CAP_NET_RAW may use Q_Keys whose highest bit is set; Linux 6.7`,
		Example: `  verbs system
  verbs system --json | jq -r .netns
  verbs system set netns exclusive`,
		Args: shows(0),
		Run: func(cmd *command.Command, _ []string) error {
			s, err := netlinkrdma.SystemSettings()
			if err != nil {
				return err
			}
			if asJSON {
				return command.PrintJSON(cmd.Out(), systemReport{s.NetNSMode.String(), s.CopyOnFork, s.Monitor, s.PrivilegedQKey})
			}
			word := func(on bool) string {
				if on {
					return "on"
				}
				return "off"
			}
			_, err = fmt.Fprintf(cmd.Out(), "netns            %s\ncopy-on-fork     %s\nmonitor          %s\nprivileged-qkey  %s\n",
				s.NetNSMode, word(s.CopyOnFork), word(s.Monitor), word(s.PrivilegedQKey))
			return err
		},
	}
	command.JSONFlag(sys, &asJSON)
	sys.Add(&command.Command{
		Use:   "set [flags] [netns shared|exclusive] [privileged-qkey on|off]",
		Short: "Change settings",
		Long: `It needs CAP_NET_ADMIN. The netns mode changes only while there is no network namespace besides the
first one, so set it before containers start.`,
		Example: `  verbs system set netns exclusive
  verbs system set privileged-qkey on`,
		Args: atLeast(2),
		Run: func(cmd *command.Command, args []string) error {
			w := readWords(cmd, args, "netns?", "privileged-qkey?")
			mode := chosen(w, "netns", map[string]netlinkrdma.NetNSMode{"shared": netlinkrdma.NetNSShared, "exclusive": netlinkrdma.NetNSExclusive})
			on := chosen(w, "privileged-qkey", onOff)
			if w.has("netns") {
				w.try(func() error { return netlinkrdma.SetNetNSMode(mode) })
			}
			if w.has("privileged-qkey") {
				w.try(func() error { return netlinkrdma.SetPrivilegedQKey(on) })
			}
			return w.err
		},
	})
	return sys
}
