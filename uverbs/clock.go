package uverbs

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/goverbs/goverbs/mmio"
	"github.com/goverbs/goverbs/mmio/mlx5"
)

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
// (mlx5dv_get_clock_info, mlx5dv_ts_to_ns). It uses a page that the kernel keeps up to date, and calls
// neither the kernel nor the device. The error is a [FeatureError] if the driver does not support it.
func (d *Device) ClockTime(stamp uint64) (time.Time, error) {
	if err := d.usable(); err != nil {
		return time.Time{}, err
	}
	if d.mlx5 == nil {
		return time.Time{}, noFeature(d, "time of a time stamp")
	}
	return d.mlx5.clockTime(stamp)
}

func (m *mlx5Context) readClock() (uint64, error) {
	c := &m.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clock == nil {
		if !m.ClockThere {
			return 0, &FeatureError{Feature: "QUERY_RT_VALUES", Driver: "mlx5"}
		}
		page, err := m.dev.mapReadOnly(mlx5.ClockMap(os.Getpagesize()))
		if err != nil {
			return 0, err
		}
		if c.clock, err = mlx5.NewClock(page.Bytes(), m.ClockOffset); err != nil {
			return 0, errors.Join(err, page.Close())
		}
		c.page = page
	}
	return c.clock.Read(), nil
}

func (m *mlx5Context) clockTime(stamp uint64) (time.Time, error) {
	c := &m.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.info == nil {
		if !m.ClockInfo {
			return time.Time{}, &FeatureError{Feature: "time of a time stamp", Driver: "mlx5"}
		}
		page, err := m.dev.mapReadOnly(mlx5.ClockInfoMap(os.Getpagesize()))
		if err != nil {
			return time.Time{}, err
		}
		if c.info, err = mlx5.NewClockInfo(page.Bytes()); err != nil {
			return time.Time{}, errors.Join(err, page.Close())
		}
		c.more = page
	}
	ns, ok := c.info.Nanoseconds(stamp)
	if !ok {
		return time.Time{}, fmt.Errorf("uverbs: %s: the kernel's clock page is invalid", m.dev.Name())
	}
	return time.Unix(0, int64(ns)), nil
}

// mapReadOnly maps one page of the device's file for reading.
func (d *Device) mapReadOnly(offset uint64) (*mmio.Region, error) {
	r, err := d.cmd.MapReadOnly(offset, os.Getpagesize())
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map the clock: %w", d.Name(), err)
	}
	return r, nil
}
