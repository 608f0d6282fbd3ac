package uverbs

// NullLKey returns the lkey of memory that is none: what is written there is dropped, and it
// reads as zeros. It lets a receive skip a part of a message (ibv_alloc_null_mr). The error
// is a [FeatureError] if the driver or the device has no such memory.
func (d *Device) NullLKey() (uint32, error) {
	if err := d.usable(); err != nil {
		return 0, err
	}
	if key, ok := d.driver.nullKey(d); ok {
		return key, nil
	}
	return 0, &FeatureError{Feature: "ALLOC_NULL_MR", Driver: d.driver.name()}
}
