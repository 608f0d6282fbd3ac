package uverbs

func (siwDriver) memlockForAll() string { return "siw of Linux 6.1" }
