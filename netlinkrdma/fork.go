package netlinkrdma

// CopyOnFork reports whether fork copies memory that a device uses at once, so
// that the parent keeps the pages that the device knows. If not, registered
// memory needs MADV_DONTFORK in a process that forks. Kernels before Linux 5.12
// do not do it (RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK).
func CopyOnFork() (bool, error) { return system.copyOnFork() }

func (c *client) copyOnFork() (bool, error) {
	set, err := c.settings()
	return set.CopyOnFork, err
}
