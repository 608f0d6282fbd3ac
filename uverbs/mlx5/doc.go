// Package mlx5 has what only ConnectX adapters have, beside the verbs of package uverbs (mlx5dv of
// rdma-core). Its functions take the devices and queue pairs of that package, and are safe for
// concurrent use. On a device of another driver they fail with a [uverbs.FeatureError], or with a
// [uverbs.ArgError] if an argument or the type of the QP is wrong, too.
//
//   - The dynamically connected transport (DC) is reliable like RC, but one initiator sends to any
//     number of targets. [CreateDCI] creates an initiator, which connects to the target of each
//     work request by itself: see [uverbs.SendBuilder.ToDCT]. [CreateDCT] creates a target. It
//     accepts requests of all initiators that know its access key, and takes receives from its SRQ.
//     [ReadyDC] makes either ready.
//   - A [FrameQueue] receives Ethernet frames without a copy and many to a work request, as DPDK's
//     multi-packet receive queues do.
//   - [DEVXCommand], [DEVXQuery] and [DEVXModify] pass commands to the firmware.
//     [SetUDPSourcePort], [SetLAGPort], [QueryLAG], [QueryLAGPort] and [ResetStream] are such
//     commands. They need a device that was opened with [uverbs.OpenOptions].DEVX.
//   - [ClockTime] converts time stamps, and [DataDirectPath] tells which GPUs are close to an
//     adapter.
//
// Verbs that any driver may have are in package uverbs, even where mlx5 alone has them today, and
// so are the options and work requests of such verbs.
package mlx5

import (
	"fmt"

	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// core are the functions that package uverbs lends.
var core = hook.Uverbs.(*hook.Functions[uverbs.Device, uverbs.PD, uverbs.QP, uverbs.QPOptions, uverbs.WQ, uverbs.WQOptions])

// DataDirectPath returns the directory in /sys of the PCI function by which the adapter accesses
// the memory of [uverbs.MROptions].DataDirect (mlx5dv_get_data_direct_sysfs_path). Its place in the
// tree of PCI devices tells which GPUs are close to it. The error is a [uverbs.FeatureError] if the
// adapter has no such function, the driver does not support it, or the kernel is older than Linux
// 6.12.
func DataDirectPath(d *uverbs.Device) (string, error) {
	o, err := core.Device(d)
	if err != nil {
		return "", err
	}
	defer o.Release()
	if o.Part == nil {
		return "", noFeature(o, "GET_DATA_DIRECT_SYSFS_PATH")
	}
	return core.DataDirectPath(d)
}

// noFeature is the error of a driver without a feature.
func noFeature(o *hook.Object, name string) error {
	return &uverbs.FeatureError{Feature: name, Driver: o.Driver}
}

// argErr returns an ArgError of this package.
func argErr(op, field string, given any, allowed string, args ...any) error {
	return &uverbs.ArgError{Package: "mlx5", Op: op, Field: field, Given: fmt.Sprint(given), Allowed: fmt.Sprintf(allowed, args...)}
}
