package uverbs

import (
	"errors"
	"fmt"
	"os"

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

// mapReadOnly maps one page of the device's file for reading.
func (d *Device) mapReadOnly(offset uint64) (*mmio.Region, error) {
	r, err := d.cmd.MapReadOnly(offset, os.Getpagesize())
	if err != nil {
		return nil, fmt.Errorf("uverbs: %s: map the clock: %w", d.Name(), err)
	}
	return r, nil
}
