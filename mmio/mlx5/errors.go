package mlx5

import "errors"

// Errors of the queues. They are variables, and returned as they are by the methods that
// run for every work request, so that these allocate nothing.
var (
	// ErrCorrupt means that the device wrote something that a working one does not, such as
	// a completion of an entry that was not posted.
	ErrCorrupt = errors.New("mlx5: the device wrote what it can't mean")

	// ErrTooManySGEs means that a work request got more scatter/gather entries than the
	// queue was made for.
	ErrTooManySGEs = errors.New("mlx5: more scatter/gather entries than the queue takes")

	// ErrTooLong means that a scatter/gather entry, or all of them together, or the range
	// that a window is bound to, exceed 2 GiB.
	ErrTooLong = errors.New("mlx5: longer than 2 GiB")

	// ErrInlineTooLong means more inline data in a work request than the queue was made for.
	ErrInlineTooLong = errors.New("mlx5: more inline data than the queue takes")

	// ErrMixedData means that a work request got both inline data and scatter/gather entries.
	ErrMixedData = errors.New("mlx5: inline data and scatter/gather entries in one work request")

	// ErrSize means a queue that the device can't have.
	ErrSize = errors.New("mlx5: the device has no queue of this size")

	// ErrLayout means an adapter whose registers or completions the package does not know.
	ErrLayout = errors.New("mlx5: unknown layout")
)
