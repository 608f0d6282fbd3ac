package uverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/goverbs/goverbs/netlinkrdma"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
	"github.com/goverbs/goverbs/uverbs/internal/kernel"
)

// OpenOptions are the options of [Open]. The zero value opens any device.
type OpenOptions struct {
	// DEVX opens the device for commands to the firmware of an mlx5 adapter (mlx5dv_open_device with
	// MLX5DV_CONTEXT_FLAGS_DEVX). Functions of package uverbs/mlx5 such as DEVXCommand and SetUDPSourcePort
	// need that. If the adapter or the driver does not support it, Open fails with a [DeviceError] that wraps a
	// [FeatureError]. For other ways to open a device there is the environment variable RDMADEVX=1.
	DEVX bool
}

// Open opens a device by name (ibv_open_device). A software device of this process comes before one
// of the kernel with the same name. The error is a [DeviceError], or an [ArgError] if the name is
// empty.
func Open(name string, o OpenOptions) (*Device, error) {
	if name == "" {
		return nil, argErr("Open", "name", `""`, "the name of a device; use OpenFirst for any device")
	}
	if info, ok := inProcessDevice(name); ok {
		return openNamed(info, o)
	}
	dev, char, err := netlinkrdma.UverbsByName(name)
	switch {
	case dev.Name != "": // the device exists, even if it cannot be used
	case errors.Is(err, fs.ErrNotExist):
		return nil, noSuchDevice(name)
	default:
		return nil, &DeviceError{Name: name, Err: listError(err)}
	}
	return openNamed(inspect(dev, char, err, devDir), o)
}

// openNamed opens a device by its name.
func openNamed(info DeviceInfo, o OpenOptions) (*Device, error) {
	if info.Err != nil {
		return nil, &DeviceError{Name: info.Name, Err: info.Err}
	}
	d, err := openWith(info, o)
	if err != nil {
		return nil, &DeviceError{Name: info.Name, Err: err}
	}
	return d, nil
}

// noSuchDevice returns the error for a name that no device has, with a list of the devices.
func noSuchDevice(name string) error {
	infos, err := Devices()
	if err != nil {
		return &DeviceError{Name: name, Err: err}
	}
	reason := fmt.Errorf("no device of this name: %w", fs.ErrNotExist)
	if len(infos) == 0 {
		reason = noDevice()
	} else if exclusive() {
		reason = fmt.Errorf("%w; it may be in another network namespace, as the netns mode is exclusive: verbs dev set %s netns NS there", reason, name)
	} else if _, err := kernelDevices(devDir); err != nil { // Devices has left it out
		reason = fmt.Errorf("%w; the kernel's devices cannot be listed: %w", reason, err)
	}
	return &DeviceError{Name: name, Devices: infos, Err: reason}
}

// open opens a device that inspect found usable.
func open(info DeviceInfo) (*Device, error) { return openWith(info, OpenOptions{}) }

// openWith is open with options.
func openWith(info DeviceInfo, o OpenOptions) (*Device, error) {
	path, err := pathFromEnv()
	if err != nil {
		return nil, err
	}
	devx, err := devxFromEnv()
	if err != nil {
		return nil, err
	}
	if o.DEVX {
		devx = devxRequired
	}
	dev, err := info.connect()
	if err != nil {
		return nil, err
	}
	d := newDevice(info, dev, path)
	if err := d.start(func() error { return d.getContext(devx) }); err != nil {
		return nil, err
	}
	return d, nil
}

// newDevice returns a device that start has to start.
func newDevice(info DeviceInfo, dev kernel.Device, path abiPath) *Device {
	d := &Device{info: info, driver: info.driver}
	d.object.dev, d.object.kind, d.object.destroy = d, "Device", "CLOSE_DEVICE"
	d.cmd = newCommands(dev, path, info.Name, d.driver)
	d.cmd.inproc = info.inproc
	d.poller, _ = dev.(kernel.Poller)
	return d
}

// start opens the context with a function and queries the device. If it fails, nothing stays open.
func (d *Device) start(context func() error) error {
	err := context()
	if err == nil {
		if err = d.queryDevice(); err != nil {
			err = errors.Join(err, d.closeDriver())
		}
	}
	if err != nil {
		if d.async != nil {
			d.async.Close()
		}
		d.cmd.Close()
		return err
	}
	d.addOpened()
	return nil
}

// createContext creates the kernel's context by ioctl.
func (d *Device) createContext(devx bool) (udata, syscall.Errno) {
	cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, abi.UVERBS_METHOD_GET_CONTEXT)
	defer cmd.done()
	var vectors [4]byte
	var support [8]byte
	cmd.out(abi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, vectors[:])
	cmd.out(abi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, support[:])
	u := d.driver.contextUdata(ioctlContext, devx)
	cmd.udata(u)
	errno := d.cmd.ioctl(cmd)
	d.vectors = int(le32(vectors[:]))
	return u, errno
}

// getContext creates the kernel's context.
func (d *Device) getContext(devx devxMode) error {
	if !d.driver.capabilities().devx {
		if devx == devxRequired {
			return noFeature(d, "DEVX")
		}
		devx = devxOff
	}
	u, errno := d.createContext(devx != devxOff)
	switch {
	case devx == devxRequired && absent(errno):
		return noDEVX(errNoIoctl)
	case devx == devxRequired && errno == syscall.EINVAL: // as mlx5_ib_devx_create says it
		if u, errno = d.createContext(false); errno == 0 {
			return noDEVX(errNoContext)
		}
	case devx == devxPossible && errno != 0 && !absent(errno):
		u, errno = d.createContext(false)
	}
	if errno == 0 {
		if err := d.openEvents(); err != nil {
			return err
		}
		return d.driver.openContext(d, u)
	}
	if errno == syscall.EPERM {
		return d.cmd.fail("GET_CONTEXT", errno, "a sandbox forbids ioctl(); in a container: --security-opt seccomp=FILE that allows it")
	}
	if !d.cmd.older(errno) {
		return d.cmd.fail("GET_CONTEXT", errno, "")
	}
	req := &abi.GetContext{}
	resp := &abi.GetContextResp{}
	u = d.driver.contextUdata(writeContext, false)
	if errno := d.cmd.legacy(abi.IB_USER_VERBS_CMD_GET_CONTEXT, bytesOf(req), bytesOf(resp), u); errno != 0 {
		return d.cmd.fail("GET_CONTEXT", errno, "")
	}
	d.vectors = int(resp.NumCompVectors)
	d.asyncFD = -1
	var err error
	if d.async, err = d.cmd.Events(resp.AsyncFD, "asynchronous events of "+d.Name()); err != nil {
		return err
	}
	return d.driver.openContext(d, u)
}

// openEvents opens the file of asynchronous events for a context that was created by ioctl. It does
// nothing if the kernel does not support the method.
func (d *Device) openEvents() error {
	cmd := newIoctl(abi.UVERBS_OBJECT_ASYNC_EVENT, abi.UVERBS_METHOD_ASYNC_EVENT_ALLOC)
	defer cmd.done()
	fd := cmd.newObj(abi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)
	errno := d.cmd.ioctl(cmd)
	if absent(errno) {
		return nil
	}
	if errno != 0 {
		return d.cmd.fail("ASYNC_EVENT_ALLOC", errno, "")
	}
	var err error
	d.asyncFD = int(fd.Data)
	d.async, err = d.cmd.Events(uint32(fd.Data), "asynchronous events of "+d.Name())
	return err
}

// eventFDAttr adds the attribute EVENT_FD of a command that creates an object, as an optional one, unless
// the file was not opened by ioctl. Without the attribute the kernel uses the first event file of the
// context, which is the same one.
func (d *Device) eventFDAttr(cmd *ioctlCommand, id uint16) {
	if d.async != nil && d.asyncFD >= 0 {
		cmd.fd(id, d.asyncFD).Flags = 0
	}
}

// devxMode says whether a device is opened for commands to the firmware.
type devxMode uint8

const (
	devxOff      devxMode = iota
	devxPossible          // if the adapter can
	devxRequired
)

// devxEnv is the environment variable that has devices opened for commands to the firmware where possible,
// also by package cm.
const devxEnv = "RDMADEVX"

func devxFromEnv() (devxMode, error) {
	switch v := os.Getenv(devxEnv); v {
	case "", "0":
		return devxOff, nil
	case "1":
		return devxPossible, nil
	default:
		return 0, argErr("Open", "environment variable "+devxEnv, fmt.Sprintf("%q", v), `"1", "0" or unset`)
	}
}

// noDEVX is the error of a device without commands of DEVX.
func noDEVX(cause error) error { return &FeatureError{Feature: "DEVX", Driver: "mlx5", Err: cause} }

// Reasons why a device has no commands of DEVX.
var (
	errNoContext = errors.New("the adapter does not have the capability log_max_uctx, or has no user context left")
	errNoIoctl   = errors.New("it needs the ioctl interface, which the kernel does not have or " + abiPathEnv + "=write rules out")
)
