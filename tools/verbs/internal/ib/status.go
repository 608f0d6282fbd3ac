package ib

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// StatusDevice is a device of "verbs ib status", and an element of its JSON.
type StatusDevice struct {
	Device       string        `json:"device"`
	NodeType     string        `json:"node_type"`
	HCAType      string        `json:"hca_type,omitempty"`
	FWVer        string        `json:"fw_ver,omitempty"`
	HWVer        string        `json:"hw_ver,omitempty"`
	NodeGUID     string        `json:"node_guid"`
	SysImageGUID string        `json:"sys_image_guid"`
	Ports        []*StatusPort `json:"ports"`
	Reason       string        `json:"reason,omitempty"`

	nodeGUID, sysImageGUID uint64
}

// StatusPort is a port of a [StatusDevice].
type StatusPort struct {
	Port           int     `json:"port"`
	State          string  `json:"state"`
	PhysState      string  `json:"phys_state"`
	Rate           float64 `json:"rate_gbps"`
	Width          int     `json:"width"`
	Speed          string  `json:"speed,omitempty"`
	LID            uint16  `json:"lid"`
	LMC            uint8   `json:"lmc"`
	SMLID          uint16  `json:"sm_lid"`
	SMSL           uint8   `json:"sm_sl"`
	CapabilityMask string  `json:"capability_mask"`
	GID            string  `json:"gid,omitempty"`
	LinkLayer      string  `json:"link_layer"`
	UMAD           string  `json:"umad,omitempty"`
	ISSM           string  `json:"issm,omitempty"`
	Reason         string  `json:"reason,omitempty"`

	state    ib.PortState
	phys     ib.PhysState
	capMask  uint32
	portGUID uint64
	active   bool
}

// newStatus makes the command that shows the own devices.
func newStatus(s *System) *command.Command {
	var asJSON, compat, compatStatus bool
	cmd := &command.Command{
		Use:   "status [flags] [DEV[/PORT]]",
		Short: "Show the InfiniBand devices of this machine and what their ports know of the subnet",
		Long: `It asks the kernel over netlink and the device by its uverbs file, so it needs neither ib_umad nor
QP0. A device that cannot be asked does not hide the others. umad and issm are the files in
/dev/infiniband by which the other commands and a subnet manager reach the port.`,
		Example: `  verbs ib status
  verbs ib status mlx5_0/1 --json | jq '.[0].ports[0].sm_lid'
  verbs ib status --compat     # as ibstat`,
		Exit: "  0  a port is active\n  1  none is, or a failure; standard error has the reason",
		Args: command.Arguments(1),
	}
	command.JSONFlag(cmd, &asJSON)
	compatFlag(cmd, &compat, "ibstat")
	cmd.Flags().BoolVar(&compatStatus, "compat-ibstatus", false, "print what ibstatus of infiniband-diags prints")
	cmd.Run = func(cmd *command.Command, args []string) error {
		all, listErr := s.Status()
		if listErr != nil && len(all) == 0 {
			return listErr
		}
		all, err := selectStatus(all, args)
		if err != nil {
			return errors.Join(err, listErr)
		}
		w := cmd.Out()
		switch {
		case asJSON:
			err = command.PrintJSON(w, all)
		case compat:
			err = printIbstat(w, all, len(args) > 0 && strings.Contains(args[0], "/"))
		case compatStatus:
			err = printIbstatus(w, all)
		default:
			err = printStatus(w, all)
		}
		if err = errors.Join(err, listErr); err != nil {
			return err
		}
		for _, d := range all {
			for _, p := range d.Ports {
				if p.active {
					return nil
				}
			}
		}
		return errors.New("no port is active")
	}
	return cmd
}

// selectStatus returns the devices and ports that the argument names.
func selectStatus(all []*StatusDevice, args []string) ([]*StatusDevice, error) {
	if len(args) == 0 {
		return all, nil
	}
	name, port, hasPort := strings.Cut(args[0], "/")
	var known []string
	for _, d := range all {
		known = append(known, d.Device)
		if d.Device != name {
			continue
		}
		if hasPort {
			one := *d
			one.Ports = nil
			var numbers []string
			for _, p := range d.Ports {
				numbers = append(numbers, fmt.Sprint(p.Port))
				if fmt.Sprint(p.Port) == port {
					one.Ports = append(one.Ports, p)
				}
			}
			switch {
			case len(one.Ports) > 0:
				d = &one
			case d.Reason != "":
				return nil, fmt.Errorf("the ports of %s are not known: %s", name, d.Reason)
			default:
				return nil, command.Usagef("the port of %s is %s, allowed: %s", name, peertext.Quote(port), cmp.Or(strings.Join(numbers, ", "), "none"))
			}
		}
		return []*StatusDevice{d}, nil
	}
	return nil, command.Usagef("the device is %s, allowed: %s", peertext.Quote(name), cmp.Or(strings.Join(known, ", "), "none, there is no RDMA device"))
}

// sysClass is where the kernel shows devices.
const sysClass = "/sys/class/infiniband"

// kernelStatus asks for all devices, sorted by name.
func kernelStatus() ([]*StatusDevice, error) {
	devices, err := netlinkrdma.Devices()
	all := []*StatusDevice{}
	for i := range devices {
		all = append(all, deviceStatus(&devices[i]))
	}
	slices.SortFunc(all, func(a, b *StatusDevice) int { return cmp.Compare(a.Device, b.Device) })
	return all, inKernel(all, err)
}

// deviceStatus asks for what can be known of a device. Whatever fails leaves the rest as it is.
func deviceStatus(d *netlinkrdma.Device) *StatusDevice {
	s := &StatusDevice{
		Device: d.Name, NodeType: d.NodeType.String(), FWVer: d.Firmware, NodeGUID: d.NodeGUID.String(), SysImageGUID: d.SysImageGUID.String(),
		HCAType: sysText(d.Name, "hca_type"), HWVer: sysText(d.Name, "hw_rev"), Ports: []*StatusPort{},
		nodeGUID: uint64(d.NodeGUID), sysImageGUID: uint64(d.SysImageGUID),
	}
	ports, err := netlinkrdma.Ports(*d)
	if err != nil {
		s.Reason = err.Error()
	}
	dev, openErr := uverbs.Open(d.Name, uverbs.OpenOptions{})
	if openErr == nil {
		defer dev.Close()
		if attr := dev.Attr(); s.HWVer == "" {
			s.HWVer = fmt.Sprintf("%x", attr.HWVersion)
		}
	}
	for i := range ports {
		row := portStatus(d, &ports[i])
		if openErr != nil {
			row.Reason = openErr.Error()
		} else if err := row.fromDevice(dev); err != nil {
			row.Reason = err.Error()
		}
		s.Ports = append(s.Ports, row)
	}
	return s
}

// sysText returns what a file of a device in /sys contains, or "".
func sysText(device, file string) string {
	b, err := os.ReadFile(filepath.Join(sysClass, device, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// portStatus returns what netlink knows of a port.
func portStatus(d *netlinkrdma.Device, p *netlinkrdma.Port) *StatusPort {
	r := &StatusPort{
		Port: int(p.Num), State: p.State.String(), LID: uint16(p.LID), LMC: p.LMC, SMLID: uint16(p.SMLID), LinkLayer: p.LinkLayer.String(),
		state: p.State, phys: p.PhysState, capMask: uint32(p.CapFlags), active: p.State == ib.PortActive,
		PhysState: p.PhysState.Words(),
	}
	if dev, err := netlinkrdma.UMADDev(*d, p.Num); err == nil {
		r.UMAD = dev.Name
	}
	if dev, err := netlinkrdma.ISSMDev(*d, p.Num); err == nil {
		r.ISSM = dev.Name
	}
	r.CapabilityMask = fmt.Sprintf("0x%08x", r.capMask)
	return r
}

// speeds are the names of the speeds of a lane, by the kernel's number.
var speeds = map[ib.LinkSpeed]string{1: "SDR", 2: "DDR", 4: "QDR", 8: "FDR10", 16: "FDR", 32: "EDR", 64: "HDR", 128: "NDR", 256: "XDR"}

// fromDevice fills in what only the device knows.
func (r *StatusPort) fromDevice(dev *uverbs.Device) error {
	attr, err := dev.Port(uint8(r.Port))
	if err != nil {
		return err
	}
	r.Width, r.Rate, r.Speed = attr.ActiveWidth.Lanes(), float64(attr.ActiveWidth.Lanes())*attr.ActiveSpeed.Gbps(), speeds[attr.ActiveSpeed]
	r.LMC, r.SMSL, r.capMask = attr.LMC, attr.SMSL, attr.CapFlags
	r.LID, r.SMLID = attr.LID, attr.SMLID
	r.CapabilityMask = fmt.Sprintf("0x%08x", r.capMask)
	table, err := dev.GIDTable(uint8(r.Port))
	if len(table) > 0 && table[0].Index == 0 {
		gid := table[0].GID
		r.GID, r.portGUID = gid.String(), bitsOf(gid[:], 64, 64)
	}
	return err
}

// printStatus prints a line for each port.
func printStatus(w io.Writer, all []*StatusDevice) error {
	t := command.Table(w, "port\ttype\tstate\tphysical\trate\tLID\tLMC\tSM LID\tlink layer\tumad\tissm\tGID")
	for _, d := range all {
		for _, p := range d.Ports {
			rate := "-"
			if p.Rate > 0 {
				rate = fmt.Sprintf("%g Gb/s (%dX %s)", p.Rate, p.Width, p.Speed)
			}
			last := p.GID
			if p.Reason != "" {
				last = "not known: " + p.Reason
			}
			fmt.Fprintf(t, "%s/%d\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", d.Device, p.Port, cmp.Or(d.HCAType, "-"), p.State, p.PhysState, rate,
				p.LID, p.LMC, p.SMLID, p.LinkLayer, cmp.Or(p.UMAD, "-"), cmp.Or(p.ISSM, "-"), last)
		}
		if d.Reason != "" {
			fmt.Fprintf(t, "%s\tnot known: %s\n", d.Device, d.Reason)
		}
	}
	return t.Flush()
}

// printIbstat prints devices as ibstat does, or a port alone.
func printIbstat(w io.Writer, all []*StatusDevice, alone bool) error {
	var b strings.Builder
	state := oneOf("???", "???", "Down", "Initializing", "Armed", "Active")
	phys := oneOf("???", "No state change", "Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "PhyTest")
	for _, d := range all {
		kind := cmp.Or(map[string]string{"CA": "CA", "switch": "Switch", "router": "Router", "RNIC": "iWARP RNIC"}[d.NodeType], "???")
		indent, deeper := "\t", "\t\t"
		if alone {
			indent, deeper = "", ""
			fmt.Fprintf(&b, "%s: '%s'\n", kind, d.Device)
		} else {
			fmt.Fprintf(&b, "%s '%s'\n\t%s type: %s\n\tNumber of ports: %d\n\tFirmware version: %s\n\tHardware version: %s\n\tNode GUID: 0x%016x\n\tSystem image GUID: 0x%016x\n",
				kind, d.Device, kind, d.HCAType, len(d.Ports), d.FWVer, d.HWVer, d.nodeGUID, d.sysImageGUID)
		}
		for _, p := range d.Ports {
			rate := fmt.Sprint(int(p.Rate))
			switch {
			case p.Speed == "FDR10":
				rate += " (FDR10)"
			case p.Rate == 2.5:
				rate = "2.5"
			}
			lines := fmt.Sprintf("State: %s\nPhysical state: %s\nRate: %s\nBase lid: %d\nLMC: %d\nSM lid: %d\nCapability mask: 0x%08x\nPort GUID: 0x%016x\nLink layer: %s\n",
				state(uint64(p.state)), phys(uint64(p.phys)), rate, p.LID, p.LMC, p.SMLID, p.capMask, p.portGUID, p.LinkLayer)
			fmt.Fprintf(&b, "%sPort %d:\n", indent, p.Port)
			b.WriteString(deeper + strings.ReplaceAll(strings.TrimSpace(lines), "\n", "\n"+deeper) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printIbstatus prints ports as ibstatus does.
func printIbstatus(w io.Writer, all []*StatusDevice) error {
	var b strings.Builder
	for _, d := range all {
		for _, p := range d.Ports {
			fmt.Fprintf(&b, "Infiniband device '%s' port %d status:\n\tdefault gid:\t %s\n\tbase lid:\t 0x%x\n\tsm lid:\t\t 0x%x\n\tstate:\t\t %d: %s\n\tphys state:\t %d: %s\n\trate:\t\t %g Gb/sec (%dX %s)\n\tlink_layer:\t %s\n\n",
				d.Device, p.Port, p.GID, p.LID, p.SMLID, p.state, p.State, p.phys, p.phys, p.Rate, p.Width, p.Speed, p.LinkLayer)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
