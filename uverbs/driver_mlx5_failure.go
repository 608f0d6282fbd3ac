package uverbs

func (mlx5Driver) memlockForAll() string { return "" }
