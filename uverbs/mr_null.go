package uverbs

// NullLKey returns the lkey of the null MR, which discards writes and reads as zeros
// (ibv_alloc_null_mr). A receive can use it to skip part of a message. The error is a
// [FeatureError] if the driver or the device does not support it.
func (d *Device) NullLKey() (uint32, error) {
	if err := d.usable(); err != nil {
		return 0, err
	}
	if d.mlx5 == nil || d.mlx5.NullKey == 0 {
		return 0, noFeature(d, "ALLOC_NULL_MR")
	}
	return d.mlx5.NullKey, nil
}
