package testenv

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// PTY opens a terminal, and the file of a program in it with flags such as [os.O_RDWR]. They are closed at the end of the
// test.
func PTY(t *testing.T, flags int) (terminal, program *os.File) {
	t.Helper()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	Must(t, err)
	t.Cleanup(func() { terminal.Close() })
	Must(t, unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	Must(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), flags|unix.O_NOCTTY, 0)
	Must(t, err)
	t.Cleanup(func() { program.Close() })
	return terminal, program
}
