// Package ib has the commands "verbs ib", which look at an InfiniBand subnet by its management datagrams.
package ib

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/umad"
	"github.com/goverbs/goverbs/uverbs/umad/mad"
)

// Port is a port of a device of this machine.
type Port struct {
	Device           string // Device is the name of the device.
	netlinkrdma.Port        // Port is what the kernel knows of it.
}

// String returns DEV/PORT.
func (p *Port) String() string { return fmt.Sprintf("%s/%d", p.Device, p.Num) }

// System is where the commands get their ports from.
type System struct {
	// Ports lists the ports of this machine. It may return some together with an error.
	Ports func() ([]Port, error)
	// Open opens a port for MADs.
	Open func(device string, port int) (*umad.Port, error)
	// Status lists the devices of this machine. It may return some together with an error.
	Status func() ([]*StatusDevice, error)
	// Own returns the node GUIDs of the devices of this machine.
	Own func() ([]ib.GUID, error)
	// Confirm asks whoever runs the command whether to go on.
	Confirm func(question string) (bool, error)
}

// Kernel is the System that the kernel provides.
var Kernel = System{Ports: kernelPorts, Open: umad.Open, Status: kernelStatus, Own: kernelOwn, Confirm: confirm}

// kernelPorts lists the ports of all devices. A device that fails does not hide the others.
func kernelPorts() ([]Port, error) {
	devices, err := netlinkrdma.Devices()
	var all []Port
	for _, d := range devices {
		ports, e := netlinkrdma.Ports(d)
		for _, p := range ports {
			all = append(all, Port{d.Name, p})
		}
		err = errors.Join(err, e)
	}
	return all, inKernel(all, err)
}

// inKernel returns an error, or what holds if it is that there are only software devices.
func inKernel[T any](found []T, err error) error {
	if len(found) > 0 {
		return err
	}
	return objects.OfKernel("", "it has no management datagrams (MADs); \"verbs status\" shows its ports", err)
}

// options are the flags that the commands of the group have in common.
type options struct {
	system   *System
	device   string
	port     int // 0 for the first that is active
	timeout  time.Duration
	tries    int
	parallel int
	mkey     uint64
}

// newOptions defines the flags for the port, and for how long to wait for an answer.
func newOptions(s *System, cmd *command.Command) *options {
	o := &options{system: s}
	f := cmd.Flags()
	f.StringVarP(&o.device, "dev", "d", "", "RDMA device `DEV` (default the one with the first active InfiniBand port)")
	command.NumberVar(f, &o.port, "ib-port", "i", 0, 1, math.MaxUint8, "`PORT` of the device")
	command.DefaultIs(f, "ib-port", "the first active one")
	f.DurationVar(&o.timeout, "timeout", time.Second, "wait for the answer to each try for this `TIME`")
	command.NumberVar(f, &o.tries, "tries", "", 3, 1, 100, "send a request `N` times if no answer comes")
	return o
}

// parallelFlag defines the flag for the number of requests that wait for an answer.
func (o *options) parallelFlag(cmd *command.Command, def int) {
	command.NumberVar(cmd.Flags(), &o.parallel, "parallel", "", def, 1, 128, "let `N` requests wait for their answers at once")
}

// open opens the port that the flags choose.
func (o *options) open() (*umad.Port, error) {
	if o.timeout < time.Millisecond || o.timeout > time.Hour {
		return nil, command.Usagef("--timeout is %v, allowed: 1ms to 1h", o.timeout)
	}
	p, err := o.choose()
	if err != nil {
		return nil, err
	}
	return o.system.Open(p.Device, int(p.Num))
}

// agent returns the options of an agent for a class.
func (o *options) agent(class mad.Class) umad.AgentOptions {
	return umad.AgentOptions{Class: class, Timeout: o.timeout, Tries: o.tries, Window: o.parallel}
}

// choose returns the port that the flags name. Without them it is the first active InfiniBand port, or
// the first InfiniBand port if none is active.
func (o *options) choose() (Port, error) {
	all, err := o.system.Ports()
	var infiniband, others, devices []string
	var best Port
	for _, p := range all {
		if len(devices) == 0 || devices[len(devices)-1] != p.Device {
			devices = append(devices, p.Device)
		}
		if o.device != "" && p.Device != o.device || o.port != 0 && int(p.Num) != o.port {
			continue
		}
		if p.LinkLayer != ib.LinkLayerInfiniBand && o.device == "" {
			others = append(others, fmt.Sprintf("%v is %v", &p, p.LinkLayer))
			continue
		}
		infiniband = append(infiniband, p.String())
		if best.Device == "" || best.State != ib.PortActive && p.State == ib.PortActive {
			best = p
		}
	}
	switch {
	case len(infiniband) > 0:
		return best, nil
	case err == nil:
		if err := o.unknown(all, devices); err != nil {
			return best, err
		}
	}
	if len(others) > 0 {
		err = errors.Join(fmt.Errorf("no port is InfiniBand: %s; --dev names one anyway", strings.Join(others, ", ")), err)
	}
	return best, cmp.Or(err, errors.New("there is no InfiniBand port"))
}

// unknown is the error for a device or a port that does not exist. It is nil without InfiniBand ports of
// which --ib-port could be one.
func (o *options) unknown(all []Port, devices []string) error {
	var ports []string
	of := ": that of an InfiniBand port, "
	if o.device != "" {
		of = " for " + o.device + ": "
	}
	for _, p := range all {
		switch {
		case o.device == "" && p.LinkLayer == ib.LinkLayerInfiniBand:
			ports = append(ports, p.String())
		case o.device == p.Device:
			ports = append(ports, fmt.Sprint(p.Num))
		}
	}
	switch {
	case len(ports) > 0:
		return command.Usagef("--ib-port is %d, allowed%s%s", o.port, of, strings.Join(ports, ", "))
	case o.device == "":
		return nil
	}
	return command.Usagef("--dev is %s, allowed: %s", peertext.Quote(o.device), cmp.Or(strings.Join(devices, ", "), "none, there is no RDMA device"))
}

// oneForm returns an error if flags ask for two forms of output.
func oneForm(cmd *command.Command) error {
	var given string
	for _, name := range []string{"json", "compat", "compat-ibstatus", "serve"} {
		switch f := cmd.Flag(name); {
		case f == nil || f.Value.String() != "true":
		case given != "":
			return command.Usagef("--%s is given with --%s, allowed: one of them", given, name)
		default:
			given = name
		}
	}
	return nil
}

// New makes the group of commands.
func New(s *System) *command.Command {
	group := command.Group(&command.Command{
		Use:   "ib [flags] COMMAND",
		Short: "Look at an InfiniBand subnet",
		Long: `The commands send management datagrams (MADs) through /dev/infiniband/umadN, which needs root or a
udev rule, and the kernel module ib_umad. Subnet management needs a port with QP0: ports of RoCE and
most virtual functions have none.`,
		Example: `  verbs ib status          # the own ports, without any datagram
  verbs ib links           # the links of the subnet
  verbs ib check           # is something wrong with it?
  verbs ib sm              # show the subnet manager
  verbs ib ping 7          # is the port with LID 7 there?
  verbs ib counters 7 all  # what does it count?
  verbs ib port 7 3        # port 3 of the switch with LID 7`,
	})
	group.Add(newStatus(s), newPing(s), newCounters(s), newSA(s), newSM(s), newLinks(s), newDiscover(s), newTrace(s), newCheck(s), newQuery(s), newRoutes(s), newPort(s))
	for _, c := range group.Commands() {
		run := c.Run
		c.Run = func(cmd *command.Command, args []string) error {
			if err := oneForm(cmd); err != nil {
				return err
			}
			return run(cmd, args)
		}
	}
	return group
}
