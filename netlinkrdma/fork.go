package netlinkrdma

// CopyOnFork reports whether fork copies memory that a device uses at once, so that the parent
// keeps the pages that the device knows. Otherwise a process that forks must set MADV_DONTFORK on
// registered memory. Linux 5.12 and later copy (RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK).
func CopyOnFork() (bool, error) { return system.copyOnFork() }

func (c *client) copyOnFork() (bool, error) {
	set, err := c.settings()
	return set.CopyOnFork, err
}
