package uverbs

func (rxeDriver) memlockForAll() string { return "" }
