package uverbs

import "time"

// ReadClock returns the current value of the device's clock in cycles of [DeviceAttr].CoreClockKHz
// (ibv_query_rt_values_ex). [WC].Timestamp is a value of the same clock. ReadClock reads a register
// of the device, which takes about a microsecond. The error is a [FeatureError] if the driver has
// no such clock.
func (d *Device) ReadClock() (uint64, error) {
	if err := d.usable(); err != nil {
		return 0, err
	}
	if d.mlx5 == nil {
		return 0, noFeature(d, "QUERY_RT_VALUES")
	}
	return d.mlx5.readClock()
}

// ClockTime converts a value that the device's clock had within the last seconds to the time of day
// (mlx5dv_ts_to_ns). It uses a page that the kernel keeps up to date, and calls neither the kernel
// nor the device. The error is a [FeatureError] if the driver does not support it.
func (d *Device) ClockTime(stamp uint64) (time.Time, error) {
	if err := d.usable(); err != nil {
		return time.Time{}, err
	}
	if d.mlx5 == nil {
		return time.Time{}, noFeature(d, "time of a time stamp")
	}
	return d.mlx5.clockTime(stamp)
}
