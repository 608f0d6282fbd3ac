package uverbs

// failureDriver is what a driver knows of a failure; it is part of [driver].
type failureDriver interface {
	// memlockForAll names the kernel that counts RLIMIT_MEMLOCK for a process with CAP_IPC_LOCK as
	// well, or returns "".
	memlockForAll() string
}
