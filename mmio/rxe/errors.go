package rxe

import "errors"

// Errors of the rings. They are variables, and returned as they are by the
// methods that run for every work request, so that these allocate nothing.
var (
	// ErrCorrupt means that the kernel's half of a ring has a value that a working driver does
	// not write. The ring and its object cannot be used any more.
	ErrCorrupt = errors.New("rxe: the shared ring is corrupt")

	// ErrTooManySGE means that a work request has more scatter/gather entries than the queue
	// was created for (see MaxSGE).
	ErrTooManySGE = errors.New("rxe: more scatter/gather entries than the queue takes")

	// ErrTooLong means that the lengths of the scatter/gather entries add up to 4 GiB or more,
	// more than the 32-bit length of a work request can hold.
	ErrTooLong = errors.New("rxe: scatter/gather entries add up to 4 GiB or more")

	// ErrInlineTooLong means that a work request has more inline data than the queue was
	// created for (see MaxInline).
	ErrInlineTooLong = errors.New("rxe: more inline data than the queue takes")

	// ErrMixedData means that a work request has both inline data and scatter/gather entries,
	// which share the same space.
	ErrMixedData = errors.New("rxe: inline data and scatter/gather entries in one work request")
)
