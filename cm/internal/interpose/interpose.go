// Package interpose lets tests see and refuse the commands of the connection manager.
package interpose

import (
	"sync/atomic"
	"syscall"
)

// Commander carries out the commands of a channel.
type Commander interface {
	// Do carries out a command. Its request is in, and its answer is stored in out.
	Do(cmd uint32, in, out []byte) syscall.Errno

	// Close destroys the IDs of the channel.
	Close()
}

// Wrap, if it is set, returns the commander of each channel that is opened. It gets the channel's file
// descriptor and its commander, which is nil if the kernel carries out the commands.
var Wrap atomic.Pointer[func(fd int, c Commander) Commander]
