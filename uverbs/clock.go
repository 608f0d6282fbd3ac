package uverbs

import "time"

// ReadClock returns the device's clock, in cycles of [DeviceAttr].CoreClockKHz; it is what
// [WC].Timestamp is read from (ibv_query_rt_values_ex). It asks the device, which takes a
// microsecond or so. The error is a [FeatureError] if the driver has no such clock.
func (d *Device) ReadClock() (uint64, error) {
	if err := d.usable(); err != nil {
		return 0, err
	}
	return d.driver.readClock(d)
}

// ClockTime returns the time of day of a time stamp that the device's clock has shown within
// the last seconds (mlx5dv_ts_to_ns). The kernel holds the two together, so it asks neither
// the kernel nor the device. The error is a [FeatureError] if the driver cannot tell.
func (d *Device) ClockTime(stamp uint64) (time.Time, error) {
	if err := d.usable(); err != nil {
		return time.Time{}, err
	}
	return d.driver.clockTime(d, stamp)
}
