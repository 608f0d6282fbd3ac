package fault

import (
	"fmt"
	"strings"
)

// named is a value with its name in the text form.
type named[T ~uint8 | ~uint32 | ~uint64] struct {
	value T
	name  string
}

// nameOf returns the name of a value, or the name of its kind with the number of the value.
func nameOf[T ~uint8 | ~uint32 | ~uint64](all []named[T], v T, kind string) string {
	for _, n := range all {
		if n.value == v {
			return n.name
		}
	}
	return fmt.Sprintf("%s(%d)", kind, uint64(v))
}

// valueOf is the inverse of nameOf.
func valueOf[T ~uint8 | ~uint32 | ~uint64](all []named[T], name string) (v T, ok bool) {
	for _, n := range all {
		if n.name == name {
			return n.value, true
		}
	}
	return v, false
}

// listOf returns all names, separated by commas.
func listOf[T ~uint8 | ~uint32 | ~uint64](all []named[T]) string {
	var names []string
	for _, n := range all {
		names = append(names, n.name)
	}
	return strings.Join(names, ", ")
}

// String returns the names of the classes, separated by "|".
func (c Class) String() string {
	var names []string
	for _, n := range classes {
		if c&n.value != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, "|")
}
