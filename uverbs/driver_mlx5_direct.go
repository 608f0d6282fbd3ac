package uverbs

import (
	"bytes"
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs/internal/abi"
)

// addDataDirectMlx5 adds the option DataDirect to REG_DMABUF_MR.
func addDataDirectMlx5(cmd *ioctlCommand) { cmd.u32(mlx5.AttrDMABufFlags, mlx5.DMABufDataDirect) }

// pathRoom is the room for a path in /sys, in bytes (PATH_MAX). The kernel ends the path with a zero.
const pathRoom = 4096

func (m *mlx5Context) dataDirectPath() (string, error) {
	d := m.dev
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
