package mlx5

import (
	"errors"
	"fmt"
	"os"
	"time"

	layout "github.com/goverbs/goverbs/mmio/mlx5"
	"github.com/goverbs/goverbs/uverbs"
	"github.com/goverbs/goverbs/uverbs/internal/hook"
)

// ClockTime converts a value that the device's clock had within the last seconds, such as
// [uverbs.WC].Timestamp, to the time of day (mlx5dv_get_clock_info, mlx5dv_ts_to_ns). It uses a page
// that the kernel keeps up to date, and calls neither the kernel nor the device. The error is a
// [uverbs.FeatureError] if the driver does not support it.
func ClockTime(d *uverbs.Device, stamp uint64) (time.Time, error) {
	p, err := core.Part(d)
	if err != nil {
		return time.Time{}, err
	}
	if p == nil || !p.ClockThere {
		return time.Time{}, &uverbs.FeatureError{Feature: "time of a time stamp", Driver: d.Info().Driver}
	}
	p.ClockMu.Lock()
	defer p.ClockMu.Unlock()
	if p.Clock == nil {
		if err := mapClock(d, p); err != nil {
			return time.Time{}, err
		}
	}
	ns, ok := p.Clock.Nanoseconds(stamp)
	if !ok {
		return time.Time{}, fmt.Errorf("mlx5: %s: the kernel's clock page is invalid", d.Name())
	}
	return time.Unix(0, int64(ns)), nil
}

// mapClock maps the page. The caller holds p.ClockMu.
func mapClock(d *uverbs.Device, p *hook.Part) error {
	o, err := core.Device(d)
	if err != nil {
		return err
	}
	defer o.Release()
	size := os.Getpagesize()
	page, err := o.Conn.MapReadOnly(layout.ClockInfoMap(size), size)
	if err != nil {
		return fmt.Errorf("mlx5: %s: map the clock: %w", d.Name(), err)
	}
	if p.Clock, err = layout.NewClockInfo(page.Bytes()); err != nil {
		return errors.Join(err, page.Close())
	}
	p.Page = page
	return nil
}
