package mlx5

import "errors"

// Errors of the queues. They are variables, and returned as they are by the methods that
// run for every work request, so that these allocate nothing.
var (
	// ErrCorrupt means that the device wrote something that a working device does not write,
	// such as a completion of an entry that was not posted.
	ErrCorrupt = errors.New("mlx5: the device wrote an invalid value")

	// ErrTooManySGE means that a work request has more scatter/gather entries than the queue
	// was created for.
	ErrTooManySGE = errors.New("mlx5: more scatter/gather entries than the queue takes")

	// ErrTooLong means that a scatter/gather entry, the sum of all entries, or the range that a
	// window is bound to is longer than 2 GiB.
	ErrTooLong = errors.New("mlx5: longer than 2 GiB")

	// ErrInlineTooLong means that a work request has more inline data than the queue was
	// created for.
	ErrInlineTooLong = errors.New("mlx5: more inline data than the queue takes")

	// ErrMixedData means that a work request has both inline data and scatter/gather entries.
	ErrMixedData = errors.New("mlx5: inline data and scatter/gather entries in one work request")

	// ErrSize means that the device does not support the size of a queue.
	ErrSize = errors.New("mlx5: the device has no queue of this size")

	// ErrLayout means that the package does not know the layout of the adapter's registers or
	// completions.
	ErrLayout = errors.New("mlx5: unknown layout")
)
