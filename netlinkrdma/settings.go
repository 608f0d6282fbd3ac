package netlinkrdma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma/internal/abi"
)

// NetNSMode says which network namespaces see an RDMA device.
type NetNSMode uint8

// The modes, with the numbers that the kernel uses.
const (
	NetNSExclusive NetNSMode = 0 // only the namespace that it belongs to
	NetNSShared    NetNSMode = 1 // all of them
)

// String returns the name that iproute2 uses.
func (m NetNSMode) String() string {
	names := [...]string{"exclusive", "shared"}
	return nameOf("NetNSMode", names[:], int(m))
}

// Settings are the settings of the kernel's RDMA subsystem, for all devices. A setting that the
// kernel does not support is false. It is a plain value.
type Settings struct {
	NetNSMode      NetNSMode // NetNSMode is set by [SetNetNSMode].
	CopyOnFork     bool      // CopyOnFork is the result of the function [CopyOnFork]; Linux 5.12.
	Monitor        bool      // Monitor means that [OpenMonitor] works; Linux 6.12.
	PrivilegedQKey bool      // PrivilegedQKey is set by [SetPrivilegedQKey]; Linux 6.7.
}

// SystemSettings returns the settings of the kernel's RDMA subsystem, as "rdma
// system show" does.
func SystemSettings() (Settings, error) { return system.settings() }

func (c *client) settings() (Settings, error) {
	var set Settings
	s, err := c.open()
	if err == nil {
		defer s.close()
		set, err = s.settings()
	}
	if err != nil {
		return Settings{}, explain(&Error{Op: "ask for the system's settings", Err: err})
	}
	return set, nil
}

func (s *session) settings() (Settings, error) {
	b, err := s.get(abi.RDMA_NLDEV_CMD_SYS_GET)
	if err != nil {
		return Settings{}, err
	}
	return decodeSettings(b)
}

// decodeSettings decodes a reply to RDMA_NLDEV_CMD_SYS_GET (nldev_sys_get_doit in
// the kernel's nldev.c).
func decodeSettings(b []byte) (Settings, error) {
	m := parse(b)
	m.need(abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE)
	set := Settings{
		NetNSMode:      NetNSMode(m.u8(abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE)),
		CopyOnFork:     m.flag(abi.RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK),
		Monitor:        m.flag(abi.RDMA_NLDEV_SYS_ATTR_MONITOR_MODE),
		PrivilegedQKey: m.flag(abi.RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE),
	}
	if m.err != nil {
		return Settings{}, m.err
	}
	return set, nil
}

// SetNetNSMode sets which network namespaces see RDMA devices, as "rdma system set netns" does. It
// needs CAP_NET_ADMIN. The error matches EBUSY if there is a network namespace besides the initial
// one, so set the mode before any container starts.
func SetNetNSMode(mode NetNSMode) error { return system.setNetNSMode(mode) }

func (c *client) setNetNSMode(mode NetNSMode) error {
	e := &Error{Op: "set netns mode " + mode.String()}
	if mode > NetNSShared {
		e.Err = fmt.Errorf("%v: %w", mode, fs.ErrInvalid)
		e.Hint = "allowed are exclusive and shared"
		return e
	}
	err := c.setSystem(abi.RDMA_NLDEV_SYS_ATTR_NETNS_MODE, uint8(mode))
	if err == nil {
		return nil
	}
	e.Err = err
	switch {
	case errors.Is(err, syscall.EBUSY):
		e.Hint = "the mode cannot change while there are other network namespaces; set it at boot: options ib_core netns_mode=0 in /etc/modprobe.d (1 is shared)"
	case errors.Is(err, syscall.EPERM):
		e.Hint = "this needs CAP_NET_ADMIN"
	}
	return explain(e)
}

// SetPrivilegedQKey sets whether processes without CAP_NET_RAW may use controlled Q_Keys, whose
// highest bit is set, as "rdma system set privileged-qkey" does. It needs CAP_NET_ADMIN. Linux 6.7;
// on older kernels the error is a [FeatureError].
func SetPrivilegedQKey(on bool) error { return system.setPrivilegedQKey(on) }

func (c *client) setPrivilegedQKey(on bool) error {
	err := c.setSystem(abi.RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE, boolByte(on))
	if err == nil {
		return nil
	}
	e := &Error{Op: "set privileged Q_Key mode", Err: err}
	switch {
	case errors.Is(err, syscall.EINVAL):
		return feature{name: "privileged Q_Key mode", since: Version{6, 7}}.missing(Device{}, e)
	case errors.Is(err, syscall.EPERM):
		e.Hint = "this needs CAP_NET_ADMIN"
	}
	return explain(e)
}

func boolByte(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}

// setSystem changes one setting; the kernel accepts only one per request.
func (c *client) setSystem(attr int, v uint8) error {
	s, err := c.open()
	if err != nil {
		return err
	}
	defer s.close()
	return s.set(abi.RDMA_NLDEV_CMD_SYS_SET, u8Attr(attr, v))
}

// RenameDevice renames a device, as "rdma dev set DEV name NAME" does. It needs CAP_NET_ADMIN. dev
// keeps the old name, so call [DeviceByName] again. The error matches [fs.ErrExist] if the name is
// taken.
func RenameDevice(dev Device, name string) error { return system.renameDevice(dev, name) }

func (c *client) renameDevice(dev Device, name string) error {
	if err := checkNewName("rename", dev, name); err != nil {
		return err
	}
	return c.run(command{op: "rename", dev: dev}, func(s *session, index uint32) error {
		return s.set(abi.RDMA_NLDEV_CMD_SET, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index),
			stringAttr(abi.RDMA_NLDEV_ATTR_DEV_NAME, name))
	})
}

// checkNewName checks the new name of a device.
func checkNewName(op string, dev Device, name string) error {
	if validName(name) && !strings.Contains(name, "%") && len(name) <= maxDeviceName {
		return nil
	}
	return &Error{Op: op, Device: dev.Name, Err: fmt.Errorf("name %q: %w", name, errBadName),
		Hint: fmt.Sprintf("allowed are 1 to %d bytes without spaces, / and %%", maxDeviceName)}
}

// MoveDevice moves a device into another network namespace, given as an open file such as
// /run/netns/NAME or /proc/PID/ns/net, as "rdma dev set DEV netns NAME" does. It needs
// CAP_NET_ADMIN in both. Afterwards this namespace does not see the device. The error is a
// [FeatureError] if the driver cannot take the device away from its users, and in netns mode
// shared.
func MoveDevice(dev Device, netns *os.File) error { return system.moveDevice(dev, "", netns) }

// MoveDeviceAs is [MoveDevice] with a new name for the device, since its own may be taken in the other
// namespace. Since Linux 7.3 the kernel does both at once. An older one renames the device first, so
// that the error matches [fs.ErrExist] if the name is taken in this namespace; the device gets its old
// name back if it cannot be moved.
func MoveDeviceAs(dev Device, name string, netns *os.File) error {
	return system.moveDeviceAs(dev, name, netns)
}

func (c *client) moveDeviceAs(dev Device, name string, netns *os.File) error {
	if err := checkNewName("move", dev, name); err != nil {
		return err
	}
	if err := c.moveDevice(dev, name, netns); err != nil {
		return err
	}
	renamed := dev
	renamed.Name = name
	switch err := c.moveDevice(renamed, "", netns); {
	case errors.Is(err, noDevice{}): // it is not in this namespace any more
		return nil
	case err != nil:
		return errors.Join(err, c.renameDevice(renamed, dev.Name))
	}
	return nil
}

// MoveDeviceToPID is [MoveDevice] with the network namespace of a process. The
// error matches [fs.ErrNotExist] if there is no such process.
func MoveDeviceToPID(dev Device, pid int) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return &Error{Op: "move", Device: dev.Name, Err: err}
	}
	defer f.Close()
	return MoveDevice(dev, f)
}

// moveDevice moves a device, and renames it if name is not empty.
func (c *client) moveDevice(dev Device, name string, netns *os.File) error {
	raw, err := netns.SyscallConn()
	if err != nil {
		return &Error{Op: "move", Device: dev.Name, Err: err}
	}
	var moved error
	// The kernel looks the descriptor up while it takes the command.
	if err := raw.Control(func(fd uintptr) {
		cmd := command{op: "move", dev: dev, need: feature{name: "moving the device (or the netns mode is shared)"}}
		moved = c.run(cmd, func(s *session, index uint32) error {
			attrs := []*rtAttr{u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index), u32Attr(abi.RDMA_NLDEV_NET_NS_FD, uint32(fd))}
			if name != "" {
				attrs = append(attrs, stringAttr(abi.RDMA_NLDEV_ATTR_DEV_NAME, name))
			}
			return s.set(abi.RDMA_NLDEV_CMD_SET, attrs...)
		})
	}); err != nil {
		return &Error{Op: "move", Device: dev.Name, Err: err}
	}
	return moved
}

// SetAdaptiveModeration sets whether the kernel adapts the interrupt moderation of new completion
// queues to the load, as "rdma dev set DEV adaptive-moderation on" does. It needs CAP_NET_ADMIN.
// The error is a [FeatureError] if the driver does not support it.
func SetAdaptiveModeration(dev Device, on bool) error { return system.setAdaptiveModeration(dev, on) }

func (c *client) setAdaptiveModeration(dev Device, on bool) error {
	cmd := command{op: "set adaptive moderation of", dev: dev, need: feature{name: "adaptive moderation"}}
	return c.run(cmd, func(s *session, index uint32) error {
		return s.set(abi.RDMA_NLDEV_CMD_SET, u32Attr(abi.RDMA_NLDEV_ATTR_DEV_INDEX, index),
			u8Attr(abi.RDMA_NLDEV_ATTR_DEV_DIM, boolByte(on)))
	})
}
