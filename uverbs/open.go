package uverbs

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/goverbs/goverbs/netlinkrdma"
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
