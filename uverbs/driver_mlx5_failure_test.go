package uverbs

import (
	"syscall"
	"testing"
)

// TestRefusalOfOthers: the error of a driver without firmware has no text from the kernel's log.
func TestRefusalOfOthers(t *testing.T) {
	c := newCommands(nil, pathAuto, "rxe0", rxeDriver{})
	if err := c.fail("CREATE_QP", syscall.ENOMEM, ""); err.Error() != "uverbs: rxe0: CREATE_QP: cannot allocate memory" {
		t.Error(err)
	}
}
