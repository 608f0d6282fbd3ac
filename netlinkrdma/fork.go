package netlinkrdma

import "github.com/goverbs/goverbs/netlinkrdma/internal/abi"

// CopyOnFork reports whether fork copies memory that a device uses at once, so
// that the parent keeps the pages that the device knows. If not, registered
// memory needs MADV_DONTFORK in a process that forks. Kernels before Linux 5.12
// do not do it (RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK).
func CopyOnFork() (bool, error) { return system.copyOnFork() }

func (c *client) copyOnFork() (bool, error) {
	cof, err := c.netlinkCopyOnFork()
	if err != nil {
		return false, explain(&Error{Op: "ask for copy-on-fork", Err: err})
	}
	return cof, nil
}

func (c *client) netlinkCopyOnFork() (bool, error) {
	s, err := c.open()
	if err != nil {
		return false, err
	}
	defer s.close()
	b, err := s.get(abi.RDMA_NLDEV_CMD_SYS_GET)
	if err != nil {
		return false, err
	}
	m := parse(b)
	// Kernels without it do not say so.
	return m.u8(abi.RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK) != 0, m.err
}
