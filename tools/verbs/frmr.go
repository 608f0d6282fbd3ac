package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/verbs/internal/command"
	"github.com/goverbs/goverbs/tools/verbs/internal/peertext"
)

// frmrReport is what "verbs res frmr" prints about a device.
type frmrReport struct {
	Device  string    `json:"device"`
	Pools   []frmrRow `json:"pools"`
	Missing []string  `json:"missing,omitempty"`
}

// frmrRow is a pool.
type frmrRow struct {
	Key         string `json:"key"`
	VendorKey   string `json:"vendor_key"`
	DMABlocks   uint64 `json:"dma_blocks"`
	AccessFlags string `json:"access_flags"`
	ATS         bool   `json:"ats"`
	KernelKey   string `json:"kernel_key,omitempty"`
	Free        uint32 `json:"free"`
	InUse       uint64 `json:"in_use"`
	MaxInUse    uint64 `json:"max_in_use"`
	Pinned      uint32 `json:"pinned"`
}

func newFRMR() *command.Command {
	var asJSON, details bool
	cmd := &command.Command{
		Use:   "frmr [flags] [DEV] | COMMAND",
		Short: "Show the pools from which a driver takes memory regions",
		Long: `A driver such as mlx5 keeps memory regions that programs no longer use, since it is faster to
use one again than to make one. It needs Linux 7.1. "rdma resource show frmr_pools" shows the same.

  key         VENDOR_KEY:DMA_BLOCKS:ACCESS_FLAGS:ATS in hexadecimal; DMA_BLOCKS is the number of
              pages
  free        memory regions in the pool
  in use      memory regions that programs use; at most is the largest number so far
  pinned      memory regions that the pool keeps at least, with those in use`,
		Example: `  verbs res frmr
  verbs res frmr mlx5_0 --details
  verbs res frmr --json | jq '.[].pools[] | select(.pinned > 0)'`,
		Args: command.Arguments(1),
		Run: func(cmd *command.Command, args []string) error {
			devs, err := netlinkDevices(args)
			if err != nil {
				return err
			}
			reports := make([]frmrReport, len(devs))
			for i, dev := range devs {
				pools, err := netlinkrdma.FRMRPools(dev, netlinkrdma.ListOptions{Driver: details})
				if reports[i], err = newFRMRReport(dev.Name, pools, err); err != nil {
					return err
				}
			}
			if asJSON {
				return command.PrintJSON(cmd.Out(), reports)
			}
			return printFRMR(cmd.Out(), reports)
		},
	}
	cmd.Flags().BoolVar(&details, "details", false, "show also pools with a key that only the kernel sets")
	command.JSONFlag(cmd, &asJSON)
	cmd.Add(&command.Command{
		Use:   "set [flags] DEV [aging SECONDS] [key KEY] [pinned NUMBER]",
		Short: "Fill a pool, or say when unused memory regions are freed",
		Long: `It needs CAP_NET_ADMIN and Linux 7.1.

  aging   free memory regions that nothing has used for so many seconds; 60 at first
  key     the pool, as "verbs res frmr" shows it; it is made if there is none;
          mlx5 drops access flags that can be changed later
  pinned  keep so many memory regions in this pool, those that are in use included; 0 keeps none`,
		Example: `  verbs res frmr set mlx5_0 aging 120
  verbs res frmr set mlx5_0 key 0:100:0:0 pinned 25000`,
		Args: atLeast(3),
		Run: func(cmd *command.Command, args []string) error {
			return setFRMR(cmd, args[0], readWords(cmd, args[1:], "aging?", "key?", "pinned?"))
		},
	})
	return cmd
}

// setFRMR changes what the words say, when all of them are right.
func setFRMR(cmd *command.Command, device string, w *words) error {
	var aging uint64
	var key netlinkrdma.FRMRKey
	w.try(func() (err error) {
		if text, ok := w.of["aging"]; ok {
			if aging, err = strconv.ParseUint(text, 10, 32); err != nil || aging == 0 {
				return command.Usagef("aging is %s, allowed: 1 to %d seconds", peertext.Quote(text), uint32(1<<32-1))
			}
		}
		text, ok := w.of["key"]
		if ok != w.has("pinned") {
			return command.Usagef("key and pinned belong together; usage: %s", cmd.UseLine())
		}
		if ok {
			key, err = netlinkrdma.ParseFRMRKey(text)
		}
		if e, ok := errors.AsType[*netlinkrdma.Error](err); ok {
			return command.Usagef("key is %s, %s", peertext.Quote(text), e.Hint)
		}
		return nil
	})
	pinned := w.number("pinned")
	dev := w.device(device)
	if w.has("aging") {
		w.try(func() error { return netlinkrdma.SetFRMRAging(dev, time.Duration(aging)*time.Second) })
	}
	if w.has("key") {
		w.try(func() error { return netlinkrdma.PinFRMRs(dev, key, pinned) })
	}
	return w.err
}

// newFRMRReport makes the report of a device from its list of pools.
func newFRMRReport(device string, pools []netlinkrdma.FRMRPool, err error) (frmrReport, error) {
	r := frmrReport{Device: device}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		r.Missing = []string{err.Error()}
		return r, nil
	case err != nil:
		return r, err
	}
	r.Pools = make([]frmrRow, len(pools))
	hexText := func(v uint64) string { return fmt.Sprintf("0x%x", v) }
	for i, p := range pools {
		k := p.Key
		r.Pools[i] = frmrRow{Key: k.String(), VendorKey: hexText(k.VendorKey), DMABlocks: k.DMABlocks, AccessFlags: hexText(uint64(k.AccessFlags)), ATS: k.ATS,
			Free: p.Free, InUse: p.InUse, MaxInUse: p.MaxInUse, Pinned: p.Pinned}
		if p.KernelKey != 0 {
			r.Pools[i].KernelKey = hexText(p.KernelKey)
		}
	}
	return r, nil
}

// printFRMR writes a table with all pools.
func printFRMR(w io.Writer, reports []frmrReport) error {
	t := command.Table(w, "device\tkey\tfree\tin use\tat most\tpinned")
	for _, r := range reports {
		for _, p := range r.Pools {
			key := p.Key
			if p.KernelKey != "" {
				key += " (kernel " + p.KernelKey + ")"
			}
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\n", r.Device, key, p.Free, p.InUse, p.MaxInUse, p.Pinned)
		}
		for _, m := range r.Missing {
			fmt.Fprintf(t, "%s\tnot shown: %s\n", r.Device, m)
		}
	}
	return t.Flush()
}
