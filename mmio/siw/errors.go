package siw

import "errors"

// Errors of the rings. They are variables, and returned as they are by the methods that run for
// every work request, so that these allocate nothing.
var (
	// ErrMapping means that the mapped memory does not match what the kernel has reported.
	ErrMapping = errors.New("siw: the mapped ring does not match the kernel's report")

	// ErrTooManySGE means that a work request has more scatter/gather entries than the queue
	// was created for (see MaxSGE), or than its operation allows: a READ has one.
	ErrTooManySGE = errors.New("siw: more scatter/gather entries than the queue or the operation takes")

	// ErrTooLong means that the lengths of the scatter/gather entries add up to 4 GiB or more.
	ErrTooLong = errors.New("siw: scatter/gather entries add up to 4 GiB or more")

	// ErrInlineTooLong means that a work request has more than MaxInline bytes of inline data.
	ErrInlineTooLong = errors.New("siw: more inline data than an element takes")

	// ErrMixedData means that a work request has both inline data and scatter/gather entries,
	// which share the same space.
	ErrMixedData = errors.New("siw: inline data and scatter/gather entries in one work request")

	// ErrInlineOp means that an operation other than Send and Write has inline data. The kernel
	// would stop at such an element forever.
	ErrInlineOp = errors.New("siw: inline data for an operation that takes none")
)
