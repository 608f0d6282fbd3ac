//go:build !linux

package memory

// accessible is populate.
//
// Preconditions: those of populate.
func accessible(first, length uint64, write bool) bool { return populate(first, length, write) }

// populate reports whether all pages can be read. It does not find out whether they are writable.
//
// Preconditions: first and length are multiples of the page size.
func populate(first, length uint64, write bool) bool { return touch(first, length) == OK }

// writeBack returns MemoryGone if a page cannot be read. There is no persistent memory.
//
// Preconditions: those of populate.
func writeBack(first, length uint64) Fault { return touch(first, length) }
