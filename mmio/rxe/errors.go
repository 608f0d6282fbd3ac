package rxe

import "errors"

// Errors of the rings. They are variables, and returned as they are by the
// methods that run for every work request, so that these allocate nothing.
var (
	// ErrCorrupt means that the kernel's half of a ring has a value that a
	// working driver does not write. The ring, and the object that it belongs
	// to, can't be used any more.
	ErrCorrupt = errors.New("rxe: the shared ring is corrupt")

	// ErrTooManySGEs means that a work request got more scatter/gather entries
	// than the queue was made for (see MaxSGE).
	ErrTooManySGEs = errors.New("rxe: more scatter/gather entries than the queue takes")

	// ErrTooLong means that the lengths of the scatter/gather entries add up to
	// 4 GiB or more, which the 32-bit length of a work request can't hold.
	ErrTooLong = errors.New("rxe: scatter/gather entries add up to 4 GiB or more")

	// ErrInlineTooLong means that there is more inline data in a work request
	// than the queue was made for (see MaxInline).
	ErrInlineTooLong = errors.New("rxe: more inline data than the queue takes")

	// ErrMixedData means that a work request got both inline data and
	// scatter/gather entries, which share one place.
	ErrMixedData = errors.New("rxe: inline data and scatter/gather entries in one work request")
)
