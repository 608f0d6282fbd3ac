package netlinkrdma

// CopyOnFork reports whether fork immediately copies memory that a device uses, so that the parent
// keeps the pages that the device accesses (RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK). If it does not, a
// process that forks must set MADV_DONTFORK on registered memory. Linux 5.12 and later copy.
func CopyOnFork() (bool, error) { return system.copyOnFork() }

func (c *client) copyOnFork() (bool, error) {
	set, err := c.settings()
	return set.CopyOnFork, err
}
