package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/goverbs/goverbs/netlinkrdma"
)

// eventRow is an event, and a line of the JSON of "verbs monitor".
type eventRow struct {
	Event       string `json:"event"`
	Device      string `json:"device,omitempty"`
	DeviceIndex uint32 `json:"device_index"`
	Port        uint32 `json:"port,omitempty"`
	Netdev      string `json:"netdev,omitempty"`
	NetdevIndex int    `json:"netdev_index,omitempty"`
}

func newMonitor() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "monitor [flags]",
		Short: "Show which devices appear, disappear and change, until interrupted",
		Long: `It prints a line when a device appears, disappears or is renamed, and when a network interface is
attached to a port, detached or renamed, as "rdma monitor" does. It needs Linux 6.12.`,
		Example: `  verbs monitor
  verbs monitor --json | jq --unbuffered -r .event`,
		Annotations: map[string]string{exitKey: "  0  interrupted\n  1  failure; standard error has the reason"},
		Args:        arguments(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := netlinkrdma.OpenMonitor()
			if err != nil {
				return err
			}
			defer m.Close()
			return follow(cmd.Context(), m, cmd.OutOrStdout(), cmd.ErrOrStderr(), asJSON)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// events is what follow needs of a monitor.
type events interface {
	Next(context.Context) (netlinkrdma.Event, error)
}

// follow prints events until the context ends, which is no error.
func follow(ctx context.Context, m events, out, warn io.Writer, asJSON bool) error {
	for {
		e, err := m.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, netlinkrdma.ErrEventsLost):
			fmt.Fprintf(warn, "verbs: %v\n", err)
			continue
		case err != nil:
			return err
		}
		row := eventRow{e.Type.String(), e.Device, e.Index, e.Port, e.Netdev, e.NetdevIndex}
		if err := row.print(out, asJSON); err != nil {
			return err
		}
	}
}

// print writes one line.
func (r eventRow) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	line := fmt.Sprintf("%-14s", r.Event)
	if r.Device != "" {
		line += fmt.Sprintf(" dev %s (%d)", r.Device, r.DeviceIndex)
	}
	if r.Port != 0 {
		line += fmt.Sprintf(" port %d", r.Port)
	}
	if r.Netdev != "" {
		line += fmt.Sprintf(" netdev %s (%d)", r.Netdev, r.NetdevIndex)
	}
	_, err := fmt.Fprintln(w, line)
	return err
}
