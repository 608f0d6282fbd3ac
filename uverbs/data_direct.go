package uverbs

import (
	"errors"
	"os"
	"syscall"
)

// dataDirectSince is the first kernel with [MROptions].DataDirect.
var dataDirectSince = Version{6, 12}

// DataDirectPath returns the directory in /sys of the PCI function by which the adapter accesses the memory
// of [MROptions].DataDirect (mlx5dv_get_data_direct_sysfs_path). Its place in the tree of PCI devices tells
// which GPUs are close to it. The error is a [FeatureError] if the adapter has no such function, the driver
// does not support it, or the kernel is older than Linux 6.12.
func (d *Device) DataDirectPath() (string, error) {
	if err := d.acquire(); err != nil {
		return "", err
	}
	defer d.release()
	if d.mlx5 == nil {
		return "", noFeature(d, "GET_DATA_DIRECT_SYSFS_PATH")
	}
	return d.mlx5.dataDirectPath()
}

// checkDataDirect returns an error if options exclude DataDirect.
func (o *MROptions) checkDataDirect(op string, iova uint64) error {
	page := uint64(os.Getpagesize())
	switch {
	case !o.DataDirect:
	case o.DMAH != nil:
		return argErr(op, "DMAH", "set", "nil with DataDirect")
	case iova%page != 0 && o.IOVA.given:
		return argErr(op, "IOVA", iova, "multiples of a page's %d bytes, with DataDirect", page)
	case iova%page != 0:
		return argErr(op, "Offset", o.Offset, "multiples of a page's %d bytes, with DataDirect", page)
	}
	return nil
}

// addDataDirect adds the option DataDirect to REG_DMABUF_MR.
func (d *Device) addDataDirect(cmd *ioctlCommand) error {
	if d.mlx5 == nil {
		return noFeature(d, "REG_DMABUF_MR with DataDirect")
	}
	addDataDirectMlx5(cmd)
	return nil
}

// dataDirectError returns the error for a refused registration with DataDirect. EINVAL has several reasons,
// one of which the kernel tells when it is asked for the path.
func (d *Device) dataDirectError(errno syscall.Errno) error {
	const feature = "REG_DMABUF_MR with DataDirect"
	if errno == syscall.EINVAL {
		_, err := d.mlx5.dataDirectPath()
		if f, ok := errors.AsType[*FeatureError](err); ok {
			f.Feature = feature
			return f
		}
	}
	err := d.cmd.failSince("REG_DMABUF_MR", errno, dmabufHint(errno), dataDirectSince)
	if f, ok := errors.AsType[*FeatureError](err); ok {
		f.Feature = feature
	}
	return err
}
