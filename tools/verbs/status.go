package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/counter"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// statusRow is a line of "verbs status", and an element of its JSON.
type statusRow struct {
	Device    string       `json:"device"`
	Port      int          `json:"port"`
	State     string       `json:"state,omitempty"`
	PhysState string       `json:"phys_state,omitempty"`
	Rate      float64      `json:"rate_gbps"`
	Width     int          `json:"width"`
	LinkLayer string       `json:"link_layer,omitempty"`
	Netdev    string       `json:"netdev,omitempty"`
	MTU       int          `json:"mtu"`
	LID       uint16       `json:"lid,omitempty"`
	GIDs      []string     `json:"gids"`
	Errors    []counterRow `json:"errors"` // that are not 0
	Reason    string       `json:"reason,omitempty"`
}

// errNotActive is the failure of "verbs status".
var errNotActive = errors.New("not every port is active")

func newStatus() *command.Command {
	var asJSON bool
	cmd := &command.Command{
		Use:   "status [flags] [DEV[/PORT]]",
		Short: "Show the state of each port, in one line",
		Long: `The rate is the sum of all lanes. The MTU is the active MTU of RDMA, and on EFA
the longest message, which is one packet. Errors are the sum of all error
counters since the device was added; "verbs stat" shows each of them.`,
		Example: `  verbs status
  verbs status mlx5_0/1
  verbs status --json | jq -r '.[] | select(.state != "ACTIVE") | .device'`,
		Exit: "  0  every port is active\n  1  a port is not active, there is none, or a failure; standard error has the reason",
		Args: command.Arguments(1),
		Run: func(cmd *command.Command, args []string) error {
			rows, err := collectStatus(args)
			if err != nil {
				return err
			}
			if asJSON {
				err = command.PrintJSON(cmd.Out(), rows)
			} else {
				err = printStatus(cmd.Out(), rows)
			}
			if err != nil {
				return err
			}
			for _, r := range rows {
				if r.State != "ACTIVE" {
					return errNotActive
				}
			}
			if len(rows) == 0 {
				return errNoDevice()
			}
			return nil
		},
	}
	command.JSONFlag(cmd, &asJSON)
	return cmd
}

// errNoDevice returns why a software device of the environment could not be made, or how to get one.
func errNoDevice() error {
	infos, _ := uverbs.Devices() // the caller has listed them
	for _, d := range infos {
		if d.Err != nil {
			return fmt.Errorf("there is no usable RDMA device: %w", d.Err)
		}
	}
	return errors.New("there is no RDMA device; " + softHint)
}

// collectStatus asks for the ports of all devices, of one, or for one port.
func collectStatus(args []string) ([]statusRow, error) {
	var name string
	var only uint32 // the port
	if len(args) > 0 {
		var err error
		if name, only, err = splitPort(args[0]); err != nil {
			return nil, err
		}
	}
	infos, err := chosenDevices([]string{name}[:len(args)])
	if err != nil {
		return nil, err
	}
	if len(args) > 0 && only > uint32(infos[0].Ports) {
		return nil, command.Usagef("the port is %d, allowed: 1 to %d", only, infos[0].Ports)
	}
	rows := []statusRow{}
	for _, d := range infos {
		for port := 1; port <= d.Ports; port++ {
			if only == 0 || only == uint32(port) {
				rows = append(rows, statusOf(d, port))
			}
		}
	}
	return rows, nil
}

// statusOf asks for what can be known of a port. Whatever fails leaves the rest as it is.
func statusOf(d uverbs.DeviceInfo, port int) statusRow {
	r := statusRow{Device: d.Name, Port: port, GIDs: []string{}, Errors: []counterRow{}}
	if !d.InProcess {
		r.fromKernel(d.Name, port)
	}
	if d.Err != nil {
		r.Reason = d.Err.Error()
		return r
	}
	dev, err := uverbs.Open(d.Name, uverbs.OpenOptions{})
	if err != nil {
		r.Reason = err.Error()
		return r
	}
	defer dev.Close()
	attr, err := dev.Port(uint8(port))
	if err != nil {
		r.Reason = err.Error()
		return r
	}
	r.State = attr.State.String()
	r.PhysState, r.LinkLayer, r.LID = attr.PhysState.Words(), attr.LinkLayer.String(), attr.LID
	r.Width, r.Rate, r.MTU = attr.ActiveWidth.Lanes(), float64(attr.ActiveWidth.Lanes())*attr.ActiveSpeed.Gbps(), attr.ActiveMTU.Bytes()
	if attr.LinkLayer == ib.LinkLayerUnspecified { // the kernel has no number for such an MTU
		r.MTU = int(attr.MaxMsgSize)
	}
	table, err := dev.GIDTable(uint8(port))
	if err != nil {
		r.Reason = err.Error()
		return r
	}
	for _, e := range table {
		if text := e.GID.Addr().String(); !slices.Contains(r.GIDs, text) {
			r.GIDs = append(r.GIDs, text)
		}
	}
	r.Netdev = cmp.Or(r.Netdev, netdevOf(dev, table))
	return r
}

// netdevOf returns the first network interface of this network namespace that an entry of a device's GID table
// belongs to, or "". The index of an entry may be one of another namespace, unless the device is in software.
func netdevOf(dev *uverbs.Device, table []uverbs.GIDEntry) string {
	for _, e := range table {
		link, err := net.InterfaceByIndex(e.Netdev)
		if err != nil { // also for 0
			continue
		}
		addrs, _ := link.Addrs()
		if dev.Info().InProcess || slices.ContainsFunc(addrs, func(a net.Addr) bool {
			p, err := netip.ParsePrefix(a.String())
			return err == nil && p.Addr().Unmap().WithZone("") == e.GID.Addr()
		}) {
			return link.Name
		}
	}
	return ""
}

// fromKernel fills in what netlink and sysfs know of a port, which needs no rights.
func (r *statusRow) fromKernel(device string, port int) {
	dev, err := netlinkrdma.DeviceByName(device)
	if err != nil {
		return
	}
	if ports, err := netlinkrdma.Ports(dev); err == nil && port <= len(ports) {
		p := ports[port-1]
		r.State, r.PhysState, r.Netdev = p.State.String(), p.PhysState.Words(), p.Netdev
	}
	counters, err := netlinkrdma.PortCounters(dev, uint32(port))
	if err == nil {
		r.addErrors(counterRows(counters))
	}
	counters, _ = netlinkrdma.StandardCounters(dev, uint32(port)) // those that can be read
	r.addErrors(counterRows(counters))
}

// addErrors keeps the counters of errors that are not 0.
func (r *statusRow) addErrors(counters []counterRow) {
	for _, c := range counters {
		if counter.IsError(c.Name) && c.Value > 0 && !slices.ContainsFunc(r.Errors, func(e counterRow) bool { return e.Name == c.Name }) {
			r.Errors = append(r.Errors, c)
		}
	}
}

// printStatus writes the table.
func printStatus(w io.Writer, rows []statusRow) error {
	t := command.Table(w, "port\tstate\tphysical\trate\tlink layer\tnetdev\tMTU\tLID\terrors\tGIDs")
	for _, r := range rows {
		var errs uint64
		for _, e := range r.Errors {
			errs += e.Value
		}
		rate, lid := "-", "-"
		if r.Rate > 0 {
			rate = fmt.Sprintf("%g Gb/s (%dX)", r.Rate, r.Width)
		}
		if r.LID > 0 {
			lid = strconv.Itoa(int(r.LID))
		}
		last := strings.Join(r.GIDs, " ")
		if r.Reason != "" {
			last = "not known: " + r.Reason
		}
		fmt.Fprintf(t, "%s/%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d\t%s\n", r.Device, r.Port, cmp.Or(r.State, "-"), cmp.Or(r.PhysState, "-"), rate,
			cmp.Or(r.LinkLayer, "-"), cmp.Or(r.Netdev, "-"), r.MTU, lid, errs, last)
	}
	return t.Flush()
}
