package proc

// Process is what /proc knows of a process.
type Process struct {
	PID       uint32
	Name      string // Name is the name of the first thread.
	Container string // Container is the ID of its container, or "".
}

// Cache finds the processes of threads, and reads each of them once. Use it for one reading of all objects: the
// kernel gives the number of a thread that has ended to another one.
type Cache struct {
	FS
	threads   map[uint32]*Process // nil for a thread that has ended
	processes map[uint32]*Process
	netns     map[uint32]string
}

// NewCache returns an empty cache.
func NewCache(p FS) *Cache {
	return &Cache{p, map[uint32]*Process{}, map[uint32]*Process{}, map[uint32]string{}}
}

// Of returns the process of a thread. It returns false if the thread has ended.
func (c *Cache) Of(tid uint32) (Process, bool) {
	p, known := c.threads[tid]
	if !known {
		if pid, _, err := c.Thread(tid); err == nil {
			if p = c.processes[pid]; p == nil {
				p = &Process{pid, c.Name(pid), c.Container(pid)}
				c.processes[pid] = p
			}
		}
		c.threads[tid] = p
	}
	if p == nil {
		return Process{}, false
	}
	return *p, true
}

// Netns is [FS.Netns].
func (c *Cache) Netns(pid uint32) string {
	name, known := c.netns[pid]
	if !known {
		name = c.FS.Netns(pid)
		c.netns[pid] = name
	}
	return name
}
