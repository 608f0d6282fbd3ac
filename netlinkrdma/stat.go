package netlinkrdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
	"github.com/goverbs/goverbs/uverbs/ib"
)

// Counter is a hardware counter and its value. It is a plain value.
type Counter struct {
	Name  string // Name is the driver's name for it, for example "sent_pkts".
	Value uint64 // Value grows until the device is removed.
}

// PortCounters returns the hardware counters of a port, as "rdma statistic show link DEV/PORT"
// does. They include QPs that have a counter of their own. The error is a [FeatureError] if the
// driver has no counters.
func PortCounters(dev Device, port uint32) ([]Counter, error) { return system.portCounters(dev, port) }

func (c *client) portCounters(dev Device, port uint32) ([]Counter, error) {
	if dev.FromSysfs {
		return c.sysfsCounters(dev, port, feature{name: "hardware counters"}, "hw_counters")
	}
	return c.netlinkCounters(dev, port)
}

func (c *client) netlinkCounters(dev Device, port uint32) ([]Counter, error) {
	var counters []Counter
	cmd := command{op: "read counters of", dev: dev, port: &port, need: feature{name: "hardware counters", einval: true}}
	err := c.run(cmd, func(s *session, index uint32) error {
		b, err := s.get(abi.RDMA_NLDEV_CMD_STAT_GET, portAttrs(index, port)...)
		if err != nil {
			return err
		}
		m := parse(b)
		counters = decodeCounters(m)
		return m.err
	})
	if err != nil {
		return nil, err
	}
	return counters, nil
}

// StandardCounters returns the counters of a port that InfiniBand defines for every port, such as
// port_rcv_data, which counts words of 4 bytes. They are in sysfs and not in netlink. Counters that
// the driver does not have are left out; if it does not have any, the error is a [FeatureError]. If
// some cannot be read for another reason, the others are returned together with the first error.
func StandardCounters(dev Device, port uint32) ([]Counter, error) {
	return system.sysfsCounters(dev, port, feature{name: "standard counters"}, "counters")
}

// portAttrs names a port of a device.
func portAttrs(index, port uint32) []*rtAttr {
	return []*rtAttr{u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index), u32Attr(abi.RDMA_NLDEV_ATTR_PORT_INDEX, port)}
}

// decodeCounters decodes the table of counters that a message must have.
func decodeCounters(m *message) []Counter {
	m.need(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS)
	var all []Counter
	for e := range m.entries(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS, abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY) {
		e.need(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME, abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE)
		all = append(all, Counter{
			Name:  e.text(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME),
			Value: e.u64(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE),
		})
	}
	return all
}

// CounterMode says how QPs get counters of their own (enum rdma_nl_counter_mode).
type CounterMode uint8

// The modes.
const (
	CounterModeNone   CounterMode = abi.RDMA_COUNTER_MODE_NONE   // no QP has a counter
	CounterModeAuto   CounterMode = abi.RDMA_COUNTER_MODE_AUTO   // each new QP gets the counter of its group
	CounterModeManual CounterMode = abi.RDMA_COUNTER_MODE_MANUAL // programs bind counters to QPs
)

// String returns the name of the mode.
func (m CounterMode) String() string {
	names := [...]string{"none", "auto", "manual"}
	return nameOf("CounterMode", names[:], int(m))
}

// CounterGroups says which QPs share a counter in mode auto: those for which all of these
// properties are equal (enum rdma_nl_counter_mask).
type CounterGroups uint32

// The properties, which can be combined.
const (
	GroupByQPType CounterGroups = abi.RDMA_COUNTER_MASK_QP_TYPE // type of the QP
	GroupByPID    CounterGroups = abi.RDMA_COUNTER_MASK_PID     // process; Linux compares the threads that created the QPs
)

// CounterSetting says how the QPs of a port get counters of their own. It is a plain value.
type CounterSetting struct {
	Mode     CounterMode   // Mode is the current mode.
	Groups   CounterGroups // Groups is used in mode auto.
	Optional bool          // Optional means that counters include the optional counters of the port; used in mode auto (Linux 6.15).
}

// QPCounterSetting returns how the QPs of a port get counters of their own, as "rdma statistic qp
// mode link DEV/PORT" does.
func QPCounterSetting(dev Device, port uint32) (CounterSetting, error) {
	return system.qpCounterSetting(dev, port)
}

// The feature that a driver must have for QP counters.
var qpCounters = feature{name: "counters of QPs"}

func (c *client) qpCounterSetting(dev Device, port uint32) (CounterSetting, error) {
	var set CounterSetting
	cmd := command{op: "ask for the counter mode of", dev: dev, port: &port, need: qpCounters}
	err := c.run(cmd, func(s *session, index uint32) error {
		// Any value of the mode attribute asks for the mode.
		b, err := s.get(abi.RDMA_NLDEV_CMD_STAT_GET, append(portAttrs(index, port),
			u32Attr(abi.RDMA_NLDEV_ATTR_STAT_RES, abi.RDMA_NLDEV_ATTR_RES_QP),
			u32Attr(abi.RDMA_NLDEV_ATTR_STAT_MODE, abi.RDMA_COUNTER_MODE_MANUAL))...)
		if err != nil {
			return err
		}
		set, err = decodeCounterSetting(b)
		return err
	})
	return set, err
}

// decodeCounterSetting decodes the answer about a mode (stat_get_doit_qp in the
// kernel's nldev.c).
func decodeCounterSetting(b []byte) (CounterSetting, error) {
	m := parse(b)
	m.need(abi.RDMA_NLDEV_ATTR_STAT_MODE)
	set := CounterSetting{
		Mode:     counterMode(m),
		Groups:   CounterGroups(m.u32(abi.RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK)),
		Optional: m.flag(abi.RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED),
	}
	if m.err != nil {
		return CounterSetting{}, m.err
	}
	return set, nil
}

// counterMode decodes a mode.
func counterMode(m *message) CounterMode {
	mode := m.u32(abi.RDMA_NLDEV_ATTR_STAT_MODE)
	if mode > 0xff {
		m.fail(abi.RDMA_NLDEV_ATTR_STAT_MODE, "%d is not a mode", mode)
	}
	return CounterMode(mode)
}

// SetAutoQPCounters makes the kernel count each new QP of a port with the counter of its group, as
// "rdma statistic qp set link DEV/PORT auto type,pid on" does. Groups 0 turns this off; QPs that
// have a counter keep it. It needs CAP_NET_ADMIN. The error matches EBUSY while counters are bound
// to single QPs, as by [NewQPCounter].
//
// Success does not mean that the driver supports it: rxe accepts the setting and never creates a
// counter.
func SetAutoQPCounters(dev Device, port uint32, groups CounterGroups) error {
	return system.setAutoQPCounters(dev, port, groups, false)
}

// SetAutoQPCountersOptional is [SetAutoQPCounters] for counters that include the optional counters
// of the port. Linux 6.15; older kernels reject it.
func SetAutoQPCountersOptional(dev Device, port uint32, groups CounterGroups) error {
	return system.setAutoQPCounters(dev, port, groups, true)
}

func (c *client) setAutoQPCounters(dev Device, port uint32, groups CounterGroups, optional bool) error {
	cmd := command{op: "set the counter mode of", dev: dev, port: &port, need: qpCounters}
	if optional {
		cmd.need = feature{name: "optional counters of QPs", since: Version{6, 15}}
	}
	return c.run(cmd, func(s *session, index uint32) error {
		attrs := append(portAttrs(index, port),
			u32Attr(abi.RDMA_NLDEV_ATTR_STAT_RES, abi.RDMA_NLDEV_ATTR_RES_QP),
			u32Attr(abi.RDMA_NLDEV_ATTR_STAT_MODE, abi.RDMA_COUNTER_MODE_AUTO),
			u32Attr(abi.RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK, uint32(groups)))
		if optional {
			attrs = append(attrs, u8Attr(abi.RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED, 1))
		}
		return s.set(abi.RDMA_NLDEV_CMD_STAT_SET, attrs...)
	})
}

// QPCounter is a counter for some of the QPs of a port. It is a plain value.
type QPCounter struct {
	ID       uint32      // ID is the kernel's number (cntn).
	Port     uint32      // Port is the port of its QPs.
	Mode     CounterMode // Mode says how it was created.
	ByQPType bool        // ByQPType means that it counts one type of QPs; in mode auto.
	QPType   ib.QPType   // QPType is the type of QPs, if ByQPType is set.
	Owner                // Owner is the process whose QPs it counts, if PID is a criterion; in mode auto.
	QPs      []uint32    // QPs are the numbers of the QPs that it counts.
	Counters []Counter   // Counters are the values.
}

var qpCounterList = resource[QPCounter]{kind{"QP counters", abi.RDMA_NLDEV_CMD_STAT_GET, abi.RDMA_NLDEV_ATTR_STAT_COUNTER,
	abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY, abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID, qpCounters}, decodeQPCounter}

// QPCounters returns the counters for single QPs of a device, on all ports, as "rdma statistic qp
// show" does. The list is empty if there are none or the driver does not support them.
func QPCounters(dev Device) ([]QPCounter, error) {
	return list(system, dev, qpCounterList, u32Attr(abi.RDMA_NLDEV_ATTR_STAT_RES, abi.RDMA_NLDEV_ATTR_RES_QP))
}

// decodeQPCounter decodes one counter (fill_res_counter_entry in the kernel's
// nldev.c).
func decodeQPCounter(m *message) QPCounter {
	m.need(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID)
	qc := QPCounter{
		ID:       m.u32(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID),
		Port:     m.u32(abi.RDMA_NLDEV_ATTR_PORT_INDEX),
		Mode:     counterMode(m),
		ByQPType: m.has(abi.RDMA_NLDEV_ATTR_RES_TYPE),
		QPType:   ib.QPType(m.u8(abi.RDMA_NLDEV_ATTR_RES_TYPE)),
		Owner:    decodeOwner(m),
		Counters: decodeCounters(m),
	}
	for e := range m.entries(abi.RDMA_NLDEV_ATTR_RES_QP, abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY) {
		e.need(abi.RDMA_NLDEV_ATTR_RES_LQPN)
		qc.QPs = append(qc.QPs, e.u32(abi.RDMA_NLDEV_ATTR_RES_LQPN))
	}
	return qc
}

// MRCounters has the driver's counters of a memory region. It is a plain value.
type MRCounters struct {
	ID       uint32    // ID is the ID of the [MR].
	Counters []Counter // Counters has page faults on mlx5, and is empty with most drivers.
}

var mrCounterList = resource[MRCounters]{kind{"MR counters", abi.RDMA_NLDEV_CMD_STAT_GET, abi.RDMA_NLDEV_ATTR_RES_MR,
	abi.RDMA_NLDEV_ATTR_RES_MR_ENTRY, abi.RDMA_NLDEV_ATTR_RES_MRN, feature{}}, decodeMRCounters}

// CountersOfMRs returns the driver's counters of each memory region of a device, as "rdma statistic
// mr" does.
func CountersOfMRs(dev Device) ([]MRCounters, error) {
	return list(system, dev, mrCounterList, u32Attr(abi.RDMA_NLDEV_ATTR_STAT_RES, abi.RDMA_NLDEV_ATTR_RES_MR))
}

func decodeMRCounters(m *message) MRCounters {
	m.need(abi.RDMA_NLDEV_ATTR_RES_MRN)
	mc := MRCounters{ID: m.u32(abi.RDMA_NLDEV_ATTR_RES_MRN)}
	if m.has(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS) {
		mc.Counters = decodeCounters(m)
	}
	return mc
}

// NewQPCounter creates a counter for a QP and returns its number, as "rdma statistic qp bind link
// DEV/PORT lqpn N" does. It needs CAP_NET_ADMIN. The error is a [FeatureError] if the driver has no
// such counters. It matches [fs.ErrNotExist] if the QP does not exist, and EINVAL in mode auto or
// if the QP uses another port.
func NewQPCounter(dev Device, port, qpn uint32) (id uint32, err error) {
	return system.bindQPCounter(dev, port, qpn, nil)
}

// BindQPCounter makes an existing counter count another QP, as "rdma statistic qp bind link
// DEV/PORT lqpn N cntn ID" does. It needs CAP_NET_ADMIN. It returns the errors of [NewQPCounter].
func BindQPCounter(dev Device, port, qpn, id uint32) error {
	_, err := system.bindQPCounter(dev, port, qpn, &id)
	return err
}

func (c *client) bindQPCounter(dev Device, port, qpn uint32, id *uint32) (uint32, error) {
	var got uint32
	op := fmt.Sprintf("give a counter to QP %d of", qpn)
	err := c.run(command{op: op, dev: dev, port: &port, need: qpCounters}, func(s *session, index uint32) error {
		attrs := append(qpCounterAttrs(index, port, qpn), u32Attr(abi.RDMA_NLDEV_ATTR_STAT_MODE, abi.RDMA_COUNTER_MODE_MANUAL))
		if id != nil {
			attrs = append(attrs, u32Attr(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID, *id))
		}
		b, err := s.get(abi.RDMA_NLDEV_CMD_STAT_SET, attrs...)
		if err != nil {
			return noCounter(err)
		}
		m := parse(b)
		m.need(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID)
		got = m.u32(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID)
		return m.err
	})
	return got, err
}

// noCounter explains errors of binding a counter (rdma_counter_bind_qpn_alloc in the kernel's
// counters.c). The kernel returns ENOMEM if the driver has no functions for counters.
func noCounter(err error) error {
	switch {
	case errors.Is(err, syscall.ENOMEM):
		return fmt.Errorf("the kernel cannot create a counter: %w: %w", syscall.EOPNOTSUPP, err)
	case errors.Is(err, syscall.EINVAL):
		return fmt.Errorf("the port is in mode auto, or the QP uses another port: %w", err)
	}
	return err
}

// UnbindQPCounter makes a counter stop counting a QP, as "rdma statistic qp unbind link DEV/PORT
// cntn ID lqpn N" does. A counter without QPs is deleted. It needs CAP_NET_ADMIN.
func UnbindQPCounter(dev Device, port, qpn, id uint32) error {
	return system.unbindQPCounter(dev, port, qpn, id)
}

func (c *client) unbindQPCounter(dev Device, port, qpn, id uint32) error {
	op := fmt.Sprintf("take counter %d from QP %d of", id, qpn)
	return c.run(command{op: op, dev: dev, port: &port, need: qpCounters}, func(s *session, index uint32) error {
		return s.set(abi.RDMA_NLDEV_CMD_STAT_DEL, append(qpCounterAttrs(index, port, qpn),
			u32Attr(abi.RDMA_NLDEV_ATTR_STAT_COUNTER_ID, id))...)
	})
}

// qpCounterAttrs names a QP whose counter is meant.
func qpCounterAttrs(index, port, qpn uint32) []*rtAttr {
	return append(portAttrs(index, port),
		u32Attr(abi.RDMA_NLDEV_ATTR_STAT_RES, abi.RDMA_NLDEV_ATTR_RES_QP),
		u32Attr(abi.RDMA_NLDEV_ATTR_RES_LQPN, qpn))
}

// CounterStatus is a counter of a port and whether it counts. It is a plain value.
type CounterStatus struct {
	Name     string // Name is the driver's name for it.
	Optional bool   // Optional means that the counter can be enabled and disabled.
	Enabled  bool   // Enabled means that the counter counts; always true if it is not optional.

	index uint32 // the driver's number for it
}

// PortCounterStatus returns the counters of a port, including disabled ones, as "rdma statistic
// mode supported link DEV/PORT" does. The error is a [FeatureError] if the driver has no counters.
// Linux 5.16.
func PortCounterStatus(dev Device, port uint32) ([]CounterStatus, error) {
	return system.portCounterStatus(dev, port)
}

func (c *client) portCounterStatus(dev Device, port uint32) ([]CounterStatus, error) {
	// The answer is the same whether the kernel or the driver does not support it. A driver
	// without counters also fails PortCounters, which every kernel supports.
	if _, err := c.netlinkCounters(dev, port); err != nil {
		return nil, err
	}
	var all []CounterStatus
	cmd := command{op: "ask for the counters of", dev: dev, port: &port, need: feature{name: "status of counters", since: Version{5, 16}}}
	err := c.run(cmd, func(s *session, index uint32) error {
		b, err := s.get(abi.RDMA_NLDEV_CMD_STAT_GET_STATUS, portAttrs(index, port)...)
		if err != nil {
			return err
		}
		all, err = decodeCounterStatus(b)
		return err
	})
	return all, err
}

// decodeCounterStatus decodes a reply to RDMA_NLDEV_CMD_STAT_GET_STATUS
// (nldev_stat_get_counter_status_doit in the kernel's nldev.c).
func decodeCounterStatus(b []byte) ([]CounterStatus, error) {
	m := parse(b)
	m.need(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS)
	var all []CounterStatus
	for e := range m.entries(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS, abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY) {
		e.need(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME, abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX)
		optional := e.has(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC)
		all = append(all, CounterStatus{
			Name:     e.text(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME),
			Optional: optional,
			Enabled:  !optional || e.flag(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC),
			index:    e.u32(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX),
		})
	}
	if m.err != nil {
		return nil, m.err
	}
	return all, nil
}

// SetOptionalCounters enables the named optional counters of a port and disables all others, as
// "rdma statistic set link DEV/PORT optional-counters NAMES" does. Without names it disables all.
// It needs CAP_NET_ADMIN. If a name is not the name of an optional counter, the call fails and
// changes nothing. Linux 5.16.
func SetOptionalCounters(dev Device, port uint32, names ...string) error {
	return system.setOptionalCounters(dev, port, names)
}

// errNoCounter is the cause if there is no optional counter with the given name.
var errNoCounter = errors.New("no such optional counter")

func (c *client) setOptionalCounters(dev Device, port uint32, names []string) error {
	status, err := c.portCounterStatus(dev, port)
	if err != nil {
		return err
	}
	const op = "enable optional counters of"
	table := nestedAttr(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS)
	for _, name := range names {
		i := slices.IndexFunc(status, func(s CounterStatus) bool { return s.Optional && s.Name == name })
		if i < 0 {
			return &Error{Op: op, Device: dev.Name, Err: fmt.Errorf("%q: %w", name, errNoCounter), Hint: optionalNames(status)}
		}
		table.AddRtAttr(abi.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX, binary.NativeEndian.AppendUint32(nil, status[i].index))
	}
	cmd := command{op: op, dev: dev, port: &port, need: feature{name: "optional counters"}}
	return c.run(cmd, func(s *session, index uint32) error {
		return s.set(abi.RDMA_NLDEV_CMD_STAT_SET, append(portAttrs(index, port), table)...)
	})
}

// optionalNames returns a hint that lists the optional counters.
func optionalNames(status []CounterStatus) string {
	var names []string
	for _, s := range status {
		if s.Optional {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return "this driver has no optional counters"
	}
	return fmt.Sprintf("there are %q", names)
}
