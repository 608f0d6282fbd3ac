package uverbs

import (
	"bytes"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

func (mlx5Driver) dataDirect(cmd *ioctlCommand) bool {
	cmd.u32(mlx5.AttrDMABufFlags, mlx5.DMABufDataDirect)
	return true
}

// pathRoom is the room for a path in /sys, in bytes (PATH_MAX). The kernel ends the path with a zero.
const pathRoom = 4096

func (mlx5Driver) dataDirectPath(d *Device) (string, error) {
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
