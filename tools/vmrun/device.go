package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/tools/vmrun/internal/guest"
	"github.com/goverbs/goverbs/tools/vmrun/internal/kmod"
)

// The RDMA devices that a guest can have.
const (
	deviceRxe  = "rxe"
	deviceSiw  = "siw"
	deviceMlx5 = "mlx5"
	deviceEFA  = "efa"

	modeIB    = "ib"
	modeIPoIB = "ipoib" // modeIPoIB is modeIB with a subnet manager and IP
	modeRoCE  = "roce"
)

// device is one of what -device asks for.
type device struct {
	kind, mode  string
	personality string // of the cards; empty is the model's usual one
	topology    string // what joins the cards; empty is a cable
	strict      bool   // reserved bits that a card does not read must be 0
}

// parseDevices reads -device: KIND[,mode=MODE][,topology=FILE][,personality=NAME|SEED|random][,strict], several of them with "+" between them.
func parseDevices(s string) ([]device, error) {
	var all []device
	for word := range strings.SplitSeq(s, "+") {
		d, err := parseDevice(word)
		if err != nil && len(all) > 0 && all[len(all)-1].topology != "" {
			return nil, fmt.Errorf("-device %q: %q follows topology=%s, and the path of a topology cannot have \"+\"", s, word, all[len(all)-1].topology)
		}
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(other device) bool { return other.kind == d.kind }) {
			return nil, fmt.Errorf("-device %q: %s is there twice", s, d.kind)
		}
		all = append(all, d)
	}
	return all, nil
}

func parseDevice(s string) (device, error) {
	bad := fmt.Errorf("-device %q: want %s, %s, %s[,mode=%s|%s|%s][,topology=FILE][,personality=NAME|SEED|random][,strict], or %s[,personality=NAME]",
		s, deviceRxe, deviceSiw, deviceMlx5, modeIB, modeIPoIB, modeRoCE, deviceEFA)
	kind, options, some := strings.Cut(s, ",")
	d := device{kind: kind}
	switch {
	case kind == deviceMlx5:
		d.mode = modeRoCE
	case kind == deviceEFA:
	case kind != deviceRxe && kind != deviceSiw, some:
		return device{}, bad
	}
	if !some {
		return d, nil
	}
	for option := range strings.SplitSeq(options, ",") {
		key, value, isOption := strings.Cut(option, "=")
		switch {
		case key == "personality" && value != "":
			d.personality = value
		case kind == deviceEFA:
			return device{}, bad
		case key == "mode" && (value == modeIB || value == modeIPoIB || value == modeRoCE):
			d.mode = value
		case key == "topology" && value != "":
			d.topology = value
		case option == "strict":
			d.strict = true
		case d.topology != "" && !isOption:
			return device{}, fmt.Errorf("-device %q: %q follows topology=%s, and the path of a topology cannot have \",\"", s, option, d.topology)
		default:
			return device{}, bad
		}
	}
	if d.topology != "" && d.mode != modeIPoIB {
		return device{}, fmt.Errorf("-device %q: a topology needs a subnet manager, which mode=%s has", s, modeIPoIB)
	}
	return d, nil
}

// net gives what the guest has to set up for the device.
func (d device) net() string {
	switch {
	case d.kind == deviceSiw:
		return guest.NetSiw
	case d.kind == deviceEFA:
		return guest.NetEFA
	case d.kind != deviceMlx5:
		return guest.NetRxe
	case d.mode == modeIB:
		return guest.NetIB
	case d.mode == modeIPoIB:
		return guest.NetIPoIB
	}
	return guest.NetRoCE
}

// program gives the name of the program that models the cards.
func (d device) program() string {
	if d.kind == deviceEFA {
		return "efa"
	}
	return "hca"
}

// model gives the flags for the mode that the model of the cards has to be in.
func (d device) model() []string {
	switch {
	case d.kind == deviceEFA:
		return nil
	case d.topology != "":
		return []string{"-mode", modeIB, "-topology", d.topology}
	case d.mode == modeIPoIB:
		return []string{"-mode", modeIB, "-managed"}
	}
	return []string{"-mode", d.mode}
}

// modelled reports whether a model plays the device.
func (d device) modelled() bool { return d.kind == deviceMlx5 || d.kind == deviceEFA }

// modelled gives the device with the cards, the zero one if there is none.
func (o *options) modelled() device {
	for _, d := range o.devices {
		if d.modelled() {
			return d
		}
	}
	return device{}
}

// cards is how many a guest has.
func (o *options) cards() int {
	switch {
	case o.modelled() == device{}:
		return 0
	case o.hosts == 1:
		return 2
	}
	return 1
}

// defaultModules are what the default network and the RDMA stack need. Up to
// 6.12, rxe wants crc32 from the crypto layer, and the kernel's own call for it
// finds no modprobe in the guest; later kernels have no such module. IPv6 can no
// longer be a module since 7.x.
var defaultModules = []string{"crc32_generic?", "ipv6?", "veth", "ib_uverbs", "rdma_ucm", "ib_umad", "rdma_rxe"}

// siwModules are what soft iWARP needs in place of rxe. Without crc32c in the crypto layer
// when it is loaded, it does without checksums for good.
var siwModules = []string{"crc32c_generic?", "ipv6?", "veth", "ib_uverbs", "rdma_ucm", "ib_umad", kmod.Siw.Name}

// efaModules are what an EFA card needs in place of rxe. Since 7.x the driver computes CRCs, and does not
// need ib_uverbs itself.
var efaModules = []string{"crc16?", "ib_uverbs", kmod.EFA.Name}

// mlx5Modules are what a ConnectX needs in place of rxe.
var mlx5Modules = []string{"ipv6?", "mlx5_core", "mlx5_ib", "ib_uverbs", "rdma_ucm", "ib_umad"}

// modulesFor gives the default modules of a machine that is alone, or of one of several
// that a link joins. InfiniBand without IPoIB and EFA carry no IP, so two hosts have a link besides.
func modulesFor(hosts int, devices []device) []string {
	var all []string
	for _, d := range devices {
		mods := map[string][]string{deviceRxe: defaultModules, deviceSiw: siwModules, deviceMlx5: mlx5Modules, deviceEFA: efaModules}[d.kind]
		switch {
		case hosts > 1 && (d.mode == modeIB || d.kind == deviceEFA):
			mods = append([]string{"e1000e"}, mods...)
		case d.mode == modeIPoIB:
			mods = append(mods[:len(mods):len(mods)], "ib_ipoib")
		}
		for _, m := range mods {
			if m == "veth" && hosts > 1 {
				m = "e1000e"
			}
			if !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
	}
	return all
}

// checkDevices is the part of check that is about -device and -net, and what depends on them.
func (o *options) checkDevices() error {
	if o.dev == "" {
		o.dev = deviceRxe
	}
	var err error
	if o.devices, err = parseDevices(o.dev); err != nil {
		return err
	}
	if o.modelled().mode == modeIPoIB && !slices.Contains(o.with, guest.SubnetManager) {
		o.with = append(o.with, guest.SubnetManager)
	}
	cards := o.cards() > 0
	if !cards && (o.hca != "" || o.hcaReport != "" || o.hcaVerbose) {
		return fmt.Errorf("-hca, -hca-report and -hca-verbose go with -device %s or %s", deviceMlx5, deviceEFA)
	}
	if slices.ContainsFunc(o.devices, func(d device) bool { return d.modelled() && d != o.modelled() }) {
		return fmt.Errorf("-device %q: want one kind of modelled card, %s or %s", o.dev, deviceMlx5, deviceEFA)
	}
	if o.hosts > 1 && len(o.devices) > 1 {
		return fmt.Errorf("-device %q: with -hosts %d there is one link, so want one kind of device", o.dev, o.hosts)
	}
	if o.hosts > 2 && cards {
		return fmt.Errorf("-hosts %d: with -device %s, want 1 or 2: the fabric of its model has two ports", o.hosts, o.modelled().kind)
	}
	if slices.Equal(o.load, []string{"none"}) {
		o.load = nil
		if o.net == "" {
			o.net = guest.NetNone
		}
	} else if slices.Equal(o.load, []string{"default"}) {
		o.load = modulesFor(o.hosts, o.devices)
	}
	return o.checkNet(cards)
}

// checkNet is checkDevices for -net and for what it is that -loss and the like are about.
func (o *options) checkNet(cards bool) error {
	var kinds []string
	for _, d := range o.devices {
		kinds = append(kinds, d.net())
	}
	usual := strings.Join(kinds, guest.NetAnd)
	if o.net == "" {
		o.net = usual
	}
	link, err := o.netem()
	efa := o.modelled().kind == deviceEFA
	switch {
	case efa && (o.loss != "" || o.delay != ""):
		return fmt.Errorf("-loss and -delay: the fabric of -device %s has neither", deviceEFA)
	case cards && o.net != usual && o.net != guest.NetNone:
		return fmt.Errorf("-net %q: with -device %s, want none or nothing", o.net, o.modelled().kind)
	case cards && o.reorder != "":
		return fmt.Errorf("-reorder: with -device %s, packets overtake each other anyway", o.modelled().kind)
	case !cards && o.hosts == 1 && !slices.Contains([]string{usual, guest.NetVeth, guest.NetNone}, o.net):
		return fmt.Errorf("-net %q: want %s, veth or none", o.net, usual)
	case !cards && o.hosts > 1 && !slices.Contains([]string{usual, guest.NetEth, guest.NetNone}, o.net):
		return fmt.Errorf("-net %q: with -hosts %d, want %s, eth or none", o.net, o.hosts, usual)
	case err != nil:
		return err
	case !cards && o.net == guest.NetNone && link != guest.Netem{}:
		return errors.New("-loss, -delay and -reorder are about the link, and with -net none there is none")
	}
	return nil
}
