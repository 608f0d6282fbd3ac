package top

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/tools/internal/linkrate"
	"github.com/goverbs/goverbs/tools/internal/proc"
	"github.com/goverbs/goverbs/uverbs"
)

// Wants says what to read beside the ports, which are always read: their errors may be anywhere.
type Wants struct {
	Objects bool // Objects includes the objects and their owners.
	Now     bool // Now reads them even if the last time is not long ago.
	QP      *QP  // QP is a QP to follow.
}

// Reader reads what the kernel has, and the software devices of this process.
type Reader struct {
	only  string // the device; empty for all
	host  host
	soft  []softDevice
	begun time.Time

	listed time.Time     // when the objects were read
	took   time.Duration // how long that took

	devs []netlinkrdma.Device // of the last list
	last []Port
}

// host is what a Reader reads. Tests put other functions in place.
type host struct {
	now      func() time.Time
	devices  func() ([]netlinkrdma.Device, error)
	ports    func(netlinkrdma.Device) ([]netlinkrdma.Port, error)
	counters func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error)
	standard func(netlinkrdma.Device, uint32) ([]netlinkrdma.Counter, error)
	qps      func(netlinkrdma.Device) ([]netlinkrdma.QP, error)
	mrs      func(netlinkrdma.Device) ([]netlinkrdma.MR, error)
	qp       func(dev netlinkrdma.Device, port, qpn uint32) (netlinkrdma.QP, error)
	bound    func(netlinkrdma.Device) ([]netlinkrdma.QPCounter, error)
	sysfs    fs.FS
	proc     proc.FS
}

// softDevice is a software device inside this process.
type softDevice interface {
	Info() uverbs.DeviceInfo
	Port(port uint8) (uverbs.PortAttr, error)
	PortCounters(port uint8) ([]netlinkrdma.Counter, error)
}

// NewReader returns a reader of a device, or of all if the name is empty. It opens those devices that are in software.
func NewReader(devices []uverbs.DeviceInfo, only string) (*Reader, error) {
	r := &Reader{only: only, host: host{
		now: time.Now, devices: netlinkrdma.Devices, ports: netlinkrdma.Ports, counters: netlinkrdma.PortCounters, standard: netlinkrdma.StandardCounters,
		qps: func(dev netlinkrdma.Device) ([]netlinkrdma.QP, error) {
			return netlinkrdma.QPs(dev, netlinkrdma.ListOptions{Driver: true})
		},
		mrs: netlinkrdma.MRs, qp: netlinkrdma.QPByNum, bound: netlinkrdma.QPCounters, sysfs: os.DirFS("/sys"), proc: proc.System,
	}}
	for _, i := range devices {
		if !i.InProcess || only != "" && i.Name != only {
			continue
		}
		if i.Err != nil {
			return nil, i.Err
		}
		dev, err := uverbs.Open(i.Name, uverbs.OpenOptions{})
		if err != nil {
			return nil, err
		}
		r.soft = append(r.soft, dev) // until the process ends
	}
	return r, nil
}

// Read makes a reading.
func (r *Reader) Read(w Wants) (*Reading, error) {
	now, first := r.host.now(), r.begun.IsZero()
	if first {
		r.begun = now
	}
	v := &Reading{Time: now.Round(0), Elapsed: now.Sub(r.begun).Microseconds(), Ports: []Port{}}
	fail := func(what string, err error) {
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			v.Missing = append(v.Missing, what+": "+err.Error())
		}
	}
	devs, err := r.host.devices()
	if err != nil && first && len(r.soft) == 0 {
		return nil, err
	}
	if err != nil && !first {
		devs = r.devs
	}
	if len(r.soft) == 0 || len(devs) > 0 {
		fail("devices", err)
	}
	all := devs[:0]
	for i := range devs {
		if r.only == "" || devs[i].Name == r.only {
			all = append(all, devs[i])
		}
	}
	r.devs = all
	for i := range all {
		if err := r.ports(v, &all[i], fail); !errors.Is(err, fs.ErrNotExist) { // it went meanwhile
			fail(all[i].Name, err)
		}
	}
	for _, d := range r.soft {
		info := d.Info()
		for n := 1; n <= info.Ports; n++ {
			p := Port{Device: info.Name, Port: uint32(n), InProcess: true}
			own, err := d.PortCounters(uint8(n))
			fail(p.Device, err)
			p.Counters = counters(own)
			if a, err := d.Port(uint8(n)); err == nil {
				p.State, p.Rate = a.State.String(), float64(a.ActiveWidth.Lanes())*a.ActiveSpeed.Gbps()
			}
			v.Ports = append(v.Ports, p)
		}
	}
	r.last = v.Ports
	// Some drivers ask the firmware for each QP. However many there are, that takes at most 1/share of the time.
	const share = 200
	if w.Objects && (w.Now || now.Sub(r.listed) >= share*r.took) {
		begun := r.host.now()
		v.Objects = r.objects(all, fail)
		r.listed, r.took = now, r.host.now().Sub(begun)
	}
	for i := range all {
		if w.QP != nil && all[i].Name == w.QP.Device {
			v.QP, err = r.follow(all[i], w.QP)
			fail("QP of "+w.QP.Device, err)
		}
	}
	return v, nil
}

// ports adds the ports of a device of the kernel. If they cannot be listed, they are as in the last reading.
func (r *Reader) ports(v *Reading, d *netlinkrdma.Device, fail func(string, error)) error {
	ports, err := r.host.ports(*d)
	for i := 0; i < len(r.last) && err != nil && !errors.Is(err, fs.ErrNotExist); i++ {
		if p := r.last[i]; p.Device == d.Name && p.Index == d.Index {
			p.Stale, ports = true, nil
			v.Ports = append(v.Ports, p)
		}
	}
	for i := range ports {
		p := &ports[i]
		own, err := r.host.counters(*d, p.Num)
		fail(d.Name, err)
		standard, err := r.host.standard(*d, p.Num)
		fail(d.Name, err)
		rate, _, _ := linkrate.Read(r.host.sysfs, d.Name, p.Num)
		v.Ports = append(v.Ports, Port{d.Name, d.Index, p.Num, false, false, p.State.String(), rate, p.Netdev, counters(standard, own)})
	}
	return err
}

// objects lists the objects of devices.
func (r *Reader) objects(devs []netlinkrdma.Device, fail func(string, error)) *Objects {
	o := &Objects{Owners: []Owner{}, QPs: []QP{}}
	processes := proc.NewCache(r.host.proc)
	index := map[string]int{}
	of := func(by *netlinkrdma.Owner) *Owner {
		one := Owner{Kernel: by.Kernel}
		if p, ok := processes.Of(by.PID); ok && by.PID != 0 {
			one.PID, one.Process, one.Container = p.PID, p.Name, p.Container
		}
		key := one.key()
		i, known := index[key]
		if !known {
			i = len(o.Owners)
			index[key] = i
			o.Owners = append(o.Owners, one)
		}
		return &o.Owners[i]
	}
	for i := range devs {
		d := &devs[i]
		qps, err := r.host.qps(*d)
		fail("QPs of "+d.Name, err)
		for i := range qps {
			by := of(&qps[i].Owner)
			by.QPs++
			one := qpOf(d, &qps[i])
			one.PID, one.Kernel = by.PID, by.Kernel
			o.QPs = append(o.QPs, one)
		}
		mrs, err := r.host.mrs(*d)
		fail("MRs of "+d.Name, err)
		for i := range mrs {
			by := of(&mrs[i].Owner)
			by.MRs++
			by.Registered += mrs[i].Length
		}
	}
	return o
}

// qpOf converts a QP, without its owner.
func qpOf(d *netlinkrdma.Device, q *netlinkrdma.QP) QP {
	return QP{Device: d.Name, Port: q.Port, Num: q.Num, Type: cmp.Or(q.Subtype, q.Type.String()), State: q.State.String(), Remote: q.RemoteNum, RQPSN: q.RQPSN, SQPSN: q.SQPSN}
}

// follow reads one QP and the counter that is bound to it.
func (r *Reader) follow(d netlinkrdma.Device, old *QP) (*QPDetail, error) {
	detail := &QPDetail{QP: *old}
	q, err := r.host.qp(d, old.Port, old.Num)
	if errors.Is(err, fs.ErrNotExist) { // also in state RESET, in which a QP has no port
		var all []netlinkrdma.QP
		all, err = r.host.qps(d)
		detail.Gone = err == nil
		for i := range all {
			if all[i].Num == old.Num {
				q, detail.Gone = all[i], false
			}
		}
	}
	if err != nil || detail.Gone {
		return detail, err
	}
	detail.QP = qpOf(&d, &q)
	detail.PID, detail.Kernel = old.PID, old.Kernel
	bound, err := r.host.bound(d)
	for i := range bound {
		for _, n := range bound[i].QPs {
			if n == q.Num {
				detail.Counters, detail.Others = counters(bound[i].Counters), len(bound[i].QPs)-1
			}
		}
	}
	if errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return detail, err
}
