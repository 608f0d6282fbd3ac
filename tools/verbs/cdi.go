package main

import (
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/objects"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/uverbs"
)

func newCDI() *command.Command {
	return &command.Command{
		Use:   "cdi [flags]",
		Short: "Print a Container Device Interface (CDI) file for the RDMA devices",
		Long: `The file is for the Container Device Interface, which podman, containerd, CRI-O and Docker read from
/etc/cdi. A container that asks for one, as in podman run --device goverbs/rdma=DEV, or for
goverbs/rdma=all, gets its character device and that of the connection manager. Print the file
again when a device was added or moved.`,
		Example: `  verbs cdi >/etc/cdi/rdma.json`,
		Args:    command.Arguments(0),
		Run: func(cmd *command.Command, _ []string) error {
			infos, err := uverbs.Devices()
			if err != nil {
				return err
			}
			var devices, all []string
			for _, i := range infos {
				if i.CharDev != "" { // it is not in this process
					all = append(all, i.CharDev)
					devices = append(devices, cdiDevice(i.Name, i.CharDev))
				}
			}
			if all == nil {
				return objects.OfKernel("", "it has no files, and needs none in a container", uverbs.ErrNoDevice)
			}
			cm, err := netlinkrdma.CMDev()
			if err != nil {
				return err
			}
			devices = append(devices, cdiDevice("all", all...))
			_, err = fmt.Fprintf(cmd.Out(), `{
  "cdiVersion": "0.3.0",
  "kind": "goverbs/rdma",
  "containerEdits": %s,
  "devices": [
    %s
  ]
}
`, cdiEdits(cm.Path()), strings.Join(devices, ",\n    "))
			return err
		},
	}
}

// cdiDevice returns what a container may ask for by name.
func cdiDevice(name string, paths ...string) string {
	return fmt.Sprintf(`{"name": %q, "containerEdits": %s}`, name, cdiEdits(paths...))
}

// cdiEdits returns the files that a container gets. The names come from netlinkrdma and contain no
// spaces or quotes.
func cdiEdits(paths ...string) string {
	return `{"deviceNodes": [{"path": "` + strings.Join(paths, `"}, {"path": "`) + `"}]}`
}
