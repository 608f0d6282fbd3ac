package uverbs

// allocTD gives the thread domain a register that only its QPs use, so that they need no lock for
// it.
func (mlx5Driver) allocTD(t *TD) error {
	reg, err := t.dev.mlx5.uars.own()
	if err != nil {
		return err
	}
	t.mlx5 = reg
	return nil
}

func (mlx5Driver) freeTD(t *TD) error {
	t.dev.mlx5.uars.give(t.mlx5)
	return nil
}
