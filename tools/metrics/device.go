package metrics

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/linkrate"
	"github.com/goverbs/goverbs/uverbs"
)

// device is a device that is read.
type device struct {
	netlinkrdma.Device
	driver    string
	inProcess bool
}

// key identifies a device, also one that has taken the name of another.
func (d *device) key() string { return fmt.Sprint(d.inProcess, d.Index, d.Name) }

// list lists the devices of the kernel.
func (c *Collector) list() (r result) {
	all, err := c.host.devices()
	for _, d := range all {
		r.devices = append(r.devices, device{Device: d, driver: d.DriverID.String()})
	}
	r.err = err
	return r
}

// listOwn lists the devices inside this process.
func (c *Collector) listOwn() (r result) {
	own, err := c.host.own()
	for _, i := range own {
		d := netlinkrdma.Device{Name: i.Name, NodeGUID: i.NodeGUID, Protocol: netlinkrdma.Protocol(i.Protocol), Firmware: i.Firmware, Ports: uint32(i.Ports)}
		r.devices = append(r.devices, device{Device: d, driver: i.Driver, inProcess: true})
	}
	r.err = err
	return r
}

// round is the reading of a device.
type round struct {
	c    *Collector
	d    device
	s    *samples
	gone bool // the device was removed or renamed meanwhile
}

// part adds whether a part could be read.
func (r *round) part(name string, err error) {
	if err != nil && !errors.Is(err, errors.ErrUnsupported) && !r.d.inProcess {
		devs, lerr := r.c.host.devices()
		if lerr == nil && !slices.ContainsFunc(devs, func(d netlinkrdma.Device) bool { return d.Name == r.d.Name && d.Index == r.d.Index }) {
			r.gone = true
		}
	}
	if !r.gone {
		r.c.part(r.s, name, r.d.Name, err)
	}
}

// read reads everything about a device.
func (c *Collector) read(d device) *samples {
	r := &round{c: c, d: d, s: new(samples)}
	r.s.add(deviceInfo, "1", d.Name, d.driver, string(d.Protocol), d.NodeGUID.String(), d.Firmware, strconv.FormatBool(d.inProcess))
	if c.options.Events != nil {
		r.part("events", c.options.Events(d.Name))
		c.mu.Lock()
		c.event(d.Name, 0, "DEVICE_FATAL", 0)
		for port := range d.Ports {
			c.event(d.Name, port+1, "PORT_ACTIVE", 0)
			c.event(d.Name, port+1, "PORT_ERR", 0)
		}
		c.mu.Unlock()
	}
	steps := []func(){r.ports, r.links, r.counters, r.standard, r.counts, r.processes}
	if d.inProcess { // the kernel does not have it
		steps = []func(){r.links}
	}
	for _, step := range steps {
		if !r.gone {
			step()
		}
	}
	if r.gone {
		return new(samples)
	}
	return r.s
}

// port returns the labels of a port.
func (r *round) port(port uint32) []string {
	return []string{r.d.Name, strconv.FormatUint(uint64(port), 10)}
}

// ports reads the states of the ports.
func (r *round) ports() {
	ports, err := r.c.host.ports(r.d.Device)
	for _, p := range ports { // those that can be read
		labels := r.port(p.Num)
		r.s.add(portInfo, "1", append(labels, p.Netdev, p.LinkLayer.String())...)
		r.s.add(portState, integer(uint64(p.State)), labels...)
		r.s.add(portPhysicalState, integer(uint64(p.PhysState)), labels...)
	}
	r.part("ports", err)
}

// links reads what a device says about its links when it is opened. The rate is in sysfs, too.
func (r *round) links() {
	dev, err := r.c.host.open(r.d.Name)
	if err != nil {
		for port := uint32(1); port <= r.d.Ports; port++ {
			if gbps, lanes, ok := linkrate.Read(r.c.host.sysfs, r.d.Name, port); ok {
				r.s.add(portRate, number(gbps*gbit), r.port(port)...)
				r.s.add(portLanes, integer(lanes), r.port(port)...)
			}
		}
		r.part("links", err)
		return
	}
	defer dev.Close()
	var failed []error
	for port := uint32(1); port <= min(r.d.Ports, math.MaxUint8); port++ { // verbs know no others
		a, err := dev.Port(uint8(port))
		if err != nil {
			failed = append(failed, err)
			continue
		}
		labels := r.port(port)
		if rate := float64(a.ActiveWidth.Lanes()) * a.ActiveSpeed.Gbps() * gbit; rate > 0 {
			r.s.add(portRate, number(rate), labels...)
			r.s.add(portLanes, integer(uint64(a.ActiveWidth.Lanes())), labels...)
		}
		if mtu := a.ActiveMTU.Bytes(); mtu > 0 {
			r.s.add(portMTU, integer(uint64(mtu)), labels...)
		}
		if r.d.inProcess {
			table, err := dev.GIDTable(uint8(port))
			failed = append(failed, err)
			r.s.add(portInfo, "1", append(labels, netdevOf(table), a.LinkLayer.String())...)
			r.s.add(portState, integer(uint64(a.State)), labels...)
			r.s.add(portPhysicalState, integer(uint64(a.PhysState)), labels...)
			counters, err := dev.PortCounters(uint8(port))
			r.values(port, counters)
			if !errors.Is(err, errors.ErrUnsupported) {
				failed = append(failed, err)
			}
		}
	}
	r.part("links", errors.Join(failed...))
}

// netdevOf returns the first network interface of a GID table, or "".
func netdevOf(table []uverbs.GIDEntry) string {
	for _, e := range table {
		if e.Netdev > 0 {
			if i, err := net.InterfaceByIndex(e.Netdev); err == nil {
				return i.Name
			}
		}
	}
	return ""
}

// gbit is 1 Gbit/s in bytes per second.
const gbit = 1e9 / 8

// counters reads the counters of the driver.
func (r *round) counters() { r.each("counters", r.c.host.counters, nil) }

// standard reads the counters that InfiniBand defines.
func (r *round) standard() {
	r.each("standard_counters", r.c.host.standard, func(port uint32, c netlinkrdma.Counter) {
		const word = 4 // bytes
		switch c.Name {
		case "port_rcv_data":
			r.s.add(portReceived, number(float64(c.Value)*word), r.port(port)...)
		case "port_xmit_data":
			r.s.add(portTransmitted, number(float64(c.Value)*word), r.port(port)...)
		}
	})
}

// each reads counters of each port, and calls a function for each counter.
func (r *round) each(part string, read func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error), do func(uint32, netlinkrdma.Counter)) {
	var failed []error
	missing := uint32(0)
	for port := uint32(1); port <= r.d.Ports; port++ {
		counters, err := read(r.d.Device, port)
		r.values(port, counters)
		for _, c := range counters {
			if do != nil {
				do(port, c)
			}
		}
		if errors.Is(err, errors.ErrUnsupported) {
			missing++
			continue
		}
		failed = append(failed, err)
	}
	if missing == r.d.Ports {
		return
	}
	r.part(part, errors.Join(failed...))
}

// values adds counters.
func (r *round) values(port uint32, counters []netlinkrdma.Counter) {
	for _, c := range counters {
		r.s.add(portCounters, integer(c.Value), append(r.port(port), c.Name)...)
	}
}

// counts reads how many objects there are.
func (r *round) counts() {
	n, err := r.c.host.counts(r.d.Device)
	if err == nil {
		for _, o := range []struct {
			name string
			n    uint64
		}{{"qp", n.QPs}, {"cq", n.CQs}, {"mr", n.MRs}, {"pd", n.PDs}, {"srq", n.SRQs}, {"cm_id", n.CMIDs}, {"context", n.Contexts}} {
			r.s.add(deviceObjects, integer(o.n), r.d.Name, o.name)
		}
	}
	r.part("objects", err)
}

// processes reads which objects belong to whom.
func (r *round) processes() {
	if r.c.options.NoProcesses {
		return
	}
	o := newOwners(r.c.host.proc)
	err := r.c.host.objects(r.d.Device, o)
	o.add(r.s, r.d.Name)
	r.part("processes", err)
}
