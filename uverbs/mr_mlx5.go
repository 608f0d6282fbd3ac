package uverbs

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// dataDirectSince is the first kernel with [MROptions].DataDirect.
var dataDirectSince = Version{6, 12}

// addDataDirect adds the option DataDirect to REG_DMABUF_MR.
func (d *Device) addDataDirect(cmd *ioctlCommand) error {
	if d.mlx5 == nil {
		return noFeature(d, "REG_DMABUF_MR with DataDirect")
	}
	cmd.u32(mlx5.AttrDMABufFlags, mlx5.DMABufDataDirect)
	return nil
}

// dataDirectError returns the error for a refused registration with DataDirect. EINVAL has several
// reasons. A query of the path finds one of them.
func (d *Device) dataDirectError(errno syscall.Errno) error {
	const feature = "REG_DMABUF_MR with DataDirect"
	if errno == syscall.EINVAL {
		_, err := d.dataDirectPath()
		if f, ok := errors.AsType[*FeatureError](err); ok {
			f.Feature = feature
			return f
		}
	}
	err := d.cmd.failSince("REG_DMABUF_MR", errno, d.dmabufHint(errno), dataDirectSince)
	if f, ok := errors.AsType[*FeatureError](err); ok {
		f.Feature = feature
	}
	return err
}

// pathRoom is the room for a path in /sys, in bytes (PATH_MAX). The kernel ends the path with a zero.
const pathRoom = 4096

// dataDirectPath returns the directory in /sys of the PCI function for [MROptions].DataDirect. The caller has acquired
// the device, which is one of mlx5.
func (d *Device) dataDirectPath() (string, error) {
	const verb = "GET_DATA_DIRECT_SYSFS_PATH"
	path := make([]byte, pathRoom)
	cmd := newIoctl(abi.UVERBS_OBJECT_DEVICE, mlx5.MethodDataDirectPath)
	defer cmd.done()
	cmd.out(mlx5.AttrDataDirectPath, path)
	errno := d.cmd.ioctl(cmd)
	err := d.cmd.failSince(verb, errno, "", dataDirectSince)
	switch {
	case errno == syscall.ENODEV:
		return "", &FeatureError{Feature: verb, Driver: "mlx5", Err: fmt.Errorf("the adapter has no data direct function (capability data_direct): %w", err)}
	case err != nil:
		return "", err
	}
	path, _, _ = bytes.Cut(path, []byte{0})
	return "/sys" + string(path), nil
}

// NullLKey returns the lkey of the null MR, which discards writes and reads as zeros
// (ibv_alloc_null_mr). A receive can use it to skip part of a message. The error is a
// [FeatureError] if the driver or the device does not support it.
func (d *Device) NullLKey() (uint32, error) {
	if err := d.usable(); err != nil {
		return 0, err
	}
	if d.mlx5 == nil || d.mlx5.NullKey == 0 {
		return 0, noFeature(d, "ALLOC_NULL_MR")
	}
	return d.mlx5.NullKey, nil
}
