package uverbs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/uverbs/ib"
	"github.com/goverbs/goverbs/uverbs/internal/diag"
)

// routeHint explains why the kernel refused a path to a peer.
func routeHint(d *Device, errno syscall.Errno, ah AHAttr) string {
	table, _ := d.GIDTable(ah.Port)
	p := diag.Path{Errno: errno, Device: d.Name(), Port: ah.Port, Index: int(ah.GRH.SGIDIndex), To: ah.GRH.DGID.Addr(), NoSocket: d.info.InProcess && d.info.inproc.Info().NoSocket}
	for _, e := range table {
		g := diagGID(e)
		p.Table = append(p.Table, *g)
		if e.Index == p.Index {
			p.From = g
		}
	}
	if e, ok := ChooseGID(table, ah.GRH.DGID); ok {
		p.Better = diagGID(e)
	}
	switch errno {
	case syscall.ENODEV, syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTUNREACH:
		if p.From != nil && p.From.Netdev != 0 && !p.From.InfiniBand {
			if hint := d.foreignHint(p.Index, table); hint != "" {
				return fmt.Sprintf("peer %s from GID %s: %s", p.To, p.From.Text, hint)
			}
		}
	}
	if port, err := d.facts(ah.Port); err == nil && errno == syscall.EINVAL {
		p.GRHMissing = !ah.Global && port.GRHRequired()
		p.Fabric = port.LinkLayer == ib.LinkLayerUnspecified
	}
	return p.Hint()
}

// foreignHint says which devices have GIDs of this network namespace, if a GID is not one of them.
func (d *Device) foreignHint(index int, table []GIDEntry) string {
	r := hostRoute(ib.GID{})
	if slices.ContainsFunc(d.ownEntries(table, r), func(e GIDEntry) bool { return e.Index == index }) {
		return ""
	}
	infos, _ := listDevices(devDir)
	return fmt.Sprintf("GID %d belongs to an interface of another network namespace; %s", index,
		cmp.Or(addrsOf(infos), "no RDMA device has an address of this one"))
}

// diagGID returns the facts about a GID.
func diagGID(e GIDEntry) *diag.GIDEntry {
	return &diag.GIDEntry{Addr: e.GID.Addr(), Netdev: e.Netdev, Type: uint32(e.Type), InfiniBand: e.Type == ib.GIDTypeIB, Text: e.String()}
}

// addrsOf describes the addresses by which this network namespace reaches devices, such as "rxe0 has
// 10.1.0.1, fe80::1; soft0 has 127.0.0.1", or is empty. It sets the Err of devices that cannot be opened.
func addrsOf(infos []DeviceInfo) string {
	var all []string
	r := hostRoute(ib.GID{})
	for i := range infos {
		info := &infos[i]
		var own []string
		switch {
		case info.Err != nil:
		case info.InProcess:
			for _, a := range info.inproc.Addrs() {
				own = append(own, a.String())
			}
		default:
			own = info.kernelAddrs(r)
		}
		if own = slices.Compact(own); len(own) > 0 {
			all = append(all, info.Name+" has "+strings.Join(own, ", "))
		}
	}
	return strings.Join(all, "; ")
}

// kernelAddrs returns the addresses of a kernel's device: those of its GIDs, or on iWARP those of its
// network interfaces.
func (i *DeviceInfo) kernelAddrs(r gidRoute) (all []string) {
	if i.IWARP() {
		links, _ := i.links()
		for _, a := range r.own {
			if links[a.link] {
				all = append(all, a.addr.String())
			}
		}
		return all
	}
	d, err := open(*i)
	if err != nil {
		i.Err = err
		return nil
	}
	defer d.Close()
	for port := 1; port <= int(d.attr.PhysPortCount); port++ {
		table, _ := d.GIDTable(uint8(port))
		for _, e := range d.ownEntries(table, r) {
			if e.Type != ib.GIDTypeIB {
				all = append(all, e.GID.Addr().String())
			}
		}
	}
	return all
}
