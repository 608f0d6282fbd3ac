package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// deviceRow is a line of "verbs devices", and an element of its JSON.
type deviceRow struct {
	Device    string `json:"device"`
	NodeGUID  string `json:"node_guid"`
	Driver    string `json:"driver,omitempty"`
	Protocol  string `json:"protocol,omitempty"`
	PortCount int    `json:"port_count"`
	Firmware  string `json:"fw_ver,omitempty"`
	CharDev   string `json:"char_dev,omitempty"`
	InProcess bool   `json:"in_process,omitempty"`
	Usable    bool   `json:"usable"`
	Reason    string `json:"reason,omitempty"`
}

func newDevices() *command.Command {
	var asJSON bool
	cmd := &command.Command{
		Use:   "devices [flags]",
		Short: "List the RDMA devices, and why one cannot be used",
		Long: `A device with the driver "rxe, in software" is in this process: GOVERBS_SOFT gives one to each
program, and it behaves like rxe. Another program does not see the device, but has one of its own.`,
		Example: `  verbs devices
  GOVERBS_SOFT=auto verbs devices
  verbs devices --json | jq -r '.[] | select(.usable) | .device'`,
		Args: command.Arguments(0),
		Run: func(cmd *command.Command, _ []string) error {
			infos, err := uverbs.Devices()
			if err != nil {
				return err
			}
			if err := printDevices(cmd.Out(), infos, asJSON); err != nil {
				return err
			}
			if len(infos) == 0 {
				d, err := uverbs.OpenFirst() // its error says why, and what to do
				if err == nil {
					return d.Close() // a device came in the meantime
				}
				fmt.Fprintf(cmd.Err(), "verbs: %v\n", err)
			}
			return nil
		},
	}
	command.JSONFlag(cmd, &asJSON)
	return cmd
}

// noGUID is the GUID of a device without one, such as an EFA device on Linux 6.1.
var noGUID = ib.GUID(0).String()

// printDevices writes the list as a table or as JSON.
func printDevices(w io.Writer, infos []uverbs.DeviceInfo, asJSON bool) error {
	rows := make([]deviceRow, len(infos))
	for i, d := range infos {
		rows[i] = deviceRow{
			Device:    d.Name,
			NodeGUID:  d.NodeGUID.String(),
			Driver:    d.Driver,
			Protocol:  d.Protocol,
			PortCount: d.Ports,
			Firmware:  d.Firmware,
			CharDev:   d.CharDev,
			InProcess: d.InProcess,
			Usable:    d.Err == nil,
		}
		if d.Err != nil {
			rows[i].Reason = d.Err.Error()
		}
	}
	if asJSON {
		return command.PrintJSON(w, rows)
	}
	t := command.Table(w, "device\tnode GUID\tdriver\tprotocol\tports\tusable")
	for _, r := range rows {
		usable := "yes"
		if !r.Usable {
			usable = "no: " + r.Reason
		}
		guid := r.NodeGUID
		if guid == noGUID {
			guid = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\n", r.Device, guid, driverText(r.Driver, r.InProcess), cmp.Or(r.Protocol, "-"), r.PortCount, usable)
	}
	return t.Flush()
}

// chosenDevices lists the named device, or all without a name.
func chosenDevices(names []string) ([]uverbs.DeviceInfo, error) {
	infos, err := uverbs.Devices()
	if err != nil || len(names) == 0 {
		return infos, err
	}
	for _, d := range infos {
		if d.Name == names[0] {
			return []uverbs.DeviceInfo{d}, nil
		}
	}
	return nil, command.Usagef("the device is %q, allowed: %s", names[0], deviceNames(infos))
}

// deviceNames lists the names of devices.
func deviceNames(infos []uverbs.DeviceInfo) string {
	var names []string
	for _, d := range infos {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}

// softHint says how to get a device without RDMA.
const softHint = "use a software device inside each program: GOVERBS_SOFT=auto in the environment"

// driverText describes the driver of a device. A device in the process plays a driver of the kernel.
func driverText(driver string, inProcess bool) string {
	if inProcess {
		return driver + ", in software"
	}
	return driver
}
