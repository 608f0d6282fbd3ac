package efa

import "errors"

// Errors of the queues. They are variables, and returned as they are by the methods that run for
// every work request, so that these allocate nothing.
var (
	// ErrMapping means that mapped memory does not match what the kernel has reported.
	ErrMapping = errors.New("efa: the mapped memory does not match the kernel's report")

	// ErrSize means that the device does not support the size of a queue.
	ErrSize = errors.New("efa: the device has no queue of this size")

	// ErrTooManySGE means that a work request has more scatter/gather entries than the queue was
	// created for, or than its operation allows: READ and WRITE have one.
	ErrTooManySGE = errors.New("efa: more scatter/gather entries than the queue or the operation takes")

	// ErrNoSGE means that a receive has no scatter/gather entry. The device finds a receive by its
	// entries, so there must be one, even for a message without data.
	ErrNoSGE = errors.New("efa: a receive needs at least one scatter/gather entry")

	// ErrTooLong means that the lengths of the scatter/gather entries add up to 4 GiB or more.
	ErrTooLong = errors.New("efa: scatter/gather entries add up to 4 GiB or more")

	// ErrKey means that the lkey of a scatter/gather entry has more than 24 bits. No device of efa
	// returns such a key.
	ErrKey = errors.New("efa: lkey above 0xffffff, which no MR of this device has")

	// ErrInlineTooLong means that a work request has more inline data than the queue was created for.
	ErrInlineTooLong = errors.New("efa: more inline data than the queue takes")

	// ErrInlineOp means that the operation takes no inline data: READ never does, and WRITE only in a
	// queue that was created for inline writes.
	ErrInlineOp = errors.New("efa: inline data for an operation that takes none in this queue")

	// ErrMixedData means that a work request has both inline data and scatter/gather entries.
	ErrMixedData = errors.New("efa: inline data and scatter/gather entries in one work request")
)
